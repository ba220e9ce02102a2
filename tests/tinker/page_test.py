"""The live page in a headless Chromium (scripts/setup --browser): what a person sees of a server at work.
page_test.py BUILD [SCREENSHOT.png]"""

import html
import re
import shutil
import subprocess
import sys
import tempfile

from isolation_test import Ann, call_body, post, result
from server_process import KEY_ANN, Server, missing, run_tests

BUILD = sys.argv[1] if len(sys.argv) > 1 else "build"
STEPS = 8


def chromium(*words):
    program = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                               "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
                               "--window-size=1200,900", *words], capture_output=True, text=True, timeout=240, check=True).stdout


def text_of(dom, name):
    """The text of the element with that id, as far as its own kind of element goes."""
    found = re.search(rf'<(\w+) id="{name}"[^>]*>(.*?)</\1>', dom, re.S)
    return html.unescape(re.sub(r"<[^>]*>", " ", found[2])).split()


def test_what_a_person_sees(server):
    ann = Ann(server)
    for step in range(STEPS):
        post(server, "forward_backward", call_body(ann.model, 2 + 2 * step, [1, 5, 9, 7]))
        adam = {"model_id": ann.model, "seq_id": 3 + 2 * step, "adam_params": {"learning_rate": 0.01}}
        result(server, post(server, "optim_step", adam)[1]["request_id"])
    sample = {"sampling_session_id": ann.sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1, 2]}]},
              "sampling_params": {"max_tokens": 8}}
    sampled, = result(server, post(server, "asample", sample)[1]["request_id"])[1]["sequences"]
    page = f"{server.url}/#key={KEY_ANN}"
    dom = chromium("--virtual-time-budget=3000", "--dump-dom", page)
    # The curve: one point a step, and it falls (on a screen, up is less).
    points = [[float(x) for x in point.split(",")] for point in re.search(r'<polyline points="([^"]+)"', dom)[1].split()]
    assert len(points) == STEPS, points
    assert points[0][1] < points[-1][1] and all(a[0] < b[0] for a, b in zip(points, points[1:])), points
    assert f"step {STEPS}, loss" in dom and ann.model in dom
    # The timeline: bars of both kinds, with what they were.
    bars = re.findall(r"<title>(train|sample): [0-9.]+ ms, ([0-9,]+) tokens, (\d+) operations", dom)
    assert {kind for kind, _, _ in bars} == {"train", "sample"}, bars
    assert ("sample", str(len(sampled["tokens"])), "1") in bars, bars
    assert text_of(dom, "state") == ["ready"] and "MiB" in text_of(dom, "memory")
    assert text_of(dom, "queue") == ["nothing", "waits"], text_of(dom, "queue")
    assert " ".join(text_of(dom, "totals")).startswith(f"tokens trained {4 * STEPS}"), text_of(dom, "totals")
    assert KEY_ANN not in dom  # nor in the address
    if len(sys.argv) > 2:
        chromium("--virtual-time-budget=3000", f"--screenshot={sys.argv[2]}", page)


def test_a_wrong_key(server):
    dom = chromium("--virtual-time-budget=3000", "--dump-dom", f"{server.url}/#key=tml-wrong-0123456789abc")
    assert '<div id="page" hidden' in dom and "The server does not know this key." in dom
    dom = chromium("--virtual-time-budget=1000", "--dump-dom", f"{server.url}/")
    assert '<form id="login">' in dom


def main():
    if shutil.which("chromium") is None:
        missing("chromium (scripts/setup --browser)")
    return run_tests(Server(BUILD), globals())


if __name__ == "__main__":
    sys.exit(main())
