"""LoRA fine-tuning with transformers and PEFT, the peer of sft_bench: the same model, rows and batch.

hf_sft.py --model FILE --rows ROWS.jsonl --mode MODE [--batch 8] [--steps 1] [--dtype auto]
MODE says how a batch of rows becomes passes:
  padded   one pass, all padded to the longest: what a data collator does
  sorted   by length, in passes of --micro rows padded to the longest of each
  single   one row a pass, gradients accumulated: nothing is padded (the best tuned way)
  flat     one pass over the rows laid end to end, position_ids telling them apart
Prints a JSON object: tokens/s over all tokens of the rows (padding does not count), seconds, peak memory, losses.
"""

import argparse

from hf_common import Trainer, add_lora, dtype_of, load_model, now, read_rows, report_speed


def groups_of(mode, rows, micro):
    order = list(range(len(rows)))
    if mode in ("padded", "flat"):
        return [order]
    if mode == "single":
        return [[i] for i in order]
    order.sort(key=lambda i: len(rows[i]["input_ids"]))
    return [order[i:i + micro] for i in range(0, len(order), micro)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--mode", choices=["padded", "sorted", "single", "flat"], required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--dtype", choices=["auto", "fp32", "bf16"], default="auto")
    args = parser.parse_args()
    import torch

    dtype = dtype_of(args.dtype)
    torch.manual_seed(0)
    trainer = Trainer(add_lora(load_model(args.model, dtype)))
    rows = read_rows(args.rows)
    # A pass outside the clock, over the shortest row: lazy set-up is not what is measured.
    trainer.step([min(rows, key=lambda row: len(row["input_ids"]))], [[0]])
    losses, tokens, start = [], 0, now()
    for step in range(args.steps):
        batch = [rows[(step * args.batch + i) % len(rows)] for i in range(args.batch)]
        losses.append(trainer.step(batch, groups_of(args.mode, batch, args.micro), flatten=args.mode == "flat"))
        tokens += sum(len(row["input_ids"]) for row in batch)
    seconds = now() - start
    report_speed("hf_sft", tokens, seconds, mode=args.mode, dtype=str(dtype).removeprefix("torch."), losses=losses)


if __name__ == "__main__":
    main()
