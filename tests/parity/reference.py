"""What transformers and PEFT compute for a model and an adapter, written where the C++ side of the test reads it.

A case is a folder with
  model/             the model as transformers saves it (or case.json's "model" names a file)
  adapter/           the adapter as PEFT saves it, B not zero
  case.json          token sequences, labels (not shifted, -100: not scored), losses, optimizer settings
  values.safetensors
    logits.I             base model, sequence I                      [T, vocab]
    adapter_logits.I     with the adapter                            [T, vocab]
    merged_logits.I      after merge_and_unload                      [T, vocab]
    grad.NAME            d(loss)/d(NAME) over all sequences, NAME as in the adapter's file
    step.NAME            after one AdamW step with those gradients
    trained.NAME         after all training steps
    full_grad.NAME       full training: gradients of the base model's weights (small models only)
    full_trained.NAME    ... and the weights after all training steps
Everything is computed in fp64, from fp32 weights (a large model trains in fp32, for the time it takes): the fp32 gradients of transformers are themselves up to 3.5e-4 away
from these on a model of 30 layers, so they could not judge an error of 1e-4. The loss is cross-entropy over the scored tokens of the whole batch, divided by their number. Sequences run one by one,
so nothing depends on padding. Step K trains on sequences K and K + 1, modulo their number, with clipping.
"""

import copy
import hashlib
import json
import pathlib
import shutil
import types

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers.utils import logging

logging.disable_progress_bar()

STEPS = 20
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "max_grad_norm": 1.0}


def up_to_date(folder, *inputs):
    """Whether `folder` was made by these very scripts; the cheap way to not compute again."""
    digest = hashlib.sha256()
    here = pathlib.Path(__file__).parent
    for path in sorted(here.glob("*.py")) + [here / "../../scripts/lib/parity-requirements.txt"]:
        digest.update(path.read_bytes())
    for item in inputs:
        digest.update(str(item).encode())
    stamp = folder / ".stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return True, stamp, digest.hexdigest()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return False, stamp, digest.hexdigest()


def exact(model):
    """A copy that computes in fp64: transformers' norms and its eager softmax would go through fp32."""
    def norm_forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    model = copy.deepcopy(model)
    model.set_attn_implementation("sdpa")
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm_forward, module)
    return model.double()


def batch_loss(model, sequences, labels, which):
    """Cross-entropy over the scored tokens of the chosen sequences, over their number."""
    total, count = 0.0, 0
    for index in which:
        ids = torch.tensor([sequences[index]])
        shifted = torch.tensor(labels[index][1:])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, shifted, ignore_index=-100, reduction="sum")
        count += int((shifted != -100).sum())
    return total / count


@torch.no_grad()
def all_logits(model, sequences, prefix):
    return {f"{prefix}.{i}": model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].clone()
            for i, ids in enumerate(sequences)}


def optimizer_of(parameters, lr):
    options = {key: value for key, value in OPTIMIZER.items() if key != "max_grad_norm"}
    return torch.optim.AdamW(parameters, **(options | {"lr": lr}))


def train(model, parameters, sequences, labels, lr):
    """Losses and gradient norms (before clipping) of all steps."""
    optimizer = optimizer_of(parameters, lr)
    losses, norms = [], []
    for step in range(STEPS):
        which = [step % len(sequences), (step + 1) % len(sequences)]
        optimizer.zero_grad()
        loss = batch_loss(model, sequences, labels, which)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, OPTIMIZER["max_grad_norm"])))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


def file_names(peft_model):
    """Trained parameter -> its name in adapter_model.safetensors."""
    stored = get_peft_model_state_dict(peft_model)
    by_address = {tensor.data_ptr(): name for name, tensor in stored.items()}
    names = {}
    for _, parameter in peft_model.named_parameters():
        if parameter.requires_grad:
            names[parameter] = by_address[parameter.data_ptr()]
    return names


def write_case(folder, model, lora, sequences, labels, full=False, model_path=None, seed=0, adapter_std=0.05,
               lr=OPTIMIZER["lr"], exact_training=True):
    """Computes and writes one case. `model` is in fp32 and eval mode; `lora` the arguments of PEFT's LoraConfig."""
    folder.mkdir(parents=True, exist_ok=True)
    precise = exact(model)
    values = all_logits(precise, sequences, "logits")
    case = {"sequences": sequences, "labels": labels, "optimizer": OPTIMIZER | {"lr": lr}, "steps": STEPS,
            "model": model_path or "model"}
    if model_path is None:
        model.save_pretrained(folder / "model")
    everything = list(range(len(sequences)))

    if full:
        trained = copy.deepcopy(precise)
        parameters = [p for p in trained.parameters() if p.requires_grad]
        loss = batch_loss(trained, sequences, labels, everything)
        loss.backward()
        for name, parameter in trained.named_parameters():
            values[f"full_grad.{name}"] = parameter.grad.clone()
        case["full_losses"], case["full_grad_norms"] = train(trained, parameters, sequences, labels, lr)
        for name, parameter in trained.named_parameters():
            values[f"full_trained.{name}"] = parameter.detach().clone()

    torch.manual_seed(seed + 1)
    peft_model = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if parameter.requires_grad and "lora_" in name and not parameter.any():
                parameter.normal_(std=adapter_std)
    peft_model.eval()
    peft_model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    peft_model = PeftModel.from_pretrained(precise, folder / "adapter", is_trainable=True).double().eval()
    values |= all_logits(peft_model, sequences, "adapter_logits")
    merged = copy.deepcopy(peft_model).merge_and_unload()
    values |= all_logits(merged, sequences, "merged_logits")
    del merged

    names = file_names(peft_model)
    parameters = list(names)
    loss = batch_loss(peft_model, sequences, labels, everything)
    loss.backward()
    case["loss"] = float(loss.detach())
    start = [p.detach().clone() for p in parameters]
    for parameter in parameters:
        values[f"grad.{names[parameter]}"] = parameter.grad.clone()
    optimizer_of(parameters, lr).step()
    for parameter, old in zip(parameters, start):
        values[f"step.{names[parameter]}"] = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(old)
    if not exact_training:
        peft_model.float()
    case["losses"], case["grad_norms"] = train(peft_model, parameters, sequences, labels, lr)
    for parameter in parameters:
        values[f"trained.{names[parameter]}"] = parameter.detach().clone()

    save_file({name: tensor.detach().float().contiguous().clone() for name, tensor in values.items()},
              folder / "values.safetensors")
    (folder / "case.json").write_text(json.dumps(case))
    print(f"{folder.name}: loss {case['loss']:.4f}, after {STEPS} steps {case['losses'][-1]:.4f}", flush=True)
