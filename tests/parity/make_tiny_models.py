"""make_tiny_models.py OUT: random models of a few thousand weights, one or more of every family, with what
transformers and PEFT compute for them (see reference.py). Each case changes what a family has of its own: rotary
scalings, biases, q/k norms, sliding windows, tied heads, head sizes; and each way of choosing LoRA targets."""

import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from reference import up_to_date, write_case

BASE = {"vocab_size": 199, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
ALL = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


def rope(kind, theta=10000.0, **rest):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **rest}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}

# name: (config class, its own keys, LoRA options)
CASES = {
    "llama": (LlamaConfig, rope("default"), ALL),
    "llama_linear": (LlamaConfig, rope("linear", factor=4.0), ALL),
    "llama_dynamic": (LlamaConfig, rope("dynamic", factor=2.0) | {"max_position_embeddings": 32}, ALL),
    "llama_llama3": (LlamaConfig, rope("llama3", 500000.0, **LLAMA3) | {"tie_word_embeddings": True}, ALL),
    "llama_yarn": (LlamaConfig, rope("yarn", **YARN) | {"max_position_embeddings": 64}, ALL),
    "llama_yarn_factor": (LlamaConfig, rope("yarn", **YARN, attention_factor=0.9) | {"max_position_embeddings": 64},
                          ALL),
    "llama_biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True, "head_dim": 16}, ALL),
    "smollm2": (LlamaConfig, rope("default", 100000.0) | {"num_attention_heads": 9, "num_key_value_heads": 3,
                "hidden_size": 72, "tie_word_embeddings": True}, ALL),
    "yi": (LlamaConfig, rope("default", 5000000.0) | {"num_key_value_heads": 1, "rms_norm_eps": 1e-6}, ALL),
    "mistral": (MistralConfig, {"sliding_window": None, "num_key_value_heads": 3}, ALL),
    "mistral_window": (MistralConfig, {"sliding_window": 7}, ALL),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}, ALL),
    "qwen2_untied": (Qwen2Config, rope("default", 1000000.0), ALL),
    "qwen2_window": (Qwen2Config, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, ALL),
    "qwen3": (Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}, ALL),
    "qwen3_untied": (Qwen3Config, rope("yarn", 1000000.0, **YARN) | {"head_dim": 8, "max_position_embeddings": 64},
                     ALL),
    # ways of choosing what is adapted
    "lora_list": (LlamaConfig, {}, {"r": 8, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}),
    "lora_regex": (LlamaConfig, {}, {"r": 2, "lora_alpha": 2, "target_modules": r".*layers\.[02]\..*(up|o)_proj"}),
    "lora_rslora": (LlamaConfig, {}, ALL | {"use_rslora": True, "r": 16}),
    "lora_patterns": (LlamaConfig, {}, ALL | {"rank_pattern": {"q_proj": 6, "layers.1.mlp.up_proj": 2},
                                              "alpha_pattern": {"down_proj": 32}}),
    "lora_layers": (LlamaConfig, {}, {"r": 4, "lora_alpha": 8, "target_modules": ["k_proj", "gate_proj"],
                                      "layers_to_transform": [1]}),
    "lora_exclude": (LlamaConfig, {}, ALL | {"exclude_modules": ["down_proj"]}),
    "lora_head": (LlamaConfig, {}, {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "q_proj"]}),
    "lora_embedding": (LlamaConfig, {}, {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "v_proj"]}),
    "lora_modules_to_save": (LlamaConfig, {}, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
                                               "modules_to_save": ["lm_head", "norm"]}),
}
FULL = {"llama", "smollm2", "mistral_window", "qwen2", "qwen3"}
# Written the way configs were before transformers 5: rope_theta and rope_scaling beside the other keys.
OLD_KEYS = {"llama_linear", "llama_llama3", "yi", "llama_dynamic", "qwen3_untied"}


def build(cls, own, seed):
    torch.manual_seed(seed)
    config = cls(**(BASE | own))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        # Larger than a fresh model's, so that attention is sharp and positions matter.
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.5 if name.endswith("bias") else 0.2)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2)
    return model


def make_sequences(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = [37, 2, 64, 11, 5]
    sequences = [torch.randint(3, BASE["vocab_size"], (n,), generator=generator).tolist() for n in lengths]
    labels = [[-100 if i < len(ids) // 3 else token for i, token in enumerate(ids)] for ids in sequences]
    return sequences, labels


def write_old_keys(path):
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **parameters}
    path.write_text(json.dumps(config, indent=2))


def main(out):
    done, stamp, digest = up_to_date(out)
    if done:
        return
    for seed, (name, (cls, own, lora)) in enumerate(CASES.items()):
        sequences, labels = make_sequences(seed)
        model = build(cls, own, seed)
        write_case(out / name, model, lora, sequences, labels, full=name in FULL, seed=seed)
        if name in OLD_KEYS:
            path = out / name / "model" / "config.json"
            write_old_keys(path)
            again = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, attn_implementation="eager")
            ids = torch.tensor([sequences[2]])
            with torch.no_grad():
                assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits), name
    stamp.write_text(digest)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]))
