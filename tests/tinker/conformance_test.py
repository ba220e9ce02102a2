"""What a server of the Tinker API must do, driven by the official package where it can be made to do it: behind a
prefix, over a network that loses each kind of reply, with flags other than ours, in the face of clients that go away.
docs/tinker-conformance.md says which test shows what. conformance_test.py BUILD [name of a test ...]"""

import concurrent.futures
import contextlib
import json
import logging
import socket
import statistics
import sys
import time
import urllib.request

from bad_network import BadNetwork
from isolation_test import API, Ann, call_body, post, result
from sdk_test import (ADAM, client, cross_entropy_data, datum, new_model, np, texts, there, tinker, train, weights)
from server_process import KEY_ANN, KEY_BOB, Server, run_tests, stories

VERSION = tuple(int(part) for part in tinker.__version__.split(".")[:2])
PROMPT = tinker.ModelInput.from_ints(texts(11)[0])
GREEDY = tinker.SamplingParams(max_tokens=5, temperature=0.0)


@contextlib.contextmanager
def another(server, *options):
    """A server of its own with these options."""
    other = Server(server.build, options=list(options))
    try:
        yield other
    finally:
        other.stop()
        other.made.cleanup()


class Messages(logging.Handler):
    """What the package says in its log, warnings and worse."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.list = []

    def emit(self, record):
        self.list.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("tinker").addHandler(self)
        return self.list

    def __exit__(self, *_):
        logging.getLogger("tinker").removeHandler(self)


class Watched(BadNetwork):
    """A network that does what it is told, to the first requests of a route, and writes down all."""

    def __init__(self, port, **faults):
        super().__init__(port, seed=0)
        self.faults = {route: list(names) for route, names in faults.items()}
        self.seen = []  # (route, body, status, reply)

    def draw(self, path):
        with self.lock:
            waiting = self.faults.get(path.split("?")[0].rsplit("/", 1)[-1])
            return waiting.pop(0) if waiting else None

    def forward(self, request, body):
        reply, text = super().forward(request, body)
        with self.lock:
            self.seen.append((request.path.split(API)[-1], body, reply.status, text))
        return reply, text

    def of(self, route):
        return [entry for entry in self.seen if entry[0] == route]


def service(url, key=KEY_ANN, **more):
    return tinker.ServiceClient(base_url=url, api_key=key, **more)


def script(url, name):
    """A short run of everything; what it was told."""
    made = service(url)
    training = there(made.create_lora_training_client(base_model=stories(), rank=4, seed=5))
    told = train(training, 41, 3)
    sampling = there(training.save_weights_and_get_sampling_client())
    told.append(list(sampling.sample(PROMPT, 1, GREEDY).result().sequences[0].tokens))
    told.append(sampling.compute_logprobs(PROMPT).result())
    state = training.save_state(name).result().path
    resumed = there(made.create_training_client_from_state_with_optimizer(state))
    told += train(resumed, 43, 2)
    named = resumed.save_weights_for_sampler(name).result().path
    told.append(list(there(made.create_sampling_client(model_path=named)).sample(PROMPT, 1, GREEDY).result().sequences[0].tokens))
    return told, state


# The tests.


def test_behind_a_prefix(server):
    """Everything under https://host/some/prefix is as without it, also lists and downloads."""
    calm = script(server.url, "plain")[0]
    with another(server, "--path-prefix", "/some/prefix") as other, Messages() as said:
        url = other.url + "/some/prefix"
        told, state = script(url, "prefixed")
        assert told == calm and said == [], said
        rest = service(url).create_rest_client()
        run = state.split("/")[2]
        assert run in [r.training_run_id for r in there(rest.list_training_runs()).training_runs]
        assert [c.tinker_path for c in there(rest.list_checkpoints(run)).checkpoints] == [state]
        if VERSION < (0, 28):
            address = there(rest.get_checkpoint_archive_url_from_tinker_path(state)).url
            assert address.startswith(url + "/api/v1/download/"), address
            assert len(urllib.request.urlopen(address).read()) > 10000


