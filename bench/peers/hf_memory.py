"""Peak memory of one LoRA step of transformers and PEFT, the peer of sft_bench --memory: hf_memory.py --model DIR
--rows ROWS.jsonl --mode padded|single. Gradient checkpointing is on, which is its usual way to save memory."""

import argparse

from hf_common import Trainer, add_lora, best_dtype, load_model, now, peak_rss_mb, read_rows, report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--mode", choices=["padded", "single"], required=True)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--no-checkpointing", action="store_true")
    args = parser.parse_args()
    model = load_model(args.model, best_dtype())
    if not args.no_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer = Trainer(add_lora(model))
    rows = read_rows(args.rows)[:args.batch]
    loaded, start = peak_rss_mb(), now()
    groups = [[i] for i in range(len(rows))] if args.mode == "single" else [list(range(len(rows)))]
    loss = trainer.step(rows, groups)
    report(program="hf_memory", mode=args.mode, tokens=sum(len(row["input_ids"]) for row in rows),
           seconds=now() - start, loaded_rss_mb=loaded, peak_rss_mb=peak_rss_mb(), loss=loss)


if __name__ == "__main__":
    main()
