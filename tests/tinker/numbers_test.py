"""Losses and gradients through the real package against an oracle in double precision: numbers_test.py BUILD VENV [name
of a test ...], see oracle.py."""

import logging
import sys

from oracle import VERSION, Oracle, np, picked, plain, run, table_datum, tinker, torch
from sdk_test import close, texts

NEW = VERSION >= (0, 35)  # has gspo, stable_reinforce and options that are texts


def sampled_data(oracle, seed, far=False):
    """Texts with a prompt of a third of them: (tokens, log-probabilities that they were sampled with, advantages,
    which were sampled)."""
    rng = np.random.default_rng(seed)
    data = []
    for tokens in texts(seed):
        n = len(tokens) - 1
        with torch.no_grad():
            lp = picked(oracle, tokens, np.array(tokens[1:])).numpy()
        sampled = np.arange(n) >= n // 3
        q = np.where(sampled, lp + rng.normal(0, 2.0 if far else 0.3, n), 0).astype(np.float32)
        a = np.where(sampled & (rng.random(n) < 0.8), rng.normal(0, 1, n), 0).astype(np.float32)
        data.append((tokens, q, a, sampled))
    return data


def policy_datum(row, **more):
    tokens, q, a, _ = row
    return table_datum(tokens, np.array(tokens[1:]), None, logprobs=q, advantages=a, **more)


def policy_loss(rows, term):
    """Sum over the texts of term(lp, q, A, sampled)."""
    def loss(oracle):
        total = 0.0
        for tokens, q, a, sampled in rows:
            lp = picked(oracle, tokens, np.array(tokens[1:]))
            q, a = torch.as_tensor(q).double(), torch.as_tensor(a).double()
            total = total + term(lp, q, a, torch.as_tensor(sampled))
        return total
    return loss


def ratio(lp, q, a):
    return torch.where(a == 0, torch.ones_like(lp), (lp - q).exp())


# The tests.


def test_fifty_steps(models):
    """Adam on one text: the curve of torch in double precision."""
    text = texts(30)[0]
    training = models.fresh()
    calls = []
    for _ in range(50):
        calls.append(training.forward_backward([plain(text)], "cross_entropy"))
        training.optim_step(tinker.AdamParams(learning_rate=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01,
                                              grad_clip_norm=5.0))
    oracle = Oracle(models.folder)
    trained = [p for p in oracle.model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    want = []
    for _ in range(50):
        adam.zero_grad()
        value = -picked(oracle, text, np.array(text[1:])).sum()
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, 5.0)
        adam.step()
        want.append(float(value.detach()))
    got = [call.result().metrics["loss:sum"] for call in calls]
    close(got[:20], want[:20], 1e-3 * max(want))
    assert got[-1] < 0.1 * got[0] and abs(got[-1] - want[-1]) < 0.01 * got[0], (got[-1], want[-1])


def test_cross_entropy(models):
    """Weights that are fractional, negative, zero, large, and none at all."""
    rng = np.random.default_rng(1)
    rows = [(t, rng.choice([0, 0.5, 1, -2, 3.25], len(t) - 1)) for t in texts(31)]

    def loss(oracle):
        return -sum((picked(oracle, t, np.array(t[1:])) * torch.as_tensor(w)).sum() for t, w in rows)

    models.check([table_datum(t, np.array(t[1:]), w) for t, w in rows], "cross_entropy", loss)
    ones = [(t, np.ones(len(t) - 1)) for t, _ in rows]
    rows = ones
    models.check([plain(t) for t, _ in ones], "cross_entropy", loss)


def tables(seed, columns):
    rng = np.random.default_rng(seed)
    out = []
    for tokens in texts(seed):
        shape = (len(tokens) - 1, columns)
        weights = rng.normal(0, 1, shape) * (rng.random(shape) < 0.4)
        # As distillation has them: nothing over the prompt.
        weights[: shape[0] // 2] = 0
        targets = np.where(weights != 0, rng.integers(0, 512, shape), 0)
        out.append((tokens, targets, weights.astype(np.float32)))
    return out


def table_loss(rows):
    def loss(oracle):
        return -sum((picked(oracle, t, targets) * torch.as_tensor(w).double()).sum() for t, targets, w in rows)
    return loss


def test_tables_of_targets(models):
    """(N, K) targets, dense and, where the package has them, sparse: the same numbers, in the shape of the targets."""
    rows = tables(7, 5) + [(t, np.array(t[1:])[:, None], np.ones((len(t) - 1, 1))) for t in texts(8)[:1]]
    dense = [table_datum(*row) for row in rows]
    out = models.check(dense, "cross_entropy", table_loss(rows))
    for (tokens, targets, weights), got in zip(rows, out.loss_fn_outputs):
        assert list(got["logprobs"].shape) == list(targets.shape), got["logprobs"].shape
        with torch.no_grad():
            want = picked(models.oracle, tokens, targets).numpy()
        close(np.asarray(got["logprobs"].data).reshape(targets.shape), want, 1e-4)
        close(np.asarray(got["elementwise_loss"].data).reshape(targets.shape), -want * weights, 1e-3)
    if not hasattr(tinker.TensorData, "from_torch_sparse"):
        return
    sparse = []
    for tokens, targets, weights in rows:
        tensors = {"target_tokens": torch.as_tensor(targets), "weights": torch.as_tensor(weights.astype(np.float32))}
        sparse.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
            name: tinker.TensorData.from_torch_sparse(value) for name, value in tensors.items()}))
    assert sparse[0].loss_fn_inputs["weights"].sparse_crow_indices is not None, "it was not sparse"
    again = models.fresh().forward_backward(sparse, "cross_entropy").result()
    for a, b in zip(out.loss_fn_outputs, again.loss_fn_outputs):
        assert list(a["logprobs"].data) == list(b["logprobs"].data) and a["logprobs"].shape == b["logprobs"].shape
    assert again.metrics["loss:sum"] == out.metrics["loss:sum"]


