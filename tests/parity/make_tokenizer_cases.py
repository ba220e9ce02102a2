#!/usr/bin/env python3
"""Writes tests/text/data/tokenizer_cases.json: small tokenizers, one a component or flag, and what the `tokenizers`
package makes of a few texts with them (ids, byte offsets, decoded text). The model is WordLevel over whatever pieces come
out, so the ids show the pieces exactly."""
import json
import pathlib
import tokenizers
from tokenizers import Tokenizer

TEXTS = ["Hello, world!  It's 2024-05-06.\n\nBye\t now", " a  b ", "x", "", "  ", "naïve Café Ångström ﬁ ½ ①", "中文 and 日本語、テスト。",
         "e\u0301 q\u0307\u0323 \u1100\u1161\u11a8 \u212b क्षि", "İstanbul ſTOP ΑΣ ß", "a.b..c", "12ab34", "_x_y __", "\u00a0nb\u3000sp\u2028", "\u0000\u0007\u200b\ufeff\ufffd\u00ad",
         "👨‍👩‍👧 👍🏽 ❤️", "don't you'LL we've 'tis", "▁a ▁▁b", "٣٤ Ⅷ ²", "foo_bar-baz/qux", "\r\n\r\n  \r\n x"]
STRING = lambda s: {"String": s}
REGEX = lambda s: {"Regex": s}
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def bert(**over):
    return {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False, **over}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, trim=True, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


