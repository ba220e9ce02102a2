"""Hugging Face datasets and binpacking at what bench/data_bench.cpp does.

hf_data.py encode FILE TOKENIZER CHAT_TEMPLATE [processes] [repeats]        map + encode of {question, answer} rows
                                                                            (TOKENIZER: a tokenizer.json, or a .gguf, whose
                                                                            own template is used when CHAT_TEMPLATE is -)
hf_data.py pack [items] [max_length]                                        lengths into bins, in batches of 1000

Both print one JSON line. The conversation is rendered by apply_chat_template and encoded; labels come from a second
rendering of the prompt, as upstream does for each assistant turn.
"""

import json
import os
import sys
import time


def encode(path, tokenizer_file, template_file, processes=2, repeats=3):
    import datasets
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    datasets.disable_caching()
    if tokenizer_file.endswith(".gguf"):
        folder, name = os.path.split(tokenizer_file)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    template = None if template_file == "-" else open(template_file).read()

    def convert(rows):
        messages = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}]
                    for q, a in zip(rows["question"], rows["answer"])]
        return {"messages": messages}

    def to_features(rows):
        out = {"input_ids": [], "labels": []}
        for messages in rows["messages"]:
            whole = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
            prompt = tokenizer.apply_chat_template(messages[:1], chat_template=template, tokenize=False,
                                                   add_generation_prompt=True)
            ids = tokenizer.encode(whole, add_special_tokens=False)
            start = len(tokenizer.encode(prompt, add_special_tokens=False))
            labels = [-100] * start + ids[start:]
            out["input_ids"].append(ids)
            out["labels"].append(labels[1:] + [-100])
        return out

    best = 1e9
    for _ in range(int(repeats)):
        start = time.perf_counter()
        data = datasets.load_dataset("json", data_files=path, split="train", download_mode="force_redownload")
        data = data.map(convert, batched=True, num_proc=int(processes))
        data = data.map(to_features, batched=True, num_proc=int(processes))
        best = min(best, time.perf_counter() - start)
    tokens = sum(len(row) for row in data["input_ids"])
    trained = sum(sum(label != -100 for label in row) for row in data["labels"])
    print(json.dumps({"what": "encode", "rows": len(data), "tokens": tokens, "trained": trained, "seconds": round(best, 4),
                      "rows_per_s": round(len(data) / best)}))


def pack(items=1_000_000, most=4096):
    import binpacking

    items, most = int(items), int(most)
    state, lengths = 12345, []
    for _ in range(items):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        u = (state >> 40) / float(1 << 24)
        lengths.append(1 + int(u * u * u * float(most - 1)))
    start = time.perf_counter()
    bins, rest = [], []
    for at in range(0, items, 1000):
        batch = rest + [(i, lengths[i]) for i in range(at, min(items, at + 1000))]
        packed = binpacking.to_constant_volume(batch, most, weight_pos=1)
        rest = []
        if at + 1000 < items and packed:
            packed, rest = packed[:-1], packed[-1]
        bins += packed
    seconds = time.perf_counter() - start
    fill = sum(lengths) / (most * len(bins))
    print(json.dumps({"what": "pack", "items": items, "bins": len(bins), "fill": round(fill, 5), "seconds": round(seconds, 4)}))


{"encode": encode, "pack": pack}[sys.argv[1]](*sys.argv[2:])
