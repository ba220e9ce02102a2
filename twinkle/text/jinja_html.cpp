// Jinja's striptags: HTML without its tags, as MarkupSafe and Python's html.unescape make it.
#include <algorithm>
#include <array>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

#include "twinkle/text/html_names.inc"

// A tag or comment that is never closed ends the search.
Text without_tags(const Text& text) {
  const std::string_view bytes = text.bytes;
  TextBuilder out;
  size_t at = 0;
  for (size_t start = bytes.find('<'); start != std::string_view::npos; start = bytes.find('<', at)) {
    const bool comment = bytes.substr(start).starts_with("<!--");
    const std::string_view mark = comment ? "-->" : ">";
    const size_t end = bytes.find(mark, comment ? start + 4 : start);
    if (end == std::string_view::npos) break;
    out.append_slice(text, static_cast<int64_t>(at), static_cast<int64_t>(start));
    at = end + mark.size();
  }
  out.append_slice(text, static_cast<int64_t>(at), static_cast<int64_t>(bytes.size()));
  return out.take();
}

// " ".join(text.split()); a space has the origin of what it stands for.
Text with_single_spaces(const Text& text) {
  TextBuilder out;
  int64_t space = -1, word = -1;
  const auto size = static_cast<int64_t>(text.bytes.size());
  for (int64_t at = 0; at < size;) {
    const Char c = char_at(text.bytes, static_cast<size_t>(at));
    if (is_space(c.code)) {
      if (word >= 0) {
        out.append_slice(text, word, at);
        space = at;
      }
      word = -1;
    } else if (word < 0) {
      if (space >= 0) out.append_as(text, space, " ");
      word = at;
    }
    at += c.length;
  }
  if (word >= 0) out.append_slice(text, word, size);
  return out.take();
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

std::string text_of_number(int64_t number) {
  for (const auto& [replaced, text] : kReplacedNumbers) {
    if (replaced == number) return std::string(text);
  }
  if ((number >= 0xD800 && number <= 0xDFFF) || number > 0x10FFFF) return "\xEF\xBF\xBD";
  const auto* const end = std::end(kNumbersWithoutText);
  std::string out;
  if (std::find(std::begin(kNumbersWithoutText), end, number) == end)
    append_utf8(out, static_cast<int32_t>(number));
  return out;
}

const std::string_view* text_of_name(std::string_view name) {
  const auto* const end = std::end(kHtmlNames);
  const auto* const found = std::lower_bound(
      std::begin(kHtmlNames), end, name, [](const auto& known, auto wanted) { return known.first < wanted; });
  return found != end && found->first == name ? &found->second : nullptr;
}

// What follows '&' at `rest`: how many bytes of it are a reference, and its text. Nothing: 0 bytes.
std::pair<size_t, std::string> reference(std::string_view rest) {
  if (rest.starts_with('#')) {
    const bool hex = rest.size() > 1 && (rest[1] == 'x' || rest[1] == 'X');
    const size_t begin = hex ? 2 : 1;
    size_t end = begin;
    int64_t number = 0;
    for (; end < rest.size() && is_hex(rest[end]) && (hex || rest[end] <= '9'); ++end) {
      const char c = rest[end];
      number = number * (hex ? 16 : 10) + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
      number = std::min<int64_t>(number, 0x110000);
    }
    if (end == begin) return {0, ""};
    if (end < rest.size() && rest[end] == ';') ++end;
    return {end, text_of_number(number)};
  }
  size_t end = 0;
  for (int chars = 0; chars < 32 && end < rest.size(); ++chars) {
    if (std::string_view("\t\n\f <&#;").find(rest[end]) != std::string_view::npos) break;
    end += static_cast<size_t>(char_at(rest, end).length);
  }
  if (end > 0 && end < rest.size() && rest[end] == ';') ++end;
  if (const auto* whole = text_of_name(rest.substr(0, end))) return {end, std::string(*whole)};
  // Old names count without their semicolon, whatever follows.
  for (size_t size = end; size-- > 2;) {
    if (const auto* begin = text_of_name(rest.substr(0, size))) return {size, std::string(*begin)};
  }
  return {0, ""};
}

Text unescaped(const Text& text) {
  const std::string_view bytes = text.bytes;
  TextBuilder out;
  size_t kept = 0;
  for (size_t at = bytes.find('&'); at != std::string_view::npos; at = bytes.find('&', at + 1)) {
    const auto [size, written] = reference(bytes.substr(at + 1));
    if (size == 0) continue;
    out.append_slice(text, static_cast<int64_t>(kept), static_cast<int64_t>(at));
    if (!written.empty()) out.append_as(text, static_cast<int64_t>(at), written);
    kept = at + 1 + size;
    at = kept - 1;
  }
  out.append_slice(text, static_cast<int64_t>(kept), static_cast<int64_t>(bytes.size()));
  return out.take();
}

}  // namespace

Value filter_striptags(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("striptags", args, {});
  Text out = unescaped(with_single_spaces(without_tags(*to_text(value))));
  out.markup = false;
  return Value::string(std::move(out));
}

}  // namespace twinkle::jinja
