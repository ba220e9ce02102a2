"""A seeded generator of strings that tokenizers get wrong: all scripts, emoji sequences, marks, control characters,
code, numbers, long runs, blanks of every kind, contractions, what looks like special tokens, broken UTF-8."""
import random

SCRIPTS = [
    (0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4),
    (0x600, 0x6FF), (0x700, 0x74A), (0x780, 0x7B1), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xA81, 0xAFF),
    (0xB01, 0xB77), (0xB82, 0xBFA), (0xC00, 0xC7F), (0xC80, 0xCF3), (0xD00, 0xD7F), (0xD81, 0xDF4), (0xE01, 0xE5B),
    (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F),
    (0x13A0, 0x13FD), (0x1400, 0x167F), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF),
    (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20C0), (0x20D0, 0x20F0), (0x2100, 0x218B), (0x2190, 0x23FF),
    (0x2400, 0x2426), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2E80, 0x2FD5), (0x3000, 0x30FF), (0x3105, 0x318E),
    (0x31F0, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xA640, 0xA6F7), (0xA720, 0xA7CA),
    (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF), (0xFE00, 0xFE0F), (0xFE30, 0xFFEF),
    (0x10000, 0x100FA), (0x10330, 0x1034A), (0x10400, 0x1049D), (0x11000, 0x1107F), (0x12000, 0x12399),
    (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1F9FF), (0x20000, 0x2A6DF), (0x30000, 0x3134A), (0xE0100, 0xE01EF),
    (0x2EBF0, 0x2EC10), (0x1C80, 0x1C8A), (0x10D40, 0x10D85), (0xE000, 0xE010), (0x378, 0x379), (0x10FFF0, 0x10FFFF),
]
WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
         "one you were her all she there would their we him been has when who will more no if out so said what up its about "
         "into than them can only other new some could time these two may then do first any my now such like our over man me "
         "even most made after also did many before must through internationalization Fatouville commune réseau naïve "
         "straße Ελλάδα Москва שלום مرحبا नमस्ते 你好 世界 こんにちは 안녕하세요 สวัสดี việt ngữ ǅungla İstanbul ﬁﬂ ſtop").split()
BLANKS = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t\t", "\v", "\f", "\x85", "\xa0", "\u1680", "\u180e",
          "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", " " * 17, "\n" * 9, "\x1c", "\x1f"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'LL", "'lL", "'D", "'ſ", "’s", "'", "''",
                "'x", "'l", "'r", "'v", "'sa", " 's", "'K", "'re\n"]
EMOJI = ["😊", "🏃‍♂️", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☺", "🫠", "🪿", "🙂‍↔️", "\ufe0f", "\u200d"]
MARKS = ["e\u0301", "a\u0308\u0323", "\u0301", "q\u0307\u0323\u0301", "\u1100\u1161\u11a8", "\uac00\u11a8", "क्षि", "ำ", "\u0344",
         "\u212b", "\u2126", "ﷺ", "½", "①", "ｶﾞ", "\u0f71\u0f72", "\u0dd9\u0dcf", "\u09c7\u09be", "\u1e9b\u0323"]
CODE = ["def f(x):\n    return x**2\n", "for (int i=0;i<n;++i){a[i]+=b[i];}", "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE a='b';",
        "x = {'a': 1.5e-10, \"b\": [0xFF, 0b11]}", "\\frac{\\partial f}{\\partial x}", "#include <vector>\n", "a_b_c__d", "CamelCaseWord",
        "https://example.com/a?b=c&d=%20", "user@mail.example", "// TODO: --- !!! ???", "\t\tif err != nil {\n\t\t\treturn nil\n\t\t}\n"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<think>", "</think>", "<tool_call>",
           "<|begin_of_text|>", "<|eot_id|>", "[CLS]", "[MASK]", "<|user|>", "<|assistant|>", "<|end|>", "<0x0A>", "<|im_start", "<extra_id_0>",
           "<｜begin▁of▁sentence｜>", "▁", "▁▁a", "Ġ", "<fim_prefix>", "<|Human|>", "<|im_sep|>", "<|file_sep|>", "<file_sep>"]


def number(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return str(rng.randrange(10 ** rng.randrange(1, 20)))
    if kind == 1:
        return f"{rng.uniform(-1e6, 1e6):.{rng.randrange(6)}f}"
    if kind == 2:
        return "".join(rng.choice("٠١٢٣٤٥٦٧٨٩०१२३४५६७८९²³¹¼½Ⅷⅻ①②〇一二三") for _ in range(rng.randrange(1, 6)))
    if kind == 3:
        return f"{rng.randrange(2100)}-{rng.randrange(13):02}-{rng.randrange(32):02}"
    if kind == 4:
        return f"{rng.randrange(10**9):,}"
    return "0" * rng.randrange(1, 40)


def part(rng):
    kind = rng.randrange(16)
    if kind < 3:
        return rng.choice(WORDS)
    if kind == 3:
        word = rng.choice(WORDS)
        return rng.choice([word.upper(), word.title(), word + rng.choice(CONTRACTIONS)])
    if kind == 4:
        return number(rng)
    if kind == 5:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randrange(low, high + 1)) for _ in range(rng.randrange(1, 9)))
    if kind == 6:
        return rng.choice(BLANKS)
    if kind == 7:
        return rng.choice(CONTRACTIONS)
    if kind == 8:
        return rng.choice(EMOJI)
    if kind == 9:
        return rng.choice(MARKS)
    if kind == 10:
        return rng.choice(CODE)
    if kind == 11:
        return rng.choice(SPECIAL)
    if kind == 12:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿…—“”„«»、。！？") for _ in range(rng.randrange(1, 6)))
    if kind == 13:
        return chr(rng.randrange(32)) if rng.randrange(2) else chr(rng.choice([0, 0x7F, 0x80, 0x9F, 0xAD, 0xFFFD, 0x200C, 0x200D]))
    if kind == 14 and rng.randrange(8) == 0:
        return rng.choice("a A0 =-é你😊\n\u0301.") * rng.randrange(2, 200)
    while True:
        c = rng.randrange(0x110000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def mixed_string(rng):
    text = ""
    for _ in range(rng.randrange(1, 25)):
        text += part(rng)
        if rng.randrange(3) == 0:
            text += " "
    return text


def strings(count, seed=1):
    rng = random.Random(seed)
    return [mixed_string(rng) for _ in range(count)]


def broken_bytes(count, seed=2):
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        data = bytearray(mixed_string(rng).encode())
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data) + 1)
            if rng.randrange(2) and data:
                del data[min(at, len(data) - 1)]
            else:
                data.insert(at, rng.choice([0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xE4, 0xED, 0xF0, 0xF4, 0xF5, 0xFF, rng.randrange(256)]))
        out.append(bytes(data))
    return out
