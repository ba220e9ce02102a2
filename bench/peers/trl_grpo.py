"""One step of TRL's GRPOTrainer with a LoRA adapter, the peer of grpo_bench: random prompts, answers of a fixed length,
random rewards.

trl_grpo.py --model FILE [--prompts 8] [--answers 8] [--prompt-tokens 512] [--answer-tokens 64] [--micro 8] [--dtype auto]
Answers are made with transformers' generate, as TRL does without a server of its own; --micro answers go through forward and
backward together. Prints a JSON object: seconds of the step, of the sampling in it and of the rest.
"""

import argparse
import random
import tempfile

from hf_common import dtype_of, load_model, lora_config, now, peak_rss_mb, report


def prompts_of(tokenizer, count, length):
    """Texts of exactly `length` tokens: words that are one token each."""
    words = [text for text in (tokenizer.decode([i]) for i in range(2000, 12000))
             if text.startswith(" ") and text[1:].isalpha() and text.isascii() and len(text) > 3]
    source = random.Random(7)
    out = []
    while len(out) < count:
        text = "".join(source.choices(words, k=length))
        if len(tokenizer(text)["input_ids"]) == length:
            out.append(text)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--dtype", choices=["auto", "fp32", "bf16"], default="auto")
    args = parser.parse_args()
    import pathlib

    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    dtype = dtype_of(args.dtype)
    torch.manual_seed(0)
    path = pathlib.Path(args.model)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = load_model(args.model, dtype)
    answers = args.prompts * args.answers
    source = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, max_steps=1,
            learning_rate=1e-5, weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=False,
            per_device_train_batch_size=args.micro, gradient_accumulation_steps=answers // args.micro,
            num_generations=args.answers, max_completion_length=args.answer_tokens, temperature=1.0, beta=0.0, loss_type="grpo",
            generation_kwargs={"min_new_tokens": args.answer_tokens})
        trainer = GRPOTrainer(
            model=model, args=config, processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [source.random() for _ in completions],
            train_dataset=Dataset.from_dict({"prompt": prompts_of(tokenizer, args.prompts, args.prompt_tokens)}),
            peft_config=lora_config())
        sampling = [0.0]
        widths = []
        generate = trainer._generate_and_score_completions

        def timed(inputs):
            start = now()
            out = generate(inputs)
            sampling[0] += now() - start
            widths.append((tuple(out["prompt_ids"].shape), tuple(out["completion_ids"].shape)))
            return out

        trainer._generate_and_score_completions = timed
        # Outside the clock: lazy set-up is not what is measured.
        ids = torch.arange(100, 132).unsqueeze(0)
        trainer.model(input_ids=ids, labels=ids).loss.backward()
        trainer.model.zero_grad()
        trainer.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, pad_token_id=0)
        start = now()
        result = trainer.train()
        seconds = now() - start
    expected = ((answers, args.prompt_tokens), (answers, args.answer_tokens))
    if widths != [expected]:
        raise SystemExit(f"the step was not over the tokens that were asked for: {widths}, expected {expected}")
    report(program="trl", dtype=str(dtype).removeprefix("torch."), tokens=answers * (args.prompt_tokens + args.answer_tokens),
           seconds=seconds, sampling_s=sampling[0], training_s=seconds - sampling[0], loss=result.training_loss,
           peak_rss_mb=peak_rss_mb())


if __name__ == "__main__":
    main()
