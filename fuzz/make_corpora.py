#!/usr/bin/env python3
"""Small inputs for the fuzzers of text, data and the server, one folder each: make_corpora.py DATA OUT, where DATA is the test
data; those of the server are made here and need none of it.

Then, for each of them, after scripts/build fuzz:
  TMPDIR=/dev/shm build-fuzz/fuzz/fuzz_NAME OUT/NAME -max_total_time=600 -timeout=20 -rss_limit_mb=3072

What the server gets or keeps: number_lists and tinker_wire (bodies of requests), tinker_api (requests to its routes), http (bytes of a connection),
operations (what the log keeps of them), log (its file), replay (a start over it), credentials (tokens, keys, queries and times) and
server_config. These open files and sockets for each input; TMPDIR says where.
"""
import base64
import hashlib
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
TEXT = "Hello 12 wörld's <|im_end|>\n 你好 👩‍🚀".encode()


def seed(fuzzer, data):
    folder = OUT / fuzzer
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def fields(data):
    """The top-level fields of a protobuf message that are texts or messages: (number, the whole field)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        begin = at
        key = varint()
        assert key & 7 == 2, key
        size = varint()
        at += size
        yield key >> 3, data[begin:at]


def head(path, most=2000):
    """Whole lines from the beginning of a file."""
    data = path.read_bytes()[:most]
    return data[: data.rfind(b"\n") + 1] or data


for case in json.loads((ROOT / "tests/text/data/tokenizer_cases.json").read_text())["cases"]:
    seed("tokenizer_json", json.dumps(case["tokenizer"], ensure_ascii=False).encode() + b"\n" + TEXT)
for name in ("llama2/tokenizer.model", "internlm2/tokenizer.model", "mistral/tokenizer.model.v3"):
    all_fields = list(fields((DATA / "tokenizers" / name).read_bytes()))
    pieces = [field for number, field in all_fields if number == 1][:400]
    seed("sentencepiece", b"".join(pieces + [field for number, field in all_fields if number != 1]) + b"\0\0" + TEXT)
tokens = [bytes([b]) for b in range(256)] + [b"He", b"ll", b"Hell", b" w", b"\xc3\xb6"]
ranks = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
for encoding in range(5):
    seed("tiktoken", bytes([encoding]) + ranks + b"\0\0" + TEXT)

contexts = [path.read_bytes() for path in sorted((DATA / "chat-templates/contexts").glob("*.json"))]
for path in sorted((DATA / "chat-templates").glob("*.jinja")):
    seed("jinja", path.read_bytes())
    for context in contexts:
        seed("jinja", path.read_bytes() + b"\0" + context)
for case in json.loads((ROOT / "tests/text/jinja_cases.json").read_text()):
    seed("jinja", case["template"].encode() + b"\0" + json.dumps(case.get("context", {}), ensure_ascii=False).encode())
calls = ['<think>why</think>a<tool_call>\n{"name": "f", "arguments": {"x": [1, "}"]}}\n</tool_call>b',
         "<tool_call><function=f><parameter=x>\n1\n</parameter></function></tool_call>", "<read_file><path>a</path></read_file>",
         "<<<[TOOL_REQUEST]>>>\ntool_name:「始」f「末」,\nx:「始」1「末」\n<<<[END_TOOL_REQUEST]>>>", "Action: f[x]\nAction: f\nAction Input: {}",
         '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
         "</｜DSML｜tool_calls>", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a"}]', '{"name": "f", "parameters": {"x": 1}}']
for parser in range(7):
    for call in calls:
        seed("tool_calls", bytes([parser, 3]) + call.encode())

sets = DATA / "datasets"
seed("csv", b"\0" + head(sets / "stsb/dev.csv"))
seed("csv", b'\1a\t"b""c"\r\n"d\ne"\tf\r\n')
for path in ("gsm8k/train.jsonl", "tinker/conversations.jsonl", "ms-swift/sharegpt.jsonl", "ms-swift/conversations.jsonl"):
    seed("rows", b"\0" + head(sets / path))
    seed("filters", head(sets / path).split(b"\n")[0])
seed("rows", b"\1" + json.dumps(json.loads((sets / "identity.json").read_text())[:3]).encode())
seed("rows", b"\2" + head(sets / "tinyshakespeare/input.txt"))
seed("rows", b"\3" + head(sets / "stsb/dev.csv"))
for call in calls:
    seed("filters", json.dumps({"model_id": "qwen3-8b", "messages": [
        {"role": "developer", "content": "ann@example.com"}, {"role": "user", "content": "4111 1111 1111 1111?"},
        {"role": "assistant", "content": call}, {"role": "user", "content": "[f for 'x'] Result: 1"},
        {"role": "user", "content": "HEARTBEAT_OK"}]}).encode())
for path in sorted((DATA / "parquet-arrow").rglob("*")):
    if path.suffix in (".parquet", ".arrow_file", ".stream") and path.stat().st_size < 1 << 16:
        seed("tables", (b"\0" if path.suffix == ".parquet" else b"\1") + path.read_bytes())


# The server. A message of protobuf: fields as (number, value).
def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*pairs):
    out = b""
    for number, value in pairs:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def numbers(kind, *values):
    return struct.pack(f"<{len(values)}{kind}", *values)


def stored_zstd(data):
    """A frame that is not packed."""
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(data)) + struct.pack("<I", len(data) << 3 | 1)[:3] + data


def dumps(value):
    return json.dumps(value, ensure_ascii=False).encode()


KEY = b"tml-0123456789abcdef"
MODEL = "s:train:0"
POLICY = {"target_tokens": ([5, 6], "q"), "logprobs": ([-0.5, -1.5], "f"), "advantages": ([1.0, 0.0], "f")}
CALLS = [("cross_entropy", {"target_tokens": ([5, 6], "q"), "weights": ([1.0, 0.5], "f")}, {}),
         ("ppo", POLICY, {"clip_low_threshold": 0.8}), ("gspo", {**POLICY, "sequence_ratio_mask": ([1.0, 0.0], "f")}, {}),
         ("importance_sampling", POLICY, {}), ("dro", POLICY, {"beta": 0.1}), ("stable_reinforce", POLICY, {"kl_coeff": 0.01})]


def proto_call(loss, inputs, options, shape=(), sparse=()):
    def tensor(values, kind):
        data = numbers(kind, *values)
        body = [(2, message((1, data), (2, numbers("q", *sparse[0])), (3, numbers("q", *sparse[1]))))] if sparse else [(1, data)]
        return message(*body, (3, 2 if kind == "q" else 1), *[(4, n) for n in shape])

    entries = [(2, message((1, name), (2, tensor(*value)))) for name, value in inputs.items()]
    spans = [(n, message((kind, message((1, "x"), (2, at), (3, 1))))) for n in (3, 4) for at, kind in enumerate((1, 2))]
    datum = message((1, message((1, message((1, numbers("i", 3, 5)))))), *entries, *(spans if loss == "stable_reinforce" else []))
    return message((1, MODEL), (2, 1), (3, datum), (4, loss), *[(5, message((1, k), (2, v))) for k, v in options.items()])


def json_call(loss, inputs, options, key):
    tensors = {name: {"data": values, "dtype": "int64" if kind == "q" else "float32", "shape": [2]} for name, (values, kind) in inputs.items()}
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": [3, 5]}]}, "loss_fn_inputs": tensors}
    return {"model_id": MODEL, "seq_id": 1, key: {"data": [datum], "loss_fn": loss, "loss_fn_config": options}}


protos = [proto_call(*call) for call in CALLS]
table = {"target_tokens": ([5, 6, 7, 8], "q")}
protos += [proto_call("cross_entropy", table, {}, (2, 2)), proto_call("cross_entropy", table, {}, (2, 3), ([0, 2, 4], [0, 2, 1, 2]))]
jsons = [json_call(*call, key) for call in CALLS for key in ("forward_backward_input", "forward_input")]
sample = {"sampling_session_id": "s:sample:0", "seq_id": 1, "num_samples": 2, "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
          "sampling_params": {"max_tokens": 4, "seed": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["\n", "é"]}}
samples = [sample, {**sample, "sampling_params": {"stop": [1, 2]}, "prompt_logprobs": True, "prompt_logprobs_last_n": 1},
           {**sample, "topk_prompt_logprobs": 3, "topk_sample_logprobs": 2, "prompt_alt_tokens_k": 2},
           {**sample, "target_prompt_logprobs": {"data": [4, -1], "dtype": "int64", "shape": [2, 1]}},
           {**sample, "target_prompt_logprobs": {"data": [4], "dtype": "int64", "shape": [2, 3], "sparse_crow_indices": [0, 0, 1],
                                                 "sparse_col_indices": [2]}}]
adam = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 1.0}
for proto in protos:
    seed("tinker_wire", b"\0" + proto)
for call in jsons:
    seed("tinker_wire", b"\1" + dumps(call))
for call in samples:
    seed("tinker_wire", b"\2" + dumps(call))
seed("tinker_wire", b"\3" + dumps({"model_id": MODEL, "adam_params": adam}))
seed("tinker_wire", b"\4" + stored_zstd(dumps(sample)))
seed("tinker_wire", b"\4\x28\xb5\x2f\xfd\x00\x58\x23\x00\x00\x61")  # one byte, 4 times

# Long lists of numbers, and what is nearly one.
for item in ("7", "-0", "0.5", "1e300", "1E-5", "999999999999999999", "1234567890123456789012", "9007199254740993", "null", "[1]", "-", "1."):
    seed("number_lists", b"[" + b",".join([item.encode()] * 17) + b"]")
    seed("number_lists", b'{"a": [[' + b", ".join([b"1", item.encode(), b"2.5"] * 6) + b'], "x"], "[1": {}}')

# Routes by their number in fuzz_tinker_api.cpp; 1: protobuf, 2: zstd.
routes = [(0, jsons[0]), (0, jsons[2]), (1, jsons[1]), *[(2, call) for call in samples],
          (3, {"session_id": "s", "model_seq_id": 1, "base_model": "base", "lora_config": {"rank": 8, "seed": 1, "train_mlp": False},
               "user_metadata": {"a": [1]}}),
          (4, {"model_id": MODEL, "seq_id": 2, "adam_params": adam}),
          (5, {"tags": ["a"], "user_metadata": {"a": "b"}, "sdk_version": "0.1", "project_id": "p", "display_name": "d"}),
          (6, {"session_id": "s"}), (7, {"reason": {"type": "errored"}}), (8, {"model_id": MODEL}), (9, {}), (10, {}), (11, {}),
          (12, {"model_id": MODEL}), (13, {"model_id": MODEL, "path": "w", "overwrite": True, "ttl_seconds": 60, "user_metadata": {}}),
          (14, {"model_id": MODEL, "sampling_session_seq_id": 1}), (14, {"model_id": MODEL, "path": "x"}),
          (15, {"model_id": MODEL, "path": "y", "age_encryption_recipients": []}),
          (16, {"model_id": MODEL, "path": "tinker://s:train:0/weights/w", "optimizer": True}),
          (17, {"tinker_path": "tinker://s:train:0/weights/w"}),
          (18, {"session_id": "s", "sampling_session_seq_id": 1, "base_model": "base"}),
          (18, {"session_id": "s", "sampling_session_seq_id": 2, "model_path": "tinker://s:train:0/weights/w"}),
          (19, {"request_id": "s:train:0:r1"}),
          (20, {"target": {"type": "sampling_session", "sampling_session_id": "s:sample:0", "cloned_sampler_id": 0}, "prev_cursor": 0,
                "timeout": 0.5}),
          (21, {"request_id": "s:train:0:r1"}), (22, {"sampling_session_id": "s:sample:0"}),
          (23, {"session_id": "s", "custom_loss_seq_id": 1}), (24, {}),
          (25, {"limit": 1, "session_id": "s", "display_name": "a b", "project_ids": ["default"], "user_metadata": {"a": "b"},
                "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
                "owner": {"type": "user", "owner_urns": ["ann"]}, "cursor": {"last_session_id": "s"}}),
          (26, {"project_id": "p"}), (27, {"ttl_seconds": 60}), (28, {})]
for route, body in routes:
    seed("tinker_api", bytes([route, 0]) + dumps(body))
seed("tinker_api", bytes([5, 2]) + stored_zstd(b"{}"))
for proto in protos:
    seed("tinker_api", bytes([0, 5]) + proto)
for route in range(29, 40):
    seed("tinker_api", bytes([route, 0]) + b"limit=1&offset=0&day=2026-01-31&event_type=checkpoints")
seed("tinker_api", bytes([38, 0]) + b"starting_on=2026-01-31T00:00:00Z&ending_before=2026-02-01")

host = b"Host: localhost\r\nX-API-Key: " + KEY + b"\r\n"
connections = [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
               b"HEAD /twinkle/api/v1/sessions HTTP/1.1\r\n" + host + b"\r\n", b"GET /metrics HTTP/1.1\r\n" + host + b"\r\n",
               b"GET /api/v1/sessions?limit=1 HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n",
               b"GET /api/v1/download/eyJ.a.b/checkpoint.tar HTTP/1.1\r\nHost: localhost\r\n\r\n",
               b"POST /api/v1/create_session HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: http://[::1]\r\nAuthorization: Bearer " + KEY +
               b"\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
               b"POST /api/v1/asample HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nT: x\r\n\r\n",
               b"PUT /api/v1/telemetry HTTP/1.0\r\n" + host + b"Content-Length: 99999\r\n\r\n"]
for connection in connections:
    seed("http", b"\0" + connection)
    seed("http", b"\2" + connection)

floats = numbers("f", -0.5, float("nan"))
tops = message((1, numbers("i", 4, 5)), (2, floats))
layout = message((1, numbers("q", 2, 3)), (2, numbers("q", 0, 1, 2)), (3, numbers("q", 0, 2)))
stored = message((1, "ppo"), (2, message((1, "beta"), (2, 0.5))), (3, 1),
                 (4, message((1, numbers("i", 1, 2)), (2, numbers("i", 2, 3)), (3, message((1, "weights"), (2, floats))), (4, 1))))


def record(head, body=b""):
    text = dumps(head)
    return struct.pack("<I", len(text)) + text + body


operation = {"record": "operation", "id": 3, "request": "s:train:0:r3", "kind": "call", "owner": "ann", "target": MODEL, "seq": 1,
             "forward_only": False, "accepted": 1.5, "args": {}}
sampling = {"weights": "", "tenant": "ann", "num_samples": 1, "max_tokens": None, "seed": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
            "stop_strings": ["a"], "stop_tokens": [], "stop_at_end": True, "prompt_logprobs": False, "topk_prompt_logprobs": 0, "prompt_tokens": 2}
seed("operations", b"\0" + stored)
seed("operations", b"\1" + record(sampling, numbers("i", 1, 2) + message((1, layout), (2, numbers("i", 4, -1)))))
seed("operations", b"\2" + message((1, 0.5), (2, floats), (2, floats), (3, floats), (3, floats), (4, 1), (4, 2)))
seed("operations", b"\3" + message((1, message((1, 1), (2, numbers("i", 1, 2)), (3, floats), (4, tops), (4, b""))), (2, floats), (3, tops),
                                   (4, layout), (5, floats), (6, 1), (7, numbers("i", 1, 2)), (8, floats)))
seed("operations", b"\4" + record(operation, stored))
seed("operations", b"\4" + record({"record": "result", "request": "r1", "kind": "json"}, b"{}"))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


log, durable = b"TWKLLOG3", 8
for payload in (b"one", record(operation, stored), b""):
    fields = struct.pack("<QQQ", len(payload), len(log), durable)
    log += struct.pack("<II", 0x52574C47, crc32c(fields + payload)) + fields + payload
    durable = len(log)
seed("log", b"\1" + log)
seed("log", b"\1" + log[:-1])
seed("log", b"\0\x02one\x02two\xff" + b"x" * 256)
seed("log", b"\2\x0c\0\1\x02one\x02two")
seed("log", b"\x0a\x30\0\0\x02one\x02two\x04three")
seed("replay", b"\0" + bytes(range(40)))
for kinds in ((0, 1, 2, 3), (1, 1, 2, 4), (6, 3, 5, 7)):
    made = b"".join(bytes([0, 0, kind, 1 + i, i, 8 + i]) for i, kind in enumerate(kinds))
    seed("replay", b"\0" + made)
    seed("replay", b"\2" + made + bytes([6, 0, 14, 1, 7, 3, 2]))
heads = [operation, {"record": "result", "request": "s:train:0:r3", "kind": "json"}, {"record": "next", "id": 9},
         {"record": "snapshot", "model": MODEL, "folder": "snapshots/2", "closed": 1}, {**operation, "record": "done", "id": 4},
         {**operation, "id": 5, "kind": "sample", "target": "s:sample:0"}]
seed("replay", b"\1" + b"\xff".join(dumps(head) + b"\0{}" for head in heads))

for text in (b'{"sub": "ann", "x": [1, 2.5]}', b"{}"):
    seed("credentials", b"\0\x80\1" + text)
seed("credentials", b"\1" + KEY)
seed("credentials", b"\1eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJ1c2UiOiJhdXRoIiwiaWF0IjoxMDAwLCJleHAiOjEwNjF9."
     b"Rh-jICTs7MYTaEszln7Ro5YNaZC7w4FMAvHOxxXORpg")
seed("credentials", b"\2/a?x=1&n=12&name=%41+b%4")
for time in (b"2026-01-31", b"2026-01-31T23:59:59Z", b"2026-01-31 23:59:59.25+01:30"):
    seed("credentials", b"\3" + time)
seed("credentials", b"\4read,train,sample,admin")
seed("credentials", b"\5" + dumps({"id": "key-1", "name": "n", "owner": "o", "scopes": ["read"], "priority": 1, "created": 1.0,
                                   "limits": {"requests_per_second": 1.5, "bytes_in_flight": 0, "models": 1, "checkpoint_bytes": 0,
                                              "tokens_per_minute": 0}, "expires": None}))
shape = {"rank": 8, "seed": 1, "attention": True, "mlp": True, "unembedding": True}
for kind, entry in (("session", {"id": "s", "owner": "o", "info": {}, "created": 1.0, "ended": 2.0}),
                    ("model", {"id": "m", "session": "s", "owner": "o", "base_model": "b", "shape": shape, "user_metadata": None, "created": 1}),
                    ("sampler", {"id": "p", "session": "s", "owner": "o", "base_model": "b", "model_path": "", "folder": "samplers/1",
                                 "created": 1}),
                    ("checkpoint", {"run": "m", "kind": "weights", "name": "w", "owner": "o", "folder": "checkpoints/1", "base_model": "b",
                                    "shape": shape, "optimizer": True, "operation": 1, "created": 1, "expires": None}),
                    ("secret", {"bytes": "00"})):
    seed("credentials", b"\6" + kind.encode() + b"\n" + dumps(entry))
text = (ROOT / "tests/serve/server_config_test.cpp").read_text()
for part in text.split('R"yaml(')[1:]:
    seed("server_config", part.split(')yaml"')[0].encode())
seed("server_config", b"model_id: m\nmodel_name: [a, b]\nport: 1\nlimit: {models: 3, requests_per_second: 0.5}\njson: yes\ndtype: bf16\n")

for folder in sorted(OUT.iterdir()):
    print(folder.name, len(list(folder.iterdir())))
