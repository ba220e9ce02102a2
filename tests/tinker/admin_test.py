"""The administration of a server, from outside: configuration, figures, logs, sessions that end, TLS.
admin_test.py BUILD"""

import json
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings

from isolation_test import API, Ann, call_body, post, result
from server_process import KEY_ANN, KEY_BOB, Server, run_tests, stories

BUILD = sys.argv[1] if len(sys.argv) > 1 else "build"
PROGRAM = str(pathlib.Path(BUILD) / "bin/twinkle-server")


def run(*words, code=0, env=None):
    """(stdout, stderr) of a command that ends with that code."""
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


UPSTREAM = """\
proxy_location: EveryNode
http_options: {{host: 127.0.0.1, port: {port}}}
persistence: {{mode: file, file_path: {folder}/state.json}}
applications:
  - name: server
    route_prefix: /api/v1
    import_path: server
    args:
      server_config: {{per_token_model_limit: 1, expiration_timeout: 500}}
      supported_models: [Stories/tiny]
  - name: model
    route_prefix: /api/v1/model/Stories/tiny
    import_path: model
    args:
      backend: transformers
      model_id: "ms://Stories/tiny"
      max_loras: 4
      device_group: {{name: model, ranks: [0], device_type: cuda}}
      device_mesh: {{device_type: cuda, dp_size: 1}}
"""


def test_precedence_of_the_configuration(_):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "server_config.yaml"
        config.write_text(UPSTREAM.format(port=8111, folder=folder))
        env = {"TWINKLE_PORT": "8222", "TWINKLE_MAX_RANK": "16", "PATH": "/usr/bin:/bin"}
        shown = json.loads(run("print", "-c", str(config), "--limit-models", "7", "--format", "json", env=env)[0])
        assert shown["port"] == {"value": 8111, "source": f"{config} line 2"}, shown["port"]
        assert shown["max_rank"] == {"value": 16, "source": "environment TWINKLE_MAX_RANK"}
        assert shown["limit_models"] == {"value": 7, "source": "command line"}
        assert shown["dtype"] == {"value": "auto", "source": "default"}
        assert shown["session_timeout"]["value"] == 500 and shown["models_in_memory"]["value"] == 4
        assert shown["model_name"]["value"] == ["Stories/tiny", "ms://Stories/tiny"]
        assert shown["data_dir"]["value"] == f"{folder}/state"
        text = run("print", "-c", str(config), "--api-key", "tml-secret-0123456789", env=env)[0]
        assert "secret" not in text and f"port: 8111  # {config} line 2" in text
        # The names of the Python Twinkle's program.
        assert run("check-config", "-c", str(config))[0] == "ok\n"
        env["TWINKLE_SERVER_CONFIG"] = str(config)
        assert json.loads(run("print-config", "--format", "json", env=env)[0])["port"]["value"] == 8111


def test_check_tells_every_error(_):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "c.yaml"
        config.write_text("prot: 1\nport: high\nmax-rank: 0\n")
        out, err = run("check", str(config), code=2)
        assert out == "" and err.splitlines() == [
            f"error: [{config} line 1] unknown key 'prot' (did you mean 'port'?)",
            f"error: [{config} line 2] 'port': expected a whole number, got 'high'",
            f"error: [{config} line 3] 'max_rank': must be >= 1 and <= 4096, got 0"], err
        assert "line 3" in run("launch", "--config", str(config), code=2)[1]
        assert "no/such" in run("check", "no/such", code=2)[1]
    assert "did you mean 'launch'?" in run("lanch", code=2)[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_python_twinkles_file_serves(_):
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        config = pathlib.Path(folder) / "server_config.yaml"
        config.write_text(UPSTREAM.format(port=port, folder=folder))
        assert "'Stories/tiny'" in run("launch", "-c", str(config), code=2)[1]  # where does it lie?
        process = subprocess.Popen([PROGRAM, "launch", "-c", str(config), "--model-id", stories(), "--json"],
                                   stdout=subprocess.PIPE, text=True)
        try:
            first = json.loads(process.stdout.readline())
            assert first["address"] == f"http://127.0.0.1:{port}", first
            request = urllib.request.Request(first["address"] + API + "get_server_capabilities",
                                             headers={"X-API-Key": first["api_key"]})
            with urllib.request.urlopen(request, timeout=20) as reply:
                assert json.load(reply)["supported_models"][0]["model_name"] == "Stories/tiny"
            clear = subprocess.run([PROGRAM, "clear", "--data-dir", f"{folder}/state", "--yes"], capture_output=True, check=False)
            assert clear.returncode != 0 and pathlib.Path(f"{folder}/state/store.db").exists(), clear
        finally:
            process.terminate()
            assert process.wait(60) == 0
        other = pathlib.Path(folder) / "state/notes.txt"
        other.write_text("mine")
        assert "--yes" in run("clear", "--data-dir", f"{folder}/state", code=2)[1]
        run("clear", "--data-dir", f"{folder}/state", "--yes")
        theirs = pathlib.Path(folder, "theirs/checkpoints/my.pt")  # another program's folder
        theirs.parent.mkdir(parents=True)
        theirs.write_text("weights")
        assert "nothing to remove" in run("clear", "--data-dir", f"{folder}/theirs", "--yes")[0]
        assert theirs.exists()
        assert [p.name for p in (pathlib.Path(folder) / "state").iterdir() if not p.name.startswith(".")] == ["notes.txt"]


def metric(text, metric_name, **labels):
    """Values of the samples of that name with these labels."""
    out = []
    for line in text.splitlines():
        found = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line)
        if found and found[1] == metric_name:
            have = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            if all(have.get(key) == value for key, value in labels.items()):
                out.append(float(found[3]))
    return out


