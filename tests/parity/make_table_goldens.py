"""Rows of the Parquet and Arrow test files as pyarrow reads them, for tests/data/sources_test.cpp.

make_table_goldens.py DATA OUT    DATA: the folder parquet-arrow of the test data. Needs pyarrow 26.0.1.
Columns of dates, times, decimals and intervals are left out: how they are written is our own choice.
"""

import base64
import glob
import json
import os
import sys

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq


def value(v, kind):
    if v is None:
        return None
    if isinstance(v, bytes):
        try:
            return v.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(v).decode()
    if pa.types.is_map(kind):
        pairs = [(value(k, kind.key_type), value(x, kind.item_type)) for k, x in v]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [list(p) for p in pairs]
    if isinstance(v, list):
        return [value(x, kind.value_type) for x in v]
    if isinstance(v, dict):
        return {f.name: value(v[f.name], f.type) for f in kind}
    return v


def plain(kind):
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    return not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_interval(kind))


def rows(table):
    table = table.select([f.name for f in table.schema if plain(f.type)])
    types = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema}
    count = table.num_rows
    wanted = sorted({i for i in (0, 1, 5, count - 1) if 0 <= i < count})
    out = []
    for i in wanted:
        row = table.slice(i, 1).to_pylist()[0]
        out.append([i, {k: value(v, types[k]) for k, v in row.items()}])
    return {"rows": count, "some": out}


data, target = sys.argv[1:]
goldens = {}
for path in sorted(glob.glob(data + "/**/*.parquet", recursive=True)):
    goldens[os.path.relpath(path, data)] = rows(pq.read_table(path))
for path in sorted(glob.glob(data + "/arrow/*.stream")):
    table = ipc.open_stream(path).read_all()
    goldens[os.path.relpath(path, data)] = rows(table)
    goldens[os.path.relpath(path, data).replace(".stream", ".arrow_file")] = rows(table)
with open(target, "w") as out:
    json.dump(goldens, out, ensure_ascii=False)
    out.write("\n")
print(f"{len(goldens)} files")
