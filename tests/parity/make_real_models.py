"""make_real_models.py OUT [GGUF STORIES]: references of trained models: SmolLM2-135M-Instruct from its GGUF file and
stories260k, a model of 260 thousand weights (see reference.py).

Two traps of transformers with GGUF files are dealt with here: a model loaded with gguf_file= refuses to be trained
or saved, so its weights move into a fresh model; and its converted tokenizer splits numbers wrongly, so token ids are
taken from a corrected one. The weights are compared with what the `gguf` package itself reads."""

import pathlib
import sys

import gguf
import numpy
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from reference import up_to_date, write_case

TEXTS = [
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\nI am a small language model.<|im_end|>\n",
    "The quick brown fox jumps over the lazy dog; 12345 times in 2024, or so they say.",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n\nprint([fib(i) for i in range(10)])\n",
]


def weights_by_gguf(path, config):
    """Every weight under its transformers name, as the gguf package dequantises it, rows of q and k put back."""
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        stem, suffix = tensor.name.rsplit(".", 1)
        value = numpy.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if part in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
                value = value.reshape(heads, -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
            name = f"model.layers.{layer}.{inner[part]}"
        else:
            name = names[stem]
        weights[f"{name}.{suffix}"] = torch.from_numpy(value.copy())
    return weights


def smollm2(path, texts=TEXTS):
    folder, file = str(path.parent), path.name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = AutoConfig.from_pretrained(folder, gguf_file=file)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float().eval()
    model.load_state_dict(loaded.state_dict())
    state = model.state_dict()
    for name, value in weights_by_gguf(path, config).items():
        assert torch.equal(state[name], value), f"{name}: transformers and gguf disagree"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    sequences = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return model, sequences


def stories260k(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["Once upon a time, there was a little girl named Lily.", "The dog was happy.",
             "Tom and his mom went to the park. They saw a big tree and a red ball."]
    return model, [tokenizer(text)["input_ids"] for text in texts]


def main(out, gguf_file, stories):
    done, stamp, digest = up_to_date(out, gguf_file, stories)
    if done:
        return
    lora = {"r": 8, "lora_alpha": 32, "target_modules": "all-linear"}
    model, sequences = stories260k(stories)
    write_case(out / "stories260k", model, lora, sequences, sequences, full=True, lr=1e-3)
    model, sequences = smollm2(gguf_file)
    labels = [[-100 if i < 8 else token for i, token in enumerate(ids)] for ids in sequences]
    write_case(out / "smollm2_135m", model, lora, sequences, labels, model_path=str(gguf_file), adapter_std=0.02,
               lr=5e-5, exact_training=False)
    stamp.write_text(digest)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:4]))