def test_custom_loss_over_tables(models):
    """forward_backward_custom of the divergence from a teacher over its likeliest tokens (as sdft)."""
    rows = tables(9, 4)
    data = [table_datum(t, targets, None) for t, targets, _ in rows]
    teacher = [torch.as_tensor(np.abs(w) / np.maximum(np.abs(w).sum(1, keepdims=True), 1e-9)).double()
               for _, _, w in rows]

    def divergence(logprobs):
        return -sum((p * lp.double()).sum() for p, lp in zip(teacher, logprobs))

    def custom(_, logprobs):
        assert [tuple(lp.shape) for lp in logprobs] == [targets.shape for _, targets, _ in rows]
        return divergence(logprobs), {}

    training = models.fresh()
    training.forward_backward_custom(data, custom).result()
    got = models.gradients(training)
    want = models.oracle.gradients(divergence([picked(models.oracle, t, targets) for t, targets, _ in rows]))
    for name in want:
        assert float((got[name] - want[name]).norm()) <= 1e-4 * float(want[name].norm()) + 1e-6, name


def test_custom_losses_over_sequences(models):
    """DPO of a pair, and the variance of the log-probability over the data: losses in which sequences meet."""
    rows = texts(13)
    chosen, rejected = rows[:2]
    with torch.no_grad():
        reference = [picked(models.oracle, t, np.array(t[1:])).sum() + shift
                     for t, shift in ((chosen, 1.0), (rejected, -0.5))]

    def dpo(logprobs):
        margin = (logprobs[0].double().sum() - reference[0]) - (logprobs[1].double().sum() - reference[1])
        return -torch.nn.functional.logsigmoid(0.3 * margin)

    def variance(logprobs):
        return torch.stack([lp.double().mean() for lp in logprobs]).var()

    for loss, used in ((dpo, rows[:2]), (variance, rows)):
        training = models.fresh()
        metrics = training.forward_backward_custom(
            [plain(t) for t in used], lambda _, lps, loss=loss: (loss(lps), {"of:mean": 3.0})).result().metrics
        got = models.gradients(training)
        value = loss([picked(models.oracle, t, np.array(t[1:])) for t in used])
        want = models.oracle.gradients(value)
        assert metrics["of:mean"] == 3.0, metrics
        for name in want:
            assert float((got[name] - want[name]).norm()) <= 1e-4 * float(want[name].norm()) + 1e-6, (loss, name)


CLIPPED = {"clip_low_threshold": 0.7, "clip_high_threshold": 1.6}


def bounds(config):
    return {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, **(config or {})}.values()


def test_importance_sampling(models):
    rows = sampled_data(models.oracle, 3, far=True)
    models.check([policy_datum(row) for row in rows], "importance_sampling",
                 policy_loss(rows, lambda lp, q, a, s: -(ratio(lp, q, a) * a).sum()))


def test_ppo(models):
    for far, config in ((True, None), (True, CLIPPED)):
        low, high = bounds(config)
        rows = sampled_data(models.oracle, 4, far)

        def term(lp, q, a, s):
            r = ratio(lp, q, a)
            return -torch.minimum(r * a, r.clamp(low, high) * a).sum()

        models.check([policy_datum(row) for row in rows], "ppo", policy_loss(rows, term), config)


def test_ppo_with_bounds_of_each_token(models):
    rows = sampled_data(models.oracle, 5, True)
    rng = np.random.default_rng(5)
    more = [(rng.uniform(0.2, 0.9, len(r[1])).astype(np.float32), rng.uniform(1.1, 3, len(r[1])).astype(np.float32))
            for r in rows]
    lists = iter(more * 2)

    def term(lp, q, a, s):
        low, high = (torch.as_tensor(x).double() for x in next(lists))
        r = ratio(lp, q, a)
        return -torch.minimum(r * a, torch.minimum(torch.maximum(r, low), high) * a).sum()

    models.check([policy_datum(row, clip_low_threshold=low, clip_high_threshold=high)
                  for row, (low, high) in zip(rows, more)], "ppo", policy_loss(rows, term))


