"""The server driven by the official tinker package, as its users do. Run with the python of an environment that
has it: sdk_test.py BUILD [name of a test ...]."""

import random
import sys
import threading
import time

from bad_network import BadNetwork
from server_process import KEY_ANN, KEY_BOB, Server, missing, run_tests, stories

try:
    import numpy as np
    import tinker
except ImportError:
    missing("the tinker package (scripts/setup --sdk)")


def client(server, key=KEY_ANN):
    return tinker.ServiceClient(base_url=server.url, api_key=key)


def there(client_or_future):
    """What newer versions give as a future."""
    return client_or_future.result() if hasattr(client_or_future, "result") else client_or_future


def datum(tokens, **inputs):
    """Next-token prediction of `tokens`; the inputs have one value for each target."""
    fields = {"target_tokens": np.array(tokens[1:], dtype=np.int64)}
    for name, values in inputs.items():
        fields[name] = np.array(values, dtype=np.float32)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={name: tinker.TensorData.from_numpy(values) for name, values in fields.items()})


def texts(seed, count=4):
    rng = random.Random(seed)
    return [[1] + [rng.randrange(3, 500) for _ in range(rng.randrange(8, 24))] for _ in range(count)]


def cross_entropy_data(seed):
    return [datum(t, weights=[1.0] * (len(t) - 1)) for t in texts(seed)]


ADAM = tinker.AdamParams(learning_rate=1e-2)


def train(training, seed, steps):
    """Losses of steps that are sent without waiting."""
    calls = []
    for step in range(steps):
        calls.append(training.forward_backward(cross_entropy_data(seed + step % 2), "cross_entropy"))
        training.optim_step(ADAM)
    return [call.result().metrics["loss:sum"] for call in calls]


def new_model(server, key=KEY_ANN, seed=7, rank=8):
    return there(client(server, key).create_lora_training_client(base_model=stories(), rank=rank, seed=seed))


def weights(server, path):
    """The bytes of a checkpoint's weights and optimizer."""
    folder = server.folder_of(path)
    return {name: (folder / name).read_bytes() for name in ("adapter_model.safetensors", "optimizer.safetensors")
            if (folder / name).exists()}


def close(a, b, tolerance):
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert np.all(np.abs(a - b) <= tolerance), np.abs(a - b).max()


# The tests.


def test_a_script(server):
    """Create, train ten steps, score, sample, save, load, resume."""
    service = client(server)
    names = [m.model_name for m in service.get_server_capabilities().supported_models]
    assert stories() in names, names
    training = there(service.create_lora_training_client(base_model=stories(), rank=8, seed=1))
    info = training.get_info()
    assert info.model_id.endswith(":train:0") and info.model_name == stories() and info.lora_rank == 8, info

    # A new adapter is the base model.
    data = cross_entropy_data(11)
    before = training.forward(data, "cross_entropy").result()
    base = there(service.create_sampling_client(base_model=stories()))
    for text, out in zip(texts(11), before.loss_fn_outputs):
        scored = base.compute_logprobs(tinker.ModelInput.from_ints(text)).result()
        assert scored[0] is None
        assert list(scored[1:]) == list(out["logprobs"].data), "sampler and trainer differ"

    losses = train(training, 11, 10)
    assert losses[8] < losses[0] * 0.8 and losses[9] < losses[1] * 0.8, losses

    # The loss is minus the sum of weight times log-probability.
    out = training.forward(data, "cross_entropy").result()
    total = -sum(float(np.sum(np.asarray(o["logprobs"].data, dtype=np.float64))) for o in out.loss_fn_outputs)
    close(out.metrics["loss:sum"], total, 1e-3)
    close(out.loss_fn_outputs[0]["elementwise_loss"].data, -np.asarray(out.loss_fn_outputs[0]["logprobs"].data), 0)

    # Weights at this point, for a sampler: later steps do not change them.
    sampling = there(training.save_weights_and_get_sampling_client())
    prompt = tinker.ModelInput.from_ints(texts(11)[0])
    then = sampling.compute_logprobs(prompt).result()
    close(then[1:], out.loss_fn_outputs[0]["logprobs"].data, 0)
    greedy = sampling.sample(prompt, 2, tinker.SamplingParams(max_tokens=5, temperature=0.0)).result()
    assert len(greedy.sequences) == 2
    assert list(greedy.sequences[0].tokens) == list(greedy.sequences[1].tokens)
    assert len(greedy.sequences[0].tokens) == 5 and greedy.sequences[0].stop_reason == "length"
    scored = sampling.compute_logprobs(
        tinker.ModelInput.from_ints(texts(11)[0] + list(greedy.sequences[0].tokens))).result()
    close(greedy.sequences[0].logprobs, scored[-5:], 0)
    params = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=3)
    one, two = (sampling.sample(prompt, 3, params).result() for _ in range(2))
    assert [list(s.tokens) for s in one.sequences] == [list(s.tokens) for s in two.sequences]
    assert len({tuple(s.tokens) for s in one.sequences}) == 3, "samples of one request are alike"

    state = training.save_state("ten").result().path
    assert state == f"tinker://{info.model_id}/weights/ten", state
    a = train(training, 11, 5)
    close(sampling.compute_logprobs(prompt).result()[1:], then[1:], 0)
    resumed = there(service.create_training_client_from_state_with_optimizer(state))
    assert train(resumed, 11, 5) == a, "a resumed run differs"
    end_a = training.save_state("end").result().path
    end_b = resumed.save_state("end").result().path
    assert weights(server, end_a)["adapter_model.safetensors"] == weights(server, end_b)["adapter_model.safetensors"]

    named = training.save_weights_for_sampler("sampler").result().path
    by_path = there(service.create_sampling_client(model_path=named))
    last = training.forward(data, "cross_entropy").result()
    close(by_path.compute_logprobs(prompt).result()[1:], last.loss_fn_outputs[0]["logprobs"].data, 0)


