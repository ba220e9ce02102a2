"""Small tables of types that are rare, and what pyarrow reads in them, for tests/data/odd_tables_test.cpp.

make_odd_tables.py OUT    Needs pyarrow 26.0.1.
"""

import base64
import io
import json
import sys

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq


def stream(table):
    out = io.BytesIO()
    with ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out, compression="none", store_schema=False)
    return out.getvalue()


def entry(ext, data, **more):
    return {"ext": ext, "bytes": base64.b64encode(data).decode(), **more}


def read(array):
    return entry("arrow", stream(pa.table({"c": array})), values=array.to_pylist())


text = pa.array(["a", None, "b", "c"])
numbers = pa.array([1, 2, 3, None])
ids = pa.array([0, 1, 1, 0], pa.int8())
runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 7], pa.int32()), pa.array(["x", None, "y"]))
bad = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff!")])
cases = {
    "run_end_encoded": read(runs),
    "run_end_encoded_slice": read(runs.slice(1, 4)),
    "sparse_union": read(pa.UnionArray.from_sparse(ids, [text, numbers])),
    "dense_union": read(pa.UnionArray.from_dense(ids, pa.array([0, 0, 1, 2], pa.int32()), [text, numbers])),
    "union_slice": read(pa.UnionArray.from_sparse(ids, [text, numbers]).slice(1, 2)),
    "float16": read(pa.array([1.5, None, -65504.0, 0.0999755859375], pa.float16())),
    "list_view": read(pa.array([[1, 2], None, []], pa.list_view(pa.int64()))),
    "float16_parquet": entry("parquet", parquet(pa.table({"c": pa.array([1.5, None], pa.float16())})), values=[1.5, None]),
    "bad_text": entry("parquet", parquet(pa.table({"n": [1, 2], "c": bad}))),
    "two_of_a_name": entry("parquet", parquet(pa.table([pa.array([1]), pa.array([2])], names=["c", "c"]))),
    "two_of_a_name_arrow": entry("arrow", stream(pa.table([pa.array([1]), pa.array([2])], names=["c", "c"]))),
    "interval": entry("arrow", stream(pa.table({"c": pa.array([pa.MonthDayNano([1, 2, 3])])}))),
    "duration": entry("arrow", stream(pa.table({"c": pa.array([5], pa.duration("s"))}))),
    "duration_in_list": entry("arrow", stream(pa.table({"c": pa.array([[5]], pa.list_(pa.duration("s")))}))),
}
# Calls and tools as a table holds them, and the rows of which it was made.
call = lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}}
chat = lambda *calls: [
    {"role": "user", "content": "w?"},
    {"role": "assistant", "content": "", "tool_calls": list(calls)},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "seven"},
]
rows = [
    {
        "messages": chat(call("weather", {"place": {"city": "Paris"}, "id": 9007199254740993})),
        "tools": [{"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "object"}}}}],
    },
    {
        "messages": chat(call("time", {}), call("weather", {"id": 0.5, "zones": ["CET", 1]})),
        "tools": [{"type": "function", "function": {"name": "time", "parameters": {}}}],
    },
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": None},
]


def spelled(row):
    row = json.loads(json.dumps(row))
    for message in row["messages"]:
        for called in message.get("tool_calls", []):
            called["function"]["arguments"] = json.dumps(called["function"]["arguments"])
    return row | {"tools": row["tools"] and json.dumps(row["tools"])}


cases["calls_and_tools"] = entry("arrow", stream(pa.Table.from_pylist([spelled(row) for row in rows])), rows=rows)
with open(sys.argv[1], "w") as out:
    out.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in cases.items()) + "\n}\n")
