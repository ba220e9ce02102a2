"""What is sent to do harm: requests without a key to every path, hosts and origins of others, names that are paths,
numbers that are none, floods that would fill the memory. hostile_test.py BUILD [name of a test ...]

Every reply of every test is looked through: none tells of a failure of the server's own, and none has a word of its
inside."""

import collections
import http.client
import itertools
import json
import os
import pathlib
import re
import socket
import struct
import sys
import tempfile
import time

from isolation_test import API, Ann, call_body, is_of, post, result
from server_process import KEY_ANN, ROOT, Server, run_tests, stories

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
# Addresses, and words that only the source has.
INSIDE = re.compile(r"0x[0-9a-f]{6,}|twinkle::|std::|boost|nlohmann|json\.exception|"
                    r"sqlite|SQLITE|SELECT |\.(cpp|h|so|db)\b|errno|bad_alloc|what\(\)|torch|terminate")


class StrictServer(Server):
    """Looks through every reply to a request of this test."""

    def start(self):
        super().start()
        while super().request("GET", "/readyz", None, None)[0] != 200:
            time.sleep(0.05)

    def request(self, method, path, body=None, key=KEY_ANN, headers=None):
        status, reply = super().request(method, path, body, key, headers)
        self.look_through(status, reply, (method, path))
        return status, reply

    def look_through(self, status, reply, asked):
        assert status < 500 or status == 501, (asked, status, reply)
        failed = status >= 400 and status != 408 or isinstance(reply, dict) and "error" in reply
        if not failed:
            return
        text = json.dumps(reply)
        assert isinstance(reply, dict) or reply is None, (asked, reply)
        for inside in (self.folder, str(ROOT), str(pathlib.Path.cwd()), self.program):
            assert inside not in text, (asked, reply)
        assert not INSIDE.search(text), (asked, reply)
        assert status >= 400 or reply["category"] == "user", (asked, reply)

    def peak(self):
        """The most memory that the process has had, in MB."""
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024


def reply_to(server, text, method="GET"):
    """(status, body) of bytes as they are; 0 where the connection ends without an answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        try:
            for piece in [text] if isinstance(text, bytes) else text:
                connection.sendall(piece)
        except OSError:
            pass  # it has said what it has to say
        reply = http.client.HTTPResponse(connection, method=method)
        try:
            reply.begin()
            body = reply.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
    return reply.status, body


def ask(server, method, target, headers=(), body=b""):
    """(status, body) of a request whose target and headers are sent as they are."""
    if isinstance(target, str):
        target = target.encode()
    lines = [method.encode() + b" " + target + b" HTTP/1.1"]
    given = {"Host": f"127.0.0.1:{server.port}", "Content-Length": str(len(body)), "Connection": "close", **dict(headers)}
    lines += [f"{name}: {value}".encode() for name, value in given.items() if value is not None]
    status, text = reply_to(server, b"\r\n".join(lines) + b"\r\n\r\n" + body, method)
    if text[:1] == b"{":
        server.look_through(status, json.loads(text), (method, target))
    return status, text


def routes_of(server):
    """(method, pattern, a path of it, scope) of each."""
    listed = json.loads(server.command("routes", "--json"))
    return [(route["method"], route["path"], route["path"].replace("*", "x"), route["scope"]) for route in listed]


# The tests.


def test_no_path_is_told_of_without_a_key(server):
    """Who has no key can not tell a route from what is none, whatever the method, nor pass another's door."""
    routes = routes_of(server)
    opened = {path for _, _, path, scope in routes if scope == ""}
    for path in sorted({path for _, _, path, _ in routes} - opened):
        for method in METHODS:
            assert ask(server, method, path)[0] == 401, (method, path)
    for path in ("/api/v1/no/such/route", "/api", "/v1/models", "/docs", "/openapi.json", "/invocations", "/v1/invocations",
                 "/metrics/", "/metrics?x", "//metrics", "/./metrics", "/%6detrics", "/api/v1/../../metrics",
                 "/healthz/", "/healthz/../metrics", "/healthz/..%2fmetrics", "/healthz;/../metrics", "/HEALTHZ", "//healthz",
                 "/healthz%00", "/healthz\\..\\metrics", "/api/v1/download", "/api/v1/download/../sessions%00",
                 "/api/v1//sessions", "/api/v1/sessions/", "/api/v1/sessions#", "*", "healthz", "/api/v1/healthz/x",
                 "http://127.0.0.1/metrics", "http://evil.example/healthz"):
        for method in ("GET", "POST", "DELETE"):
            wanted = 403 if path == "/api/v1/download/../sessions%00" and method == "GET" else 401
            if path.startswith("/api/v1/download/") and method != "GET":
                wanted = 405
            assert ask(server, method, path)[0] == wanted, (method, path)
    for path in sorted(opened):
        for method in METHODS:
            wanted = (405,) if method not in ("GET", "HEAD") else (403,) if "download" in path else (200,)
            assert ask(server, method, path)[0] in wanted, (method, path)