def get_text(server, path, key):
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return reply.headers["content-type"], reply.read().decode()


def test_figures_and_the_access_log(server):
    plain = server.add_key("plain", "--scopes", "read,train,sample")
    ann = Ann(server)
    post(server, "session_heartbeat", {"session_id": ann.session})
    reply = post(server, "forward_backward", call_body(ann.model, 2, [1, 5, 9]))[1]
    told = result(server, reply["request_id"])[1]["metrics"]["loss:sum"]
    step = post(server, "optim_step", {"model_id": ann.model, "seq_id": 3, "adam_params": {"learning_rate": 0.01}})[1]
    result(server, step["request_id"])
    sample = {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 2]}]},
              "sampling_params": {"max_tokens": 3}, "num_samples": 2}
    sequences = result(server, post(server, "asample", sample)[1]["request_id"])[1]["sequences"]
    sampled = sum(len(sequence["tokens"]) for sequence in sequences)
    for path in ("/metrics", API + "status"):
        assert server.request("GET", path, None, None)[0] == 401
        assert server.request("GET", path, None, plain)[0] == 403
        assert server.request("POST", path, {})[0] == 405
    kind, text = get_text(server, "/metrics", KEY_ANN)
    assert kind.startswith("text/plain; version=0.0.4")
    assert metric(text, "twinkle_ready") == [1]
    assert metric(text, "twinkle_operations_total", kind="optim_step", outcome="ok") == [1]
    assert metric(text, "twinkle_http_requests_total", route="session_heartbeat", status="200", method="POST") == [1]
    assert metric(text, "twinkle_http_request_seconds_count", route="session_heartbeat") == [1]
    assert metric(text, "twinkle_owner_tokens_total", kind="trained") == [3], text
    assert metric(text, "twinkle_owner_tokens_total", kind="prompt") == [2]
    assert metric(text, "twinkle_owner_tokens_total", kind="sampled") == [sampled]
    assert metric(text, "twinkle_passes_total", kind="train")[0] >= 1
    assert 0 < metric(text, "twinkle_pass_fill_ratio")[0] <= 1
    assert metric(text, "twinkle_log_bytes")[0] > 1000 and metric(text, "process_resident_memory_bytes")[0] > 1e7
    assert metric(text, "twinkle_key_requests_total", name="plain")[0] >= 1
    for line in text.splitlines():  # every sample belongs to the family before it
        assert line.startswith("#") or re.fullmatch(r'[a-z_]+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [-+0-9.eInfNa]+', line), line
    # The same for people.
    status = server.request("GET", API + "status")[1]
    assert status["ready"] and status["models"]["training"] == 1 and status["queue"]["operations"] == 0
    shown = server.command("status", "--url", server.url, "--api-key", KEY_ANN)
    assert "1 in training" in shown and "3 tokens trained" in shown, shown
    assert server.command("status", "--url", server.url) == "ready"
    # The page's figures: an admin sees all, others their own.
    live = server.request("GET", API + "live")[1]
    (number, loss, _), = live["models"][0]["points"]
    assert number == 1 and abs(loss - told / 3) < 1e-6 and {p["kind"] for p in live["passes"]} == {"train", "sample"}, live
    assert server.request("GET", API + "live", None, plain)[1]["models"] == []
    # The access log: what was asked, and nothing of its content.
    time.sleep(0.5)
    lines = (pathlib.Path(server.folder) / "access.jsonl").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert {row["route"] for row in rows} >= {"asample", "/metrics", "session_heartbeat"}
    row = next(row for row in rows if row["route"] == "asample")
    assert row["status"] == 200 and row["method"] == "POST" and row["bytes_in"] == len(json.dumps(sample)), row
    assert row["key"].startswith("key-") and 0 < row["ms"] < 60000
    for secret in (KEY_ANN, plain, ann.session, "learning_rate", "prompt"):
        assert secret not in lines, secret


