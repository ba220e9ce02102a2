"""Plain requests, without the SDK: who may see what, what is refused before any work, and what is carried out once.
isolation_test.py BUILD"""

import concurrent.futures
import hashlib
import http.client
import json
import pathlib
import sys
import time
import urllib.parse
from typing import NamedTuple

from server_process import KEY_ANN, KEY_BOB, Server, run_tests, stories

API = "/api/v1/"


def post(server, route, body, key=KEY_ANN, **kw):
    return server.request("POST", API + route, body, key, **kw)


def result(server, request_id, key=KEY_ANN):
    for _ in range(20):
        status, reply = post(server, "retrieve_future", {"request_id": request_id}, key)
        if status != 408:
            return status, reply
    raise AssertionError("no result")


def call_body(model, seq, tokens):
    return {"model_id": model, "seq_id": seq, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"tokens": tokens}]},
         "loss_fn_inputs": {"target_tokens": {"data": tokens, "dtype": "int64"}}}]}}


class Ann:
    """One of everything, of Ann."""

    def __init__(self, server):
        self.session = post(server, "create_session", {"tags": []})[1]["session_id"]
        reply = post(server, "create_model", {"session_id": self.session, "model_seq_id": 0, "base_model": stories(),
                                              "lora_config": {"rank": 4, "seed": 1}})[1]
        self.model = reply["model_id"]
        self.request = reply["request_id"]
        assert result(server, self.request)[1]["model_id"] == self.model
        saved = post(server, "save_weights", {"model_id": self.model, "seq_id": 1, "path": "x"})[1]
        self.path = result(server, saved["request_id"])[1]["path"]
        self.sampler = post(server, "create_sampling_session", {
            "session_id": self.session, "sampling_session_seq_id": 0, "model_path": self.path})[1]["sampling_session_id"]
        archive = server.request("GET", f"{API}training_runs/{self.model}/checkpoints/weights/x/archive")[1]
        self.download = urllib.parse.urlsplit(archive["url"]).path


class Row(NamedTuple):
    """A request of Ann's and what it is answered: without a key or with a wrong one, with the good key of a stranger,
    with a key of Ann's that may only read, and with Ann's own when the session that it is about has ended."""
    method: str
    path: str
    body: object
    nobody: int
    stranger: int
    reader: int
    ended: object  # a status, or FUTURE


FUTURE = "accepted, and refused through the future, so that no chunk of a call is lost"
OPEN = (200, 200, 200, 200)  # for everybody: nothing of anybody's is in it
OWN = (401, 200, 200, 200)  # for every key: it shows what is the key's own, or nothing of anybody's


