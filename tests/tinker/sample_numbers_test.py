"""What a sample can be asked for beside its tokens, through the real package against the model in double precision.
sample_numbers_test.py BUILD VENV [name of a test ...], see oracle.py."""

import sys

from oracle import VERSION, np, run, stories, tinker, torch, transformers
from sdk_test import texts, there

NEW = VERSION >= (0, 33)


def sampler_of(models):
    if not hasattr(models, "sampler"):
        models.sampler = there(models.service.create_sampling_client(model_path=models.path))
    return models.sampler


def rows_of(models, tokens):
    with torch.no_grad():
        return models.oracle.logprobs(tokens).numpy()


def near(got, want, tolerance=2e-4):
    assert abs(got - want) <= tolerance, (got, want)


def check_top(got, want, k):
    """The k likeliest of a distribution, likeliest first."""
    assert len(got) == k, got
    order = np.argsort(-want, kind="stable")[:k]
    for (token, logprob), expected in zip(got, order):
        near(logprob, want[expected])
        near(want[token], want[expected])  # the same token, but for near ties


def sample(models, tokens, params=None, **more):
    params = params or tinker.SamplingParams(max_tokens=1, seed=1)
    return sampler_of(models).sample(tinker.ModelInput.from_ints(tokens), 1, params, **more).result()


def test_tokenizer(models):
    """That of the model, by the name that the server tells, without a network."""
    text = "Once upon a time there was a little cat."
    own = transformers.AutoTokenizer.from_pretrained(stories())
    for told in (models.fresh().get_tokenizer(), sampler_of(models).get_tokenizer()):
        assert told.encode(text) == own.encode(text) and told.decode(told.encode(text)) == own.decode(own.encode(text))


def test_prompt(models):
    """Log-probabilities of a prompt, and the likeliest tokens at each place, each alone and together."""
    tokens = texts(50)[0]
    want = rows_of(models, tokens)
    for own in (False, True):
        result = sample(models, tokens, include_prompt_logprobs=own, topk_prompt_logprobs=5)
        top = result.topk_prompt_logprobs
        assert len(top) == len(tokens) and top[0] is None
        for i in range(1, len(tokens)):
            check_top(top[i], want[i - 1], 5)
        if not own:
            assert result.prompt_logprobs is None
            continue
        assert len(result.prompt_logprobs) == len(tokens) and result.prompt_logprobs[0] is None
        for i in range(1, len(tokens)):
            near(result.prompt_logprobs[i], want[i - 1][tokens[i]])


def test_suffix(models):
    if not NEW:
        return
    tokens = texts(51)[0]
    whole = sampler_of(models).compute_logprobs(tinker.ModelInput.from_ints(tokens)).result()
    for n in (1, 3, len(tokens) - 1):
        result = sample(models, tokens, include_prompt_logprobs=True, topk_prompt_logprobs=2, prompt_logprobs_last_n=n)
        assert result.prompt_logprobs == [None] * (len(tokens) - n) + whole[len(tokens) - n:], result.prompt_logprobs
        assert [row is None for row in result.topk_prompt_logprobs] == [True] * (len(tokens) - n) + [False] * n


def test_chosen_tokens(models):
    """target_prompt_logprobs, dense and sparse: the same numbers, each in its own layout."""
    if not NEW:
        return
    tokens = texts(52)[0]
    want = rows_of(models, tokens)
    rng = np.random.default_rng(0)
    ids = np.where(rng.random((len(tokens) - 1, 3)) < 0.3, rng.integers(0, 512, (len(tokens) - 1, 3)), -1)
    ids[2] = [7, 7, 0]
    ids = torch.as_tensor(ids.astype(np.int64))
    for target in (tinker.TensorData.from_torch(ids), tinker.TensorData.from_torch_sparse(ids, pad_value=-1)):
        result = sample(models, tokens, target_prompt_logprobs=target)
        got = result.target_prompt_logprobs
        assert got.shape == list(ids.shape) and got.sparse_crow_indices == target.sparse_crow_indices
        assert got.sparse_col_indices == target.sparse_col_indices
        dense = got.to_numpy()
        for i in range(ids.shape[0]):
            for j in range(3):
                near(dense[i][j], 0.0 if ids[i][j] < 0 else want[i][ids[i][j]])
    assert target.sparse_crow_indices is not None, "it was not sparse"


