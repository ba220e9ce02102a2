#!/usr/bin/env python3
"""Writes twinkle/text/html_names.inc: the character references of HTML 5, as Python's html.unescape reads them."""
import html
import pathlib
import sys


def quoted(text):
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'


def main():
    names = sorted(html._html5.items(), key=lambda item: item[0].encode())
    out = [f"// Made by tests/parity/make_html_names.py from Python {sys.version.split()[0]}; do not edit.",
           "// clang-format off",
           "constexpr std::pair<std::string_view, std::string_view> kHtmlNames[] = {"]
    out += [f'    {{"{name}", {quoted(text)}}},' for name, text in names]
    out += ["};", "constexpr std::pair<int64_t, std::string_view> kReplacedNumbers[] = {"]
    out += [f"    {{{number}, {quoted(text)}}}," for number, text in sorted(html._invalid_charrefs.items())]
    out += ["};", "constexpr int64_t kNumbersWithoutText[] = {"]
    out += [f"    {number}," for number in sorted(html._invalid_codepoints)]
    out += ["};", "// clang-format on", ""]
    path = pathlib.Path(__file__).resolve().parents[2] / "twinkle/text/html_names.inc"
    path.write_text("\n".join(out))


main()
