"""Writes tests/train/goldens/schedulers.json: learning rates of torch.optim.lr_scheduler and
transformers.optimization, step by step, for our schedules of the same names.

Run with torch 2.11.0 and transformers; the file is committed, so the tests need neither.
"""
import json
import pathlib

import torch
import transformers
from torch.optim import lr_scheduler as torch_schedules
from transformers import optimization as hf

BASE_LR = 0.003
STEPS = 24

TORCH = [
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 7}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.5, "total_iters": 9}),
    ("StepLR", {"step_size": 4}),
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [3, 3, 10], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("PolynomialLR", {"total_iters": 11, "power": 2.0}),
    ("PolynomialLR", {}),
    ("CosineAnnealingLR", {"T_max": 6, "eta_min": 0.0002, "after_end": "rebound"}),
    ("CosineAnnealingLR", {"T_max": 23}),
    ("CosineAnnealingLR", {"T_max": 30, "eta_min": 0.001}),
    ("CosineAnnealingWarmRestarts", {"T_0": 5, "eta_min": 0.0001}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
]
HF = [
    ("ConstantWarmupScheduler", hf.get_constant_schedule_with_warmup, {"num_warmup_steps": 5}),
    ("LinearWarmupScheduler", hf.get_linear_schedule_with_warmup, {"num_warmup_steps": 4, "num_training_steps": 20}),
    ("LinearWarmupScheduler", hf.get_linear_schedule_with_warmup, {"num_warmup_steps": 0, "num_training_steps": 10}),
    ("CosineWarmupScheduler", hf.get_cosine_schedule_with_warmup,
     {"num_warmup_steps": 4, "num_training_steps": 16, "after_end": "rebound"}),
    ("CosineWarmupScheduler", hf.get_cosine_schedule_with_warmup,
     {"num_warmup_steps": 3, "num_training_steps": 24, "num_cycles": 1.5}),
    ("CosineWithRestartsScheduler", hf.get_cosine_with_hard_restarts_schedule_with_warmup,
     {"num_warmup_steps": 2, "num_training_steps": 20, "num_cycles": 3}),
    ("PolynomialWarmupScheduler", hf.get_polynomial_decay_schedule_with_warmup,
     {"num_warmup_steps": 3, "num_training_steps": 18, "lr_end": 1e-5, "power": 2.0}),
    ("PolynomialWarmupScheduler", hf.get_polynomial_decay_schedule_with_warmup,
     {"num_warmup_steps": 0, "num_training_steps": 12}),
]


def walk(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE_LR)
    schedule = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


cases = []
for name, options in TORCH:
    theirs = {k: v for k, v in options.items() if k != "after_end"}
    rates = walk(lambda o: getattr(torch_schedules, name)(o, **theirs))
    cases.append({"name": name, "options": options, "lr": rates})
for name, make, options in HF:
    theirs = {k: v for k, v in options.items() if k != "after_end"}
    cases.append({"name": name, "options": options, "lr": walk(lambda o: make(o, **theirs))})

out = pathlib.Path(__file__).resolve().parents[1] / "train" / "goldens" / "schedulers.json"
made_with = f"torch {torch.__version__}, transformers {transformers.__version__}"
lines = ",\n".join(json.dumps(case) for case in cases)
out.write_text('{"made_with": %s, "base_lr": %r, "cases": [\n%s\n]}\n' % (json.dumps(made_with), BASE_LR, lines))
