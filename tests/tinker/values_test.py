"""Data and values as users send them, good and bad: what is wrong is refused in-band, by name, and leaves the model as
it was. Run as sdk_test.py: values_test.py BUILD [name of a test ...]."""

import pickle
import sys

from sdk_test import (ADAM, client, close, cross_entropy_data, datum, new_model, np, texts, there, tinker)
from server_process import Server, run_tests, stories

VOCABULARY, CONTEXT = 512, 512
JSON_ONLY = tuple(int(part) for part in tinker.__version__.split(".")[:2]) < (0, 25)


def refusal(future):
    """The words of a user's error."""
    try:
        future.result()
    except tinker.RequestFailedError as error:
        assert "user" in str(error.category).lower(), error.category
        return str(error)
    raise AssertionError("it was accepted")


def expect_no_json(call):
    try:
        call()
    except ValueError as error:
        assert "not JSON compliant" in str(error), error
        return
    raise AssertionError("it was sent")


def raw(tokens, **inputs):
    """A datum of any tensors."""
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs={
        name: tinker.TensorData.from_numpy(np.asarray(values)) for name, values in inputs.items()})


def logprobs_of(training, data):
    out = training.forward(data, "cross_entropy").result()
    return np.concatenate([np.asarray(o["logprobs"].data) for o in out.loss_fn_outputs])


def ints(*values):
    return np.array(values, dtype=np.int64)


def floats(*values):
    return np.array(values, dtype=np.float32)


# The tests.


def test_gradients_add_up_and_are_used_once(server):
    """Two calls and a step are one call of both; a forward between them changes nothing; a second step has none."""
    first, second = cross_entropy_data(61), cross_entropy_data(62)
    after = []
    for how in ("apart", "together"):
        training = new_model(server)
        if how == "apart":
            training.forward_backward(first, "cross_entropy")
            training.forward(second, "cross_entropy")
            training.forward_backward(second, "cross_entropy")
        else:
            training.forward_backward(first + second, "cross_entropy")
        training.optim_step(ADAM).result()
        after.append(logprobs_of(training, first))
        assert "nothing has been accumulated" in refusal(training.optim_step(ADAM))
        assert np.array_equal(after[-1], logprobs_of(training, first)), "a refused step moved the weights"
    assert np.array_equal(*after)


def test_metrics(server):
    """One colon in each name, the same names for every loss and for forward, loss:sum the sum over chunks."""
    training = new_model(server)
    text = texts(63)[0]
    n = len(text) - 1
    one = datum(text, weights=[1.0] * n)
    policy = datum(text, logprobs=[-1.0] * n, advantages=[1.0] * n)
    loss_of_one = training.forward_backward([one], "cross_entropy").result().metrics["loss:sum"]
    many = training.forward_backward([one] * 1500, "cross_entropy").result()  # chunks
    assert len(many.loss_fn_outputs) == 1500
    assert abs(many.metrics["loss:sum"] - 1500 * loss_of_one) < 1e-6 * 1500 * loss_of_one
    for metrics in ([many.metrics] + [there(new_model(server).forward_backward([policy], loss)).metrics
                                      for loss in ("importance_sampling", "ppo", "cispo", "dro")] +
                    [training.forward([one], "cross_entropy").result().metrics]):
        assert list(metrics) == ["loss:sum"], metrics


def test_many_data(server):
    """2,500 data of distinct lengths: results in the order of the data, and the step of one whole batch."""
    rng = np.random.default_rng(3)
    lengths = [1 + i % 37 for i in range(2500)]
    data = [raw(rng.integers(3, 500, n).tolist(), target_tokens=rng.integers(3, 500, n),
                weights=rng.random(n, dtype=np.float32))
            for n in lengths]
    results = []
    for parts in (1, 5):
        training = new_model(server, rank=4)
        outputs = []
        for part in range(parts):
            call = training.forward_backward(data[part * len(data) // parts:(part + 1) * len(data) // parts],
                                             "cross_entropy").result()
            outputs += call.loss_fn_outputs
        assert [len(o["logprobs"].data) for o in outputs] == lengths
        training.optim_step(ADAM).result()
        results.append((logprobs_of(training, cross_entropy_data(1)), list(outputs[2499]["logprobs"].data)))
    assert np.array_equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]


