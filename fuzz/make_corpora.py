#!/usr/bin/env python3
"""Small real inputs for the fuzzers of text and data, one folder each: make_corpora.py DATA OUT, where DATA is the test data.

Then, for each of them, after scripts/build fuzz:
  build-fuzz/fuzz/fuzz_NAME OUT/NAME -max_total_time=600 -timeout=20 -rss_limit_mb=3072
"""
import base64
import hashlib
import json
import pathlib
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
for folder in sorted(OUT.iterdir()):
    print(folder.name, len(list(folder.iterdir())))
