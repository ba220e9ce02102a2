"""A script that is silent for longer than its session may be: idle_test.py BUILD. While its process lives the package
tells that it is there; when the process stands still the session ends, and the script goes on from what it saved."""

import os
import signal
import subprocess
import sys
import time

from sdk_test import client, new_model, there, tinker, train
from server_process import Server, run_tests

TIMEOUT = 12  # the package is heard of every ten seconds


class Remote:
    """What the client needs of a server."""

    def __init__(self, url):
        self.url = url


def work(url):
    """The script: does what it is told, and tells what came of it."""
    server = Remote(url)
    training = new_model(server, rank=4)
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            if word == "train":
                told = train(training, 3, 2)
            elif word == "save":
                told = training.save_state("kept").result().path
            else:
                training = there(client(server).create_training_client_from_state_with_optimizer(rest[0]))
                told = "resumed"
        except tinker.RequestFailedError as error:
            told = f"{error}"
        print(told, flush=True)


def test_silence(server):
    process = subprocess.Popen([sys.executable, __file__, "--work", server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)

    def ask(words):
        process.stdin.write(words + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        first = ask("train")
        path = ask("save")
        assert path.startswith("tinker://"), path
        time.sleep(2.2 * TIMEOUT)  # it does nothing, and lives
        second = ask("train")
        assert second.startswith("[") and second != first, second
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.2 * TIMEOUT)
        os.kill(process.pid, signal.SIGCONT)
        assert "session has ended" in (told := ask("train")), told
        assert ask(f"resume {path}") == "resumed"
        assert ask("train") == second, "it did not go on from what it saved"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(sys.argv[2])
    else:
        sys.exit(run_tests(Server(sys.argv[1], options=["--session-timeout", str(TIMEOUT)]), globals()))
