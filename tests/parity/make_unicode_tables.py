#!/usr/bin/env python3
"""Writes twinkle/text/unicode_tables.inc: where the `tokenizers` package sees a character otherwise than Unicode 14.

The package mixes several Unicode versions (its regex engine, Rust's std and two older crates). Every table here is
asked from the package itself, character by character, and stored as the difference from general categories:
additions count from Python's Unicode 14 (utf8proc and PCRE2 know at least that), removals from utf8proc's.
"""
import ctypes
import ctypes.util
import pathlib
import unicodedata

from tokenizers import Regex
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
import tokenizers

CHARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROC = ctypes.CDLL(ctypes.util.find_library("utf8proc") or "libutf8proc.so.2")
PROC.utf8proc_category_string.restype = ctypes.c_char_p
PROC.utf8proc_NFKD.restype = ctypes.c_void_p
PROC.utf8proc_NFKD.argtypes = [ctypes.c_char_p]
OLD = [unicodedata.category(chr(c)) for c in range(0x110000)]
NEW = [PROC.utf8proc_category_string(c).decode() for c in range(0x110000)]
ASCII_PUNCTUATION = {ord(c) for c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"}


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def regex_class(pattern):
    pre = P.Split(Regex(pattern), "removed")
    out = set()
    for i in range(0, len(CHARS), 2048):
        block = CHARS[i:i + 2048]
        kept = set()
        for text, _ in pre.pre_tokenize_str("".join(map(chr, block))):
            kept.update(text)
        out.update(c for c in block if chr(c) not in kept)
    return out


def isolated(pre):
    return {c for c in CHARS if len(pre.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def removed(normalizer):
    return {c for c in CHARS if normalizer.normalize_str(chr(c)) == ""}


def table(out, name, chars):
    rows = ["{0x%X, 0x%X}" % (a, b) for a, b in ranges(chars)]
    out.append(f"constexpr CharRange {name}[] = {{")
    for i in range(0, len(rows), 5):
        out.append("    " + ", ".join(rows[i:i + 5]) + ",")
    out.append("};")


def main():
    out = [f"// Made by tests/parity/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.",
           "// clang-format off"]
    rows = []
    for name in ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No",
                 "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Cf"]:
        got = {c for c in regex_class(r"\p{%s}" % name) if OLD[c] == "Cn"}
        rows += [(a, b, name) for a, b in ranges(got)]
    rows.sort()
    out.append("constexpr CategoryRange kNewCategories[] = {")
    cells = ["{0x%X, 0x%X, UTF8PROC_CATEGORY_%s}" % (a, b, n.upper()) for a, b, n in rows]
    for i in range(0, len(cells), 3):
        out.append("    " + ", ".join(cells[i:i + 3]) + ",")
    out.append("};")

    def word(cat, c):
        return cat[c][0] in "LM" or cat[c] in ("Nd", "Pc")

    whitespace = P.Whitespace()
    rust_word = {c for c in CHARS if [t for t, _ in whitespace.pre_tokenize_str("a" + chr(c) + "a")] == ["a" + chr(c) + "a"]}
    table(out, "kMoreRustWord", {c for c in rust_word if not word(OLD, c)})
    table(out, "kMoreRegexWord", {c for c in regex_class(r"\w") if not word(OLD, c)})
    table(out, "kMoreNumeric", {c for c in isolated(P.Digits(True)) if OLD[c][0] != "N"})
    punctuation = isolated(P.Punctuation("isolated"))
    table(out, "kMorePunctuation", {c for c in punctuation if OLD[c][0] != "P" and c not in ASCII_PUNCTUATION})
    table(out, "kLessPunctuation", {c for c in CHARS if (NEW[c][0] == "P" or OLD[c][0] == "P") and c not in punctuation})
    marks = removed(N.StripAccents())
    table(out, "kMoreMarks", {c for c in marks if OLD[c][0] != "M"})
    table(out, "kLessMarks", {c for c in CHARS if (NEW[c][0] == "M" or OLD[c][0] == "M") and c not in marks})
    accents = removed(N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False))
    table(out, "kMoreNonspacing", {c for c in accents if OLD[c] != "Mn"})
    table(out, "kLessNonspacing", {c for c in CHARS if "Mn" in (NEW[c], OLD[c]) and c not in accents})
    other = removed(N.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False))
    table(out, "kLessOther", {c for c in CHARS if (NEW[c] in ("Cc", "Cf", "Co") or OLD[c] in ("Cc", "Cf", "Co"))
                              and c not in other and c not in (9, 10, 13)})
    lower = N.Lowercase()
    pairs = [(c, lower.normalize_str(chr(c))) for c in CHARS]
    cells = ["{0x%X, 0x%X}" % (c, ord(low)) for c, low in pairs
             if len(low) == 1 and low != chr(c) and OLD[c] in ("Cn", "Lu", "Lt", "Lo", "So", "Nl")
             and chr(c).lower() != low]
    out.append("constexpr CasePair kMoreLower[] = {")
    for i in range(0, len(cells), 6):
        out.append("    " + ", ".join(cells[i:i + 6]) + ",")
    out.append("};")
    nfkd = N.NFKD()
    table(out, "kNoDecomposition", {c for c in CHARS if c and nfkd.normalize_str(chr(c)) == chr(c)
                                    and ctypes.string_at(PROC.utf8proc_NFKD(chr(c).encode())).decode() != chr(c)})
    nfd = N.NFD()

    def unordered(c):
        x = chr(c)
        return nfd.normalize_str("a\u0301" + x) == "a\u0301" + x and nfd.normalize_str("a" + x + "\u0334") == "a" + x + "\u0334"
    marks = {c for c in CHARS if NEW[c][0] == "M" or OLD[c][0] == "M"}
    table(out, "kNoReorder", {c for c in marks if unordered(c) and (unicodedata.combining(chr(c)) or OLD[c] == "Cn")})
    path = pathlib.Path(__file__).resolve().parents[2] / "twinkle/text/unicode_tables.inc"
    path.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