def table(ann):
    """Every route of the server at least once, as `twinkle-server routes` lists them."""
    model, session = {"model_id": ann.model}, {"session_id": ann.session}
    run = f"training_runs/{ann.model}"
    checkpoint = f"{run}/checkpoints/weights/x"
    target = {"type": "sampling_session", "sampling_session_id": ann.sampler}
    new = {"base_model": stories(), "lora_config": {"rank": 4}}
    days = "starting_on=2026-01-01&ending_before=2026-01-02"
    rows = [
        ("GET", "/", None, *OPEN),
        ("GET", "/healthz", None, *OPEN),
        ("GET", "/readyz", None, *OPEN),
        ("GET", "healthz", None, *OPEN),
        ("GET", "readyz", None, *OPEN),
        ("GET", ann.download, None, *OPEN),  # opened by its own signature
        ("GET", "download/eyJ.x.y/checkpoint.tar", None, 403, 403, 403, 403),
        ("GET", "/metrics", None, 401, 200, 403, 200),
        ("GET", "status", None, 401, 200, 403, 200),
        ("GET", "live", None, *OWN),
        ("POST", "client/config", {}, *OWN),
        ("POST", "client/dynamic_config", {}, *OWN),
        ("GET", "get_server_capabilities", None, *OWN),
        ("POST", "auth/token", {}, *OWN),
        ("GET", "auth/apikey/me", None, *OWN),
        ("DELETE", "auth/apikey/me", None, 401, 403, 403, 403),
        ("POST", "telemetry", {}, *OWN),
        ("POST", "create_session", {}, 401, 200, 403, 200),
        ("POST", "session_heartbeat", session, 401, 404, 403, 404),
        ("GET", "sessions", None, *OWN),
        ("GET", f"sessions/{ann.session}", None, 401, 404, 200, 200),
        ("PUT", f"sessions/{ann.session}/project", {"project_id": "p"}, 401, 404, 403, 204),
        ("POST", "sessions/search", {"session_id": ann.session}, *OWN),
        ("GET", f"sessions/{ann.session}/trace_export", None, 401, 404, 200, 200),
        ("POST", "create_model", {**session, **new, "model_seq_id": 5}, 401, 404, 403, 404),
        ("POST", "get_info", model, 401, 404, 200, 200),
        ("POST", "forward_backward", call_body(ann.model, 50, [1, 2]), 401, 404, 403, FUTURE),
        ("POST", "forward", {**model, "seq_id": 51, "forward_input": {}}, 401, 404, 403, FUTURE),
        ("POST", "optim_step", {**model, "seq_id": 52}, 401, 404, 403, FUTURE),
        ("POST", "save_weights", {**model, "seq_id": 53, "path": "stolen"}, 401, 404, 403, FUTURE),
        ("POST", "save_weights_for_sampler", {**model, "seq_id": 54, "path": "stolen"}, 401, 404, 403, FUTURE),
        ("POST", "save_weights_external", {**model, "seq_id": 56, "path": "stolen"}, 401, 404, 403, FUTURE),
        ("POST", "load_weights", {**model, "seq_id": 55, "path": ann.path}, 401, 404, 403, FUTURE),
        ("POST", "load_weights", {**session, "model_seq_id": 6, "path": ann.path}, 401, 404, 403, 404),
        ("POST", "create_custom_loss", {**session, "custom_loss_seq_id": 0}, 401, 404, 403, 404),
        ("POST", "weights_info", {"tinker_path": ann.path}, 401, 404, 200, 200),
        ("POST", "copy_weights", {**session, "model_seq_id": 7, "source_path": ann.path}, 401, 404, 403, 404),
        ("POST", "copy_weights", {"destination_project_id": "p", "source_path": ann.path}, 401, 404, 403, 200),
        ("POST", "create_sampling_session", {**session, "sampling_session_seq_id": 9, "model_path": ann.path}, 401, 404,
         403, 404),
        ("POST", "join_sampling_session", {"sampling_session_id": ann.sampler}, 401, 404, 403, 200),
        ("GET", f"samplers/{ann.sampler}", None, 401, 404, 200, 200),
        ("POST", "asample", {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": []}}, 401, 404, 403,
         FUTURE),
        ("POST", "retrieve_future", {"request_id": ann.request}, 401, 404, 200, 200),
        ("POST", "retrieve_futures", {"target": target, "timeout": 0.0}, 401, 404, 200, 200),
        ("POST", "cancel_future", {"request_id": ann.request}, 401, 200, 403, 200),  # it says so for any request
        ("GET", "training_runs", None, *OWN),
        ("GET", run, None, 401, 404, 200, 200),
        ("GET", f"{run}/checkpoints", None, 401, 404, 200, 200),
        ("GET", "checkpoints", None, *OWN),
        ("GET", f"{checkpoint}/archive", None, 401, 404, 200, 200),
        ("GET", f"{checkpoint}/external_weights_urls", None, 401, 404, 400, 400),
        ("POST", f"{checkpoint}/publish", None, 401, 404, 403, 204),
        ("DELETE", f"{checkpoint}/publish", None, 401, 404, 403, 204),
        ("PUT", f"{checkpoint}/ttl", {"ttl_seconds": 100}, 401, 404, 403, 204),
        ("GET", "audit", None, *OWN),
        ("GET", f"billing/usage/events?{days}", None, *OWN),
        ("GET", "billing/usage/checkpoints/current", None, *OWN),
        ("POST", "unload_model", model, 401, 404, 403, 200),
        ("DELETE", checkpoint, None, 401, 404, 403, 204),
        ("POST", f"sessions/{ann.session}/finish", {}, 401, 204, 403, 204),  # it says so for any session
    ]
    return [Row(method, path if path.startswith("/") else API + path, *rest) for method, path, *rest in rows]


def is_of(path, pattern):
    parts, wanted = path.split("?")[0].split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(w in ("*", p) for p, w in zip(parts, wanted))


def test_the_table_has_every_route(server):
    """What the server says that it answers, and nothing else, has a row."""
    rows = table(Ann(server))
    listed = json.loads(server.command("routes", "--json"))
    assert len(listed) > 50, listed
    for route in listed:
        assert any(row.method == route["method"] and is_of(row.path, route["path"]) for row in rows), route
    for row in rows:
        assert any(row.method == route["method"] and is_of(row.path, route["path"]) for route in listed), row


def key_id(key):
    return "key-" + hashlib.sha256(key.encode()).hexdigest()[:12]


def test_every_route_asks_whose_it_is(server):
    ann = Ann(server)
    reader = server.add_key("reader", "--scopes", "read", "--owner-of", key_id(KEY_ANN))
    revoked = server.add_key("revoked")
    assert server.request("GET", API + "sessions", None, revoked)[0] == 200
    server.command("keys", "revoke", "revoked", "--data-dir", server.folder)
    time.sleep(1.5)
    for row in table(ann):
        for key, expected in ((None, row.nobody), ("tml-wrong-0123456789abc", row.nobody), (revoked, row.nobody),
                              (KEY_BOB, row.stranger), (reader, row.reader)):
            status, reply = server.request(row.method, row.path, row.body, key)
            assert status == expected, (row, key, status, reply)
            if (status >= 400 or key == KEY_BOB) and row.path not in ("/metrics", API + "status", API + "live"):
                assert ann.session not in str(reply), (row, reply)  # the three show all to who runs the server
            if status >= 400:
                assert "detail" in reply and ann.path not in str(reply) and server.folder not in str(reply), reply
    # Nothing that Bob tried took a number of Ann's or left anything behind.
    reply = post(server, "forward_backward", call_body(ann.model, 2, [1, 2, 3]))[1]
    assert "loss:sum" in result(server, reply["request_id"])[1]["metrics"]
    reply = post(server, "load_weights", {"session_id": ann.session, "model_seq_id": 6, "path": ann.path})[1]
    assert result(server, reply["request_id"])[1]["model_id"] == f"{ann.session}:train:6"


def test_every_route_of_an_ended_session(server):
    """What a client of it is answered, on a server that hears nothing of it for a second."""
    ended = Server(server.build, options=["--session-timeout", "1"])
    try:
        ann = Ann(ended)
        saved = post(ended, "save_weights_for_sampler", {"model_id": ann.model, "seq_id": 2, "sampling_session_seq_id": 7})[1]
        unnamed = result(ended, saved["request_id"])[1]["sampling_session_id"]
        for _ in range(100):
            if ended.request("GET", f"{API}samplers/{unnamed}")[0] == 404:  # which is no sign of life
                break
            time.sleep(0.1)
        for row in table(ann):
            status, reply = ended.request(row.method, row.path, row.body)
            assert status == (200 if row.ended is FUTURE else row.ended), (row, status, reply)
            if row.ended == 404:
                assert "nothing was heard of it for 1 s" in reply["detail"], (row, reply)
            if row.ended is FUTURE:
                outcome = result(ended, reply["request_id"])[1]
                assert outcome["category"] == "user" and "session has ended" in outcome["error"], (row, outcome)
    finally:
        ended.stop()
        ended.made.cleanup()


def test_the_limits_of_a_key(server):
    tight = server.add_key("tight", "--requests-per-second", "5", "--bytes-in-flight", "2000", "--models", "1",
                           "--tokens-per-minute", "30", "--checkpoint-bytes", "1")
    # Bytes: a body that could never pass, told by its head.
    assert post(server, "telemetry", {"x": "y" * 3000}, tight)[0] == 413
    # Requests: five at once, then no more; heartbeats pass.
    time.sleep(1.1)
    session = post(server, "create_session", {}, tight)[1]["session_id"]
    statuses = [server.request("GET", API + "sessions", None, tight)[0] for _ in range(8)]
    assert statuses[:4] == [200] * 4 and 429 in statuses, statuses
    assert post(server, "session_heartbeat", {"session_id": session}, tight)[0] == 200
    # Models and checkpoints: an error of the operation, which a client does not try again.
    time.sleep(1.1)
    new = {"session_id": session, "base_model": stories(), "lora_config": {"rank": 4}}
    models = [post(server, "create_model", {**new, "model_seq_id": i}, tight)[1] for i in range(2)]
    assert result(server, models[0]["request_id"], tight)[1]["model_id"] == models[0]["model_id"]
    time.sleep(1.1)
    refused = result(server, models[1]["request_id"], tight)[1]
    assert refused["category"] == "user" and "1 models in training" in refused["error"], refused
    for seq, words in ((1, "path"), (2, "1 bytes of checkpoints")):
        saved = post(server, "save_weights", {"model_id": models[0]["model_id"], "seq_id": seq, "path": f"c{seq}"}, tight)[1]
        assert words in str(result(server, saved["request_id"], tight)[1]), seq
    # Tokens: what is begun passes whole, the next waits.
    time.sleep(1.1)
    body = call_body(models[0]["model_id"], 3, [1] * 40)
    first = post(server, "forward_backward", body, tight)
    assert first[0] == 200, first
    assert post(server, "forward_backward", body, tight) == first  # the same again takes none
    over = post(server, "forward_backward", call_body(models[0]["model_id"], 4, [1]), tight)
    assert over[0] == 429 and "30 tokens a minute" in over[1]["detail"], over
    assert post(server, "create_session", {}, KEY_BOB)[0] == 200  # nobody else notices


def test_limits_hold_for_what_is_sent_together(server):
    hasty = server.add_key("hasty", "--models", "2", "--checkpoint-bytes", "1")
    session = post(server, "create_session", {}, hasty)[1]["session_id"]

    def create(number):
        new = {"session_id": session, "base_model": stories(), "lora_config": {"rank": 4}, "model_seq_id": number}
        return result(server, post(server, "create_model", new, hasty)[1]["request_id"], hasty)[1]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    made = [outcome["model_id"] for outcome in outcomes if "model_id" in outcome]
    assert len(made) == 2, outcomes
    assert all("2 models in training" in outcome["error"] for outcome in outcomes if "error" in outcome), outcomes
    # The first may not be on the disk yet when the others are sent.
    sent = {seq: post(server, "save_weights", {"model_id": made[0], "seq_id": seq, "path": f"c{seq}"}, hasty)[1]
            for seq in (1, 2, 3)}
    told = {seq: result(server, reply["request_id"], hasty)[1] for seq, reply in sent.items()}
    assert told[1].get("path", "").endswith("/c1"), told
    for seq in (2, 3):
        assert told[seq]["category"] == "user" and "may have 1 bytes of checkpoints, and has" in told[seq]["error"], told
    listed = server.request("GET", API + f"training_runs/{made[0]}/checkpoints", None, hasty)[1]["checkpoints"]
    assert [checkpoint["checkpoint_id"] for checkpoint in listed] == ["weights/c1"], listed


def test_keys_are_rotated(server):
    old = server.add_key("turning")
    session = post(server, "create_session", {}, old)[1]["session_id"]
    new = server.command("keys", "rotate", "turning", "--grace-seconds", "4", "--data-dir", server.folder)
    time.sleep(1.5)
    for key in (old, new):
        assert post(server, "session_heartbeat", {"session_id": session}, key)[0] == 200, key
    time.sleep(3.5)
    assert post(server, "session_heartbeat", {"session_id": session}, old)[0] == 401
    assert post(server, "session_heartbeat", {"session_id": session}, new)[0] == 200
    data = b"".join(path.read_bytes() for path in pathlib.Path(server.folder).glob("store.db*"))
    assert old.encode() not in data and new.encode() not in data


def test_lists_and_deletes(server):
    ann = Ann(server)
    status, run = server.request("GET", f"{API}training_runs/{ann.model}")
    assert status == 200 and run["last_checkpoint"]["tinker_path"] == ann.path, run
    assert run["last_request_time"].endswith("Z") and run["lora_rank"] == 4
    listed = server.request("GET", API + "training_runs?limit=1&offset=0")[1]
    assert [r["training_run_id"] for r in listed["training_runs"]] == [ann.model], listed
    assert listed["cursor"]["limit"] == 1 and listed["cursor"]["total_count"] >= 1
    assert server.request("GET", API + "training_runs?limit=x")[0] == 400
    assert server.request("GET", f"{API}sessions/{ann.session}")[1] == {
        "training_run_ids": [ann.model], "sampler_ids": [ann.sampler]}
    of_run = f"{API}training_runs/{ann.model}/checkpoints"
    checkpoint, = server.request("GET", of_run)[1]["checkpoints"]
    assert checkpoint["checkpoint_id"] == "weights/x" and checkpoint["size_bytes"] > 1000, checkpoint
    assert server.request("PUT", of_run + "/weights/x/ttl", {"ttl_seconds": 100})[0] == 204
    assert "expires_at" in server.request("GET", of_run)[1]["checkpoints"][0]
    assert server.request("PUT", of_run + "/weights/x/ttl", {"ttl_seconds": None})[0] == 204
    assert server.request("DELETE", of_run + "/weights/x")[0] == 204
    assert server.request("DELETE", of_run + "/weights/x")[0] == 404
    assert server.request("GET", of_run)[1]["checkpoints"] == []
    assert post(server, "weights_info", {"tinker_path": ann.path})[0] == 404
    # Whoever samples from it goes on.
    body = {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 2]}]},
            "sampling_params": {"max_tokens": 2}}
    assert len(result(server, post(server, "asample", body)[1]["request_id"])[1]["sequences"]) == 1


