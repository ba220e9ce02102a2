"""Writes tests/train/goldens/optimizers.json: parameters after each step of torch.optim on given fp32 gradients.

Run with torch 2.11.0; the file is committed, so the tests do not need it.
"""
import json
import pathlib

import torch

CASES = [
    ("AdamW", {"lr": 1e-2}),
    ("AdamW", {"lr": 3e-3, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 1e-2}),
    ("Adam", {"lr": 1e-2, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
]
STEPS, SIZE = 6, 9

torch.manual_seed(7)
start = torch.randn(SIZE)
gradients = torch.randn(STEPS, SIZE) * torch.logspace(-4, 2, SIZE)
gradients[2, 3] = 0.0

cases = []
for name, options in CASES:
    parameter = torch.nn.Parameter(start.clone())
    theirs = dict(options)
    if "betas" in theirs:
        theirs["betas"] = tuple(theirs["betas"])
    optimizer = getattr(torch.optim, name)([parameter], foreach=False, **theirs)
    after = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        after.append(parameter.detach().tolist())
    cases.append({"name": name, "options": options, "after": after})

out = pathlib.Path(__file__).resolve().parents[1] / "train" / "goldens" / "optimizers.json"
lines = ",\n".join(json.dumps(case) for case in cases)
out.write_text('{"made_with": %s, "start": %s, "gradients": %s, "cases": [\n%s\n]}\n' %
               (json.dumps("torch " + torch.__version__), json.dumps(start.tolist()), json.dumps(gradients.tolist()), lines))
