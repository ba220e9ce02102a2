"""Counts of rows, tokens, trained tokens and dropped rows of the real data sets, by transformers.

make_real_data_goldens.py DATA OUT     for tests/data/real_data_test.cpp. Needs transformers, pyarrow.

Conversations are built here again from the rows, rendered and encoded by apply_chat_template with the MiniMind
tokenizer and Qwen2.5's template; what is trained on is, for each assistant message, what lies between the prompt for it
and the end of the conversation up to it; with last_round, of those after the last question (LLaMA-Factory's DPO and KTO take
the last message for the answer, the rest for the prompt). A row is dropped when one of its conversations is longer than
MAX tokens or, unless it is a prompt or a text to compare, has nothing to train on.
"""

import csv
import json
import sys

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

MAX = 1024
DATA, OUT = sys.argv[1:]
TOKENIZER = PreTrainedTokenizerFast(tokenizer_file=f"{DATA}/tokenizers/minimind/tokenizer.json")
TEMPLATE = open(f"{DATA}/chat-templates/Qwen-Qwen2.5-7B-Instruct.jinja").read()


def encode(messages, tools, prompt):
    text = TOKENIZER.apply_chat_template(messages, tools=tools, chat_template=TEMPLATE, tokenize=False,
                                         add_generation_prompt=prompt)
    return TOKENIZER.encode(text, add_special_tokens=False)


def u(text):
    return {"role": "user", "content": text}


def a(text):
    return {"role": "assistant", "content": text}


def trained(messages, tools, last_round):
    total = 0
    start = max(i for i, message in enumerate(messages) if message["role"] == "user") if last_round else 0
    for i, message in enumerate(messages):
        if i >= start and message["role"] == "assistant":
            total += len(encode(messages[: i + 1], tools, False)) - len(encode(messages[:i], tools, True))
    return total


ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "user": "user", "assistant": "assistant",
         "system": "system"}


