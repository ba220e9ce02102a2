"""Sampling with transformers and PEFT, the peer of sample_bench: the same weights and requests, greedy.

hf_sample.py --model FILE --requests REQUESTS.jsonl --mode MODE [--adapters 4] [--rank 8] [--dtype auto] [--decode N]
MODE says how the requests become calls of generate():
  together  one padded call; with adapters each row names its own (PEFT's mixed batches)
  grouped   one padded call an adapter
  single    one call a request
A call runs until its longest request is done; only tokens that were asked for count. Prints a JSON object.
"""

import argparse

from hf_common import add_lora, dtype_of, load_model, lora_config, now, read_rows, report_speed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", required=True)
    parser.add_argument("--mode", choices=["together", "grouped", "single"], default="together")
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--decode", type=int, default=0)
    args = parser.parse_args()

    import torch

    dtype = dtype_of(args.dtype)
    model = load_model(args.model, dtype).eval()
    if args.adapters:
        config = lora_config(args.rank, init_lora_weights=False)
        model = add_lora(model, {str(adapter): config for adapter in range(args.adapters)}).eval()
    rows = read_rows(args.requests)

    def generate(picked, names=None):
        width = max(len(row["prompt"]) for row in picked)
        ids = torch.tensor([[0] * (width - len(row["prompt"])) + row["prompt"] for row in picked])
        mask = torch.tensor([[0] * (width - len(row["prompt"])) + [1] * len(row["prompt"]) for row in picked])
        longest = max(row["max_tokens"] for row in picked)
        extra = {"adapter_names": names} if names else {}
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=longest,
                                 min_new_tokens=longest, pad_token_id=0, **extra)
        assert out.shape[1] == width + longest

    generate([{"prompt": [1, 2, 3], "max_tokens": 4}])
    start = now()
    if args.mode == "together":
        generate(rows, [str(row["adapter"]) for row in rows] if args.adapters else None)
    else:
        groups = {}
        for index, row in enumerate(rows):
            groups.setdefault(row["adapter"] if args.mode == "grouped" else index, []).append(row)
        for group in groups.values():
            if args.adapters:
                model.set_adapter(str(group[0]["adapter"]))
            generate(group)
    seconds = now() - start
    tokens = sum(row["max_tokens"] for row in rows)
    extra = {}
    if args.decode:
        start = now()
        generate([{"prompt": list(range(100, 164)), "max_tokens": args.decode}])
        extra["decode_tokens_per_s"] = args.decode / (now() - start)
    report_speed("transformers", tokens, seconds, mode=args.mode, dtype=str(dtype), **extra)


if __name__ == "__main__":
    main()
