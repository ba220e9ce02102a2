"""A team at work for as long as one likes: soak_test.py BUILD [--minutes 60] [--tenants 8] [--seed 1].

Every tenant trains, samples with each version, writes checkpoints and deletes the one before, cancels some samples,
sends some bodies that are wrong or cut off, and begins a new model and a new session now and then, while results and
sessions expire. Every loss must fall within each model. Memory, open files, threads and the bytes of the data folder
are read all the time: in the last fifth they are what they were in the second. At the end nothing waits, no model is
left, and the memory of the sampler's cache is free."""

import argparse
import os
import pathlib
import random
import socket
import statistics
import sys
import threading
import time
import traceback
import urllib.request

from chaos_test import API, Client, data, texts
from server_process import KEY_ANN, Server, stories

RESULT_SECONDS = 20
OPTIONS = ["--log-mb", "4", "--models-in-memory", "6", "--result-seconds", str(RESULT_SECONDS), "--session-timeout", "60",
           "--kv-cache-mb", "64"]
ROUNDS, MODELS = 30, 4  # of a model, and of a session


class Tenant:
    def __init__(self, number, server, seed):
        self.number, self.server, self.rng = number, server, random.Random(f"{seed} {number}")
        self.client = Client(server.port)
        self.models, self.operations = 0, 0

    def answer(self, request):
        self.operations += 1
        reply = self.client.post("retrieve_future", {"request_id": request})
        assert "error" not in reply, reply
        return reply

    def done(self, route, body):
        return self.answer(self.client.post(route, body)["request_id"])

    def run(self, until):
        while time.time() < until:
            session = self.client.post("create_session", {})["session_id"]
            for number in range(MODELS):
                if time.time() < until:
                    self.train(session, number, until)
            self.client.post(f"sessions/{session}/finish", {})

    def train(self, session, number, until):
        model, seq, losses, first = f"{session}:train:{number}", iter(range(1, 10**6)), [], None
        self.done("create_model", {"session_id": session, "model_seq_id": number, "base_model": stories(),
                                   "lora_config": {"rank": self.rng.choice([2, 4, 16]), "seed": self.number}})
        for r in range(ROUNDS):
            call = {"model_id": model, "seq_id": next(seq), "forward_backward_input": data(self.number)}
            asked = self.client.post("forward_backward", call)["request_id"]
            step = self.client.post("optim_step", {"model_id": model, "seq_id": next(seq), "adam_params": {"learning_rate": 0.01}})
            losses.append(self.answer(asked)["metrics"]["loss:sum"])
            self.answer(step["request_id"])
            if r % 6 == 5:
                self.sample(session, model, next(seq), number * ROUNDS + r)
            if r % 10 == 9:
                self.done("save_weights", {"model_id": model, "seq_id": next(seq), "path": f"at-{r}"})
                if first is not None:
                    self.client.request("DELETE", f"{API}training_runs/{model}/checkpoints/weights/{first}")
                first = f"at-{r}"
            if self.rng.random() < 0.1:
                self.misbehave(model)
            if time.time() > until:
                break
        if first is not None:
            self.client.request("DELETE", f"{API}training_runs/{model}/checkpoints/weights/{first}")
        if len(losses) == ROUNDS:
            assert losses[-1] < losses[0], losses
        self.models += 1
        self.done("unload_model", {"model_id": model})

    def sample(self, session, model, seq, number):
        self.done("save_weights_for_sampler", {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number})
        asked = []
        for i, prompt in enumerate(texts(number, 3)):
            asked.append(self.client.post("asample", {
                "sampling_session_id": f"{session}:sample:{number}", "seq_id": i, "num_samples": 2,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
                "sampling_params": {"max_tokens": 24, "temperature": 1.0, "seed": i}})["request_id"])
        self.client.post("cancel_future", {"request_id": asked.pop()})
        for request in asked:
            assert len(self.answer(request)["sequences"]) == 2

    def misbehave(self, model):
        status, _ = self.server.request("POST", API + "forward_backward", {"model_id": model, "seq_id": -5})
        assert status in (400, 422), status
        with socket.create_connection(("127.0.0.1", self.server.port)) as half:
            half.sendall(f"POST {API}forward HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY_ANN}\r\nContent-Length: 9000\r\n\r\n{{".encode())


class Watch:
    """What the server takes, again and again."""

    def __init__(self, server):
        self.process, self.folder, self.seen = pathlib.Path(f"/proc/{server.process.pid}"), server.folder, []

    def look(self):
        status = dict(line.split(":", 1) for line in (self.process / "status").read_text().splitlines())
        size = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                try:
                    size += os.path.getsize(os.path.join(folder, name))
                except FileNotFoundError:
                    pass
        self.seen.append({"memory MB": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]),
                          "open files": len(list((self.process / "fd").iterdir())), "data MB": size / 2**20})

    def fifths(self, name):
        """Medians of the second and the last."""
        values, n = [seen[name] for seen in self.seen], len(self.seen) // 5
        return statistics.median(values[n:2 * n]), statistics.median(values[-n:])


def metric(server, name):
    request = urllib.request.Request(server.url + "/metrics", headers={"Authorization": f"Bearer {KEY_ANN}"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def soak(build, minutes, tenants, seed):
    server = Server(build, options=OPTIONS)
    watch, errors = Watch(server), []
    begin = time.time()
    until = begin + minutes * 60
    team = [Tenant(number, server, seed) for number in range(tenants)]

    def work(tenant):
        try:
            tenant.run(until)
        except BaseException:
            errors.append(f"tenant {tenant.number}: {traceback.format_exc()}")

    threads = [threading.Thread(target=work, args=(tenant,), daemon=True) for tenant in team]
    for thread in threads:
        thread.start()
    told = begin
    while time.time() < until and not errors:
        time.sleep(min(5.0, minutes * 60 / 40))
        watch.look()
        if time.time() - told > 60:
            told = time.time()
            seen = ", ".join(f"{value:.0f} {name}" for name, value in watch.seen[-1].items())
            print(f"{(told - begin) / 60:.0f} minutes, {sum(t.operations for t in team)} operations: {seen}", flush=True)
    for thread in threads:
        thread.join()
    if not errors:
        time.sleep(RESULT_SECONDS + 3)
        errors += [f"{name} is {metric(server, name)} at the end" for name in EMPTY if metric(server, name) != 0]
    print(f"{minutes} minutes, {tenants} tenants: {sum(t.models for t in team)} models, {sum(t.operations for t in team)} operations")
    for name, (most, spare) in LIMITS.items() if not errors else ():
        early, late = watch.fifths(name)
        print(f"  {name:12}{early:8.1f} in the second fifth, {late:8.1f} in the last")
        if minutes < 10 and name.endswith("MB"):  # caches fill, and the first results are not let go yet
            spare += 128
        if late > early * most + spare:
            errors.append(f"{name} grows")
    server.stop()
    print("\n".join(errors))
    return 1 if errors else 0


# By how much the last fifth may be above the second: a share, and as much beside it.
LIMITS = {"memory MB": (1.05, 16), "threads": (1, 2), "open files": (1, 8), "data MB": (1.25, 16)}
EMPTY = ("twinkle_queue_operations", "twinkle_results", "twinkle_models", "twinkle_models_in_memory", "twinkle_cache_blocks_used")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(soak(options.build, options.minutes, options.tenants, options.seed))
