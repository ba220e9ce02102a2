"""What becomes of models, samplers and checkpoints, driven by the official package and its command line:
lifecycle_test.py BUILD [name of a test ...]."""

import asyncio
import datetime
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request

from sdk_test import ADAM, client, cross_entropy_data, new_model, texts, there, train, weights
from server_process import KEY_ANN, KEY_BOB, Server, run_tests, stories

import tinker

VERSION = tuple(int(part) for part in tinker.__version__.split(".")[:2])
PROMPT = tinker.ModelInput.from_ints(texts(11)[0])
GREEDY = tinker.SamplingParams(max_tokens=5, temperature=0.0)


def since(major, minor):
    return VERSION >= (major, minor)


def refused(work, words=""):
    try:
        work()
    except Exception as error:  # the package has many
        assert words in str(error), error
        return str(error)
    raise AssertionError("it was accepted")


def tokens(sampling):
    return list(there(sampling.sample(PROMPT, 1, GREEDY)).sequences[0].tokens)


def cli(server, *words, key=KEY_ANN):
    """What the package's own command prints as JSON."""
    program = pathlib.Path(sys.executable).parent / "tinker"
    environment = {**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": key}
    done = subprocess.run([program, "--format", "json", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout.strip() else None


def in_peft(folder):
    """The folder holds an adapter as PEFT writes it; its size."""
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["lora_alpha"] == 32, config
    blob = (folder / "adapter_model.safetensors").read_bytes()
    names = json.loads(blob[8:8 + int.from_bytes(blob[:8], "little")])
    assert any(name.startswith("base_model.model.") and name.endswith("lora_A.weight") for name in names), list(names)[:3]
    return blob


# The tests.


def test_publish(server):
    """Others read what is published, and no longer when it is taken back; what they have begun goes on."""
    training = new_model(server, KEY_ANN, rank=4)
    train(training, 3, 2)
    state = there(training.save_state("shared")).path
    named = there(training.save_weights_for_sampler("shared")).path
    own = tokens(there(client(server).create_sampling_client(model_path=named)))
    ann, bob = client(server).create_rest_client(), client(server, KEY_BOB)
    refused(lambda: there(bob.create_sampling_client(model_path=named)), "no such checkpoint")
    for path in (state, named):
        refused(lambda: there(bob.create_rest_client().publish_checkpoint_from_tinker_path(path)), "no such checkpoint")
        there(ann.publish_checkpoint_from_tinker_path(path))
    listed = there(ann.list_checkpoints(state.split("/")[2])).checkpoints
    assert [c.public for c in listed] == [True, True], listed
    sampling = there(bob.create_sampling_client(model_path=named))
    assert tokens(sampling) == own
    assert there(bob.create_rest_client().get_weights_info_by_tinker_path(state)).lora_rank == 4
    resumed = there(bob.create_training_client_from_state_with_optimizer(state))
    assert train(resumed, 3, 2) == train(training, 3, 2)
    refused(lambda: there(bob.create_rest_client().delete_checkpoint_from_tinker_path(state)), "no such checkpoint")
    for path in (state, named):
        there(ann.unpublish_checkpoint_from_tinker_path(path))
    refused(lambda: there(bob.create_sampling_client(model_path=named)), "no such checkpoint")
    refused(lambda: there(bob.create_training_client_from_state(state)))
    assert tokens(sampling) == own


def test_weights_access_token(server):
    """The key of another account opens its checkpoints for one call."""
    training = new_model(server, KEY_ANN, rank=4)
    train(training, 5, 2)
    path = there(training.save_state("lent")).path
    bob = client(server, KEY_BOB)
    refused(lambda: there(bob.create_training_client_from_state(path)))
    refused(lambda: there(bob.create_training_client_from_state(path, weights_access_token="tml-nobody-0123456789")))
    lent = there(bob.create_training_client_from_state_with_optimizer(path, weights_access_token=KEY_ANN))
    assert train(lent, 5, 2) == train(training, 5, 2)
    with open(f"{server.folder}/log/" + sorted(os.listdir(f"{server.folder}/log"))[-1], "rb") as log:
        assert KEY_ANN.encode() not in log.read(), "the key is in the log"


def test_copy(server):
    if not since(0, 28):
        return
    training = new_model(server, KEY_ANN, rank=4)
    train(training, 5, 2)
    path = there(training.save_state("original")).path
    ann = client(server).create_rest_client()
    copied = there(ann.copy_weights(path, "archive", ttl_seconds=3600))
    assert copied != path and copied.endswith("/weights/original"), copied
    there(ann.delete_checkpoint_from_tinker_path(path))
    resumed = there(client(server).create_training_client_from_state_with_optimizer(copied))
    assert train(resumed, 5, 2) == train(training, 5, 2)
    run = there(ann.get_training_run_by_tinker_path(copied))
    assert run.last_checkpoint.tinker_path == copied and run.last_checkpoint.expires_at is not None, run
    bob = client(server, KEY_BOB).create_rest_client()
    refused(lambda: there(bob.copy_weights(copied, "mine")), "no such checkpoint")
    lent = there(bob.copy_weights(copied, "mine", weights_access_token=KEY_ANN))
    assert there(bob.get_weights_info_by_tinker_path(lent)).lora_rank == 4


def test_download(server):
    """The command line fetches a checkpoint; the address opens itself, and only as it was given out."""
    training = new_model(server, KEY_ANN, rank=4)
    train(training, 5, 2)
    path = there(training.save_state("fetched")).path
    expected = weights(server, path)["adapter_model.safetensors"]
    with tempfile.TemporaryDirectory() as folder:
        cli(server, "checkpoint", "download", path, "--output", folder)
        target, = pathlib.Path(folder).rglob("adapter_config.json")
        assert in_peft(target.parent) == expected
    rest = client(server).create_rest_client()
    if since(0, 28):
        external = there(training.save_weights_external("files", ttl_seconds=3600))
        given = there(rest.get_external_weights_urls(external.path))
        assert sorted(given.urls) == ["adapter_config.json", "adapter_model.safetensors"], given
        assert given.expires > datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=30)
        url = given.urls["adapter_model.safetensors"]
        assert urllib.request.urlopen(url).read() == expected
        refused(lambda: there(training.save_weights_external("coded", age_encryption_recipients=["age1x"])),
                "does not encrypt")
        kinds = [c.checkpoint_type for c in there(rest.list_checkpoints(path.split("/")[2])).checkpoints]
        assert sorted(kinds) == ["external", "training"], kinds
    else:
        url = there(rest.get_checkpoint_archive_url_from_tinker_path(path)).url
        with tempfile.TemporaryDirectory() as folder:
            urllib.request.urlretrieve(url, f"{folder}/c.tar")
            with tarfile.open(f"{folder}/c.tar") as tar:
                assert all(member.isfile() for member in tar), tar.getmembers()
                tar.extractall(f"{folder}/out")
            assert in_peft(pathlib.Path(folder) / "out") == expected
    for wrong in (url.replace("/download/e", "/download/f"), url[:-1], url + "/x"):
        try:
            urllib.request.urlopen(wrong)
            raise AssertionError(wrong)
        except urllib.error.HTTPError as error:
            assert error.code == 403, error


def test_command_line(server):
    training = new_model(server, KEY_ANN, rank=4)
    path = there(training.save_state("seen")).path
    run = path.split("/")[2]
    assert run in json.dumps(cli(server, "run", "list"))
    assert run in json.dumps(cli(server, "run", "info", run))
    assert path in json.dumps(cli(server, "checkpoint", "list", "--run-id", run))
    assert path in json.dumps(cli(server, "checkpoint", "info", path))
    for words in (("publish",), ("unpublish",), ("set-ttl", "--ttl", "7200"), ("set-ttl", "--remove")):
        cli(server, "checkpoint", words[0], path, *words[1:])
    today = datetime.datetime.now(datetime.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    window = [day.strftime("%Y-%m-%dT%H:%M:%SZ") for day in (today, today + datetime.timedelta(days=1))]
    train(training, 5, 1)
    time.sleep(1.5)  # usage is written every second
    used = json.dumps(cli(server, "billing", "usage", *window))
    count = sum(len(t) - 1 for t in texts(5))
    assert "training" in used and run.split(":")[0] in used, used
    assert str(count) in used, (count, used)
    if since(0, 38):
        assert "seen" not in json.dumps(cli(server, "billing", "checkpoint-storage"))
    cli(server, "checkpoint", "delete", path, "--yes")
    listed = client(server).create_rest_client()
    assert there(listed.list_checkpoints(run)).checkpoints == []
    admin = tinker.AdminClient(base_url=server.url, api_key=KEY_ANN) if hasattr(tinker, "AdminClient") else listed
    events = [e.event for e in there(admin.get_audit_log()).entries if e.tinker_path == path]
    assert events == ["checkpoint_publish", "checkpoint_unpublish", "checkpoint_ttl_set", "checkpoint_ttl_set",
                      "checkpoint_delete"], events


def test_sessions(server):
    """Found by name, given to a project, finished by the package when a script ends."""
    if not since(0, 38):
        return
    name = "the cat's nightly run"
    with tinker.ServiceClient(base_url=server.url, api_key=KEY_ANN, display_name=name) as service:
        training = there(service.create_lora_training_client(base_model=stories(), rank=4))
        path = there(training.save_state("kept")).path
        sampling = there(training.save_weights_and_get_sampling_client())
        tokens(sampling)
        session = path.split("/")[2].split(":")[0]
        rest = client(server).create_rest_client()
        search = tinker.types.SessionSearchRequest
        found, = there(rest.search_sessions(search(display_name="NIGHTLY cat's"))).sessions
        assert (found.session_id, found.status.type, found.checkpoints_count) == (session, "active", 1), found
        there(rest.assign_session_project(session, "pets"))
    found, = there(rest.search_sessions(search(project_ids=["pets"]))).sessions
    assert (found.status.type, found.status.reason.type, found.project_id) == ("client_finished", "success", "pets")
    page = there(rest.search_sessions(search(limit=1)))
    others = there(rest.search_sessions(search(limit=200, cursor=page.next_cursor))).sessions
    assert page.sessions[0].session_id not in [s.session_id for s in others] and others, page
    assert there(rest.list_checkpoints(path.split("/")[2])).checkpoints[0].tinker_path == path
    again = there(client(server).create_training_client_from_state(path))
    train(again, 3, 1)
    refused(lambda: there(rest.export_session_trace(session)), "no traces")


def test_cancelled_samples(server):
    """A sample that nobody waits for any more is computed no further."""
    if not since(0, 28):
        return

    async def give_up(futures):
        await asyncio.gather(*(asyncio.wait_for(future, 0.2) for future in futures), return_exceptions=True)

    sampling = there(client(server).create_sampling_client(base_model=stories()))
    long = tinker.SamplingParams(max_tokens=400, temperature=1.0, stop=[])
    futures = [sampling.sample(PROMPT, 16, long) for _ in range(60)]
    time.sleep(2)  # so that they have been accepted
    asyncio.run(give_up(futures))
    tokens(sampling)
    for _ in range(60):
        with server_log(server) as log:
            cancelled = log.count(b"its client has cancelled it")
        if cancelled > 0:
            return
        time.sleep(0.5)
    raise AssertionError("no sample was cancelled")


class server_log:
    def __init__(self, server):
        self.folder = f"{server.folder}/log"

    def __enter__(self):
        return b"".join((pathlib.Path(self.folder) / name).read_bytes() for name in os.listdir(self.folder))

    def __exit__(self, *_):
        return False


def test_clients_of_one_sampler(server):
    """Copies of a sampling client in other processes number their samples apart from each other."""
    sampling = there(client(server).create_sampling_client(base_model=stories()))
    os.environ["TINKER_API_KEY"] = KEY_ANN
    answers = set()
    for copy in (sampling, *(pickle.loads(pickle.dumps(sampling)) for _ in range(3))):
        for seed in range(3):
            params = tinker.SamplingParams(max_tokens=8, temperature=1.0)
            answers.add(tuple(there(copy.sample(PROMPT, 1, params)).sequences[0].tokens))
    assert len(answers) == 12, answers


def test_unload(server):
    training = new_model(server, KEY_ANN, rank=4)
    train(training, 3, 1)
    path = there(training.save_state("before")).path
    model = path.split("/")[2]
    future = server.request("POST", "/api/v1/unload_model", {"model_id": model, "type": "unload_model"})[1]
    for _ in range(20):
        status, reply = server.request("POST", "/api/v1/retrieve_future", {"request_id": future["request_id"]})
        if status != 408:
            break
    assert reply == {"model_id": model, "type": "unload_model"}, reply
    refused(lambda: there(training.optim_step(ADAM)), "was unloaded")
    server.kill()
    server.start()
    refused(lambda: there(training.forward(cross_entropy_data(3), "cross_entropy")), "was unloaded")
    train(there(client(server).create_training_client_from_state(path)), 3, 1)


def test_a_bad_step_changes_nothing(server):
    """A step that would leave weights that are no numbers fails, and they are as before: now and after a kill."""
    def run(name, disturb):
        training = new_model(server, KEY_ANN, seed=9)
        losses = train(training, 31, 4)
        if disturb:
            for rate in (1e30, 1e38):
                there(training.forward_backward(cross_entropy_data(32), "cross_entropy"))
                words = refused(lambda: there(training.optim_step(tinker.AdamParams(learning_rate=rate))))
                assert "weights, optimizer and step count are as before" in words, words
        losses += train(training, 33, 2)
        if disturb:
            server.kill()
            server.start()
        losses += train(training, 35, 3)
        return losses, weights(server, there(training.save_state(name)).path)

    assert run("bad", True) == run("good", False)


def test_with_tokens(server):
    """Keys are exchanged for tokens that last two seconds, and sampling results are told of together; the server
    is killed meanwhile."""
    other = Server(sys.argv[1], options=["--client-flag", "pjwt_auth_enabled=true", "--token-seconds", "2",
                                         "--client-flag", "sample_use_retrieve_futures=true"])
    try:
        jwt = other.request("POST", "/api/v1/auth/token", {})[1]["jwt"]
        assert other.request("GET", "/api/v1/sessions", key=jwt)[0] == 200
        training = new_model(other, KEY_ANN, rank=4)
        train(training, 3, 2)
        sampling = there(training.save_weights_and_get_sampling_client())
        expected = tokens(sampling)
        if since(0, 26):
            who = there(client(other).create_rest_client().whoami())
            assert who.user_urn.startswith("user-") and who.org_urn.endswith("twinkle"), who
        params = [tinker.SamplingParams(max_tokens=20, temperature=1.0, seed=i) for i in range(60)]
        calm = [there(sampling.sample(PROMPT, 1, p)).sequences[0].tokens for p in params]

        def kill():
            for _ in range(3):
                time.sleep(0.5)
                other.kill()
                other.start()

        killer = threading.Thread(target=kill)
        killer.start()
        futures = []
        for p in params:
            futures.append(sampling.sample(PROMPT, 1, p))
            time.sleep(0.03)
        stormy = [there(future).sequences[0].tokens for future in futures]
        killer.join()
        assert stormy == calm
        assert tokens(sampling) == expected
        request = urllib.request.Request(other.url + "/api/v1/sessions", headers={"X-API-Key": jwt})
        try:
            urllib.request.urlopen(request)
            raise AssertionError("an old token was taken")
        except urllib.error.HTTPError as error:
            assert error.code == 401 and error.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    finally:
        other.stop()
        other.made.cleanup()


def test_what_is_not_there(server):
    """Said through the future, as a mistake of the user's."""
    session = server.request("POST", "/api/v1/create_session", {})[1]["session_id"]
    made = {"session_id": session, "model_seq_id": 0, "base_model": stories(), "lora_config": {"rank": 4}}

    def outcome(route, body):
        status, reply = server.request("POST", f"/api/v1/{route}", body)
        assert status == 200, (route, reply)
        for _ in range(20):
            status, result = server.request("POST", "/api/v1/retrieve_future", {"request_id": reply["request_id"]})
            if status != 408:
                return reply, result
        raise AssertionError("no result")

    def refusal(route, body):
        result = outcome(route, body)[1]
        assert result.get("category") == "user", result
        return result["error"]

    model = outcome("create_model", made)[0]["model_id"]
    path = outcome("save_weights", {"model_id": model, "seq_id": 1, "path": "x"})[1]["path"]
    dimuon = {"type": "dimuon", "version": 1}
    assert "adamw" in refusal("create_model", {**made, "model_seq_id": 1, "optimizer_config": dimuon})
    assert "adamw" in refusal("load_weights", {"session_id": session, "model_seq_id": 2, "path": path,
                                               "optimizer": False, "optimizer_config": dimuon})
    assert "AdamW" in refusal("optim_step", {"model_id": model, "seq_id": 2, "optimizer_params": dimuon})
    loss = {"session_id": session, "custom_loss_seq_id": 0, "name": "mine", "inputs": [], "graph": {}}
    assert "forward_backward_custom" in refusal("create_custom_loss", loss)
    image = {"model_id": model, "seq_id": 3, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"type": "image", "data": "aGk=", "format": "png"}]},
         "loss_fn_inputs": {"target_tokens": {"data": [1], "dtype": "int64"}}}]}}
    assert "image" in refusal("forward_backward", image)
    assert "does not encrypt" in refusal("save_weights_external", {
        "model_id": model, "seq_id": 4, "path": "e", "age_encryption_recipients": ["age1xyz"]})


def main():
    print(f"tinker {tinker.__version__}")
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
