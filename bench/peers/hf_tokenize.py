#!/usr/bin/env python3
"""Tokenizer speed of Hugging Face `tokenizers` on one thread: hf_tokenize.py TOKENIZER.json TEXTS.jsonl [--rounds 3]
[--ids FILE]. Prints {"mb_per_s", "bytes", "ids", "equal"} for the faster of its two ways (a call for each text, or one
for all) and the fastest round, in CPU time; `equal` says whether FILE holds its ids."""
import argparse
import json
import os
import pathlib
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ids")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = [json.loads(line) for line in pathlib.Path(args.texts).read_text().splitlines() if line]
    size = sum(len(text.encode()) for text in texts)
    all_at_once = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    ways = {"each": lambda: [tokenizer.encode(text, add_special_tokens=False) for text in texts],
            "batch": lambda: all_at_once(texts, add_special_tokens=False)}
    best, rows, used = 0.0, None, ""
    for _ in range(args.rounds):
        for name, way in ways.items():
            start = time.process_time()
            rows = way()
            rate = size / 1e6 / (time.process_time() - start)
            if rate > best:
                best, used = rate, name
    ids = numpy.array([i for row in rows for i in row.ids], dtype=numpy.int32)
    equal = args.ids is None or pathlib.Path(args.ids).read_bytes() == ids.tobytes()
    print(json.dumps({"mb_per_s": best, "way": used, "bytes": size, "ids": len(ids), "equal": equal}))


if __name__ == "__main__":
    main()
