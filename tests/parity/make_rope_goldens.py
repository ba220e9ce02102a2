#!/usr/bin/env python3
"""Makes tests/model/data/rope.json with transformers (pip install torch transformers), the authority on rotary scaling.

For each config: the inverse frequencies, the attention factor, and cos and sin of the last position of a sequence of
`length` tokens, all as transformers' LlamaRotaryEmbedding computes them on the CPU in fp32.
"""
import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=128, intermediate_size=64,
            num_hidden_layers=1, num_attention_heads=4, vocab_size=32, max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
CASES = [  # (config keys, length)
    (dict(), 50),
    (dict(rope_theta=500000.0, head_dim=48), 7),
    (dict(rope_scaling=dict(type="linear", factor=2.5)), 50),
    (dict(rope_scaling=dict(rope_type="dynamic", factor=2.0)), 64),
    (dict(rope_scaling=dict(rope_type="dynamic", factor=2.0)), 65),
    (dict(rope_theta=20000.0, rope_scaling=dict(rope_type="dynamic", factor=4.0)), 200),
    (dict(rope_theta=500000.0, max_position_embeddings=131072, head_dim=64,
          rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                            original_max_position_embeddings=8192)), 3000),
    (dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_position_embeddings=32)), 40),
    (dict(rope_scaling=YARN, max_position_embeddings=256), 200),
    (dict(rope_scaling=dict(YARN, beta_fast=16, beta_slow=2, attention_factor=1.25)), 100),
    (dict(rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=1.0, factor=40)), 100),
    (dict(rope_scaling=dict(YARN, truncate=False)), 100),
    (dict(rope_parameters=dict(YARN, rope_theta=1000000.0, factor=8.0)), 100),
]


def floats(tensor):
    return [float(x) for x in tensor.reshape(-1).tolist()]


def main():
    out = []
    for keys, length in CASES:
        config = dict(BASE, **json.loads(json.dumps(keys)))
        rotary = LlamaRotaryEmbedding(LlamaConfig.from_dict(json.loads(json.dumps(config))))
        cos, sin = rotary(torch.zeros(1, length, 1), torch.arange(length)[None])
        half = cos.shape[-1] // 2
        out.append(dict(config=config, length=length, inv_freq=floats(rotary.inv_freq),
                        attention_factor=float(rotary.attention_scaling), cos=floats(cos[0, -1, :half]),
                        sin=floats(sin[0, -1, :half])))
    path = pathlib.Path(__file__).resolve().parents[1] / "model" / "data" / "rope.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(x) for x in out) + "\n]\n")


if __name__ == "__main__":
    main()