def test_lists(server):
    """Runs and checkpoints of a user, through the package's own client."""
    service = client(server)
    training = there(service.create_lora_training_client(base_model=stories(), rank=4, user_metadata={"of": "a cat"}))
    path = training.save_state("listed", ttl_seconds=7200).result().path
    run_id = path.split("/")[2]
    rest = service.create_rest_client()
    run = rest.get_training_run(run_id).result()
    assert run.user_metadata == {"of": "a cat"} and run.last_checkpoint.tinker_path == path, run
    assert run_id in [r.training_run_id for r in rest.list_training_runs(limit=5).result().training_runs]
    listed, = rest.list_checkpoints(run_id).result().checkpoints
    assert listed.checkpoint_id == "weights/listed" and listed.size_bytes > 1000, listed
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(run_id).result().checkpoints == []


def test_sums_and_accumulation(server):
    """Eight calls of one datum, one call of eight, and twice the data at half the weight: the same step."""
    data = texts(5, 8)
    after = []
    for how in ("one", "eight", "half"):
        training = new_model(server)
        if how == "one":
            training.forward_backward([datum(t, weights=[1.0] * (len(t) - 1)) for t in data], "cross_entropy")
        elif how == "eight":
            for t in data:
                training.forward_backward([datum(t, weights=[1.0] * (len(t) - 1))], "cross_entropy")
        else:
            half = [datum(t, weights=[0.5] * (len(t) - 1)) for t in data]
            training.forward_backward(half + half, "cross_entropy")
        training.optim_step(ADAM).result()
        out = training.forward(cross_entropy_data(5), "cross_entropy").result()
        after.append(np.concatenate([np.asarray(o["logprobs"].data) for o in out.loss_fn_outputs]))
    assert np.array_equal(after[0], after[1]), "the split of a batch changes bits"
    close(after[0], after[2], 1e-5)


def policy_terms(loss, lp, q, a):
    """Value and derivative of each token's part, as the API's documentation has them."""
    r = np.exp(lp - q)
    clipped = np.clip(r, 0.8, 1.2)
    if loss == "importance_sampling":
        return -r * a, -r * a
    if loss == "ppo":
        return -np.minimum(r * a, clipped * a), np.where(r * a <= clipped * a, -r * a, 0.0)
    if loss == "cispo":
        return -clipped * lp * a, -clipped * a
    return -(lp * a - 0.5 * 0.05 * (lp - q) ** 2), -(a - 0.05 * (lp - q))


def test_policy_losses(server):
    """Values by the formula; gradients by a cross-entropy whose weights are minus the formula's derivative."""
    rng = np.random.default_rng(0)
    data = texts(21)
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        by_name, by_weights = new_model(server), new_model(server)
        base = by_name.forward([datum(t, weights=[1.0] * (len(t) - 1)) for t in data], "cross_entropy").result()
        policy, weighted, total = [], [], 0.0
        for t, out in zip(data, base.loss_fn_outputs):
            lp = np.asarray(out["logprobs"].data, dtype=np.float64)
            q = (lp + rng.normal(0, 0.5, len(lp))).astype(np.float32)
            a = (rng.normal(0, 1, len(lp)) * (rng.random(len(lp)) < 0.7)).astype(np.float32)
            value, derivative = policy_terms(loss, lp, q.astype(np.float64), a.astype(np.float64))
            total += float(value.sum())
            policy.append(datum(t, logprobs=q, advantages=a))
            weighted.append(datum(t, weights=-derivative))
        got = by_name.forward_backward(policy, loss).result().metrics["loss:sum"]
        assert abs(got - total) <= 1e-4 * max(1, abs(total)), (loss, got, total)
        by_weights.forward_backward(weighted, "cross_entropy").result()
        results = []
        for training in (by_name, by_weights):
            training.optim_step(tinker.AdamParams(learning_rate=1e-2, eps=1e-4)).result()
            out = training.forward([datum(t, weights=[1.0] * (len(t) - 1)) for t in data], "cross_entropy").result()
            results.append(np.concatenate([np.asarray(o["logprobs"].data) for o in out.loss_fn_outputs]))
        close(results[0], results[1], 2e-3)
        assert np.abs(results[0] - results[1]).mean() < 1e-4, loss