def test_methods(server):
    """With a key: what a route does not take is 405, whatever it is, and what is no route is 404; both have a body."""
    key = {"X-API-Key": KEY_ANN}
    routes = routes_of(server)
    for _, _, path, scope in routes:
        if scope == "":
            continue
        taken = {method for method, pattern, _, _ in routes if is_of(path, pattern)}
        for method in set(METHODS) - taken - ({"HEAD"} if "GET" in taken else set()):
            status, body = ask(server, method, path, key)
            assert status == 405 and (method == "HEAD" or b'"detail"' in body), (method, path, status, body)
    for method in METHODS:
        status, body = ask(server, method, API + "nothing", key)
        assert status == 404 and (method == "HEAD" or json.loads(body)["detail"]), (method, status, body)


def test_hosts_and_origins_of_others(server):
    """A page in a browser, also one whose name leads here, is refused on every route and method, with and without a key."""
    here = f"127.0.0.1:{server.port}"
    hosts = ("evil.example", "127.0.0.1.evil.example", "127.evil.example", "localhost.evil.example", "evil.example:80", "",
             None, "0.0.0.0", "128.0.0.1", "2130706433", "127.1", "0x7f000001", "[::ffff:1.2.3.4]", "[::1]evil.example", "[::1",
             "localhost\\@evil.example", "localhost:80evil", "127.0.0.1:80:80")
    origins = ("http://evil.example", "https://127.0.0.1.evil.example", "null", "file://", "http://localhost.evil.example")
    for path in sorted({path for _, _, path, _ in routes_of(server)}):
        for method in METHODS:
            for key in ({}, {"X-API-Key": KEY_ANN}):
                assert ask(server, method, path, {"Host": hosts[0], **key})[0] == 403, (method, path)
                assert ask(server, method, path, {"Origin": origins[0], **key})[0] == 403, (method, path)
    for host in hosts:
        assert ask(server, "GET", "/healthz", {"Host": host})[0] in (400, 403), host
    # Another port is another origin.
    for origin in (*origins, "http://127.0.0.1", "https://127.0.0.1", f"http://127.0.0.1:{server.port + 1}",
                   f"http://localhost:{server.port}"):
        assert ask(server, "GET", "/healthz", {"Origin": origin})[0] == 403, origin
    for host, origin in ((here, f"http://{here}"), ("[::1]:80", "http://[::1]"), ("localhost:443", "https://localhost"),
                         ("localhost", "https://localhost:8443"),
                         (f"localhost:{server.port}", f"http://localhost:{server.port}")):
        assert ask(server, "GET", "/healthz", {"Host": host, "Origin": origin})[0] == 200, (host, origin)


