"""A storm of kill -9 while a team works: chaos_test.py BUILD [--kills 1000] [--tenants 16] [--seed 1].

Every tenant runs a fixed program over and over: a model, steps of two calls each, checkpoints, a load of one of
them, samples. It sends ahead of the answers, sends some requests twice, and repeats what was not answered, as the
official package does. Meanwhile the server dies at random instants, some of them before it listens. What was
acknowledged once has the same id whenever it is sent again, and the answers of every program, the losses of every
call among them, and the bytes of its last checkpoint are those of a server that nobody disturbed."""

import argparse
import hashlib
import http.client
import json
import pathlib
import random
import sqlite3
import subprocess
import sys
import threading
import time
import traceback

from server_process import KEY_ANN, Server, stories

ROUNDS, AHEAD = 24, 6
API = "/api/v1/"
# So that snapshots and new logs are written all the time.
OPTIONS = ["--log-mb", "1", "--snapshot-operations", "12", "--models-in-memory", "12"]


class Lost(Exception):
    """What must not be: an answer that no client should have to handle."""


class Client:
    """Repeats every request until it is answered, for five minutes."""

    def __init__(self, port):
        self.port, self.connection = port, None

    def once(self, method, path, body):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, {"X-API-Key": KEY_ANN, "Content-Type": "application/json"})
        reply = self.connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None

    def request(self, method, path, body=None):
        until = time.time() + 300
        while time.time() < until:
            try:
                status, reply = self.once(method, path, body)
                if status in (200, 204):
                    return reply
                if status not in (408, 429) and status < 500:
                    raise Lost(f"{path}: {status} {reply}")
            except (OSError, http.client.HTTPException, ValueError):  # ValueError: a reply that was cut off
                if self.connection is not None:
                    self.connection.close()
                self.connection = None
            time.sleep(0.02)
        raise Lost(f"{path}: no answer in five minutes")

    def post(self, route, body):
        return self.request("POST", API + route, body)


def texts(seed, count=2):
    rng = random.Random(seed)
    return [[1] + [rng.randrange(3, 500) for _ in range(rng.randrange(8, 24))] for _ in range(count)]


def data(seed):
    return {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"type": "encoded_text", "tokens": text[:-1]}]},
         "loss_fn_inputs": {"target_tokens": {"data": text[1:], "dtype": "int64"},
                            "weights": {"data": [1.0] * (len(text) - 1), "dtype": "float32"}}}
        for text in texts(seed)]}


class Program:
    """What a tenant does from its session to its last checkpoint; `answers` has what it was told."""

    def __init__(self, tenant, server, rng, on_answer):
        self.tenant, self.folder, self.rng, self.on_answer = tenant, server.folder, rng, on_answer
        self.client = Client(server.port)
        self.sent, self.ids, self.waiting, self.answers = {}, {}, [], {}

    def submit(self, route, body, name):
        self.sent[name] = (route, body)
        self.acknowledge(name)
        self.waiting.append(name)

    def acknowledge(self, name):
        told = self.client.post(*self.sent[name])["request_id"]
        if self.ids.setdefault(name, told) != told:
            raise Lost(f"{name} was {self.ids[name]}, and is {told}")

    def take_answers(self, left):
        while len(self.waiting) > left:
            name = self.waiting.pop(0)
            reply = self.client.post("retrieve_future", {"request_id": self.ids[name]})
            if "error" in reply:
                raise Lost(f"{name}: {reply}")
            self.answers[name] = json.dumps(reply, sort_keys=True).replace(self.session, "SESSION")
            self.on_answer()

    def model_operation(self, route, body, name):
        self.seq += 1
        self.submit(route, {"model_id": self.model, "seq_id": self.seq, **body}, name)
        if self.rng.random() < 0.1:
            self.acknowledge(self.rng.choice(list(self.sent)))
        self.take_answers(AHEAD)

    def run(self):
        self.session = self.client.post("create_session", {})["session_id"]
        self.model, self.seq = self.session + ":train:0", 0
        self.submit("create_model", {"session_id": self.session, "model_seq_id": 0, "base_model": stories(),
                                     "lora_config": {"rank": 4, "seed": 1000 + self.tenant}}, "create")
        for r in range(ROUNDS):
            for chunk in range(2):
                seed = (self.tenant * ROUNDS + r) * 2 + chunk
                self.model_operation("forward_backward", {"forward_backward_input": data(seed)}, f"call {r} {chunk}")
            self.model_operation("optim_step", {"adam_params": {"learning_rate": 0.01}}, f"step {r}")
            if r % 8 == 3:
                self.model_operation("save_weights", {"path": f"at-{r}"}, f"save {r}")
            if r == ROUNDS * 2 // 3:
                path = f"tinker://{self.model}/weights/at-3"
                self.model_operation("load_weights", {"path": path, "optimizer": True}, "load")
        self.model_operation("save_weights", {"path": "last"}, "save last")
        self.model_operation("save_weights_for_sampler", {"sampling_session_seq_id": 0}, "save for sampler")
        self.take_answers(0)
        sampler = self.session + ":sample:0"
        for i, prompt in enumerate(texts(self.tenant, 3)):
            self.submit("asample", {"sampling_session_id": sampler, "seq_id": i, "num_samples": 2,
                                    "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
                                    "sampling_params": {"max_tokens": 12, "temperature": 1.0, "seed": i}}, f"sample {i}")
        self.take_answers(0)
        self.answers["bytes"] = self.checkpoint_bytes()
        self.client.post("unload_model", {"model_id": self.model})

    def checkpoint_bytes(self):
        """Of the last checkpoint, by the server's own files: weights and optimizer."""
        with sqlite3.connect(f"file:{self.folder}/store.db?mode=ro", uri=True) as store:
            row, = store.execute("SELECT entry FROM things WHERE kind = 'checkpoint' AND id = ?",
                                 (f"tinker://{self.model}/weights/last",)).fetchall()
        folder = pathlib.Path(self.folder) / json.loads(row[0])["folder"]
        return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
                for name in ("adapter_model.safetensors", "optimizer.safetensors")}

    def differences(self, calm):
        return [name for name in sorted(calm.keys() | self.answers.keys()) if calm.get(name) != self.answers.get(name)]