def test_wrong_data(server):
    """Lengths, shapes, types, tokens, numbers that are none: each refused with the datum and the field named."""
    training = new_model(server)
    good = cross_entropy_data(64)
    before = logprobs_of(training, good)
    nan, inf = float("nan"), float("inf")
    policy = {"target_tokens": ints(5, 6, 7), "logprobs": floats(-1, -1, -1), "advantages": floats(1, 1, 1)}
    cases = [
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6)), ["target_tokens", "2 values for 3"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, 7, 8)), ["target_tokens", "4 values for 3"]),
        ("cross_entropy", raw([1, 5, 6]), ["needs 'target_tokens'"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=floats(5, 6, 7)), ["target_tokens", "whole numbers"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, 7), weights=floats(1)),
         ["weights", "1 values for 3"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, 7), weights=floats(1, nan, 1)),
         ["weights", "NonFiniteInTensor"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, 7).reshape(1, 3)), ["target_tokens", "shape"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, -1)), ["target_tokens", "-1"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, VOCABULARY)), [str(VOCABULARY), "vocabulary"]),
        ("cross_entropy", raw([1, 5, 6], target_tokens=ints(5, 6, 2 ** 31)), ["target_tokens", str(2 ** 31)]),
        ("cross_entropy", raw([1, 5, VOCABULARY], target_tokens=ints(5, 6, 7)), [str(VOCABULARY), "vocabulary"]),
        ("cross_entropy", raw([1, 5, 2 ** 31 - 1], target_tokens=ints(5, 6, 7)), [str(2 ** 31 - 1), "vocabulary"]),
        ("cross_entropy", raw([1, 5, -1], target_tokens=ints(5, 6, 7)), ["-1"]),
        ("cross_entropy", raw([], target_tokens=ints()), ["no tokens"]),
        ("cross_entropy", raw([3] * (CONTEXT + 1), target_tokens=ints(*[3] * (CONTEXT + 1))), ["PromptTooLong"]),
        ("ppo", raw([1, 5, 6], **{**policy, "advantages": floats(inf, 1, 1)}), ["advantages", "NonFiniteInTensor"]),
        ("ppo", raw([1, 5, 6], **{**policy, "logprobs": floats(-inf, 1, 1)}), ["logprobs", "NonFiniteInTensor"]),
        ("ppo", raw([1, 5, 6], **{**policy, "advantages": floats(1)}), ["advantages", "1 values for 3"]),
        ("dro", raw([1, 5, 6], target_tokens=ints(5, 6, 7), logprobs=floats(-1, -1, -1)), ["needs 'advantages'"]),
    ]
    fine = {"cross_entropy": good[0], "ppo": raw([1, 5, 6], **policy), "dro": raw([1, 5, 6], **policy)}
    for loss, wrong, words in cases:
        if "NonFiniteInTensor" in words and JSON_ONLY:  # sent as JSON, which the package refuses to write
            expect_no_json(lambda: training.forward_backward([fine[loss], wrong], loss).result())
            continue
        error = refusal(training.forward_backward([fine[loss], wrong], loss))
        assert all(word in error for word in words), (words, error)
        assert ("datum 1" in error or "sequence 1" in error), error
        assert "send the whole batch again" in refusal(training.optim_step(ADAM))
        assert np.array_equal(before, logprobs_of(training, good)), error
    # What the loss does not read is not looked at.
    extra = raw([1, 5, 6], target_tokens=ints(5, 6, 7), mask=floats(1, 1, 1),
                logprobs=floats(9 if JSON_ONLY else nan, 0, 0))
    training.forward_backward([extra], "cross_entropy").result()
    training.optim_step(ADAM).result()
    assert not np.array_equal(before, logprobs_of(training, good))


def test_weights_of_zero(server):
    """Nothing to learn is no error: the loss is 0 and the step moves nothing but by what came before."""
    training = new_model(server)
    data = cross_entropy_data(65)
    before = logprobs_of(training, data)
    idle = [datum(t, weights=[0.0] * (len(t) - 1)) for t in texts(65)]
    out = training.forward_backward(idle, "cross_entropy").result()
    assert out.metrics["loss:sum"] == 0
    assert all(x == 0 for o in out.loss_fn_outputs for x in o["elementwise_loss"].data)
    training.optim_step(ADAM).result()
    assert np.array_equal(before, logprobs_of(training, data))


def test_bad_steps(server):
    """Parameters of Adam that are none are refused, and the weights stay."""
    training = new_model(server)
    data = cross_entropy_data(66)
    before = logprobs_of(training, data)
    for wrong in ({"learning_rate": -1.0}, {"learning_rate": 1e-3, "beta1": 1.0}, {"learning_rate": 1e-3, "beta2": 1.5},
                  {"learning_rate": 1e-3, "eps": 0.0}):
        training.forward_backward(data, "cross_entropy").result()
        error = refusal(training.optim_step(tinker.AdamParams(**wrong)))
        assert list(wrong)[-1] in error, (wrong, error)
        assert np.array_equal(before, logprobs_of(training, data))
    training.forward_backward(data, "cross_entropy").result()
    training.optim_step(ADAM).result()


def test_images(server):
    """A text model says so, for training and for sampling."""
    chunk = tinker.types.ImageChunk
    fields = {"data": b"\x89PNG", "format": "png"}
    fields.update({name: 1 for name in ("height", "width", "tokens", "expected_tokens") if name in chunk.model_fields})
    prompt = tinker.ModelInput(chunks=[tinker.types.EncodedTextChunk(tokens=[1, 5]), chunk(**fields)])
    wrong = tinker.Datum(model_input=prompt, loss_fn_inputs={
        "target_tokens": tinker.TensorData.from_numpy(ints(1, 2, 3))})
    assert "model that sees" in refusal(new_model(server).forward_backward([wrong], "cross_entropy"))
    base = there(client(server).create_sampling_client(base_model=stories()))
    error = refusal(base.sample(prompt, 1, tinker.SamplingParams(max_tokens=2)))
    assert "model that sees" in error and "[sample]" in error and "forward_backward" not in error, error


