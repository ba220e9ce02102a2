"""What the peers share: loading a model, LoRA adapters, their optimizer, rows, and the memory a process has used."""

import json
import os
import pathlib
import resource
import time


def process_age_s():
    """Seconds since this process was started, its interpreter's start included."""
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def peak_rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_rows(path):
    """One JSON object a line. Rows to train on are {"input_ids": [...], "labels": [...]}: labels not shifted, -100 where
    nothing is scored."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def best_dtype():
    """bf16 or fp32, whichever runs a linear layer's forward and backward faster on this machine: torch's bf16 product
    is far ahead where the processor has AMX and far behind elsewhere."""
    import torch

    def seconds(dtype):
        weight = torch.randn(1536, 576).to(dtype)
        times = []
        for _ in range(3):
            x = torch.randn(256, 576).to(dtype).requires_grad_()
            start = now()
            torch.nn.functional.linear(x, weight).sum().backward()
            times.append(now() - start)
        return min(times)

    return min((torch.float32, torch.bfloat16), key=seconds)


def dtype_of(name):
    """A torch dtype by its name or short name, or the best for "auto"."""
    import torch

    return best_dtype() if name == "auto" else getattr(torch, {"fp32": "float32", "bf16": "bfloat16"}.get(name, name))


def load_model(path, dtype):
    """A model directory, or a GGUF file (whose weights move into a fresh model: transformers does not train the
    one it reads)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = pathlib.Path(path)
    if path.suffix != ".gguf":
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    loaded = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name))
    model.load_state_dict(loaded.state_dict())
    return model.to(dtype)


def lora_config(rank=8, alpha=32, **more):
    """On every linear layer."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM", **more)


def add_lora(model, configs=None):
    """Fresh adapters by name (one without more said); their weights stay in fp32, as PEFT keeps them."""
    from peft import get_peft_model

    (name, config), *others = (configs or {"default": lora_config()}).items()
    model = get_peft_model(model, config, adapter_name=name)
    for name, config in others:
        model.add_adapter(name, config)
    return model


def adam_of(model, lr=1e-4):
    """An optimizer of what is trained now: of the active adapter."""
    import torch

    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0)


def clipped_step(optimizer):
    import torch

    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()


class Trainer:
    """One optimizer over the adapter; a step is the token mean over the whole batch, however it is split."""

    def __init__(self, model, lr=1e-4):
        import torch

        self.torch = torch
        self.model = model.train()
        self.optimizer = adam_of(model, lr)

    def step(self, rows, groups, flatten=False):
        """Trains on the rows, in the given groups of indices (each one forward and backward); returns the loss."""
        torch = self.torch
        scored = sum(sum(label != -100 for label in row["labels"][1:]) for row in rows)
        total = 0.0
        self.optimizer.zero_grad()
        for group in groups:
            picked = [rows[i] for i in group]
            if flatten:
                batch = {"input_ids": torch.tensor([[t for r in picked for t in r["input_ids"]]]),
                         "position_ids": torch.tensor([[p for r in picked for p in range(len(r["input_ids"]))]])}
                labels = torch.tensor([[t for r in picked for t in [-100] + r["labels"][1:]]])
            else:
                width = max(len(row["input_ids"]) for row in picked)
                batch = {"input_ids": torch.tensor([r["input_ids"] + [0] * (width - len(r["input_ids"])) for r in picked])}
                if len(picked) > 1:
                    batch["attention_mask"] = torch.tensor(
                        [[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in picked])
                labels = torch.tensor([r["labels"] + [-100] * (width - len(r["labels"])) for r in picked])
            loss = self.model(**batch, labels=labels, num_items_in_batch=scored, use_cache=False).loss
            loss.backward()
            total += float(loss.detach())
        clipped_step(self.optimizer)
        return total


def report(**values):
    """The last line: one JSON object."""
    print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}))


def report_speed(program, tokens, seconds, **more):
    report(program=program, tokens=tokens, seconds=seconds, tokens_per_s=tokens / seconds, peak_rss_mb=peak_rss_mb(), **more)


def now():
    return time.perf_counter()