class Storm:
    def __init__(self, server, tenants, seed):
        self.server, self.tenants, self.seed = server, tenants, seed
        self.kills, self.programs, self.operations, self.answers = 0, 0, 0, 0
        self.over, self.errors, self.lock = False, [], threading.Lock()
        self.last = {}

    def tenant(self, tenant, calm):
        """Programs until the storm is over, one at least."""
        number = 0
        while not self.errors and (number == 0 or not self.over):
            program = Program(tenant, self.server, random.Random(f"{self.seed} {tenant} {number}"), self.answered)
            try:
                program.run()
                if calm is not None and program.differences(calm[tenant]):
                    names = program.differences(calm[tenant])
                    raise Lost("\n".join([f"differs from the calm run in {names}"] + [
                        f"{name}: {program.answers.get(name)} instead of {calm[tenant].get(name)}" for name in names[:2]]))
            except BaseException:
                with self.lock:
                    self.errors.append(f"tenant {tenant}, program {number}, {getattr(program, 'session', '')}: "
                                       + traceback.format_exc())
                return
            with self.lock:
                self.programs += 1
                self.operations += len(program.ids)
                self.last[tenant] = program
            number += 1

    def answered(self):
        with self.lock:
            self.answers += 1

    def wait_for_a_bad_moment(self, rng):
        """Mostly after some work, however slow the machine is; sometimes in a start."""
        if rng.random() < 0.2:
            return time.sleep(rng.uniform(0, 0.5))
        until = self.answers + rng.randrange(100)
        while self.answers < until and not self.errors:
            time.sleep(0.002)
        return time.sleep(rng.uniform(0, 0.1))

    def run(self, kills=0, calm=None):
        threads = [threading.Thread(target=self.tenant, args=(t, calm), daemon=True) for t in range(self.tenants)]
        for thread in threads:
            thread.start()
        rng = random.Random(self.seed)
        begin, told = time.time(), time.time()
        while self.kills < kills and not self.errors:
            self.wait_for_a_bad_moment(rng)
            code = self.server.process.poll()
            if code is not None:
                self.errors.append(f"the server ended by itself: {code}")
                break
            self.server.kill()
            self.kills += 1
            self.server.start(wait=rng.random() < 0.7)
            if time.time() - told > 60:
                told = time.time()
                print(f"{self.kills} kills in {told - begin:.0f} s, {self.programs} programs", flush=True)
        self.over = True
        for thread in threads:
            thread.join()


class RestlessServer(Server):
    def start(self, wait=True):
        if self.port == 0 or wait:
            super().start()
            return
        self.process = subprocess.Popen(self.command_line(), stdout=subprocess.DEVNULL, stderr=sys.stderr)


def run(build, kills, tenants, seed):
    calm_server = Server(build, options=OPTIONS)
    calm = Storm(calm_server, tenants, seed)
    calm.run()
    calm_server.stop()
    calm_server.made.cleanup()
    if calm.errors:
        print("\n".join(calm.errors))
        return 1
    answers = {tenant: program.answers for tenant, program in calm.last.items()}
    server = RestlessServer(build, options=OPTIONS)
    storm = Storm(server, tenants, seed)
    begin = time.time()
    storm.run(kills, answers)
    # All of it is still there after one more.
    if not storm.errors:
        server.kill()
        server.start()
        for program in storm.last.values():
            try:
                for name, request_id in program.ids.items():
                    program.acknowledge(name)
                    reply = program.client.post("retrieve_future", {"request_id": request_id})
                    if json.dumps(reply, sort_keys=True).replace(program.session, "SESSION") != program.answers[name]:
                        raise Lost(f"{name}: {reply} instead of {program.answers[name]}")
            except Lost:
                storm.errors.append(traceback.format_exc())
        server.stop()
        server.made.cleanup()
    else:
        server.kill()
        server.made._finalizer.detach()  # to look at
        print(f"the server's folder: {server.folder}")
    print(f"{storm.kills} kills in {time.time() - begin:.0f} s, seed {seed}: {storm.programs} programs of {tenants} tenants "
          f"with {storm.operations} operations, {len(storm.errors)} of them not as in a calm run")
    print("\n".join(storm.errors))
    return 1 if storm.errors else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(run(options.build, options.kills, options.tenants, options.seed))