def test_only_the_declared_port(server):
    """After work of every kind the process listens where it said and nowhere else: no other port, no other socket."""
    ann = Ann(server)
    sample = {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 2]}]},
              "sampling_params": {"max_tokens": 2}}
    result(server, post(server, "asample", sample)[1]["request_id"])
    mine = set()
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            mine.add(target[8:-1])
    listening = []
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "sctp/eps", "packet"):
        path = pathlib.Path(f"/proc/{server.process.pid}/net/{kind}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if kind == "packet" and fields[8] in mine:
                listening.append((kind, line))
            elif kind != "packet" and fields[9] in mine and (not kind.startswith("tcp") or fields[3] == "0A"):
                listening.append((kind, fields[1]))
    for line in pathlib.Path(f"/proc/{server.process.pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in mine and int(fields[3], 16) & 0x10000:
            listening.append(("unix", line))
    assert listening == [("tcp", "0100007F:%04X" % server.port)], listening


def test_no_address_of_a_client_is_fetched(server):
    """A place that a request names is not looked at: the server connects to nobody."""
    ann = Ann(server)
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.3)
        for n, location in enumerate((f"http://127.0.0.1:{trap.getsockname()[1]}/x.png", "file:///etc/passwd",
                                      "http://169.254.169.254/latest/meta-data", "http:\\\\127.0.0.1\\x")):
            pointer = {"type": "image_asset_pointer", "location": location, "format": "png", "expected_tokens": 1}
            prompt = {"chunks": [{"tokens": [1]}, pointer]}
            call = call_body(ann.model, 10 + n, [1])
            call["forward_backward_input"]["data"][0]["model_input"] = prompt
            sample = {"sampling_session_id": ann.sampler, "seq_id": n, "prompt": prompt}
            dmel = {**sample, "seq_id": 100 + n, "prompt": {"chunks": [{"type": "dmel", "dmel": "AAAA"}]}}
            for route, body in (("forward_backward", call), ("asample", sample), ("asample", dmel)):
                outcome = result(server, post(server, route, body)[1]["request_id"])[1]
                assert outcome["category"] == "user" and "model that sees or hears" in outcome["error"], outcome
        try:
            trap.accept()
        except TimeoutError:
            return
        raise AssertionError("the server fetched what a request named")


# Sixty ways out of a folder.
UPWARDS = [
    "..", "../..", "../../etc/passwd", "..\\..\\etc\\passwd", "/etc/passwd", "//etc/passwd", "\\\\host\\share", "~", "~root",
    "./x", "x/..", "x/../../x", "x/./x", "x//x", "/", ".", ".hidden", "...", "....//", "..../x", ".. ", " ..", "..\t", "..\n",
    "..\r\nSet-Cookie: x", "%2e%2e", "%2e%2e%2f", "%2E%2E/", "..%2f", "..%5c", "%252e%252e%252f", "%25252e", "..%252f",
    "%c0%ae%c0%ae", "%c0%af", "%e0%80%ae", "..;/", "..;", "..;x=1/..", "x;/../..", "x\0", "x\0.safetensors", "x%00",
    "..\0", "\uff0e\uff0e/", "\u2024\u2024", "\u2025", "..\u2215", "..\uff0f", "..\u2044", "\u202e..",
    "x\u200b", "\u00e9", "caf\u0301",
    "CON", "file:///etc/passwd", "tinker://x", "http://evil.example/x", "x:y", "y?x", "y#x", "x*", "$(id)", "`id`", "${HOME}",
    "%n%s", "-", "a" * 129, "a" * 5000, "\ud83d\ude00", "\u0000", "\x7f", "'; DROP TABLE things; --", "\" OR 1=1 --",
    "<script>",
]
PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def files_below(folder):
    """Every name and size but of what is written all the time."""
    return {str(path): path.stat().st_size if path.is_file() else None
            for path in pathlib.Path(folder).rglob("*") if not re.search(r"store\.db|/log/|/snapshots", str(path))}


def test_names_are_no_paths(server):
    """As a checkpoint's name, as a path to load, sample and copy, in addresses: refused, and nothing is made anywhere."""
    ann = Ann(server)
    outside = pathlib.Path(tempfile.gettempdir())
    before, around = files_below(server.folder), set(os.listdir(outside)) | set(os.listdir("."))
    run = f"{API}training_runs/{ann.model}/checkpoints"
    assert len(UPWARDS) >= 60
    numbers = itertools.count(100)
    for name in UPWARDS:
        # What is a name all the same is one.
        sent = post(server, "save_weights", {"model_id": ann.model, "seq_id": next(numbers), "path": name})[1]
        saved = result(server, sent["request_id"])[1]
        if PLAIN.fullmatch(name):
            assert saved["path"] == f"tinker://{ann.model}/weights/{name}", saved
            assert server.request("DELETE", f"{run}/weights/{name}")[0] == 204
            continue
        assert "1 to 128 letters" in saved["error"], (name, saved)
        for path in (name, f"tinker://{ann.model}/weights/{name}", f"tinker://{ann.model}/{name}/x",
                                    f"tinker://{name}/weights/x", f"{ann.path}/{name}", f"{ann.path}{name}"):
            if path.endswith(f"/weights/{name}") or path == name:
                loaded = post(server, "load_weights", {"model_id": ann.model, "seq_id": next(numbers), "path": path})[1]
                assert result(server, loaded["request_id"])[1]["category"] == "user", path
            for route, body in (("weights_info", {"tinker_path": path}),
                                ("copy_weights", {"destination_project_id": name, "source_path": path}),
                                ("create_sampling_session", {"session_id": ann.session, "sampling_session_seq_id": 50,
                                                             "model_path": path}),
                                ("create_sampling_session", {"session_id": ann.session, "sampling_session_seq_id": 50,
                                                             "base_model": name})):
                assert post(server, route, body)[0] in (400, 404), (route, body)
        raw = name.encode("utf-16", "surrogatepass").decode("utf-16").encode()
        quoted = b"".join(b"%%%02x" % byte for byte in raw)
        for part in (raw, quoted, quoted.replace(b"%", b"%25")):
            for method, target in (("GET", b"training_runs/" + part), ("GET", b"samplers/" + part),
                                   ("GET", b"sessions/" + part),
                                   ("GET", b"training_runs/%s/checkpoints/weights/%s/archive" % (ann.model.encode(), part)),
                                   ("DELETE", b"training_runs/%s/checkpoints/weights/%s" % (ann.model.encode(), part)),
                                   ("DELETE", b"training_runs/%s/checkpoints/weights/x" % part),
                                   ("DELETE", b"training_runs/%s/checkpoints/%s/x" % (ann.model.encode(), part)),
                                   ("GET", b"download/" + part), ("GET", b"download/" + part + b"/checkpoint.tar")):
                status, _ = ask(server, method, API.encode() + target, {"X-API-Key": KEY_ANN})
                # A blank or the end of a line ends the target, and '?' the path: what is left may be a list or a route.
                ends = part is raw and re.search(rb"[ \t\r\n\0?#]|^[.]{0,2}/", part)
                assert status in (400, 403, 404, 405) or (ends and status == 200 and method == "GET"), (method, target, status)
    for _ in range(50):  # what was saved and deleted goes a moment later
        now = files_below(server.folder)
        if now == before:
            break
        time.sleep(0.1)
    assert now == before, now.keys() ^ before.keys()
    appeared = (set(os.listdir(outside)) | set(os.listdir("."))) - around
    assert not [name for name in appeared if any(part in name for part in ("passwd", "safetensors", "adapter"))], appeared


def test_links_in_a_checkpoint(server):
    """A link that somebody put into the folder of a checkpoint leads nowhere; nothing beside its own files is sent."""
    ann = Ann(server)
    folder = server.folder_of(ann.path)
    with tempfile.TemporaryDirectory() as elsewhere:
        secret = pathlib.Path(elsewhere) / "secret"
        secret.write_text("the secret of another\n" * 100)
        for name in ("adapter_config.json", "checkpoint_complete", "more.json", "passwd"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(secret)
        archive = server.request("GET", f"{API}training_runs/{ann.model}/checkpoints/weights/x/archive")[1]
        status, body = ask(server, "GET", archive["url"][len(server.url):])
        assert b"the secret" not in body and b"passwd" not in body, body[:200]
        # The folder itself.
        moved = pathlib.Path(elsewhere) / "moved"
        folder.rename(moved)
        (moved / "adapter_config.json").unlink()
        (moved / "adapter_config.json").write_text("the secret of another\n")
        folder.symlink_to(moved)
        status, body = ask(server, "GET", archive["url"][len(server.url):])
        assert status == 404 and b"the secret" not in body, (status, body[:200])
        folder.unlink()


MOST32, MOST_SEQ, MOST64 = 2 ** 31 - 1, 2 ** 61, 2 ** 63 - 1
NO_NUMBERS = ("0.5", "-0.5", "1.0", "1e3", "1e308", "-1e308", '"1"', '"-1"', '"NaN"', '"Infinity"', '""', "true", "[]", "[1]",
              "{}")
NO_JSON = ("1" + "0" * 400, "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "1_000", "+1", "01", "1.", ".5")
REAL = ("-1e308", "-1.0", "0", "1e-45", "1", "1.5", "1e38", "1e39", "1e308")


def whole_numbers(low, high):
    edges = {-2 ** 63 - 1, -2 ** 63, -2 ** 31, -1, 0, 1, MOST32, 2 ** 31, 2 ** 32, 2 ** 53, 2 ** 61 + 1, MOST64, 2 ** 63,
             2 ** 64 - 1, 2 ** 64, 10 ** 30}
    return sorted(edges | {low - 1, low, high, high + 1})


class Numbers:
    """Sends a body in which PLACE is one of the texts above, and NEXT a number that was not used before."""

    def __init__(self, server):
        self.server, self.next = server, collections.Counter()

    def send(self, method, route, body, text):
        """(status, the words of the refusal, "" where there is none)."""
        stream = body.get("model_id", body.get("session_id", "samples"))
        sent = json.dumps(body).replace('"PLACE"', text).replace('"NEXT"', str(100 + self.next[stream]))
        status, reply = self.server.request(method, API + route, sent.encode())
        self.next[stream] += status == 200 and '"NEXT"' in json.dumps(body)  # no gaps, for which the server would wait
        if status == 200 and "request_id" in reply:
            status, reply = result(self.server, reply["request_id"])
        return status, (reply or {}).get("detail" if status >= 400 else "error", "")


def whole_fields(ann):
    """Every whole number of every body: (field, method, route, body, least, most)."""
    model, session = {"model_id": ann.model}, {"session_id": ann.session}
    nothing = "tinker://x/weights/y"
    new = {**session, "base_model": stories(), "model_seq_id": "NEXT", "lora_config": {"rank": 1}}
    target = {"type": "sampling_session", "sampling_session_id": ann.sampler}

    def sample(params=None, **more):
        return {"sampling_session_id": ann.sampler, "seq_id": "NEXT", "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
                "sampling_params": {"max_tokens": 1, **(params or {})}, **more}

    def call(**more):
        wanted = {"target_tokens": {"data": [1, 2], "dtype": "int64", **more}}
        return {**model, "seq_id": "NEXT", "forward_backward_input": {"loss_fn": "cross_entropy", "data": [
            {"model_input": {"chunks": [{"tokens": [1, 2]}]}, "loss_fn_inputs": wanted}]}}

    return [
        ("model_seq_id", "POST", "load_weights", {**session, "path": nothing, "model_seq_id": "PLACE"}, 0, MOST32),
        ("model_seq_id", "POST", "copy_weights", {**session, "source_path": nothing, "model_seq_id": "PLACE"}, 0, MOST32),
        ("ttl_seconds", "POST", "copy_weights",
         {"destination_project_id": "p", "source_path": nothing, "ttl_seconds": "PLACE"}, 1, MOST32),
        ("rank", "POST", "create_model", {**new, "lora_config": {"rank": "PLACE"}}, 1, 128),
        ("seed", "POST", "create_model", {**new, "lora_config": {"rank": 1, "seed": "PLACE"}}, -2 ** 63, MOST64),
        ("shape", "POST", "forward_backward", call(shape=["PLACE"]), 2, 2),
        ("target_tokens|label", "POST", "forward_backward", call(data=[1, "PLACE"]), 0, 511),
        ("ttl_seconds", "POST", "save_weights",
         {**model, "path": "n", "seq_id": "NEXT", "overwrite": True, "ttl_seconds": "PLACE"}, 1, MOST32),
        ("sampling_session_seq_id", "POST", "save_weights_for_sampler",
         {**model, "seq_id": "NEXT", "sampling_session_seq_id": "PLACE"}, 0, MOST32),
        ("sampling_session_seq_id", "POST", "create_sampling_session",
         {**session, "base_model": stories(), "sampling_session_seq_id": "PLACE"}, 0, MOST32),
        ("num_samples", "POST", "asample", sample(num_samples="PLACE"), 1, 1024),
        ("topk_prompt_logprobs", "POST", "asample", sample(topk_prompt_logprobs="PLACE"), 0, 512),
        ("topk_sample_logprobs", "POST", "asample", sample(topk_sample_logprobs="PLACE"), 0, 1024),
        ("prompt_alt_tokens_k", "POST", "asample", sample(prompt_alt_tokens_k="PLACE"), 0, 1024),
        ("prompt_logprobs_last_n", "POST", "asample", sample(prompt_logprobs=True, prompt_logprobs_last_n="PLACE"), 1, 2),
        ("max_tokens", "POST", "asample", sample({"max_tokens": "PLACE"}), 0, MOST32),
        ("seed", "POST", "asample", sample({"seed": "PLACE"}), -2 ** 63, 2 ** 64 - 1),
        ("top_k", "POST", "asample", sample({"top_k": "PLACE"}), -1, MOST32),
        ("stop", "POST", "asample", sample({"stop": ["PLACE"]}), 0, 511),
        ("prompt|token", "POST", "asample", sample(prompt={"chunks": [{"tokens": [1, "PLACE"]}]}), 0, 511),
        ("prev_cursor", "POST", "retrieve_futures", {"target": target, "timeout": 0, "prev_cursor": "PLACE"}, 0, MOST64),
        ("cloned_sampler_id", "POST", "retrieve_futures", {"target": {**target, "cloned_sampler_id": "PLACE"}, "timeout": 0}, 0,
         MOST64),
        ("custom_loss_seq_id", "POST", "create_custom_loss", {**session, "custom_loss_seq_id": "PLACE"}, 0, MOST32),
        ("ttl_seconds", "PUT", f"training_runs/{ann.model}/checkpoints/weights/x/ttl", {"ttl_seconds": "PLACE"}, 1, MOST32),
        ("limit", "POST", "sessions/search", {"limit": "PLACE"}, 1, 200),
        # Last, for their numbers are the end of those of the model.
        ("seq_id", "POST", "load_weights", {**model, "path": nothing, "seq_id": "PLACE"}, 0, MOST_SEQ),
        ("seq_id", "POST", "optim_step", {**model, "seq_id": "PLACE"}, 0, MOST_SEQ),
        ("seq_id", "POST", "save_weights", {**model, "path": "/", "seq_id": "PLACE"}, 0, MOST_SEQ),
        ("seq_id", "POST", "forward_backward", {**call(), "seq_id": "PLACE"}, 0, MOST_SEQ),
        ("seq_id", "POST", "asample", {**sample(), "seq_id": "PLACE"}, 0, MOST_SEQ),
    ]


def test_whole_numbers(server):
    """Each at its limits and far beyond, as a text, a list, a fraction: refused with its name where it is outside."""
    ann = Ann(server)
    numbers, wrong = Numbers(server), []
    for field, method, route, body, low, high in whole_fields(ann):
        for number in whole_numbers(low, high):
            status, words = numbers.send(method, route, body, str(number))
            if bool(re.search(field, words)) == (low <= number <= high):
                wrong.append((field, route, number, status, words))
        for text in NO_NUMBERS:
            if field == "stop" and text.startswith('"'):
                continue  # which is a text to stop at
            status, words = numbers.send(method, route, body, text)
            if not re.search(field + "|not as the API describes", words):
                wrong.append((field, route, text, status, words))
        for text in NO_JSON:
            status, words = numbers.send(method, route, body, text)
            if status != 400:
                wrong.append((field, route, text, status, words))
    assert not wrong, "\n".join(map(str, wrong))
    for name, texts in (("limit", ("-1", "1001", "x", "1e3", "9" * 30, "", "%00", "1%00")),
                        ("offset", ("-1", "2147483648", "x"))):
        for text in texts:
            for route in ("training_runs", "checkpoints", "sessions"):
                assert ask(server, "GET", f"{API}{route}?{name}={text}", {"X-API-Key": KEY_ANN})[0] == 400, (route, name, text)


def test_real_numbers(server):
    """Those of a step, of a sample and of data: refused with their name, or used, and never so that the model has none."""
    ann = Ann(server)
    numbers = Numbers(server)
    step = {"model_id": ann.model, "seq_id": "NEXT"}
    sample = {"sampling_session_id": ann.sampler, "seq_id": "NEXT", "prompt": {"chunks": [{"tokens": [1, 2, 3]}]}}

    def call(loss="cross_entropy", config=None, **inputs):
        wanted = {"target_tokens": {"data": [5, 9], "dtype": "int64"},
                  **{name: {"data": [1.0, value], "dtype": "float32"} for name, value in inputs.items()}}
        return {**step, "forward_backward_input": {"loss_fn": loss, "loss_fn_config": config or {}, "data": [
            {"model_input": {"chunks": [{"tokens": [1, 5]}]}, "loss_fn_inputs": wanted}]}}

    policy = {"logprobs": -1.0, "advantages": 1.0}
    cases = [(name, "optim_step", {**step, "adam_params": {"learning_rate": 0.0, name: "PLACE"}})
             for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")]
    cases += [(name, "asample", {**sample, "sampling_params": {"max_tokens": 1, name: "PLACE"}})
              for name in ("temperature", "top_p")]
    cases += [("weights", "forward_backward", call(weights="PLACE")),
              ("logprobs", "forward_backward", call("ppo", **{**policy, "logprobs": "PLACE"})),
              ("advantages", "forward_backward", call("ppo", **{**policy, "advantages": "PLACE"})),
              ("clip_low_threshold", "forward_backward", call("ppo", {"clip_low_threshold": "PLACE"}, **policy)),
              ("beta", "forward_backward", call("dro", {"beta": "PLACE"}, **policy))]
    idle, good = {**step, "adam_params": {"learning_rate": 0.0}}, call(weights=1.0)
    for field, route, body in cases:
        for text in NO_JSON:
            assert numbers.send("POST", route, body, text)[0] == 400, (field, text)
        for text in NO_NUMBERS:
            status, words = numbers.send("POST", route, body, text)
            if not text.lstrip("-")[0].isdigit():
                assert words and (field in words or "not as the API describes" in words), (field, text, status, words)
        for text in REAL:
            numbers.send("POST", "optim_step", idle, "0")  # whatever is left
            numbers.send("POST", "forward_backward", good, "0")
            numbers.send("POST", route, body, text)
        numbers.send("POST", "optim_step", idle, "0")
        for _ in range(2):
            assert numbers.send("POST", "forward_backward", good, "0")[1] == "", (field, "the model has no numbers left")
            assert numbers.send("POST", "optim_step", idle, "0")[1] == "", (field, "the model has no numbers left")


def test_floods(server):
    """Bodies of three million pieces, heads without an end, JSON of great depth, compressed nothing: refused, while the
    memory stays where it was."""
    Ann(server)
    key = f"Host: 127.0.0.1\r\nX-API-Key: {KEY_ANN}\r\n".encode()
    begin = server.peak()

    def chunked(route, *pieces):
        head = b"POST " + API.encode() + route + b" HTTP/1.1\r\n" + key + b"Transfer-Encoding: chunked\r\n\r\n"
        return reply_to(server, [head, *pieces])[0]

    chunk = b"1\r\n[\r\n" * 50000
    assert chunked(b"create_session", *[chunk] * 60, b"0\r\n\r\n") == 400  # 3 MB, a byte each, and JSON as deep
    assert server.peak() < begin + 64, (begin, server.peak())
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert reply_to(server, [head, *[b"X-A: b\r\n" * 10000] * 100])[0] in (431, 0)
    assert reply_to(server, [head + b"X: ", *[b"x" * 100000] * 100])[0] in (431, 0)
    assert reply_to(server, [b"GET /", *[b"x" * 100000] * 100])[0] in (400, 414, 431, 0)
    megabyte = b"x" * 1000000
    # Behind the size of a piece, and behind the last piece: what HTTP allows there has no end of its own.
    assert chunked(b"telemetry", b"1;x=", *[megabyte] * 100) in (400, 413, 431, 0)
    assert server.peak() < begin + 64, (begin, server.peak())
    assert chunked(b"telemetry", b"1\r\nx\r\n0\r\n", *[b"X-A: b\r\n" * 100000] * 50) in (400, 413, 431, 0)
    assert chunked(b"telemetry", b"F" * 17 + b"\r\n", megabyte) in (400, 413)
    assert chunked(b"telemetry", b"ffffffffffffffff\r\n", megabyte) in (400, 413)
    assert chunked(b"telemetry", b"-1\r\n", megabyte) == 400
    assert server.peak() < begin + 64, (begin, server.peak())
    for text in (b'{"a":' * 10000 + b"1" + b"}" * 10000, b"[" * 10000,
                 b'{"user_metadata":' + b"[" * 10000 + b"]" * 10000 + b"}", b'{"a":' * 10 ** 6):
        status, reply = post(server, "create_session", text)
        assert status == (413 if len(text) > 4 << 20 else 400), (status, reply)
    assert server.peak() < begin + 64, (begin, server.peak())


def zeros(count):
    """A frame of Zstandard with that many blocks of 128 KiB, four bytes each."""
    block = struct.pack("<I", 2 | (1 << 17) << 3)[:3] + b"\0"  # RLE, 2^17 times a zero
    last = struct.pack("<I", 3 | 0 << 3)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * count + last


def test_compressed_bodies(server):
    """Ten gigabytes in 320 kB, and a frame that only says so: refused at the limit of a body, as plain ones are."""
    Ann(server)
    begin = server.peak()
    kinds = {"Content-Type": "application/x-protobuf", "Content-Encoding": "zstd"}
    bomb = zeros(81920)
    status, reply = post(server, "forward_backward", bomb, headers=kinds)
    assert status == 413 and "unpacked" in reply["detail"], (status, reply)
    assert server.peak() < begin + 640, (begin, server.peak())
    says = b"\x28\xb5\x2f\xfd\xc0\x58" + struct.pack("<Q", 10 << 30) + b"\x01\0\0"  # a content size of 10 GiB
    wide = b"\x28\xb5\x2f\xfd\x00\xff\x01\0\0"  # a window of 3.75 TiB
    for body in (says, wide, b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x00\x58", b"PK\x03\x04", b"", bomb[:1000],
                 b"\x50\x2a\x4d\x18\xff\xff\xff\xff"):
        status, reply = post(server, "forward_backward", body, headers=kinds)
        assert status in (400, 404, 413), (body[:10], status, reply)
    for encoding in ("gzip", "deflate", "br", "zstd, zstd", "zstd,gzip"):
        assert post(server, "forward_backward", b"x", headers={**kinds, "Content-Encoding": encoding})[0] == 415, encoding


def test_requests_in_a_row(server):
    """Several in one write are answered one by one in their order; none is smuggled in the body of another."""
    key = f"Host: 127.0.0.1\r\nX-API-Key: {KEY_ANN}\r\n"
    inner = f"GET {API}sessions HTTP/1.1\r\n{key}\r\n"
    first = f"POST {API}telemetry HTTP/1.1\r\n{key}Content-Length: {len(inner)}\r\n\r\n{inner}"
    last = f"GET {API}healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall((first + inner + first + last).encode())
        text = b""
        while piece := connection.recv(65536):
            text += piece
    bodies = re.findall(rb"HTTP/1.1 (\d+)[^{]*(\{.*?\})(?=HTTP|$)", text, re.S)
    assert [status for status, _ in bodies] == [b"200"] * 4 and text.count(b"HTTP/1.1") == 4, text
    assert [b"accepted" in body for _, body in bodies] == [True, False, True, False], bodies
    # Two lengths, a length beside pieces, a length that is none.
    for framing in ("Content-Length: 3\r\nContent-Length: 5", "Content-Length: 3\r\nTransfer-Encoding: chunked",
                    "Content-Length: -1", "Content-Length: 3, 5", "Content-Length: x", "Content-Length: 99999999999999999999",
                    "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding : chunked",
                    "Content-Length: +3"):
        text = f"POST {API}telemetry HTTP/1.1\r\n{key}{framing}\r\n\r\n0\r\n\r\n{inner}"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(text.encode())
            connection.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while piece := connection.recv(65536):
                    got += piece
            except ConnectionError:
                pass
        assert got.count(b"HTTP/1.1") <= 1 and b"sessions" not in got, (framing, got)
        assert re.match(rb"HTTP/1.1 (4|50)\d", got) or got == b"", (framing, got)


def main():
    return run_tests(StrictServer(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