NORMALIZERS = {
    **{form: {"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    "strip left": {"type": "Strip", "strip_left": True, "strip_right": False},
    "strip right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "prepend": {"type": "Prepend", "prepend": "▁"},
    "replace string": {"type": "Replace", "pattern": STRING(" "), "content": "▁"},
    "replace dot": {"type": "Replace", "pattern": STRING("."), "content": ""},
    "replace regex": {"type": "Replace", "pattern": REGEX(r"\s{2,}|\d+"), "content": "<>"},
    "bert all": bert(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
    "bert clean": bert(clean_text=True),
    "bert chinese": bert(handle_chinese_chars=True),
    "bert strip": bert(strip_accents=True),
    "bert lower only": bert(lowercase=True),
    "sequence": sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "> "}),
}
PRE_TOKENIZERS = {
    "byte level": byte_level(), "byte level prefix": byte_level(prefix=True), "byte level bare": byte_level(regex=False),
    "digits": {"type": "Digits", "individual_digits": False}, "digits single": {"type": "Digits", "individual_digits": True},
    **{f"punctuation {b}": {"type": "Punctuation", "behavior": b} for b in BEHAVIORS},
    "whitespace": {"type": "Whitespace"}, "whitespace split": {"type": "WhitespaceSplit"}, "bert": {"type": "BertPreTokenizer"},
    "delimiter": {"type": "CharDelimiterSplit", "delimiter": "-"}, "fixed": {"type": "FixedLength", "length": 3},
    **{f"metaspace {s} {k}": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": k}
       for s in ("always", "first", "never") for k in (True, False)},
    **{f"split {name} {b} {i}": split(p, b, i) for name, p in (("space", STRING(" ")), ("letters", REGEX(r"\p{L}+"))) for b in BEHAVIORS for i in (False, True)},
    "split dot literal": split(STRING("."), "Removed"), "split dot regex": split(REGEX("."), "Isolated"),
    "split word": split(REGEX(r"\w+|[^\w\s]+"), "Isolated", True), "split boundary": split(REGEX(r"\b"), "Isolated"),
    "split empty": split(REGEX("x*"), "Isolated"), "split lines": split(REGEX("^.+$"), "Isolated"), "split hex": split(REGEX(r"\h+"), "Isolated"),
    "split dotall": split(REGEX(r"(?m:.+)b"), "Isolated"), "split atomic": split(REGEX(r"(?>a+|\s++)"), "Isolated"),
    "split repeat": split(REGEX(r"\d{,2}-"), "Removed"), "split negated": split(REGEX(r"[^\P{L}a-m]+"), "Isolated"),
    "split gpt-4o": split(REGEX(GPT4O)), "split qwen3.5": split(REGEX(QWEN35)),
    "sequence": sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Digits", "individual_digits": True}, byte_level(regex=False)),
    "split then metaspace first": sequence("pretokenizers", split(STRING("-"), "MergedWithNext"), {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}),
}
DECODERS = {
    "none": None, "byte level": byte_level(), "fuse": {"type": "Fuse"}, "byte fallback": {"type": "ByteFallback"},
    "replace": {"type": "Replace", "pattern": STRING("▁"), "content": " "}, "replace regex": {"type": "Replace", "pattern": REGEX("[lo]+"), "content": "_"},
    "strip": {"type": "Strip", "content": "H", "start": 1, "stop": 0}, "metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "metaspace never": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    "wordpiece": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "wordpiece raw": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    "bpe": {"type": "BPEDecoder", "suffix": "</w>"}, "ctc": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
    "llama": sequence("decoders", {"type": "Replace", "pattern": STRING("▁"), "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    "fuse then replace": sequence("decoders", {"type": "Fuse"}, {"type": "Replace", "pattern": STRING("llo"), "content": "LLO"}),
    "byte level then strip": sequence("decoders", byte_level(), {"type": "Strip", "content": "H", "start": 2, "stop": 0}),
    "fuse then wordpiece": sequence("decoders", {"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "empty": sequence("decoders"),
}
PIECES = ["Hello", "▁world", "##ing", "He", "llo", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "<0x41>", "Ġa", "ðŁ", "ĺ", "Ĭ", "</w>", "end</w>", " .", " n't", "|",
          "<pad>", "▁", "▁▁", "日本", "ä½", "ł", " do not", "H", "HH", "<0xZZ>", "<0x4>", "Ċ"]
DECODED = [[0, 1, 2], [3, 4, 4, 4], [5, 6, 7, 1], [5, 6, 1, 7], [5, 6, 7, 8], [5, 6, 7], [9, 9, 0], [10, 11, 12, 13, 0], [11, 12], [0, 14, 15, 15], [0, 16, 17, 25],
           [18, 19, 19, 0, 0, 18], [20, 0], [21, 1, 20], [22, 23, 24], [0, 8], [26, 27, 0], [28, 29, 30], [1, 1], [13], [24, 22], [20, 20, 20, 0]]
ADDED = {
    "plain": {}, "lstrip": {"lstrip": True}, "rstrip": {"rstrip": True}, "both strips": {"lstrip": True, "rstrip": True},
    "single word": {"single_word": True}, "normalized": {"normalized": True, "special": False}, "not special": {"special": False},
    "single word strips": {"single_word": True, "lstrip": True, "rstrip": True},
}
ADDED_TEXTS = ["a <m> b", "a<m>b", "  <m>  <m> ", "<m><m>", "x<M> <m>", "(<m>)", "_<m>", "<m>é", "<mm> <m", "", "a\n\t<m>\n", "<m>ing <ing> sing ing. _ing ing", "ĂA<m>"]


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def base(**parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}, **parts}


def load(spec):
    return Tokenizer.from_str(json.dumps(spec))


def pieces_of(spec, text):
    """The pieces that reach the model, by asking a tokenizer that knows one more of them each time."""
    tokenizer = load(spec)
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    if not tokenizer.pre_tokenizer:
        return [normal] if normal else []
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def byte_pairs(text, pairs):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[b], at[e]] for b, e in pairs]


def rows(spec, texts, special=False):
    tokenizer = load(spec)
    out = []
    for text in texts:
        encoded = tokenizer.encode(text, add_special_tokens=special)
        out.append({"text": text, "ids": encoded.ids, "offsets": byte_pairs(text, encoded.offsets)})
    return out


def with_vocab(spec, texts, seed=("<unk>",)):
    words = dict.fromkeys(seed)
    for text in texts:
        words.update(dict.fromkeys(pieces_of(spec, text)))
    vocab = {word: i for i, word in enumerate(words)}
    return {**spec, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}


def main():
    cases = []
    for name, normalizer in NORMALIZERS.items():
        spec = with_vocab(base(normalizer=normalizer), TEXTS)
        cases.append({"name": "normalizer " + name, "tokenizer": spec, "rows": rows(spec, TEXTS)})
    for name, pre in PRE_TOKENIZERS.items():
        spec = with_vocab(base(pre_tokenizer=pre), TEXTS)
        cases.append({"name": "pre-tokenizer " + name, "tokenizer": spec, "rows": rows(spec, TEXTS)})
    for name, decoder in DECODERS.items():
        spec = base(decoder=decoder, model={"type": "WordLevel", "vocab": {p: i for i, p in enumerate(PIECES)}, "unk_token": "Hello"})
        tokenizer = load(spec)
        decoded = [{"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)} for ids in DECODED]
        cases.append({"name": "decoder " + name, "tokenizer": spec, "decode": decoded})
    lower = {"type": "Lowercase"}
    for name, flags in ADDED.items():
        tokens = [added(0, "<unk>"), added(50, "<m>", **flags), added(51, "ing", **flags), added(52, "<mm>")]
        spec = base(normalizer=lower, pre_tokenizer={"type": "WhitespaceSplit"}, added_tokens=tokens)
        words = dict.fromkeys(["<unk>", *"a b x ( ) _ é < m s . _ing <ing> sing ăa ă <m <m> > ing".split()])
        spec["model"] = {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"}
        spec["added_tokens"] = json.loads(load(spec).to_str())["added_tokens"]
        cases.append({"name": "added " + name, "tokenizer": spec, "rows": rows(spec, ADDED_TEXTS)})
        tokenizer = load(spec)
        tokenizer.encode_special_tokens = True
        plain = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in ADDED_TEXTS]
        cases.append({"name": "added as text " + name, "tokenizer": spec, "plain": True, "rows": plain})
    specials = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": specials}
    posts = {"template": template, "bert": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
             "roberta": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True},
             "byte level": byte_level(trim=True), "byte level prefix": byte_level(prefix=True), "byte level untrimmed": byte_level(trim=False),
             "sequence": sequence("processors", byte_level(trim=True), template)}
    for name, post in posts.items():
        for special in (False, True):
            prefix = name in ("roberta", "byte level prefix")
            spec = with_vocab(base(pre_tokenizer=byte_level(prefix=prefix), post_processor=post), TEXTS, ("<unk>", "<s>", "</s>"))
            cases.append({"name": f"post {name} {special}", "tokenizer": spec, "special": special, "rows": rows(spec, TEXTS, special)})
    chars = {c: i for i, c in enumerate("<unk> a b c d e ab cd abc </w> a</w> b</w> c</w> ab</w> @@b @@c @@d a@@".split())}
    bytes_ = {f"<0x{b:02X}>": 100 + b for b in range(256)}
    merge_pairs = [["a", "b"], ["c", "d"], ["ab", "c"]]
    some_bytes = {k: v for k, v in bytes_.items() if v < 300}
    models = {
        "bpe": {"vocab": chars, "merges": merge_pairs, "unk_token": "<unk>"},
        "bpe old merges": {"vocab": chars, "merges": ["a b", "c d", "ab c"], "unk_token": "<unk>"},
        "bpe fuse": {"vocab": chars, "merges": merge_pairs, "unk_token": "<unk>", "fuse_unk": True},
        "bpe no unk": {"vocab": chars, "merges": merge_pairs},
        "bpe byte fallback": {"vocab": {**chars, **bytes_}, "merges": merge_pairs, "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True},
        "bpe some bytes": {"vocab": {**chars, **some_bytes}, "merges": merge_pairs, "unk_token": "<unk>", "byte_fallback": True},
        "bpe ignore merges": {"vocab": chars, "merges": [["a", "b"]], "unk_token": "<unk>", "ignore_merges": True},
        "bpe suffix": {"vocab": chars, "merges": [["a", "b</w>"]], "unk_token": "<unk>", "end_of_word_suffix": "</w>"},
        "bpe prefix": {"vocab": chars, "merges": [["a", "@@b"], ["ab", "@@c"]], "unk_token": "<unk>", "continuing_subword_prefix": "@@"},
    }
    model_texts = ["abcd", "abab", "xyab", "aé", "", "dcba", "abcabcx", "中a中中", "a", "cdcdcd", "zzz"]
    for name, model in models.items():
        spec = base(model={"type": "BPE", **model})
        cases.append({"name": "model " + name, "tokenizer": spec, "rows": rows(spec, model_texts)})
    pieces = [["<unk>", 0.0], ["a", -1.0], ["b", -1.2], ["c", -1.5], ["d", -2.5], ["cd", -1.1], ["ab", -0.9], ["abc", -1.05], ["abcd", -3.3], ["中", -4.0]]
    spec = base(model={"type": "Unigram", "unk_id": 0, "vocab": pieces})
    cases.append({"name": "model unigram", "tokenizer": spec, "rows": rows(spec, model_texts)})
    fallback = pieces + [[f"<0x{b:02X}>", -9.0] for b in range(256)]
    spec = base(model={"type": "Unigram", "unk_id": 0, "vocab": fallback, "byte_fallback": True})
    cases.append({"name": "model unigram bytes", "tokenizer": spec, "rows": rows(spec, model_texts)})
    words = {w: i for i, w in enumerate("[UNK] a b ##b ##c abc ##cd ##a c 中 ##x".split())}
    spec = base(model={"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 6, "vocab": words})
    cases.append({"name": "model wordpiece", "tokenizer": spec, "rows": rows(spec, [t for t in model_texts if t])})
    out = {"made_with": "tokenizers " + tokenizers.__version__ + ", tests/parity/make_tokenizer_cases.py", "cases": cases}
    path = pathlib.Path(__file__).resolve().parents[1] / "text/data/tokenizer_cases.json"
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    path.write_text('{"made_with": %s, "cases": [\n%s\n]}\n' % (json.dumps(out["made_with"]), lines))
    print(len(cases), "cases,", sum(len(c.get("rows", c.get("decode"))) for c in cases), "rows")


if __name__ == "__main__":
    main()