def test_drawn_alternatives(models):
    if not NEW:
        return
    tokens = texts(53)[0]
    want = rows_of(models, tokens)
    params = tinker.SamplingParams(max_tokens=1, temperature=0.7, seed=5)
    result = sample(models, tokens, params, prompt_alt_tokens_k=6).prompt_alt_tokens
    ids, logprobs = result.tokens.to_numpy(), result.logprobs.to_numpy()
    assert ids.shape == logprobs.shape == (len(tokens) - 1, 6)
    for i in range(len(tokens) - 1):
        for j in range(6):
            near(logprobs[i][j], want[i][ids[i][j]])
    assert len({tuple(row) for row in ids}) > 1 and any(len(set(row)) > 1 for row in ids)
    again = sample(models, tokens, params, prompt_alt_tokens_k=6).prompt_alt_tokens
    assert np.array_equal(again.tokens.to_numpy(), ids)
    greedy = sample(models, tokens, tinker.SamplingParams(max_tokens=1, temperature=0.0), prompt_alt_tokens_k=2)
    for i, row in enumerate(greedy.prompt_alt_tokens.tokens.to_numpy()):
        near(want[i][row[0]], want[i].max())
        assert row[0] == row[1]


def test_likeliest_of_an_answer(models):
    """At each temperature those of the distribution that the tokens were drawn from; greedy: the model's own."""
    if not NEW:
        return
    tokens = texts(54)[0]
    for temperature, more in ((1.0, {}), (0.6, {}), (0.0, {}), (1.0, {"top_k": 3})):
        params = tinker.SamplingParams(max_tokens=6, temperature=temperature, seed=3, stop=[], **more)
        sequence, = sample(models, tokens, params, topk_sample_logprobs=4).sequences
        rows = rows_of(models, tokens + list(sequence.tokens))[len(tokens) - 1:]
        assert len(sequence.topk_logprobs) == len(sequence.tokens) == 6
        for i, token in enumerate(sequence.tokens):
            drawn = rows[i] / (temperature or 1.0)
            if more:
                drawn = np.where(drawn >= np.sort(drawn)[-3], drawn, -np.inf)
            drawn = drawn - np.log(np.exp(drawn - drawn.max()).sum()) - drawn.max()
            near(sequence.logprobs[i], drawn[token], 1e-3)
            check = sequence.topk_logprobs[i]
            assert len(check) == (3 if more else 4)
            for place, (other, logprob) in enumerate(check):
                near(logprob, drawn[other], 1e-3)
                near(logprob, np.sort(drawn)[-1 - place], 1e-3)
                assert other != token or logprob == sequence.logprobs[i]


def test_what_is_refused(models):
    """In-band, with the field and '[sample]', whatever the package does not catch itself."""
    if not NEW:
        return
    tokens = texts(55)[0]
    n = len(tokens) - 1
    cases = [({"topk_sample_logprobs": 4096}, "topk_sample_logprobs"),
             ({"prompt_alt_tokens_k": 5000}, "prompt_alt_tokens_k"),
             ({"include_prompt_logprobs": True, "prompt_logprobs_last_n": n + 1}, "prompt_logprobs_last_n"),
             ({"target_prompt_logprobs": tinker.TensorData.from_numpy(np.zeros((n + 1, 1), dtype=np.int64))},
              "target_prompt_logprobs"),
             ({"target_prompt_logprobs": tinker.TensorData.from_numpy(np.full((n, 1), -1, dtype=np.int64))},
              "names no token"),
             ({"target_prompt_logprobs": tinker.TensorData.from_numpy(np.full((n, 1), 512, dtype=np.int64))},
              "not in the vocabulary")]
    for more, words in cases:
        try:
            sample(models, tokens, **more)
        except tinker.RequestFailedError as error:
            assert words in str(error) and "[sample]" in str(error), (more, error)
            assert "user" in str(error.category).lower(), error.category
        else:
            raise AssertionError(f"{more} was accepted")
    assert len(sample(models, tokens).sequences) == 1


if __name__ == "__main__":
    sys.exit(run(globals()))
