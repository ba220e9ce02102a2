"""The documentation as a test.

docs.py check      every page: fenced blocks are of a kind that is tested, C++ is quoted from cookbook/, JSON parses,
                   links inside the tree lead somewhere, tests that tables name exist, and no two pages start a server
                   on one port, because their commands run side by side. Proves on made-up pages that it finds each fault.
docs.py run PAGE   runs the page's ```bash blocks in order, in one shell, in a scratch folder where the tree's entries
                   are links; a command that fails, fails the test and is named by page and line.

Blocks are bash (run), cpp (quoted), json (parsed) or text (shown only: output, file layouts). There is no list of
exceptions.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text):
    """(line of the opening fence, language, body) of every fenced block."""
    found, language, start, body = [], None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(\S*)\s*$", line)
        if fence and language is None:
            language, start, body = fence.group(1), number, []
        elif fence:
            found.append((start, language, "\n".join(body) + "\n"))
            language = None
        elif language is not None:
            body.append(line)
    if language is not None:
        found.append((start, "unclosed", ""))
    return found


def named_tests():
    """As pages name them: Suite.Name, x_test.py: test_y, fuzz_x, ground_x."""
    found = set()
    for path in (ROOT / "tests").rglob("*_test.cpp"):
        found |= {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_[FP])?\((\w+), (\w+)\)", path.read_text())}
    for path in (ROOT / "tests").rglob("*_test.py"):
        found |= {f"{path.name}: {name}" for name in re.findall(r"^def (test_\w+)", path.read_text(), flags=re.M)}
    found |= {path.stem for path in (ROOT / "fuzz").glob("fuzz_*.cpp")}
    ground = (ROOT / "tests/ground/CMakeLists.txt").read_text()
    return found | {f"ground_{name}" for name in re.findall(r"^ground_test\((\w+) ", ground, flags=re.M)}


def faults(name, folder, text, quotable, tests):
    """What is wrong with one page, as sentences."""
    wrong = []
    for line, language, body in blocks(text):
        where = f"{name}:{line}"
        if language not in ("bash", "cpp", "json", "text"):
            wrong.append(f"{where}: a block must be bash, cpp, json or text, not '{language}'")
        elif language == "cpp" and not any(body in source for source in quotable):
            wrong.append(f"{where}: this C++ is not in any file of cookbook/, where it would be built and run")
        elif language == "json":
            try:
                json.loads(body)
            except ValueError as error:
                wrong.append(f"{where}: not JSON: {error}")
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target and not (folder / target).exists():
            wrong.append(f"{name}: link to {target}, which is not there")
    rows = "\n".join(line for line in prose.splitlines() if line.startswith("|"))
    for test in re.findall(r"`([A-Z]\w+\.[A-Z]\w{7,}|\w+_test\.py: \w+|(?:fuzz|ground)_\w+)`", rows):
        if test not in tests:
            wrong.append(f"{name}: there is no test {test}")
    return wrong


def shared_ports(texts):
    """Ports that commands of more than one page listen on, as sentences."""
    users = {}
    for name, text in texts.items():
        commands = "".join(body for _, language, body in blocks(text) if language == "bash")
        for port in re.findall(r"(?:--port[ =]|^port: *)(\d+)", commands, flags=re.M):
            users.setdefault(port, set()).add(str(name))
    return [f"port {port} is used by {' and '.join(sorted(names))}" for port, names in users.items() if len(names) > 1]


def self_test():
    for name, text, expected in [
        ("right", "see [this](README.md)\n```bash\ntrue\n```\n```json\n[1]\n```\n```cpp\nint x;\n```\n", 0),
        ("language", "```sh\ntrue\n```\n", 1),
        ("bare", "```\ntrue\n```\n", 1),
        ("unclosed", "```bash\ntrue\n", 1),
        ("invented C++", "```cpp\nint y;\n```\n", 1),
        ("JSON", "```json\n{1}\n```\n", 1),
        ("link", "see [that](nowhere.md)\n", 1),
        ("tests", "| a | `Suite.HasThisTest`, `x_test.py: test_y`, `fuzz_x`, `cookbook/x.cpp`, `Other.part` |\n", 0),
        ("no tests", "| a | `Suite.HasNoSuchTest`, `x_test.py: test_z`, `ground_z` |\n", 3),
    ]:
        got = faults(name, ROOT, text, ["int x;\n"], {"Suite.HasThisTest", "x_test.py: test_y", "fuzz_x"})
        assert len(got) == expected, (name, got)
    option, file = "```bash\nlaunch --port 8123\n```\n", "```bash\ncat >a.yaml <<END\nport: 8123\nEND\n```\n"
    assert len(shared_ports({"a": option, "b": file})) == 1
    assert not shared_ports({"a": option + file, "b": option.replace("8123", "8124")})


def check():
    self_test()
    tests = named_tests()
    quotable = [path.read_text() for path in sorted((ROOT / "cookbook").rglob("*.cpp"))]
    wrong = []
    for page in pages():
        wrong += faults(page.relative_to(ROOT), page.parent, page.read_text(), quotable, tests)
    wrong += shared_ports({page.relative_to(ROOT): page.read_text() for page in pages()})
    print("\n".join(wrong) if wrong else f"docs: {len(pages())} pages right")
    return 1 if wrong else 0


def run(page):
    found = [(line, body) for line, language, body in blocks(page.read_text()) if language == "bash"]
    if not found:
        print(f"{page.name}: no commands")
        return 0
    name = page.relative_to(ROOT)
    script = ["set -euo pipefail"]
    for line, body in found:
        script += [f"at={line}", f"printf '\\n--- %s:%s\\n' '{name}' \"$at\"", body]
    with tempfile.TemporaryDirectory() as scratch:
        for entry in ROOT.iterdir():
            if entry.name not in (".git", ".deps", "output"):
                os.symlink(entry, os.path.join(scratch, entry.name))
        os.symlink(os.environ.get("TWINKLE_DEPS", ROOT / ".deps"), os.path.join(scratch, ".deps"))
        trap = f"trap 'echo \"{name}: the block at line $at failed at: $BASH_COMMAND\"' ERR\n"
        # A group of its own: a server that the page started ends with the page, also where a command fails.
        shell = subprocess.Popen(["bash", "-c", trap + "\n".join(script)], cwd=scratch, stdin=subprocess.DEVNULL,
                                 env={**os.environ, "TWINKLE_INSIDE_TEST": "1"}, start_new_session=True)
        try:
            return shell.wait()
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check())
    sys.exit(run(ROOT / sys.argv[2]))