def test_what_the_package_is_told_at_the_start(server):
    """client/config: whole, without nulls, flags true or false, whatever version asks; nothing else is asked before."""
    for version in ("0.0.1", tinker.__version__, "99.0", "x", ""):
        status, flags = post(server, "client/config", {"sdk_version": version})
        assert status == 200 and None not in flags.values() and flags["use_pyqwest_transport"] is False, flags
        assert all(isinstance(value, bool) or isinstance(value, int) and value > 0 for value in flags.values()), flags
    assert post(server, "client/dynamic_config", {})[1]["refresh_interval_sec"] >= 10
    network = Watched(server.port)
    models = service(network.url).get_server_capabilities().supported_models
    assert models[0].max_context_length == 512, models
    asked = [route for route, *_ in network.seen]
    wanted = (["client/config"] if VERSION >= (0, 18) else []) + (["client/dynamic_config"] if VERSION >= (0, 25) else [])
    assert [route for route in asked if route != "telemetry"] == [*wanted, "get_server_capabilities"], asked
    network.stop()


def test_keys(server):
    """A key of another kind is refused by the package itself, one that nobody knows by the server, once."""
    try:
        service(server.url, "sk-0123456789abcdef").get_server_capabilities()
        raise AssertionError("the package took it")
    except tinker.TinkerError:
        pass
    network = Watched(server.port)
    try:
        there(service(network.url, "tml-nobody-0123456789").create_lora_training_client(base_model=stories(), rank=4))
        raise AssertionError("the server took it")
    except tinker.AuthenticationError as error:
        assert "Unable to validate credential" in str(error), error
    assert [status for _, _, status, _ in network.seen if status != 401] == [] and len(network.seen) <= 3, network.seen
    network.stop()


def test_telemetry(server):
    """Each event is delivered once, that of an exception too; whatever it holds is accepted, so that it is not sent again."""
    network = Watched(server.port)
    made = service(network.url)
    training = there(made.create_lora_training_client(base_model=stories(), rank=4))
    telemetry = made.holder.get_telemetry()
    telemetry.log("of the test", {"n": 1}, "INFO")
    try:
        raise RuntimeError("a mistake in the script")
    except RuntimeError as error:
        getattr(telemetry, "log_exception_sync", telemetry.log_exception)(error)
    begin = time.time()
    while "a mistake in the script" not in str(network.of("telemetry")):
        assert time.time() < begin + 20, network.of("telemetry")
        time.sleep(0.1)
    time.sleep(2)  # a batch that was not accepted would come again by now
    sent = network.of("telemetry")
    assert sent and all(status == 200 and json.loads(text) == {"status": "accepted"} for _, _, status, text in sent), sent
    events = [event["event_id"] for _, body, _, _ in sent for event in json.loads(body)["events"]]
    assert len(events) == len(set(events)) >= 2, events
    network.stop()
    for body in ({"session_id": "sessionless-1", "events": [{"event": "GENERIC_EVENT", "event_data": {"x": "y" * 10 ** 6}}]},
                 {"session_id": "session-of-nobody", "events": [None, 1, "x"], "more": {}}, {}, [], b"no JSON", b""):
        assert post(server, "telemetry", body) == (200, {"status": "accepted"}), body
    del training


def test_each_lost_reply(server):
    """The reply to each kind of request is lost once, and cut in its middle once: the package sends it again, the server
    carries it out once, and nothing of the run is other than without."""
    kinds = ("create_model", "forward_backward", "optim_step", "save_weights", "load_weights", "save_weights_for_sampler",
             "create_sampling_session", "asample", "retrieve_future", *(("forward",) if VERSION < (0, 25) else ()))
    network = Watched(server.port, **{kind: ["lose", "cut"] for kind in kinds})
    told, state = script(network.url, "rough")
    calm, expected = script(server.url, "calm")
    assert told == calm
    assert weights(server, state) == weights(server, expected)
    assert not any(network.faults[kind] for kind in kinds if kind != "forward"), network.faults
    session = state.split("/")[2].split(":")[0]
    found = server.request("GET", f"{API}sessions/{session}")[1]
    assert len(found["training_run_ids"]) == 2 and len(found["sampler_ids"]) == 2, found
    for run in found["training_run_ids"]:
        assert len(server.request("GET", f"{API}training_runs/{run}/checkpoints")[1]["checkpoints"]) == 1, run
    network.stop()


