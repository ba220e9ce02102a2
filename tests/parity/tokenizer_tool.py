"""What the tokenizer parity scripts share: running build/tests/tokenize_tool over many strings."""
import json
import pathlib
import subprocess
import tempfile


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
    bad = 0
    for text, row in zip(texts, run_rows(tool, tokenizer, texts, [], "--brief")):
        want = saved.encode(text, add_special_tokens=False).ids
        if row["ids"] != want:
            bad += 1
            if bad <= shown:
                print(f"  {name} saved: {text!r}\n    ours {row['ids']}\n    theirs {want}")
    print(f"{name} saved: {len(texts)} strings, {bad} differences", flush=True)
    return bad
