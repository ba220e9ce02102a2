"""A twinkle-server of its own for a test: started on a free port, killed and started again at will."""

import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY_ANN, KEY_BOB = "tml-ann-0123456789abcdef", "tml-bob-0123456789abcdef"


def missing(what):
    """Leaves the test out, or fails it where nothing may be left out."""
    print(f"missing: {what}")
    sys.exit(1 if os.environ.get("TWINKLE_TEST_REQUIRE") else 0)


def stories():
    data = pathlib.Path(os.environ.get("TWINKLE_TEST_DATA", ROOT.parent / "shared/data"))
    model = data / "models/stories260k/hf"
    if not model.exists():
        missing(f"{model} (test data; TWINKLE_TEST_DATA says where it is)")
    return str(model)


class Server:
    def __init__(self, build, data=None, options=()):
        self.build, self.program = build, str(pathlib.Path(build) / "bin/twinkle-server")
        self.made = None if data else tempfile.TemporaryDirectory(prefix="twinkle-server-")
        self.folder = data or self.made.name
        self.options = list(options)
        self.port = 0
        self.process = None
        self.start()

    def start(self):
        """The same port at every start, so that a client finds it again."""
        if self.port == 0:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(self.command_line(), stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        first = json.loads(self.process.stdout.readline())
        assert first["event"] == "listening", first
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def command_line(self):
        model = [] if "--model-id" in self.options else ["--model-id", stories()]
        return [self.program, "launch", "--json", *model, "--data-dir", self.folder,
                "--port", str(self.port), "--api-key", KEY_ANN, "--api-key", KEY_BOB, *self.options]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def folder_of(self, path):
        """Where a checkpoint lies."""
        with sqlite3.connect(f"file:{self.folder}/store.db?mode=ro", uri=True) as store:
            entry, = store.execute("SELECT entry FROM things WHERE kind = 'checkpoint' AND id = ?", (path,)).fetchone()
        return pathlib.Path(self.folder) / json.loads(entry)["folder"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0

    def command(self, *words):
        """What another command of the program prints."""
        return subprocess.run([self.program, *words], check=True, capture_output=True, text=True).stdout.strip()

    def add_key(self, name, *options):
        """A new key of that name, known to the server when this returns."""
        key = self.command("keys", "add", name, "--data-dir", self.folder, *options)
        for _ in range(50):
            if self.request("POST", "/api/v1/client/config", {}, key)[0] != 401:
                return key
            time.sleep(0.1)
        raise AssertionError(f"the server does not follow: {name}")

    def request(self, method, path, body=None, key=KEY_ANN, headers=None):
        """(status, parsed reply) of a plain request."""
        all_headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {}), **(headers or {})}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, all_headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, parsed(reply)
        except urllib.error.HTTPError as error:
            return error.code, parsed(error)


def parsed(reply):
    """The body: JSON as what it says, None where there is none, bytes of any other kind."""
    text = reply.read()
    return json.loads(text) if text and reply.headers["content-type"] == "application/json" else text or None


def run_tests(server, scope, wanted=(), given=None):
    """Runs every test_* of `scope`, or only the wanted ones, whatever fails, and stops the server; the exit code. A test
    is called with what is given, the server without it."""
    failed = 0
    for name, test in list(scope.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        begin = time.time()
        try:
            test(server if given is None else given)
            print(f"[ok] {name} {time.time() - begin:.1f} s", flush=True)
        except Exception:  # every test is to be seen
            traceback.print_exc()
            print(f"[FAILED] {name}", flush=True)
            failed += 1
    server.stop()
    if server.made:
        server.made.cleanup()
    return 1 if failed else 0