def sharegpt(turns):
    out = []
    for turn in turns:
        if turn["from"] == "function_call":
            calls = json.loads(turn["value"])
            calls = calls if isinstance(calls, list) else [calls]
            out.append({"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]})
        else:
            out.append({"role": ROLES[turn["from"]], "content": turn["value"]})
    return out


def tools_of(row):
    tools = json.loads(row["tools"]) if row.get("tools") else []
    return [t if "function" in t else {"type": "function", "function": t} for t in tools] or None


def alpaca(row):
    return [a_row(row["instruction"] + ("\n" + row["input"] if row["input"] else ""), row["output"])]


def a_row(question, answer):
    return ([u(question), a(answer)], None)


def glaive(row):
    return [(sharegpt(row["conversations"]), tools_of(row))]


def dpo(row):
    start = sharegpt(row["conversations"])
    return [(start + sharegpt([row[k]]), None) for k in ("chosen", "rejected")]


def swift_pairs(row):
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return [(system + [m for t in row["conversation"] for m in (u(t["human"]), a(t["assistant"]))], None)]


def embedding(row):
    return [([u(t)], None) for t in [row["query"], *row["pos"], *row["neg"]]]


def stsb(row):
    return [([u(row[0])], None), ([u(row[1])], None)]


def countdown(row):
    nums = "[" + ", ".join(row["input"].split(",")) + "]"
    query = (f"Using the numbers {nums}, create an equation that equals {row['output']}.\nYou can use basic arithmetic "
             "operations (+, -, *, /) and each number can only be used once.\nShow your work in <think> </think> tags. And "
             "return the final equation and answer in <answer> </answer> tags,\nfor example <answer> (1 + 2) / 3 * 4 = 4 "
             "</answer>.")
    system = ("You are a helpful assistant. You first thinks about the reasoning process in the mind and then provides the "
              "user with the answer.")
    return [([{"role": "system", "content": system}, u(query)], None)]


def olympiad(row):
    system = ("You are a professional math and physics problem solver. Analyze the problem carefully, solve it step by "
              "step, and provide your final answer in \\boxed{} format. If there are multiple answers, separate them with "
              "commas.")
    question = f"背景信息：{row['context']}\n\n{row['question']}" if row["context"] else row["question"]
    return [([{"role": "system", "content": system}, u(question)], None)]


def bfcl(row):
    return [(row["question"][0], [{"type": "function", "function": f} for f in row["function"]])]


def lines(path):
    return [json.loads(line) for line in open(f"{DATA}/datasets/{path}", encoding="utf-8") if line.strip()]


def whole(path):
    return json.load(open(f"{DATA}/datasets/{path}", encoding="utf-8"))


def table(path):
    return list(csv.reader(open(f"{DATA}/datasets/{path}", encoding="utf-8", newline="")))


def messages(row):
    return [(row["messages"], None)]


def count(name, rows, make, labels=True, last_round=False):
    out = {"rows": len(rows), "tokens": 0, "trained": 0, "dropped": 0, "too_long": 0, "untrained": 0, "longest": 0}
    for row in rows:
        conversations = make(row)
        ids = [encode(m, t, not labels) for m, t in conversations]
        learned = [trained(m, t, last_round) if labels else 1 for m, t in conversations]
        too_long = any(len(i) > MAX for i in ids)
        if too_long or not all(learned):
            out["dropped"] += 1
            out["too_long" if too_long else "untrained"] += 1
            continue
        out["tokens"] += sum(map(len, ids))
        out["trained"] += sum(learned) if labels else 0
        out["longest"] = max(out["longest"], *map(len, ids))
    print(name, out)
    return out


def texts(name, rows):
    ids = [TOKENIZER.encode(row["text"]) for row in rows]
    out = {"rows": len(rows), "tokens": sum(map(len, ids)), "trained": sum(len(i) - 1 for i in ids), "dropped": 0,
           "too_long": 0, "untrained": 0, "longest": max(map(len, ids))}
    print(name, out)
    return out


goldens = {
    "alpaca": count("alpaca", whole("llama-factory/alpaca_en_demo.json"), alpaca),
    "identity": count("identity", whole("identity.json"), alpaca),
    "gsm8k": count("gsm8k", lines("gsm8k/train.jsonl"), lambda r: [a_row(r["question"], r["answer"])]),
    "dpo": count("dpo", whole("llama-factory/dpo_en_demo.json"), dpo, last_round=True),
    "kto": count("kto", whole("llama-factory/kto_en_demo.json"), messages, last_round=True),
    "glaive": count("glaive", whole("llama-factory/glaive_toolcall_en_demo.json"), glaive),
    "chatml": count("chatml", lines("ms-swift/chatml.jsonl"), messages),
    "conversations": count("conversations", lines("ms-swift/conversations.jsonl"),
                           lambda r: [(sharegpt(r["conversations"]), None)]),
    "sharegpt": count("sharegpt", lines("ms-swift/sharegpt.jsonl"), swift_pairs),
    "tinker": count("tinker", lines("tinker/conversations.jsonl"), messages),
    "wikisql": texts("wikisql", lines("mlx-lora-wikisql/valid.jsonl")),
    "nli": count("nli", lines("embedding/nli.jsonl"), embedding, labels=False),
    "nq": count("nq", lines("embedding/nq.jsonl"), embedding, labels=False),
    "stsb_train": count("stsb_train", table("stsb/train.csv"), stsb, labels=False),
    "stsb_dev": count("stsb_dev", table("stsb/dev.csv"), stsb, labels=False),
    "countdown": count("countdown", lines("countdown/cd3_a.jsonl"), countdown, labels=False),
    "olympiad": count("olympiad", lines("olympiadbench/maths_en_a.jsonl"), olympiad, labels=False),
    "bfcl": count("bfcl", lines("bfcl/BFCL_v4_parallel.json"), bfcl, labels=False),
    "tinyzero": count("tinyzero", pq.read_table(f"{DATA}/parquet-arrow/tinyzero_arithmetic_train.parquet").to_pylist(),
                      lambda r: [(r["prompt"], None)], labels=False),
}
with open(OUT, "w") as out:
    json.dump({"max_length": MAX, "sets": goldens}, out, indent=1)
    out.write("\n")