def test_sent_twice_at_once(server):
    """A step that reaches the server twice at the same moment, and again when it is over, is one step of one number."""
    network = Watched(server.port, optim_step=["twice"] * 4 + ["later"] * 4)
    training = there(service(network.url).create_lora_training_client(base_model=stories(), rank=4, seed=3))
    losses = train(training, 51, 8)
    for _ in range(200):
        if len(network.of("optim_step")) == 16:
            break
        time.sleep(0.1)
    requests = {}
    for _, body, status, text in network.of("optim_step"):
        assert status in (200, 202), text
        requests.setdefault(json.loads(body)["seq_id"], []).append(json.loads(text)["request_id"])
    assert len(requests) == 8 and all(len(ids) == 2 and len(set(ids)) == 1 for ids in requests.values()), requests
    assert losses == train(there(client(server).create_lora_training_client(base_model=stories(), rank=4, seed=3)), 51, 8)
    network.stop()


def test_a_number_that_never_comes(server):
    """A submission that was refused leaves a gap: what is behind it goes on at once."""
    network = Watched(server.port, optim_step=["reject"])
    training = there(service(network.url).create_lora_training_client(base_model=stories(), rank=4))
    training.forward_backward(cross_entropy_data(1), "cross_entropy").result()
    try:
        training.optim_step(ADAM).result()
        raise AssertionError("the package did not notice")
    except tinker.UnprocessableEntityError:
        pass
    begin = time.time()
    assert len(train(training, 1, 2)) == 2
    assert time.time() - begin < 10
    network.stop()


def test_many_steps_without_waiting(server):
    """Two hundred calls and steps are sent ahead, and awaited in any order by eight threads: the curve of one by one."""
    data = cross_entropy_data(61)[:1]
    ahead, one_by_one = new_model(server, rank=4), new_model(server, rank=4)
    calls = []
    for _ in range(200):
        calls.append(ahead.forward_backward(data, "cross_entropy"))
        calls.append(ahead.optim_step(tinker.AdamParams(learning_rate=1e-4)))
    order = np.random.default_rng(0).permutation(200)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        losses = dict(zip(order, pool.map(lambda n: calls[2 * n].result().metrics["loss:sum"], order)))
    for step in range(10):
        loss = one_by_one.forward_backward(data, "cross_entropy").result().metrics["loss:sum"]
        one_by_one.optim_step(tinker.AdamParams(learning_rate=1e-4)).result()
        assert loss == losses[step], step
    assert losses[199] < losses[0]


def test_chunks_in_parallel(server):
    """With the package's own choice of sending the chunks of a call together: the same order, sums and errors."""
    data = [datum([1, 5 + n % 400, 6, 7], weights=[1.0, 1.0, 1.0]) for n in range(2500)]

    def run(of):
        training = there(client(of).create_lora_training_client(base_model=stories(), rank=4, seed=2))
        call, step = training.forward_backward(data, "cross_entropy"), training.optim_step(ADAM)
        out = call.result()
        step.result()
        first = [float(o["logprobs"].data[0]) for o in out.loss_fn_outputs]
        return out.metrics, first, weights(of, training.save_state("parallel").result().path)

    with another(server, "--client-flag", "parallel_fwdbwd_chunks=true") as other:
        metrics, first, files = run(other)
        assert (metrics, first, files) == run(server)
        assert first[:100] == first[400:500] and len(first) == 2500
        training = new_model(other, rank=4)
        wrong = list(data)
        wrong[1500] = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 5]), loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.array([5], dtype=np.int64))})
        call, step = training.forward_backward(wrong, "cross_entropy"), training.optim_step(ADAM)
        for future in (call, step):
            try:
                future.result()
                raise AssertionError("it was accepted")
            except tinker.RequestFailedError as error:
                assert "user" in str(error.category).lower(), error
        assert len(train(training, 3, 2)) == 2


