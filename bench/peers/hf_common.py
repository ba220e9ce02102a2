"""What the peers share: loading a model, a LoRA adapter, rows, and the memory a process has used."""

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
    """Rows of {"input_ids": [...], "labels": [...]}: labels not shifted, -100 where nothing is scored."""
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


def add_lora(model, rank=8, alpha=32):
    """A fresh adapter on every linear layer; its weights stay in fp32, as PEFT keeps them."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear",
                                            task_type="CAUSAL_LM"))


class Trainer:
    """One optimizer over the adapter; a step is the token mean over the whole batch, however it is split."""

    def __init__(self, model, lr=1e-4):
        import torch

        self.torch = torch
        self.model = model.train()
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0)

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
        torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], 1.0)
        self.optimizer.step()
        return total


def report(**values):
    """The last line: one JSON object."""
    print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}))


def now():
    return time.perf_counter()
