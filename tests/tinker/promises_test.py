"""What the server promises, each shown with plain requests: what is sent again and again is carried out once, what one
tenant breaks is its own, what lies in a checkpoint's folder runs nothing, a stop loses nothing.
promises_test.py BUILD [name of a test ...]"""

import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
import zipfile

from isolation_test import API, post, result
from server_process import KEY_ANN, KEY_BOB, Server, run_tests, stories


def texts(seed, count=2):
    rng = random.Random(seed)
    return [[1] + [rng.randrange(3, 500) for _ in range(rng.randrange(8, 24))] for _ in range(count)]


def data(seed, weight=1.0):
    return {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"type": "encoded_text", "tokens": text[:-1]}]},
         "loss_fn_inputs": {"target_tokens": {"data": text[1:], "dtype": "int64"},
                            "weights": {"data": [weight] * (len(text) - 1), "dtype": "float32"}}}
        for text in texts(seed)]}


class Tenant:
    """A model of a key's, whose operations are numbered."""

    def __init__(self, server, key=KEY_ANN, seed=1, path=None):
        self.server, self.key, self.seq = server, key, 0
        session = post(server, "create_session", {}, key)[1]["session_id"]
        made = {"session_id": session, "model_seq_id": 0}
        made = {**made, "path": path, "optimizer": True} if path else {
            **made, "base_model": stories(), "lora_config": {"rank": 4, "seed": seed}}
        reply = post(server, "load_weights" if path else "create_model", made, key)[1]
        self.made = self.outcome(reply)
        self.session, self.model = session, reply["model_id"]

    def outcome(self, reply):
        return result(self.server, reply["request_id"], self.key)[1]

    def send(self, route, body, times=1, pool=None):
        """The reply to an operation that is sent that many times, at once where there is a pool."""
        self.seq += 1
        body = {"model_id": self.model, "seq_id": self.seq, **body}

        def once(_):
            return post(self.server, route, body, self.key)

        replies = list((pool.map if pool else map)(once, range(times)))
        assert all(reply == replies[0] for reply in replies), replies
        assert replies[0][0] == 200, replies[0]
        return replies[0][1]

    def train(self, seed, steps=1, weight=1.0, rate=0.01):
        """What two calls and a step are answered, so many times."""
        told = []
        for step in range(steps):
            for chunk in range(2):
                told.append(self.send("forward_backward", {"forward_backward_input": data(10 * (seed + step) + chunk, weight)}))
            told.append(self.send("optim_step", {"adam_params": {"learning_rate": rate}}))
        return [self.outcome(reply) for reply in told]

    def save(self, name):
        return self.outcome(self.send("save_weights", {"path": name}))["path"]

    def files(self, name):
        """The bytes of a checkpoint that is made now."""
        folder = self.server.folder_of(self.save(name))
        return {file: (folder / file).read_bytes() for file in ("adapter_model.safetensors", "optimizer.safetensors")}


# The tests.


def test_sent_one_to_five_times(server):
    """Every request is sent again up to four times, at once or later: the answers and the weights are those of once."""
    def run(rng, pool):
        tenant = Tenant(server, seed=5)
        told, later = [], []
        for step in range(8):
            for route, body in (("forward_backward", {"forward_backward_input": data(2 * step)}),
                                ("forward_backward", {"forward_backward_input": data(2 * step + 1)}),
                                ("optim_step", {"adam_params": {"learning_rate": 0.01}}),
                                ("save_weights", {"path": f"at-{step}"})):
                times = rng.randint(1, 5) if rng else 1
                reply = tenant.send(route, body, times, pool if rng and rng.random() < 0.5 else None)
                told.append(reply["request_id"])
                later.append((route, {"model_id": tenant.model, "seq_id": tenant.seq, **body}, reply))
            if rng:  # and something of before, when others have been carried out
                for route, body, reply in rng.sample(later, 3):
                    assert post(server, route, body) == (200, reply), route
        answers = [result(server, request)[1] for request in told]
        text = json.dumps([{**answer, "path": None} for answer in answers])
        return text, tenant.files("last")

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        assert run(random.Random(7), pool) == run(None, None)


def test_one_of_eight_is_poisoned(server):
    """Weights beyond what a number holds, steps of any size, data that is wrong: the other seven have the bits that they
    have alone, and so has the eighth from its last good state on."""
    keys = [KEY_ANN, KEY_BOB] + [server.command("keys", "add", f"of{n}", "--data-dir", server.folder) for n in range(6)]
    while any(server.request("POST", API + "client/config", {}, key)[0] == 401 for key in keys):
        time.sleep(0.1)

    def run(n, poison):
        tenant = Tenant(server, keys[n], seed=100 + n)
        if poison:
            tenant.train(n)
            told = tenant.train(n, weight=3e38) + tenant.train(n, rate=1e38) + tenant.train(n, weight=-3e38, rate=1e30)
            assert all("error" in reply or "loss:sum" in reply.get("metrics", {}) for reply in told), told
            assert any("error" in reply for reply in told[:3]) and "error" in told[5], told
            return tenant.files("last")
        tenant.train(n, 4 if n != 3 else 1)
        return tenant.files("last")

    alone = [run(n, False) for n in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda n: run(n, n == 3), range(8)))
    assert together == alone, [n for n in range(8) if together[n] != alone[n]]


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


