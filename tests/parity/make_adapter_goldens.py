#!/usr/bin/env python3
"""Makes tests/lora/data/{base,adapter,expected} with transformers and PEFT (pip install torch transformers peft).

A tiny Qwen3 (normalised q and k, untied head) with an adapter on attention, MLP, embedding and head, and with norms
trained whole, all at random values; the logits of two sequences and the gradients of
sum_t coefficient_t * logprob(target_t) for every trained tensor, by torch autograd in fp32.
"""
import json
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[1] / "lora" / "data"
SEQUENCES = [[1, 5, 9, 2, 17, 30, 4], [3, 3, 8, 22, 11]]


def main():
    torch.manual_seed(5)
    shutil.rmtree(ROOT, ignore_errors=True)
    config = Qwen3Config(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=8, vocab_size=32, max_position_embeddings=64,
                         tie_word_embeddings=False, initializer_range=0.3, bos_token_id=1, eos_token_id=2)
    model = Qwen3ForCausalLM(config).float()
    model.save_pretrained(ROOT / "base")
    peft = get_peft_model(model, LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=6, use_rslora=True, rank_pattern={"down_proj": 2},
        alpha_pattern={"v_proj": 3}, target_modules=["q_proj", "v_proj", "down_proj", "embed_tokens", "lm_head"],
        modules_to_save=["norm"]))
    names = {}
    for name, parameter in peft.named_parameters():
        if parameter.requires_grad:
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            names[name.replace(".default", "").replace(".modules_to_save", "")] = parameter
    peft.save_pretrained(ROOT / "adapter")
    expected = {}
    loss = 0.0
    for i, sequence in enumerate(SEQUENCES):
        logits = peft(input_ids=torch.tensor([sequence])).logits[0]
        expected[f"logits.{i}"] = logits.detach()
        logprobs = torch.log_softmax(logits[:-1], -1).gather(-1, torch.tensor(sequence[1:])[:, None])[:, 0]
        expected[f"logprobs.{i}"] = logprobs.detach()
        loss = loss + (logprobs * torch.arange(1, len(sequence), dtype=torch.float32)).sum()
    loss.backward()
    for name, parameter in names.items():
        expected["grad." + name] = parameter.grad
    save_file({k: v.contiguous() for k, v in expected.items()}, ROOT / "expected.safetensors")
    for extra in (ROOT / "adapter").iterdir():
        if extra.name not in ("adapter_config.json", "adapter_model.safetensors"):
            extra.unlink()
    (ROOT / "base" / "generation_config.json").unlink(missing_ok=True)
    path = ROOT / "adapter" / "adapter_config.json"
    raw = json.loads(path.read_text())
    raw["base_model_name_or_path"] = ""
    path.write_text(json.dumps(raw, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