def test_refused_chunk(server):
    """A wrong datum in the middle of a call of several chunks fails that call and its step, and nothing behind."""
    training = new_model(server)
    good = datum([1, 5, 6], weights=[1.0, 1.0])
    wrong = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 5]), loss_fn_inputs={
        "target_tokens": tinker.TensorData.from_numpy(np.array([5], dtype=np.int64))})
    data = [good] * 2100
    data[1500] = wrong
    call, step = training.forward_backward(data, "cross_entropy"), training.optim_step(ADAM)
    for future, words in ((call, "target_tokens"), (step, "send the whole batch again")):
        try:
            future.result()
            raise AssertionError("a wrong datum was accepted")
        except tinker.RequestFailedError as error:
            assert words in str(error) and "user" in str(error.category).lower(), (error, error.category)
    training.forward_backward([good], "cross_entropy").result()
    training.optim_step(ADAM).result()
    try:
        training.forward_backward([good], "no_such_loss").result()
        raise AssertionError("an unknown loss was accepted")
    except ValueError as error:  # older versions know their losses themselves
        assert "loss_fn" in str(error), error
    except tinker.RequestFailedError as error:
        assert "importance_sampling" in str(error), error


def test_two_tenants(server):
    """Two keys train at once, many steps in flight: each gets the numbers that it gets alone."""
    alone = {key: train(new_model(server, key, seed), seed, 12) for key, seed in ((KEY_ANN, 3), (KEY_BOB, 4))}
    together = {}

    def run(key, seed):
        together[key] = train(new_model(server, key, seed), seed, 12)

    threads = [threading.Thread(target=run, args=a) for a in ((KEY_ANN, 3), (KEY_BOB, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_kill_and_restart(server):
    """kill -9 in the middle of a run, several times: the client sees nothing of it, the weights are the same."""
    def run(name, disturb):
        training = new_model(server, seed=9)
        done = threading.Event()

        def killer():
            rng = random.Random(1)
            for _ in range(4):
                time.sleep(rng.uniform(0.2, 0.8))
                if done.is_set():
                    return
                server.kill()
                server.start()

        thread = threading.Thread(target=killer)
        if disturb:
            thread.start()
        losses = []
        for _ in range(6):
            losses += train(training, 31, 10)
        path = training.save_state(name).result().path
        done.set()
        if disturb:
            thread.join()
        return losses, weights(server, path)

    calm, storm = run("calm", False), run("storm", True)
    assert storm == calm, "a run with kills differs"


def test_bad_network(server):
    """Replies lost or cut off, requests sent twice at once or again later: each is carried out once."""
    def run(url, name):
        service = tinker.ServiceClient(base_url=url, api_key=KEY_ANN)
        training = there(service.create_lora_training_client(base_model=stories(), rank=4, seed=5))
        losses = train(training, 41, 20)
        sampling = there(training.save_weights_and_get_sampling_client())
        params = tinker.SamplingParams(max_tokens=6, seed=2)
        prompt = tinker.ModelInput.from_ints([1, 20, 30])
        answers = [sampling.sample(prompt, 2, params) for _ in range(10)]
        tokens = [[list(s.tokens) for s in answer.result().sequences] for answer in answers]
        path = training.save_state(name).result().path
        resumed = there(service.create_training_client_from_state_with_optimizer(path))
        losses += train(resumed, 43, 4)
        by_path = there(service.create_sampling_client(model_path=resumed.save_weights_for_sampler(name).result().path))
        tokens.append([list(s.tokens) for s in by_path.sample(prompt, 2, params).result().sequences])
        return losses, tokens, weights(server, path), weights(server, resumed.save_state(name).result().path)

    network = BadNetwork(server.port, seed=3)
    rough = run(network.url, "rough")
    network.stop()
    assert min(network.met.values()) > 0, network.met
    assert rough == run(server.url, "smooth"), "a run over a bad network differs"


def main():
    print(f"tinker {tinker.__version__}")
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