def test_a_foreign_checkpoint_is_as_one_that_is_not(server):
    ann = Ann(server)
    session = post(server, "create_session", {}, KEY_BOB)[1]["session_id"]
    replies = []
    for path in (ann.path, ann.path + "-not"):
        reply = post(server, "create_sampling_session",
                     {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}, KEY_BOB)
        future = post(server, "load_weights", {"session_id": session, "model_seq_id": len(replies), "path": path},
                      KEY_BOB)[1]
        outcome = result(server, future["request_id"], KEY_BOB)[1]
        replies.append((reply, outcome["error"].replace(path, "PATH"), outcome["category"]))
    assert replies[0] == replies[1], replies


def test_refused_before_any_work(server):
    assert server.request("GET", API + "healthz", key=None) == (200, {"status": "ok"})
    assert post(server, "no/such/route", {})[0] == 404
    assert server.request("GET", API + "create_session")[0] == 405
    assert server.request("HEAD", API + "sessions") == (200, None)
    assert server.request("HEAD", API + "create_session")[0] == 405
    for wrong in ("eyJ", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1c2VyIn0.", "eyJ" + "x" * 5000):
        assert server.request("GET", API + "sessions", key=wrong)[0] == 401, wrong
    assert post(server, "create_session", b"{")[0] == 400
    assert post(server, "create_session", b"[" * 100000)[0] == 400
    assert post(server, "create_session", b"[]")[0] == 400
    assert post(server, "create_session", {}, headers={"Host": "evil.example"})[0] == 403
    assert post(server, "create_session", {}, headers={"Origin": "http://evil.example"})[0] == 403
    assert post(server, "create_session", {}, headers={"X-Long": "x" * 70000})[0] in (400, 431)
    assert post(server, "create_session", b"", headers={"Content-Encoding": "gzip"})[0] == 415
    assert post(server, "forward_backward", b"\x0a", headers={"Content-Type": "application/x-protobuf"})[0] == 400
    # A body that is said to be too large is answered before it is sent.
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("POST", API + "create_session")
    connection.putheader("X-API-Key", KEY_ANN)
    connection.putheader("Content-Length", str(10 ** 12))
    connection.endheaders()
    assert connection.getresponse().status == 413


def status_of(server, method, target, headers, body=b""):
    """What the server says to a request as it is, once."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest(method, target, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_bytes_as_they_come(server):
    key = {"X-API-Key": KEY_ANN}
    for host, status in (("127.evil.example", 403), ("127.0.0.1.evil.example", 403), ("127.1.2.3", 200), ("LOCALHOST", 200)):
        assert status_of(server, "GET", API + "get_server_capabilities", {"Host": host, **key}) == status, host
    # Without a key there is no body.
    assert status_of(server, "POST", API + "healthz", {"Content-Length": "268435456"}) == 405
    assert status_of(server, "GET", API + "healthz", {"Content-Length": "268435456"}) == 413
    assert status_of(server, "GET", API + "healthz", {}) == 200
    # What follows a body without an end is not taken for a request.
    assert status_of(server, "POST", API + "telemetry", {"Transfer-Encoding": "gzip", **key}, b"GET / HTTP/1.1\r\n\r\n") == 501
    # One byte of a letter of two: refused, and refused again.
    ann = Ann(server)
    saved = [post(server, "save_weights", {"model_id": ann.model, "seq_id": 9, "path": "a" * 127 + "\u00e9"}) for _ in range(2)]
    assert saved[0] == saved[1] and saved[0][0] == 200, saved
    large = post(server, "create_model", {"session_id": ann.session, "model_seq_id": 5, "base_model": stories(),
                                          "user_metadata": {"x": "y" * 70000}, "lora_config": {"rank": 4}})[1]
    assert "'user_metadata' is longer than 64 KiB" in str(result(server, large["request_id"])), large


def test_sent_again_is_carried_out_once(server):
    ann = Ann(server)
    body = call_body(ann.model, 2, [1, 5, 9])
    ids = {post(server, "forward_backward", body)[1]["request_id"] for _ in range(5)}
    assert len(ids) == 1
    first = result(server, *ids)
    assert first == result(server, *ids)
    step = {"model_id": ann.model, "seq_id": 3, "adam_params": {"learning_rate": 0.01}}
    steps = {post(server, "optim_step", step)[1]["request_id"] for _ in range(5)}
    assert len(steps) == 1
    assert result(server, *steps)[1]["metrics"]["optimizer_step"] == 1.0
    # A step without gradients says so; a wrong one does not stop what comes behind.
    assert result(server, post(server, "optim_step", {**step, "seq_id": 4})[1]["request_id"])[1]["category"] == "user"
    wrong = {"model_id": ann.model, "seq_id": 5, "adam_params": {"beta1": 1.0}}
    assert "beta1" in result(server, post(server, "optim_step", wrong)[1]["request_id"])[1]["error"]
    for seq, tokens in enumerate(([1, -1], [1, 512], [1, 2 ** 31 - 1], [1, 2 ** 40], []), 6):
        reply = post(server, "forward_backward", call_body(ann.model, seq, tokens))[1]
        assert result(server, reply["request_id"])[1]["category"] == "user", tokens
    reply = post(server, "forward_backward", call_body(ann.model, 60, [1, 2]))[1]
    assert "metrics" in result(server, reply["request_id"])[1]


def test_restart_keeps_results(server):
    ann = Ann(server)
    reply = post(server, "forward_backward", call_body(ann.model, 2, [1, 5, 9]))[1]
    before = result(server, reply["request_id"])
    server.kill()
    server.start()
    assert result(server, reply["request_id"]) == before
    assert result(server, reply["request_id"], KEY_BOB)[0] == 404


def main():
    return run_tests(Server(sys.argv[1]), globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
