#!/usr/bin/env python3
"""Our ids of SentencePiece models against the `sentencepiece` package, and the tokenizer.json that we save against
`tokenizers`, string by string: real models, and small ones trained here for every setting.

Needs: pip install sentencepiece tokenizers. Usage: sentencepiece_parity.py --tool build/tests/tokenize_tool
--data ../shared/data [--strings 20000] [--only llama2]. Prints a line a model; exits 1 on any difference.
"""
import collections
import pathlib
import random
import sys
import tempfile

import sentencepiece

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mixed_strings import mixed_string  # noqa: E402
from tokenizer_tool import Differences, all_texts, check_saved, end, parity_options, run_rows  # noqa: E402

SYMBOLS = ["<sep>", "<ab c>", "😊", "zz", "▁the"]
TRAINED = {
    "unigram nmt_nfkc": dict(model_type="unigram"),
    "unigram nmt_nfkc_cf bytes": dict(model_type="unigram", normalization_rule_name="nmt_nfkc_cf", byte_fallback=True),
    "unigram identity": dict(model_type="unigram", normalization_rule_name="identity", remove_extra_whitespaces=False),
    "unigram symbols": dict(model_type="unigram", user_defined_symbols=SYMBOLS, control_symbols=["<ctl>"]),
    "unigram suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True),
    "unigram no prefix": dict(model_type="unigram", add_dummy_prefix=False, split_by_whitespace=False),
    "bpe nmt_nfkc": dict(model_type="bpe"),
    "bpe llama": dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True,
                      split_digits=True, allow_whitespace_only_pieces=True),
    "bpe symbols": dict(model_type="bpe", normalization_rule_name="identity", user_defined_symbols=SYMBOLS, control_symbols=["<ctl>"],
                        remove_extra_whitespaces=False),
    "bpe suffix": dict(model_type="bpe", treat_whitespace_as_suffix=True, byte_fallback=True),
    "bpe across words": dict(model_type="bpe", split_by_whitespace=False, max_sentencepiece_length=24),
    "word": dict(model_type="word"),
    "word bytes": dict(model_type="word", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True),
    "word symbols": dict(model_type="word", user_defined_symbols=SYMBOLS, control_symbols=["<ctl>"]),
    "char": dict(model_type="char"),
    "char bytes": dict(model_type="char", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True),
    "char symbols": dict(model_type="char", user_defined_symbols=SYMBOLS, control_symbols=["<ctl>"], treat_whitespace_as_suffix=True),
    "bpe no prefix": dict(model_type="bpe", add_dummy_prefix=False, normalization_rule_name="nfkc"),
}


def train(folder):
    rng = random.Random(5)
    rows = [mixed_string(rng).replace("\n", " ").replace("\0", "") for _ in range(4000)]
    counts = collections.Counter("".join(rows))
    rows = ["".join(c for c in row if counts[c] > 8) for row in rows]
    corpus = folder / "corpus.txt"
    corpus.write_bytes("\n".join(r for r in rows if r.strip()).encode())
    for name, settings in TRAINED.items():
        file = folder / (name.replace(" ", "-") + ".model")
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(file)[:-6], vocab_size=3000, num_threads=2,
                                                 character_coverage=0.98, hard_vocab_limit=False, minloglevel=2, **settings)
        yield name, file


def with_unused(source, target):
    """The same model with every seventh normal piece marked as unused (type is field 3 of a piece)."""
    data, out, at, count = source.read_bytes(), b"", 0, 0

    def varint(value):
        text = b""
        while value > 127:
            text += bytes([value & 127 | 128])
            value >>= 7
        return text + bytes([value])

    def read(place):
        value = shift = 0
        while True:
            value |= (data[place] & 127) << shift
            shift += 7
            place += 1
            if data[place - 1] < 128:
                return value, place

    while at < len(data):
        key, begin = read(at)
        size, begin = read(begin)
        body = data[begin:begin + size]
        if key == 10 and b"\x18" not in body[-2:-1] and len(body) > 8:
            count += 1
            if count % 7 == 0:
                body += b"\x18\x05"
        out += varint(key) + varint(len(body)) + body
        at = begin + size
    target.write_bytes(out)
    return target


def compare(name, tool, path, texts, broken, shown):
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    everything = all_texts(texts, broken)
    # Newer versions of the package leave a piece that is NUL unused; older ones, tokenizers and we read it.
    nul = next((i for i in range(model.GetPieceSize()) if model.IdToPiece(i) == "\0"), None)
    byte = model.PieceToId("<0x00>")
    found = Differences(name, shown)
    for text, row in zip(everything, run_rows(tool, path, texts, broken, "--plain", "--brief")):
        want = [nul if nul is not None and i == byte else i for i in model.EncodeAsIds(text)]
        found.same(text, row["ids"], want)
    print(f"{name}: {len(everything)} strings, {found.total()} differences", flush=True)
    return found.total()


def main():
    args = parity_options()
    data, texts, broken, wanted = args.tokenizers, args.texts, args.broken, args.wanted
    total = 0
    for name, file in (("llama2", "llama2/tokenizer.model"), ("internlm2", "internlm2/tokenizer.model"),
                       ("mistral v1", "mistral/tokenizer.model.v1"), ("mistral v3", "mistral/tokenizer.model.v3")):
        if not wanted(name):
            continue
        total += compare(name, args.tool, data / file, texts, broken, args.shown)
        total += check_saved(name, args.tool, data / file, texts[:20000], args.shown)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        few = texts[:max(len(texts) // 5, 2000)]
        for name, file in train(folder):
            if wanted(name):
                total += compare(name, args.tool, file, few, broken, args.shown)
            if name in ("bpe llama", "bpe across words", "unigram identity", "word", "char") and wanted(name + " unused"):
                unused = with_unused(file, folder / "unused.model")
                total += compare(name + " unused", args.tool, unused, few, broken, args.shown)
    return end(total)


if __name__ == "__main__":
    sys.exit(main())
