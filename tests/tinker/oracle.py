"""The oracle of the server's numbers, in double precision: the base model of transformers with the server's own
checkpoint in PEFT, differentiated by torch. For scripts that are run as SCRIPT BUILD VENV [name of a test ...] by a
python that has these; VENV has the tinker package, and what else it needs."""

import os
import pathlib
import sys

sys.path += [str(path) for path in pathlib.Path(sys.argv[2]).glob("lib/python3*/site-packages")]
os.environ["TWINKLE_ISA"] = "avx2"  # matrix tiles round to bf16

from sdk_test import ADAM, client, new_model, texts, there
from server_process import Server, missing, run_tests, stories

try:
    import numpy as np
    import peft
    import tinker
    import torch
    import transformers
except ImportError as error:
    missing(f"{error} (scripts/setup --parity)")

VERSION = tuple(int(part) for part in tinker.__version__.split(".")[:2])
EPS = 1e9  # Adam without memory and with this epsilon steps by the gradient itself, times the rate over it


class Oracle:
    """The model of a checkpoint in double precision."""

    def __init__(self, folder):
        base = transformers.AutoModelForCausalLM.from_pretrained(stories(), dtype=torch.float64)
        self.model = peft.PeftModel.from_pretrained(base, folder, is_trainable=True).double()
        self.model.eval()

    def logprobs(self, tokens):
        """[N, vocabulary]: row i is what follows tokens 0..i."""
        return self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)

    def gradients(self, loss):
        self.model.zero_grad()
        loss.backward()
        return {name.replace(".default", ""): parameter.grad
                for name, parameter in self.model.named_parameters() if parameter.requires_grad}


def tensors_of(folder):
    from safetensors.torch import load_file
    return {name: value.double() for name, value in load_file(folder / "adapter_model.safetensors").items()}


class Models:
    """A checkpoint of a few steps: what is trained from it, and its oracle."""

    def __init__(self, server):
        self.server = server
        self.service = client(server)
        training = new_model(server, rank=4)
        for step in range(3):
            training.forward_backward([plain(text) for text in texts(step)], "cross_entropy")
            training.optim_step(ADAM)
        self.path = training.save_state("oracle").result().path
        self.folder = server.folder_of(self.path)
        self.oracle = Oracle(self.folder)
        self.count = 0

    def fresh(self):
        return there(self.service.create_training_client_from_state(self.path))

    def gradients(self, training):
        """Those that its next step takes: how far weights move under Adam without memory."""
        training.optim_step(tinker.AdamParams(learning_rate=EPS, beta1=0.0, beta2=0.0, eps=EPS)).result()
        self.count += 1
        moved = tensors_of(self.server.folder_of(training.save_state(f"moved-{self.count}").result().path))
        start = tensors_of(self.folder)
        return {name: start[name] - moved[name] for name in start}

    def check(self, data, loss, expected, config=None):
        """`expected`: the loss in double precision, a function of the oracle."""
        training = self.fresh()
        options = [config] if config is not None else []
        only = training.forward(data, loss, *options).result()
        out = training.forward_backward(data, loss, *options).result()
        value = expected(self.oracle)
        total = float(value.detach())
        assert abs(out.metrics["loss:sum"] - total) <= 2e-5 * max(1.0, abs(total)), (loss, out.metrics, total)
        got, want = self.gradients(training), self.oracle.gradients(value)
        assert set(got) == set(want), set(got) ^ set(want)
        for name in want:
            difference, size = float((got[name] - want[name]).norm()), float(want[name].norm())
            assert difference <= 1e-4 * size + 1e-6, (loss, name, difference, size)
        assert sum(float(g.norm()) for g in want.values()) > 1e-3, "there is no gradient to compare"
        assert abs(only.metrics["loss:sum"] - out.metrics["loss:sum"]) <= 1e-6 * max(1.0, abs(total)), only.metrics
        for a, b in zip(out.loss_fn_outputs, only.loss_fn_outputs):
            assert list(a["logprobs"].data) == list(b["logprobs"].data)
        return out


def plain(tokens):
    return table_datum(tokens, np.array(tokens[1:]), None)


def table_datum(tokens, targets, weights, **more):
    """Whatever targets of each token of a text but its last."""
    inputs = {"target_tokens": targets.astype(np.int64)}
    if weights is not None:
        inputs["weights"] = weights.astype(np.float32)
    inputs.update({name: np.asarray(values, dtype=np.float32) for name, values in more.items()})
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={name: tinker.TensorData.from_numpy(values) for name, values in inputs.items()})


def picked(oracle, tokens, targets):
    """Log-probabilities of a table of targets."""
    rows = oracle.logprobs(tokens[:-1])
    targets = torch.as_tensor(targets.astype(np.int64))
    return rows.gather(1, targets) if targets.ndim == 2 else rows.gather(1, targets[:, None])[:, 0]


def run(tests):
    """Those of a script's globals that are tests, or the ones that are named."""
    print(f"tinker {tinker.__version__}")
    server = Server(sys.argv[1])
    return run_tests(server, tests, sys.argv[3:], Models(server))
