"""The server's part of bench/compare: twinkle-server and a FastAPI server in turn, under the same load."""

import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PYTHON = ROOT / ".venvs" / "fastapi" / "bin" / "python"
KEY = "tml-bench-0123456789abcdef"


class Server:
    """A process that is measured from outside."""

    key = ""

    def start(self, command, env=None):
        self.folder = tempfile.mkdtemp(prefix="server-", dir=os.environ.get("BENCH_FOLDER"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        begin = time.perf_counter()
        self.process = subprocess.Popen([str(word) for word in command()], env={**os.environ, **(env or {})},
                                        stdout=subprocess.DEVNULL)
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"error: {self.name} ended with code {self.process.returncode}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/healthz", timeout=10) as reply:
                    reply.read()
                break
            except OSError:
                time.sleep(0.001)
            if time.perf_counter() - begin > 120:
                raise SystemExit(f"error: {self.name} did not answer within 120 s")
        self.healthy_s = time.perf_counter() - begin
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def post(self, path, body, key=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1/{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "X-API-Key": key or self.key})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024

    def models(self, count):
        """A file with the ids of new models, all of one session; and the session."""
        session = self.post("create_session", {"tags": [], "sdk_version": "0.38.0", "type": "create_session"})["session_id"]
        ids = [self.post("create_model", {"session_id": session, "model_seq_id": number, "base_model": self.base_model,
                                          "lora_config": {"rank": 8}})["model_id"] for number in range(count)]
        path = pathlib.Path(self.folder) / "models"
        path.write_text("".join(f"{name}\n" for name in ids))
        return path, session


class Twinkle(Server):
    """twinkle-server with the engine that computes, or with bench/held_engine.cpp in its place."""

    name, key = "twinkle-server", KEY

    def __init__(self, model, held=None, keys=(KEY,)):
        self.base_model = str(model)
        options = [word for key in keys for word in ("--api-key", key)]

        def command():
            program = BUILD / "bin" / "twinkle-server"
            if held:
                folder = pathlib.Path(self.folder)
                for part in ("bin", "lib"):
                    (folder / part).mkdir()
                shutil.copy(BUILD / "bench" / "libheld_engine.so", folder / "lib" / "libtwinkle_server_engine.so")
                program = shutil.copy(program, folder / "bin")
            return [program, "launch", "--json", "--model-id", model, "--data-dir", pathlib.Path(self.folder) / "data",
                    "--port", self.port, *options]

        self.start(command, {"HELD_ENGINE": str(held)} if held else None)


class FastApi(Server):
    name, base_model = "FastAPI + SQLite", "stories260k"

    def __init__(self):
        self.start(lambda: [PYTHON, ROOT / "bench" / "peers" / "fastapi_server.py", self.port, pathlib.Path(self.folder) / "server.db"])


def check(args):
    """Ends with what to do when something is missing."""
    for needed, how in ((BUILD / "bench" / "serve_ack_bench", "scripts/build"), (BUILD / "bin" / "twinkle-server", "scripts/build"),
                        (PYTHON, "scripts/setup --bench"), (args.model, "set TWINKLE_TEST_DATA to where the test data lie")):
        if not needed.exists():
            raise SystemExit(f"error: {needed} is not there; {how if how.startswith('set') else f'run {how} first'}")


def wanted(args, way):
    return not args.only or any(word in way for word in args.only.split(","))


def load(program, *words):
    """The program's JSON, or None with the reason printed."""
    done = subprocess.run([str(word) for word in (BUILD / "bench" / program, *words)], capture_output=True, text=True, timeout=1800)
    lines = done.stdout.strip().splitlines()
    if not lines:
        print(f"  {program}: failed: {done.stderr.strip()}")
        return None
    got = json.loads(lines[-1])
    if done.returncode != 0:
        print(f"  {program}: failed: {got}")
        return None
    return got


def acknowledgements(args):
    """Requests a second from the body to the durable acknowledgement, at several numbers of connections."""
    counts = [int(word) for word in args.connections.split(",")]
    rows = {}
    ways = {"twinkle-server": (lambda: Twinkle(args.model, "never"), "json", args.requests),
            "the same, protobuf": (lambda: Twinkle(args.model, "never"), "proto", args.requests),
            "the same while it trains": (lambda: Twinkle(args.model), "json", args.requests),
            "FastAPI + SQLite": (FastApi, "json", args.peer_requests)}
    for turn in range(args.rounds):
        for count in counts:
            for way, (start, wire, requests) in ways.items():
                if not wanted(args, way):
                    continue
                with start() as server:
                    models, _ = server.models(count)
                    cpu = server.cpu_s()
                    got = load("serve_ack_bench", server.port, models, "--key", server.key, "--wire", wire, "--requests",
                               max(200, requests * min(count, 16) // 16), "--connections", count, "--folder", server.folder)
                    if got is None:
                        return 1
                    got["peak_mb"] = server.peak_mb()
                    got["cpu_ms"] = 1000 * (server.cpu_s() - cpu) / got["requests"]
                    rows.setdefault((count, way), []).append(got)
                    print(f"  turn {turn + 1}, {count} connections, {way}: {got['requests_per_s']:.0f} requests/s, p50 {got['p50_ms']:.1f} ms, "
                          f"p99 {got['p99_ms']:.1f} ms, {got['cpu_ms']:.2f} ms CPU each, peak {got['peak_mb']:.0f} MB; body {got['body_bytes']} bytes, the client used "
                          f"{got['client_cpus']:.2f} CPUs, the disk makes {got['limit_per_s']:.0f} such records/s durable", flush=True)
    print(f"\n  {'connections':>11}  {'':26}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'of the disk':>13}   twinkle is")
    for (count, way), gots in rows.items():
        middle = {name: statistics.median(got[name] for got in gots) for name in ("requests_per_s", "p50_ms", "p99_ms", "limit_per_s")}
        line = (f"  {count:11}  {way:26}{middle['requests_per_s']:11.0f}{middle['p50_ms']:9.1f}{middle['p99_ms']:9.1f}"
                f"{100 * middle['requests_per_s'] / middle['limit_per_s']:12.0f}%")
        ours = rows.get((count, "twinkle-server"))
        if way == FastApi.name and ours:
            rate = statistics.median(got["requests_per_s"] for got in ours) / middle["requests_per_s"]
            tail = statistics.median(got["p99_ms"] for got in ours) / middle["p99_ms"]
            line += f"   {rate:.1f}x the requests/s, p99 1/{1 / tail:.1f}"
        print(line)
    return 0


def burst(args):
    """Large bodies at once while heartbeats go on."""
    ways = {"twinkle-server": (lambda: Twinkle(args.model, "never"), "json"),
            "the same, protobuf": (lambda: Twinkle(args.model, "never"), "proto"),
            "FastAPI + SQLite": (FastApi, "json")}
    rows = {}
    for turn in range(args.rounds):
        for way, (start, wire) in ways.items():
            if not wanted(args, way):
                continue
            with start() as server:
                models, session = server.models(16)
                got = load("serve_burst_bench", server.port, models, session, "--key", server.key, "--wire", wire, "--bodies", args.bodies,
                           "--size", args.size, "--folder", server.folder)
                if got is None:
                    return 1
                rows.setdefault(way, []).append(got)
                print(f"  turn {turn + 1}, {args.bodies} bodies of {got['body_bytes']} bytes, {way}: {got['seconds']:.1f} s ({got['limit_s']:.1f} s to "
                      f"write and sync as many bytes), heartbeats p50 {got['heartbeat_p50_ms']:.1f} ms, p99 {got['heartbeat_p99_ms']:.1f} ms, the longest "
                      f"{got['heartbeat_max_ms']:.1f} ms, in a quiet second p99 {got['quiet_p99_ms']:.1f} ms; peak {server.peak_mb():.0f} MB", flush=True)
    print(f"\n  {'':20}{'seconds':>9}{'heartbeat p50 ms':>18}{'p99 ms':>9}")
    for way, gots in rows.items():
        middle = {name: statistics.median(got[name] for got in gots) for name in ("seconds", "heartbeat_p50_ms", "heartbeat_p99_ms")}
        print(f"  {way:20}{middle['seconds']:9.1f}{middle['heartbeat_p50_ms']:18.1f}{middle['heartbeat_p99_ms']:9.1f}")
    return 0


def futures(args):
    """Many samples in flight, none lost."""
    keys = [f"{KEY}-{number}" for number in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        gate = pathlib.Path(folder) / "go"
        with Twinkle(args.model, gate, keys) as server:
            samplers = pathlib.Path(folder) / "samplers"
            with open(samplers, "w") as out:
                for key in keys:
                    session = server.post("create_session", {"tags": [], "sdk_version": "0.38.0"}, key)["session_id"]
                    sampler = server.post("create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0,
                                                                      "base_model": server.base_model}, key)["sampling_session_id"]
                    out.write(f"{key} {sampler}\n")
            got = load("serve_futures_bench", server.port, samplers, gate, "--futures", args.futures, "--hold", args.hold)
            if got is None:
                return 1
            peak = server.peak_mb()
    print(f"  {got['futures']} futures of {len(keys)} owners: accepted in {got['submit_s']:.1f} s, all answered {got['answers_s']:.1f} s after the engine "
          f"went on, fetched in {got['fetch_s']:.1f} s; lost {got['lost']}, twice {got['duplicated']}, wrong {got['wrong']}; peak {peak:.0f} MB")
    for phase in ("while_submitting", "while_held", "while_answering", "while_fetching"):
        seen = got[phase]
        print(f"  healthz {phase.replace('_', ' ')}: p50 {seen['p50_ms']:.1f} ms, p99 {seen['p99_ms']:.1f} ms, the longest {seen['max_ms']:.1f} ms "
              f"of {seen['looks']}")
    print(f"  one connection alone, nothing else going on: {got['quiet_looks_per_s']} healthz/s")
    return 0


def start(args):
    """From the start of the process to the first answer of healthz, weights loaded beside."""
    ways = {"twinkle-server": lambda: Twinkle(args.model), "FastAPI + SQLite": FastApi}
    seconds = {}
    for turn in range(args.rounds):
        for way, begin in ways.items():
            if wanted(args, way):
                with begin() as server:
                    seconds.setdefault(way, []).append(server.healthy_s)
                    print(f"  turn {turn + 1}, {way}: {1000 * server.healthy_s:.0f} ms", flush=True)
    print("  process start to the first healthz, medians: " +
          ", ".join(f"{way} {1000 * statistics.median(list_of):.0f} ms" for way, list_of in seconds.items()))
    return 0