def pickles(marker):
    """The forms in which pickles come: bare, old and new, and torch's archive."""
    bare = [pickle.dumps(Touch(marker), protocol) for protocol in (0, 2, 4, 5)]
    for data in bare:
        pickle.loads(data)
        assert marker.exists()
        marker.unlink()
    with tempfile.NamedTemporaryFile() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", bare[1])
            archive.writestr("archive/version", "3\n")
        return bare + [pathlib.Path(file.name).read_bytes()]


def test_what_somebody_put_beside_a_checkpoint(server):
    """Unknown files in its folder, pickles among them, have no effect on who goes on from it, and are not sent."""
    with tempfile.TemporaryDirectory() as folder:
        marker = pathlib.Path(folder) / "ran"
        tenant = Tenant(server)
        tenant.train(1, 2)
        planted, clean = tenant.save("planted"), tenant.save("clean")
        names = ["rng_state.pth", "optimizer.pt", "scheduler.pt", "adapter_model.bin", "pytorch_model.bin", "training_args.bin",
                 "model.pkl", ".mdl", "configuration.mdl", "data.npy", "trainer_state.pickle", "modeling.py", "__init__.py",
                 "config.json", "adapter_model.safetensors.index.json"]
        for n, name in enumerate(names):
            kinds = pickles(marker)
            (server.folder_of(planted) / name).write_bytes(kinds[n % len(kinds)])
        resumed = [Tenant(server, path=path) for path in (planted, clean)]
        assert resumed[0].train(5, 2) == resumed[1].train(5, 2)
        assert resumed[0].files("a") == resumed[1].files("a")
        run = planted.split("/")[2]
        url = server.request("GET", f"{API}training_runs/{run}/checkpoints/weights/planted/archive")[1]["url"]
        archive = server.request("GET", url[len(server.url):])[1]
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert sorted(tar.getnames()) == ["adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"]
        assert not marker.exists()


def test_pickles_under_another_name(server):
    """In place of the weights, or of the optimizer: refused, through the future, and nothing runs."""
    with tempfile.TemporaryDirectory() as folder:
        marker = pathlib.Path(folder) / "ran"
        tenant = Tenant(server)
        tenant.train(1)
        for n, content in enumerate([*pickles(marker), b"", b"\0" * 64, b"{}"]):
            for file in ("adapter_model.safetensors", "optimizer.safetensors"):
                path = tenant.save(f"p{n}-{file[0]}")
                (server.folder_of(path) / file).write_bytes(content)
                told = tenant.outcome(tenant.send("load_weights", {"path": path, "optimizer": True}))
                assert "error" in told and server.folder not in told["error"], (n, file, told)
        assert not marker.exists()
        assert "loss:sum" in tenant.train(2)[0]["metrics"]  # the model is as it was


