"""Many tenants with transformers and PEFT, the peer of `twinkle bench tenants`: random rows of --tokens tokens, all scored.

hf_tenants.py --model FILE --mode switch --ranks 4,8,... --tokens 16 [--steps 3]
    one process that holds every adapter and activates one after another, each with its own AdamW
hf_tenants.py --model FILE --mode process --ranks 8 --tokens 16 [--steps 3] --threads N
    one tenant; says "ready" when it is loaded and begins at a line on standard input, so that many can start together
Prints a JSON object: tokens/s of whole steps, seconds, peak memory.
"""

import argparse
import sys

from hf_common import adam_of, add_lora, best_dtype, clipped_step, load_model, lora_config, now, report_speed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", choices=["switch", "process"], required=True)
    parser.add_argument("--ranks", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ranks = [int(rank) for rank in args.ranks.split(",")]
    model = load_model(args.model, best_dtype())
    vocab = model.config.vocab_size
    names = [f"tenant{i}" for i in range(len(ranks))]
    model = add_lora(model, {name: lora_config(rank, 2 * rank) for name, rank in zip(names, ranks)}).train()
    optimizers, rows = {}, {}
    for name in names:
        model.set_adapter(name)
        optimizers[name] = adam_of(model)
        rows[name] = torch.randint(0, vocab, (1, args.tokens))

    def step():
        for name in names:
            model.set_adapter(name)
            optimizers[name].zero_grad()
            model(input_ids=rows[name], labels=rows[name], use_cache=False).loss.backward()
            clipped_step(optimizers[name])

    step()  # outside the clock
    if args.mode == "process":
        print("ready", flush=True)
        sys.stdin.readline()
    start = now()
    for _ in range(args.steps):
        step()
    seconds = now() - start
    tokens = args.steps * args.tokens * len(names)
    report_speed("hf_tenants", tokens, seconds, mode=args.mode)


if __name__ == "__main__":
    main()