def test_paths_of_checkpoints(server):
    """They are as the package reads them; what is not there, or no path, is said so, and is no failure."""
    training = new_model(server, rank=4)
    rest = client(server).create_rest_client()
    for path, kind in ((there(training.save_state("a.b-c_1")).path, "training"),
                       (there(training.save_weights_for_sampler("a.b-c_1")).path, "sampler")):
        parsed = tinker.types.ParsedCheckpointTinkerPath.from_tinker_path(path)
        assert parsed.training_run_id == path.split("/")[2] and parsed.checkpoint_type == kind, parsed
        run = there(rest.get_training_run_by_tinker_path(path))
        assert run.training_run_id == parsed.training_run_id, run
    run = path.split("/")[2]
    for wrong in (f"tinker://{run}/weights/no", "tinker://no/weights/a.b-c_1", f"tinker://{run}/a.b-c_1",
                  f"tinker://{run}/other/a.b-c_1"):
        for work in (lambda: there(client(server).create_sampling_client(model_path=wrong)),
                     lambda: there(training.load_state(wrong))):
            try:
                work()
                raise AssertionError(wrong)
            except (tinker.APIStatusError, tinker.RequestFailedError) as error:
                assert "no such checkpoint" in str(error) or "there is no" in str(error), error
    assert len(train(training, 1, 1)) == 1


def test_checkpoints_that_end(server):
    """One with two seconds to live is listed with its end, used, and gone; a sampler that was opened before goes on."""
    training = new_model(server, rank=4)
    rest = client(server).create_rest_client()
    path = there(training.save_weights_for_sampler("brief", ttl_seconds=2)).path
    kept = there(training.save_weights_for_sampler("kept", ttl_seconds=2)).path
    run = path.split("/")[2]
    there(rest.set_checkpoint_ttl_from_tinker_path(kept, None))
    listed = {c.tinker_path: c.expires_at for c in there(rest.list_checkpoints(run)).checkpoints}
    assert listed[path] is not None and listed[kept] is None, listed
    sampling = there(client(server).create_sampling_client(model_path=path))
    before = sampling.sample(PROMPT, 1, GREEDY).result().sequences[0].tokens
    folder = server.folder_of(path)
    time.sleep(2.5)
    assert [c.tinker_path for c in there(rest.list_checkpoints(run)).checkpoints] == [kept]
    try:
        there(client(server).create_sampling_client(model_path=path))
        raise AssertionError("it is still there")
    except tinker.NotFoundError as error:
        assert "no such checkpoint" in str(error)
    assert sampling.sample(PROMPT, 1, GREEDY).result().sequences[0].tokens == before
    assert folder.exists()  # while a sampler has it


def test_answers_name_their_weights(server):
    """A sample's name leads to the sampler it came from, and that to its checkpoint, which never changes."""
    ann = Ann(server)
    sample = {"sampling_session_id": ann.sampler, "seq_id": 3, "num_samples": 4, "prompt": {"chunks": [{"tokens": [1, 2]}]},
              "sampling_params": {"max_tokens": 2}}
    names = post(server, "asample", sample)[1]["sample_sequence_ids"]
    assert len(set(names)) == 4 and all(name.startswith(ann.sampler + ":") for name in names), names
    assert server.request("GET", f"{API}samplers/{ann.sampler}")[1]["model_path"] == ann.path
    assert post(server, "asample", sample)[1]["sample_sequence_ids"] == names


def test_results_that_are_no_longer_kept(server):
    """A sample is asked for again by the package; what trained a model is an error, for it must not run twice."""
    with another(server, "--result-seconds", "1") as other:
        ann = Ann(other)
        call = post(other, "forward_backward", call_body(ann.model, 2, [1, 5, 9]))[1]
        sample = {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 2]}]},
                  "sampling_params": {"max_tokens": 2}}
        asked = post(other, "asample", sample)[1]
        assert "loss:sum" in result(other, call["request_id"])[1]["metrics"] and result(other, asked["request_id"])[0] == 200
        for _ in range(100):
            status, told = result(other, asked["request_id"])
            if status == 410:
                break
            time.sleep(0.1)
        assert status == 410, (status, told)
        assert result(other, call["request_id"]) == (200, {"error": "the result is no longer kept", "category": "server"})
        assert post(other, "forward_backward", call_body(ann.model, 2, [1, 5, 9]))[1] == call


