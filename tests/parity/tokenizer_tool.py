"""What the tokenizer parity scripts share: their options, running build/tests/tokenize_tool over many strings, and
counting what differs."""
import argparse
import collections
import json
import pathlib
import subprocess
import tempfile

from mixed_strings import broken_bytes, strings


def parity_options(*more):
    """The options of the command line, and what follows from them: folder of tokenizers, strings, choice of cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shown", type=int, default=2)
    parser.add_argument("--only")
    for name in more:
        parser.add_argument(name)
    args = parser.parse_args()
    args.tokenizers = pathlib.Path(args.data) / "tokenizers"
    args.texts = strings(args.strings, args.seed)
    args.broken = broken_bytes(max(args.strings // 20, 10), args.seed + 1)
    args.wanted = lambda name: not args.only or name in args.only.split(",")
    return args


def end(total):
    print(f"{total} differences in all")
    return 1 if total else 0


class Differences:
    """Counts by kind, and shows the first few of each."""

    def __init__(self, name, shown):
        self.name, self.shown, self.counts = name, shown, collections.Counter()

    def same(self, text, ours, theirs, kind=""):
        if ours == theirs:
            return True
        self.counts[kind] += 1
        if self.counts[kind] <= self.shown:
            print(f"  {self.name} {kind}".rstrip() + f": {text!r}\n    ours {ours}\n    theirs {theirs}")
        return False

    def total(self):
        return sum(self.counts.values())


def all_texts(texts, broken):
    """The strings as a reader of texts sees them: broken UTF-8 with its replacement characters."""
    return texts + [b.decode("utf-8", "replace") for b in broken]


def run_tool(tool, tokenizer, lines, *flags):
    done = subprocess.run([tool, str(tokenizer), *flags], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{tokenizer}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def run_rows(tool, tokenizer, texts, broken, *flags):
    lines = [json.dumps(t) for t in texts] + [json.dumps({"hex": b.hex()}) for b in broken]
    rows = run_tool(tool, tokenizer, lines, *flags)
    assert len(rows) == len(lines), (len(rows), len(lines))
    return rows


def saved_tokenizer(tool, tokenizer):
    from tokenizers import Tokenizer
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "saved.json"
        subprocess.run([tool, str(tokenizer), "--save", str(path)], check=True)
        saved = Tokenizer.from_file(str(path))
    saved.no_padding()
    saved.no_truncation()
    return saved


def check_saved(name, tool, tokenizer, texts, shown):
    """`tokenizers` with the tokenizer.json that we save gives the same ids, special tokens parsed."""
    saved = saved_tokenizer(tool, tokenizer)
    found = Differences(f"{name} saved", shown)
    for text, row in zip(texts, run_rows(tool, tokenizer, texts, [], "--brief")):
        found.same(text, row["ids"], saved.encode(text, add_special_tokens=False).ids)
    print(f"{name} saved: {len(texts)} strings, {found.total()} differences", flush=True)
    return found.total()