def test_a_checkpoint_that_was_changed(server):
    """A byte of its weights that is another, a file that is shorter or gone: it is not loaded."""
    tenant = Tenant(server)
    tenant.train(1)
    for n, file in enumerate(("adapter_model.safetensors", "optimizer.safetensors")):
        for how in ("changed", "cut", "gone"):
            path = tenant.save(f"c{n}-{how}")
            target = server.folder_of(path) / file
            content = bytearray(target.read_bytes())
            content[-20] ^= 1
            if how == "gone":
                target.unlink()
            else:
                target.write_bytes(content if how == "changed" else content[:-20])
            told = tenant.outcome(tenant.send("load_weights", {"path": path, "optimizer": True}))
            assert "error" in told, (file, how, told)
            if n == 1:
                continue  # who needs the weights only does not read it
            told = tenant.outcome(tenant.send("load_weights", {"path": path, "optimizer": False}))
            assert "error" in told, (file, how, told)
            status, made = post(server, "create_sampling_session", {
                "session_id": tenant.session, "sampling_session_seq_id": len(how), "model_path": path})
            sample = {"sampling_session_id": made["sampling_session_id"], "seq_id": 0,
                      "prompt": {"chunks": [{"tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 2}}
            told = tenant.outcome(post(server, "asample", sample)[1])
            assert "error" in told and server.folder not in told["error"], (file, how, told)
    assert "loss:sum" in tenant.train(2)[0]["metrics"]


def test_code_beside_the_base_model(server):
    """A configuration that names code, and the code and pickles beside it, change nothing and run nothing."""
    with tempfile.TemporaryDirectory() as folder:
        marker = pathlib.Path(folder) / "ran"
        model = pathlib.Path(folder) / "model"
        shutil.copytree(stories(), model)
        config = json.loads((model / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "https://evil.example/evil--evil.Model"}
        config["trust_remote_code"] = True
        (model / "config.json").write_text(json.dumps(config))
        (model / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
        for n, content in enumerate(pickles(marker)):
            (model / f"pytorch_model-{n}.bin").write_bytes(content)
        sample = {"seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 50, 60]}]},
                  "sampling_params": {"max_tokens": 8, "temperature": 0}}

        def answer(of, name):
            session = post(of, "create_session", {})[1]["session_id"]
            made = {"session_id": session, "sampling_session_seq_id": 0, "base_model": name}
            sampler = post(of, "create_sampling_session", made)[1]["sampling_session_id"]
            reply = post(of, "asample", {**sample, "sampling_session_id": sampler})[1]
            return result(of, reply["request_id"])[1]["sequences"]

        with open(f"{folder}/log", "w+") as log:
            with contextlib.redirect_stderr(log):
                other = Server(server.build, options=["--model-id", str(model)])
            try:
                assert answer(other, str(model)) == answer(server, stories())
            finally:
                other.stop()
                other.made.cleanup()
            log.seek(0)
            assert "names code of its own (auto_map), which is not run" in log.read()
        assert not marker.exists()


def test_a_stop_in_the_middle_loses_nothing(server):
    """Asked to stop with a queue before it, the server stops; started again it carries out what it had accepted."""
    wanted = Tenant(server, seed=9)
    expected = wanted.train(3, 12)
    tenant = Tenant(server, seed=9)
    told = []
    for step in range(12):
        for chunk in range(2):
            told.append(tenant.send("forward_backward", {"forward_backward_input": data(10 * (3 + step) + chunk)}))
        told.append(tenant.send("optim_step", {"adam_params": {"learning_rate": 0.01}}))
    begin = time.time()
    server.stop()
    assert time.time() - begin < 20
    server.start()
    assert [tenant.outcome(reply) for reply in told] == expected
    assert tenant.files("end") == wanted.files("end")


def test_a_disk_that_takes_no_more(server):
    """Files that may not grow: what is refused leaves nothing, what was accepted is told once there is room, which needs no
    start, and a start changes nothing of it. The server answers all the time."""
    small = Server(server.build)
    try:
        tenant = Tenant(small, seed=4)
        tenant.train(1)
        largest = max(path.stat().st_size for path in pathlib.Path(small.folder).rglob("*") if path.is_file())
        resource.prlimit(small.process.pid, resource.RLIMIT_FSIZE, (largest + 30_000, resource.RLIM_INFINITY))
        told, refused = [], 0
        for number in range(2000):
            route, body = (("optim_step", {"adam_params": {"learning_rate": 0.01}}) if number % 3 == 2 else
                           ("forward_backward", {"forward_backward_input": data(number)}))
            status, reply = post(small, route, {"model_id": tenant.model, "seq_id": tenant.seq + 1, **body})
            assert status in (200, 507), (status, reply)
            if status == 200:
                tenant.seq += 1
                told.append(reply)
            refused += status == 507
            if refused == 20:
                break
        assert refused == 20 and len(told) > 5, (refused, len(told))
        assert small.request("GET", "/healthz")[0] == 200
        resource.prlimit(small.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        outcomes = [tenant.outcome(reply) for reply in told]
        assert small.request("GET", "/readyz")[0] == 200
        outcomes += tenant.train(100)
        files = tenant.files("last")
        small.kill()
        small.start()
        assert [tenant.outcome(reply) for reply in told] == outcomes[:len(told)]
        assert tenant.files("again")["adapter_model.safetensors"] == files["adapter_model.safetensors"]
    finally:
        small.stop()


def test_overload_is_told_at_once(server):
    """Each request of a crowd over a limit is answered, with the reason, and the refusals do not wait."""
    eager = server.add_key("eager", "--requests-per-second", "5")
    time.sleep(1.1)

    def ask(_):
        begin = time.time()
        status, reply = server.request("GET", API + "sessions", None, eager)
        return status, reply, time.time() - begin

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(ask, range(200)))
    assert {status for status, _, _ in replies} <= {200, 429}
    refused = [(reply, seconds) for status, reply, seconds in replies if status == 429]
    assert len(refused) > 100 and all("5 requests a second" in reply["detail"] for reply, _ in refused), refused[:2]
    assert statistics.median(seconds for _, seconds in refused) < 0.05


def main():
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
