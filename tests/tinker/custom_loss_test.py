"""A loss of the user's own, which the tinker package differentiates with torch, against cross_entropy with the same
weights: custom_loss_test.py BUILD VENV, by a python that has torch; VENV has the package."""

import pathlib
import sys

sys.path[:0] = [str(path) for path in pathlib.Path(sys.argv[2]).glob("lib/python3*/site-packages")]

from sdk_test import ADAM, client, datum, new_model, texts, there, weights
from server_process import Server, missing, run_tests

try:
    import torch
except ImportError:
    missing("torch (scripts/setup --parity)")

SIGNED = [0.0, 1.0, 2.5, -0.5]


def signed(tokens):
    return [SIGNED[i % 4] for i in range(len(tokens) - 1)]


def run(server, name, call):
    """The sums that the calls report, and the weights after three steps."""
    training = new_model(server)
    sums = []
    for _ in range(3):
        sums.append(there(call(training)).metrics["loss:sum"])
        there(training.optim_step(ADAM))
    return sums, weights(server, there(training.save_state(name)).path)


def test_custom_loss_is_exact_for_signed_weights(server):
    rows = texts(11)

    def loss(data, logprobs):
        value = -sum((lp * torch.tensor(signed(row))).sum() for lp, row in zip(logprobs, rows))
        return value, {"loss:sum": float(value.detach())}

    plain = [datum(row, weights=[1.0] * (len(row) - 1)) for row in rows]
    weighted = [datum(row, weights=signed(row)) for row in rows]
    custom_sums, custom = run(server, "custom", lambda t: t.forward_backward_custom(plain, loss))
    sums, expected = run(server, "weighted", lambda t: t.forward_backward(weighted, "cross_entropy"))
    assert custom == expected, "the weights differ"
    assert all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(custom_sums, sums)), (custom_sums, sums)


if __name__ == "__main__":
    sys.exit(run_tests(Server(sys.argv[1]), globals()))