def test_cispo(models):
    for config in (None, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}):
        low, high = bounds(config)
        rows = sampled_data(models.oracle, 6, True)
        models.check([policy_datum(row) for row in rows], "cispo", policy_loss(
            rows, lambda lp, q, a, s: -(ratio(lp, q, a).detach().clamp(low, high) * lp * a).sum()), config)


def test_dro(models):
    for config in (None, {"beta": 0.5}):
        beta = (config or {"beta": 0.05})["beta"]
        rows = sampled_data(models.oracle, 7)
        models.check([policy_datum(row) for row in rows], "dro", policy_loss(
            rows, lambda lp, q, a, s: -(lp * a - 0.5 * beta * (lp - q) ** 2).sum()), config)


def test_gspo(models):
    if not NEW:
        return
    for masked, config in ((True, None), (True, {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}),
                           (False, {"clip_low_threshold": 0.0, "clip_high_threshold": 9.0})):
        low, high = bounds(config)
        rows = sampled_data(models.oracle, 8)
        if not masked:  # the ratio is over all positions then
            rows = [(t, np.where(s, q, -3).astype(np.float32), a, s) for t, q, a, s in rows]

        def term(lp, q, a, s):
            mask = s if masked else torch.ones_like(s)
            r = (lp - q)[mask].mean().exp()
            return -torch.minimum(r * a, r.clamp(low, high) * a).sum()

        models.check([policy_datum(row, **({"sequence_ratio_mask": row[3]} if masked else {})) for row in rows],
                     "gspo", policy_loss(rows, term), config)


def with_spans(datum, row):
    sampled = int(np.argmax(row[3]))
    n = len(row[1])
    runs = ((tinker.types.PromptProvenanceSpan, sampled), (tinker.types.SampledProvenanceSpan, n - sampled))
    spans = [kind(sequence_id="some:sequence", offset=0, length=length) for kind, length in runs]
    return datum.with_provenance(model_input=spans, loss_fn_inputs=spans)


class Kept(logging.Handler):
    """What the package writes into its log."""

    def __init__(self):
        super().__init__()
        self.messages = []
        logging.getLogger("tinker").addHandler(self)

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_stable_reinforce(models):
    """Our definition of it, which the package's log calls ours."""
    if not NEW:
        return
    log = Kept()
    for config, spans in ((None, True), ({"kl_coeff": 0.7}, False)):
        coefficient = (config or {"kl_coeff": 0.01})["kl_coeff"]
        rows = sampled_data(models.oracle, 10)

        def term(lp, q, a, s):
            x = torch.where(s, q - lp, torch.zeros_like(lp))
            return -(ratio(lp, q, a) * a).sum() + coefficient * (x.exp() - x - 1).sum()

        data = [policy_datum(row) for row in rows]
        models.check([with_spans(d, row) if spans else d for d, row in zip(data, rows)], "stable_reinforce",
                     policy_loss(rows, term), config)
    assert any("stable_reinforce has no published formula" in message for message in log.messages), log.messages


def refused(models, words, data, loss, config=None):
    try:
        models.fresh().forward_backward(data, loss, *([config] if config is not None else [])).result()
    except tinker.RequestFailedError as error:
        assert "user" in str(error.category).lower() and all(word in str(error) for word in words), error
        return
    raise AssertionError(f"{loss} with {config} was accepted")


def test_what_is_refused(models):
    """Options that a loss does not have, and inputs that it can not use: by name, and the model goes on."""
    rows = sampled_data(models.oracle, 12)
    data = [policy_datum(row) for row in rows]
    newer = ("gspo", "stable_reinforce") if NEW else ()
    for loss in ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", *newer):
        refused(models, [loss, "no option", "epsilon"], data, loss, {"epsilon": 0.2})
    refused(models, ["clip_low_threshold", "clip_high_threshold"], data, "ppo", {"clip_low_threshold": 2.0})
    refused(models, ["beta"], data, "dro", {"beta": -1.0})
    refused(models, ["datum 0", "logprobs"], [plain(rows[0][0])], "ppo")
    rows2 = tables(7, 3)
    refused(models, ["target_tokens", "one target a token"],
            [table_datum(rows2[0][0], rows2[0][1], None, logprobs=np.zeros(rows2[0][1].shape),
                         advantages=np.zeros(rows2[0][1].shape))], "ppo")
    text = rows[0][0]
    refused(models, ["weights", "NonFiniteInTensor"],
            [table_datum(text, np.array(text[1:]), np.full(len(text) - 1, np.nan))], "cross_entropy")
    if not NEW:
        return
    refused(models, ["beta", "a number"], data, "dro", {"beta": "much"})
    refused(models, ["sequence_ratio_mask", "0 or 1"],
            [policy_datum(rows[0], sequence_ratio_mask=np.full(len(rows[0][1]), 0.5))], "gspo")
    wrong = list(rows[0])
    wrong[2] = np.ones_like(rows[0][2])
    refused(models, ["advantages", "not sampled"], [with_spans(policy_datum(tuple(wrong)), rows[0])],
            "stable_reinforce")
    refused(models, ["forward_backward_custom"], data, "custom", {"loss_id": "x"})


if __name__ == "__main__":
    sys.exit(run(globals()))