def test_greedy_and_scores(server):
    """Greedy takes what compute_logprobs finds likeliest; all kinds of sampling clients agree with the trainer."""
    training = new_model(server)
    data = cross_entropy_data(67)
    prompt = texts(67)[0]
    base = there(client(server).create_sampling_client(base_model=stories()))
    close(base.compute_logprobs(tinker.ModelInput.from_ints(prompt)).result()[1:],
          training.forward(data[:1], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data, 0)
    for _ in range(3):
        training.forward_backward(data, "cross_entropy")
        training.optim_step(ADAM)
    ephemeral = there(training.save_weights_and_get_sampling_client())
    named = there(client(server).create_sampling_client(
        model_path=training.save_weights_for_sampler("greedy").result().path))
    of_state = there(client(server).create_sampling_client(model_path=training.save_state("greedy").result().path))
    trained = training.forward(data[:1], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    greedy = tinker.SamplingParams(max_tokens=7, temperature=0.0)
    answers = []
    for sampler in (ephemeral, named, of_state):
        scores = sampler.compute_logprobs(tinker.ModelInput.from_ints(prompt)).result()
        assert len(scores) == len(prompt) and scores[0] is None
        close(scores[1:], trained, 0)
        answer = sampler.sample(tinker.ModelInput.from_ints(prompt), 3, greedy).result()
        assert len(answer.sequences) == 3 and all(s.stop_reason == "length" for s in answer.sequences)
        assert len({tuple(s.tokens) for s in answer.sequences}) == 1
        answers.append(list(answer.sequences[0].tokens))
    assert answers[0] == answers[1] == answers[2]
    # No other token at any place is likelier.
    text = prompt + answers[0]
    top = ephemeral.sample(tinker.ModelInput.from_ints(text), 1, tinker.SamplingParams(max_tokens=1),
                           topk_prompt_logprobs=1).result().topk_prompt_logprobs
    assert [row[0][0] for row in top[len(prompt):]] == answers[0]


def test_seeds(server):
    """The same seed gives the same answers, alone and beside others; those of one request and of other seeds differ."""
    sampler = there(client(server).create_sampling_client(base_model=stories()))
    prompt = tinker.ModelInput.from_ints([1, 30, 40])

    def tokens(future):
        return [tuple(s.tokens) for s in future.result().sequences]

    def ask(count, seed):
        params = tinker.SamplingParams(max_tokens=12, temperature=1.0, **({} if seed is None else {"seed": seed}))
        return sampler.sample(prompt, count, params)

    alone = tokens(ask(16, 5))
    assert len(set(alone)) == 16, alone
    crowd = [ask(2, seed) for seed in range(6, 26)]
    assert tokens(ask(16, 5)) == alone
    assert len({answer for future in crowd for answer in tokens(future)}) == 40
    assert tokens(ask(4, 5)) == alone[:4], "an answer depends on how many were asked for"
    assert len({answer for _ in range(4) for answer in tokens(ask(1, None))}) == 4


def test_lengths(server):
    """Prompts up to the context, answers that stop there, and prompts that are longer or empty."""
    sampler = there(client(server).create_sampling_client(base_model=stories()))

    def ask(length, **params):
        return sampler.sample(tinker.ModelInput.from_ints([5] * length), 1, tinker.SamplingParams(**params))

    sequence, = ask(CONTEXT - 1, max_tokens=1).result().sequences
    assert len(sequence.tokens) == 1
    sequence, = ask(CONTEXT - 3, max_tokens=50, stop=[]).result().sequences
    assert len(sequence.tokens) == 3 and sequence.stop_reason == "length"
    sequence, = ask(CONTEXT - 4, stop=[]).result().sequences  # no max_tokens: to the end of the context
    assert len(sequence.tokens) == 4
    assert "context" in refusal(ask(CONTEXT, max_tokens=1))
    assert "context" in refusal(ask(CONTEXT + 1, max_tokens=1))
    assert "no tokens" in refusal(ask(0, max_tokens=1))
    assert "vocabulary" in refusal(sampler.sample(tinker.ModelInput.from_ints([VOCABULARY]), 1,
                                                  tinker.SamplingParams(max_tokens=1)))


def test_pickled_clients(server):
    """Copies of a sampling client number their requests far apart: none gets another's answer."""
    if tuple(int(part) for part in tinker.__version__.split(".")[:2]) < (0, 18):
        return
    sampler = there(client(server).create_sampling_client(base_model=stories()))
    try:
        copies = [pickle.loads(pickle.dumps(sampler)) for _ in range(3)]
    except TypeError:  # before they could be pickled
        return
    params = tinker.SamplingParams(max_tokens=5, temperature=0.0)
    futures = [(copy, word, copy.sample(tinker.ModelInput.from_ints([1, word]), 1, params))
               for word in range(20, 30) for copy in [sampler] + copies]
    wanted = {}
    for _, word, future in futures:
        answer = tuple(future.result().sequences[0].tokens)
        assert wanted.setdefault(word, answer) == answer


def main():
    print(f"tinker {tinker.__version__}")
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