def test_a_session_that_is_over(server):
    """Heartbeats keep it; what it saved outlives it. What it is answered on every route: isolation_test.py."""
    ended = Server(BUILD, options=["--session-timeout", "2"])
    try:
        ann = Ann(ended)
        ephemeral = post(ended, "save_weights_for_sampler", {"model_id": ann.model, "seq_id": 2, "sampling_session_seq_id": 7})[1]
        name = result(ended, ephemeral["request_id"])[1]["sampling_session_id"]
        assert ended.request("GET", API + f"samplers/{name}")[0] == 200
        alive = time.time() + 4
        while time.time() < alive:  # heartbeats keep it
            assert post(ended, "session_heartbeat", {"session_id": ann.session})[0] == 200
            time.sleep(0.5)
        time.sleep(4)
        assert ended.request("GET", API + f"samplers/{name}")[0] == 404
        # What was saved is there, and a new session goes on from it; also after a restart.
        for _ in range(2):
            session = post(ended, "create_session", {})[1]["session_id"]
            reply = post(ended, "load_weights", {"session_id": session, "model_seq_id": 0, "path": ann.path})[1]
            assert result(ended, reply["request_id"])[1]["model_id"] == f"{session}:train:0"
            assert post(ended, "session_heartbeat", {"session_id": ann.session})[0] == 404
            ended.kill()
            ended.start()
    finally:
        ended.stop()


def test_tls_and_a_prefix(server):
    with tempfile.TemporaryDirectory() as folder:
        cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        assert "go together" in run("launch", "--model-id", stories(), "--tls-cert", cert, code=2)[1]
        data = ["--data-dir", f"{folder}/data"]
        assert key in run("launch", "--model-id", stories(), *data, "--tls-cert", key, "--tls-key", key, code=2)[1]
        secure = Server(BUILD, options=["--tls-cert", cert, "--tls-key", key, "--path-prefix", "/team/", "--allowed-host",
                                        "models.example"])
        try:
            trusted = ssl.create_default_context(cafile=cert)

            def get(path, host=None, context=trusted):
                request = urllib.request.Request(f"https://127.0.0.1:{secure.port}{path}", headers={"X-API-Key": KEY_ANN})
                if host:
                    request.add_header("Host", host)
                try:
                    with urllib.request.urlopen(request, context=context, timeout=20) as reply:
                        return reply.status
                except urllib.error.HTTPError as error:
                    return error.code

            assert get("/healthz") == 200 and get("/team/healthz") == 200 and get("/team/api/v1/sessions") == 200
            assert get("/team") == 200 and get("/teams/healthz") == 404
            assert get("/healthz", host="models.example") == 200 and get("/healthz", host="Models.Example:443") == 200
            assert get("/healthz", host="evil.example") == 403
            # Nothing older than TLS 1.2, nobody who does not know the certificate, and no plain text.
            old = ssl.create_default_context(cafile=cert)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            for context in (old, ssl.create_default_context()):
                try:
                    get("/healthz", context=context)
                except urllib.error.URLError:
                    continue
                raise AssertionError("this connection must fail")
            with socket.create_connection(("127.0.0.1", secure.port), timeout=10) as plain:
                plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"200" not in plain.recv(100)
            # A large body, while others connect and say nothing.
            idle = [socket.create_connection(("127.0.0.1", secure.port)) for _ in range(50)]
            body = json.dumps({"x": "y" * 3_000_000}).encode()
            request = urllib.request.Request(f"https://127.0.0.1:{secure.port}{API}telemetry", body,
                                             {"X-API-Key": KEY_ANN, "Content-Type": "application/json"})
            with urllib.request.urlopen(request, context=trusted, timeout=20) as reply:
                assert json.load(reply) == {"status": "accepted"}
            for connection in idle:
                connection.close()
        finally:
            secure.stop()


def test_the_page(server):
    with urllib.request.urlopen(server.url + "/", timeout=20) as reply:
        page = reply.read().decode()
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    # Nothing from elsewhere: the one address in it names the language of drawings.
    assert re.findall(r"https?://[^\"' ]*", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(src|href)=", page)


def main():
    server = Server(BUILD)
    server.options = ["--access-log", f"{server.folder}/access.jsonl"]
    server.stop()
    server.start()
    return run_tests(server, globals())


if __name__ == "__main__":
    sys.exit(main())