def test_whole_results_only(server):
    """A client that could fetch a result in two steps gets it in one."""
    ann = Ann(server)
    for metadata_only in (True, False, True):
        reply = post(server, "retrieve_future", {"request_id": ann.request, "allow_metadata_only": metadata_only})
        assert reply == (200, {"model_id": ann.model, "type": "create_model"}), reply


def test_a_failure_of_the_servers_own(server):
    """Told once, through the future, as one; no status that the package would repeat for ever; the model goes on."""
    training = new_model(server, rank=4)
    train(training, 3, 1)
    path = there(training.save_state("damaged")).path
    folder = server.folder_of(path)
    content = bytearray((folder / "adapter_model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "adapter_model.safetensors").write_bytes(content)
    network = Watched(server.port)
    session = post(server, "create_session", {})[1]["session_id"]
    made = {"session_id": session, "model_seq_id": 0, "path": path, "optimizer": True}
    status, told = result(server, post(server, "load_weights", made)[1]["request_id"])
    assert status == 200 and told["category"] == "server" and str(folder) not in told["error"], (status, told)
    begin = time.time()
    try:
        training.load_state(path).result()
        raise AssertionError("it was loaded")
    except tinker.RequestFailedError as error:
        assert "server" in str(error.category).lower(), error.category
    assert time.time() - begin < 10
    assert len(train(training, 5, 2)) == 2
    network.stop()


def test_thousands_of_polls_and_connections(server):
    """Two thousand polls wait; others are answered as before, and who goes away is forgotten."""
    ann = Ann(server)
    target = {"type": "sampling_session", "sampling_session_id": ann.sampler}
    body = json.dumps({"target": target, "timeout": 8.0}).encode()
    text = (f"POST {API}retrieve_futures HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY_ANN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body

    def state():
        return server.request("GET", API + "status")[1]

    calm = state()
    waiting = []
    try:
        for _ in range(2000):
            waiting.append(socket.create_connection(("127.0.0.1", server.port)))
            waiting[-1].sendall(text)
        times = []
        for n in range(200):  # each over a connection of its own
            begin = time.perf_counter()
            assert server.request("GET", "/healthz", None, None)[0] == 200
            times.append(time.perf_counter() - begin)
        crowded = state()
        assert crowded["connections"] >= 2000, crowded["connections"]
        assert crowded["memory_bytes"] < calm["memory_bytes"] + (200 << 20), (calm["memory_bytes"], crowded["memory_bytes"])
        assert statistics.median(times) < 0.05, statistics.quantiles(times, n=20)
        assert len(train(new_model(server, rank=4), 3, 1)) == 1
    finally:
        for connection in waiting:
            connection.close()
    for _ in range(300):
        if state()["connections"] < calm["connections"] + 100:
            return
        time.sleep(0.1)
    raise AssertionError(f"{state()['connections']} connections of clients that have gone")


def test_lists_in_pages(server):
    """Runs page by page, each once; metadata in any script comes back as it was."""
    said = {"name": "\u732b \U0001f408 caf\u00e9", "quote": "\"\\\n"}
    runs = [there(client(server, KEY_BOB).create_lora_training_client(base_model=stories(), rank=4, user_metadata=said)).get_info().model_id
            for _ in range(5)]
    rest = client(server, KEY_BOB).create_rest_client()
    pages = [there(rest.list_training_runs(limit=2, offset=offset)) for offset in range(0, 8, 2)]
    seen = [run.training_run_id for page in pages for run in page.training_runs]
    assert len(seen) == len(set(seen)) and set(runs) <= set(seen) or pages[0].cursor.total_count > 8, seen
    assert all(len(page.training_runs) <= 2 for page in pages)
    for run in runs:
        assert there(rest.get_training_run(run)).user_metadata == said


def main():
    print(f"tinker {tinker.__version__}")
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
