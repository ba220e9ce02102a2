#include "twinkle/text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace twinkle::jinja {
namespace {

void add_span(std::vector<TextSpan>* spans, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!spans->empty() && spans->back().end == begin) {
    spans->back().end = end;
  } else {
    spans->push_back({begin, end});
  }
}

// The first span that ends after `at`.
std::vector<TextSpan>::const_iterator span_after(const std::vector<TextSpan>& spans, int64_t at) {
  return std::upper_bound(spans.begin(), spans.end(), at,
                          [](int64_t value, const TextSpan& span) { return value < span.end; });
}

struct Range {
  int32_t first, last;
};

template <size_t N>
bool in_ranges(const Range (&ranges)[N], int32_t code) {
  const auto* it = std::lower_bound(std::begin(ranges), std::end(ranges), code,
                                    [](const Range& range, int32_t value) { return range.last < value; });
  return it != std::end(ranges) && it->first <= code;
}

// Numeric_Type=Digit outside the decimal numbers.
constexpr Range kDigits[] = {{0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
                             {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                             {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
                             {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
                             {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
// Other_Lowercase and Other_Uppercase.
constexpr Range kOtherLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
constexpr Range kOtherUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

// Characters whose upper or title case is longer than one character (SpecialCasing of Unicode).
struct LongCase {
  int32_t code;
  int32_t upper[3];
  int32_t title[3];
};
constexpr LongCase kLongCases[] = {{0xdf, {0x53, 0x53}, {0x53, 0x73}},
                                   {0x149, {0x2bc, 0x4e}, {0x2bc, 0x4e}},
                                   {0x1f0, {0x4a, 0x30c}, {0x4a, 0x30c}},
                                   {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
                                   {0x3b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
                                   {0x587, {0x535, 0x552}, {0x535, 0x582}},
                                   {0x1e96, {0x48, 0x331}, {0x48, 0x331}},
                                   {0x1e97, {0x54, 0x308}, {0x54, 0x308}},
                                   {0x1e98, {0x57, 0x30a}, {0x57, 0x30a}},
                                   {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}},
                                   {0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}},
                                   {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}},
                                   {0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
                                   {0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}},
                                   {0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}},
                                   {0x1f80, {0x1f08, 0x399}, {0x1f88}},
                                   {0x1f81, {0x1f09, 0x399}, {0x1f89}},
                                   {0x1f82, {0x1f0a, 0x399}, {0x1f8a}},
                                   {0x1f83, {0x1f0b, 0x399}, {0x1f8b}},
                                   {0x1f84, {0x1f0c, 0x399}, {0x1f8c}},
                                   {0x1f85, {0x1f0d, 0x399}, {0x1f8d}},
                                   {0x1f86, {0x1f0e, 0x399}, {0x1f8e}},
                                   {0x1f87, {0x1f0f, 0x399}, {0x1f8f}},
                                   {0x1f88, {0x1f08, 0x399}, {0x1f88}},
                                   {0x1f89, {0x1f09, 0x399}, {0x1f89}},
                                   {0x1f8a, {0x1f0a, 0x399}, {0x1f8a}},
                                   {0x1f8b, {0x1f0b, 0x399}, {0x1f8b}},
                                   {0x1f8c, {0x1f0c, 0x399}, {0x1f8c}},
                                   {0x1f8d, {0x1f0d, 0x399}, {0x1f8d}},
                                   {0x1f8e, {0x1f0e, 0x399}, {0x1f8e}},
                                   {0x1f8f, {0x1f0f, 0x399}, {0x1f8f}},
                                   {0x1f90, {0x1f28, 0x399}, {0x1f98}},
                                   {0x1f91, {0x1f29, 0x399}, {0x1f99}},
                                   {0x1f92, {0x1f2a, 0x399}, {0x1f9a}},
                                   {0x1f93, {0x1f2b, 0x399}, {0x1f9b}},
                                   {0x1f94, {0x1f2c, 0x399}, {0x1f9c}},
                                   {0x1f95, {0x1f2d, 0x399}, {0x1f9d}},
                                   {0x1f96, {0x1f2e, 0x399}, {0x1f9e}},
                                   {0x1f97, {0x1f2f, 0x399}, {0x1f9f}},
                                   {0x1f98, {0x1f28, 0x399}, {0x1f98}},
                                   {0x1f99, {0x1f29, 0x399}, {0x1f99}},
                                   {0x1f9a, {0x1f2a, 0x399}, {0x1f9a}},
                                   {0x1f9b, {0x1f2b, 0x399}, {0x1f9b}},
                                   {0x1f9c, {0x1f2c, 0x399}, {0x1f9c}},
                                   {0x1f9d, {0x1f2d, 0x399}, {0x1f9d}},
                                   {0x1f9e, {0x1f2e, 0x399}, {0x1f9e}},
                                   {0x1f9f, {0x1f2f, 0x399}, {0x1f9f}},
                                   {0x1fa0, {0x1f68, 0x399}, {0x1fa8}},
                                   {0x1fa1, {0x1f69, 0x399}, {0x1fa9}},
                                   {0x1fa2, {0x1f6a, 0x399}, {0x1faa}},
                                   {0x1fa3, {0x1f6b, 0x399}, {0x1fab}},
                                   {0x1fa4, {0x1f6c, 0x399}, {0x1fac}},
                                   {0x1fa5, {0x1f6d, 0x399}, {0x1fad}},
                                   {0x1fa6, {0x1f6e, 0x399}, {0x1fae}},
                                   {0x1fa7, {0x1f6f, 0x399}, {0x1faf}},
                                   {0x1fa8, {0x1f68, 0x399}, {0x1fa8}},
                                   {0x1fa9, {0x1f69, 0x399}, {0x1fa9}},
                                   {0x1faa, {0x1f6a, 0x399}, {0x1faa}},
                                   {0x1fab, {0x1f6b, 0x399}, {0x1fab}},
                                   {0x1fac, {0x1f6c, 0x399}, {0x1fac}},
                                   {0x1fad, {0x1f6d, 0x399}, {0x1fad}},
                                   {0x1fae, {0x1f6e, 0x399}, {0x1fae}},
                                   {0x1faf, {0x1f6f, 0x399}, {0x1faf}},
                                   {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
                                   {0x1fb3, {0x391, 0x399}, {0x1fbc}},
                                   {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
                                   {0x1fb6, {0x391, 0x342}, {0x391, 0x342}},
                                   {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
                                   {0x1fbc, {0x391, 0x399}, {0x1fbc}},
                                   {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
                                   {0x1fc3, {0x397, 0x399}, {0x1fcc}},
                                   {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
                                   {0x1fc6, {0x397, 0x342}, {0x397, 0x342}},
                                   {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
                                   {0x1fcc, {0x397, 0x399}, {0x1fcc}},
                                   {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
                                   {0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
                                   {0x1fd6, {0x399, 0x342}, {0x399, 0x342}},
                                   {0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
                                   {0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}},
                                   {0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
                                   {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}},
                                   {0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}},
                                   {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}},
                                   {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
                                   {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
                                   {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
                                   {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}},
                                   {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
                                   {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
                                   {0xfb00, {0x46, 0x46}, {0x46, 0x66}},
                                   {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
                                   {0xfb02, {0x46, 0x4c}, {0x46, 0x6c}},
                                   {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
                                   {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}},
                                   {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
                                   {0xfb06, {0x53, 0x54}, {0x53, 0x74}},
                                   {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
                                   {0xfb14, {0x544, 0x535}, {0x544, 0x565}},
                                   {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
                                   {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}},
                                   {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}}};

const LongCase* long_case(int32_t code) {
  const auto* it = std::lower_bound(std::begin(kLongCases), std::end(kLongCases), code,
                                    [](const LongCase& entry, int32_t value) { return entry.code < value; });
  return it != std::end(kLongCases) && it->code == code ? it : nullptr;
}

utf8proc_category_t category_at(int32_t code) {
  return code < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
}

bool case_ignorable(int32_t code) {
  if (code < 0) return false;
  if (code == '\'' || code == '.' || code == ':' || code == '^' || code == '`' || code == 0xa8 ||
      code == 0xad || code == 0xb7 || code == 0x2019) {
    return true;
  }
  const auto c = category_at(code);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
}

// Capital sigma at the end of a word: a cased letter before it and none after it.
bool is_final_sigma(std::string_view bytes, size_t at) {
  bool before = false;
  for (size_t i = at; i > 0;) {
    do --i;
    while (i > 0 && (static_cast<unsigned char>(bytes[i]) & 0xC0) == 0x80);
    const int32_t code = char_at(bytes, i).code;
    if (case_ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  for (size_t i = at + 2; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    i += c.length;
    if (case_ignorable(c.code)) continue;
    return !is_cased(c.code);
  }
  return true;
}

template <class Map>
Text map_text(const Text& text, const Map& map) {
  TextBuilder out;
  const std::string_view bytes = text.bytes;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    out.append_as(text, static_cast<int64_t>(i), map(c, i));
    i += c.length;
  }
  out.set_markup(text.markup);
  return out.take();
}

}  // namespace

TextPtr make_text(std::string bytes) {
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes);
  return text;
}

TextPtr make_input_text(std::string bytes) {
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes);
  if (!text->bytes.empty()) text->input.push_back({0, static_cast<int64_t>(text->bytes.size())});
  return text;
}

int64_t text_weight(const Text& text) {
  return static_cast<int64_t>(text.bytes.size() +
                              (text.input.size() + text.generation.size()) * sizeof(TextSpan));
}

bool is_input(const Text& text, int64_t at) {
  const auto it = span_after(text.input, at);
  return it != text.input.end() && it->begin <= at;
}

void TextBuilder::append_slice(const Text& text, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t shift = size() - begin;
  text_.bytes.append(text.bytes, static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  for (auto it = span_after(text.input, begin); it != text.input.end() && it->begin < end; ++it) {
    add_span(&text_.input, std::max(it->begin, begin) + shift, std::min(it->end, end) + shift);
  }
  for (const TextSpan& span : text.generation) {
    mark_generation(std::max(span.begin, begin) + shift, std::min(span.end, end) + shift);
  }
}

void TextBuilder::append_as(const Text& source, int64_t at, std::string_view bytes) {
  const int64_t begin = size();
  text_.bytes.append(bytes);
  if (is_input(source, at)) add_span(&text_.input, begin, size());
}

void TextBuilder::mark_generation(int64_t begin, int64_t end) {
  if (begin < end) text_.generation.push_back({begin, end});
}

Text slice_bytes(const Text& text, int64_t begin, int64_t end) {
  TextBuilder out;
  out.append_slice(text, begin, end);
  out.set_markup(text.markup);
  return out.take();
}

Char char_at(std::string_view bytes, size_t at) {
  const auto byte = static_cast<unsigned char>(bytes[at]);
  if (byte < 0x80) return {byte, 1};
  const int length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
  if (byte < 0xC2 || byte > 0xF4 || at + length > bytes.size()) return {};
  int32_t code = byte & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(bytes[at + i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3F);
  }
  constexpr int32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, length};
}

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int64_t count_chars(std::string_view bytes) {
  int64_t count = 0;
  for (size_t i = 0; i < bytes.size(); i += char_at(bytes, i).length) ++count;
  return count;
}

std::vector<int64_t> char_offsets(std::string_view bytes) {
  std::vector<int64_t> offsets;
  offsets.reserve(bytes.size() + 1);
  for (size_t i = 0; i < bytes.size(); i += char_at(bytes, i).length)
    offsets.push_back(static_cast<int64_t>(i));
  offsets.push_back(static_cast<int64_t>(bytes.size()));
  return offsets;
}

void append_utf8(std::string& out, int32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

bool is_space(int32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_line_break(int32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

bool is_printable(int32_t code) {
  if (code == ' ') return true;
  if (code < 0) return false;
  switch (category_at(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alpha(int32_t code) {
  const auto c = category_at(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(int32_t code) { return category_at(code) == UTF8PROC_CATEGORY_ND; }
bool is_digit(int32_t code) { return is_decimal(code) || in_ranges(kDigits, code); }
bool is_numeric(int32_t code) {
  const auto c = category_at(code);
  return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(int32_t code) {
  return category_at(code) == UTF8PROC_CATEGORY_LU || in_ranges(kOtherUpper, code);
}
bool is_lower(int32_t code) {
  return category_at(code) == UTF8PROC_CATEGORY_LL || in_ranges(kOtherLower, code);
}
bool is_title(int32_t code) { return category_at(code) == UTF8PROC_CATEGORY_LT; }
bool is_cased(int32_t code) { return is_upper(code) || is_lower(code) || is_title(code); }

bool is_identifier(std::string_view name) {
  for (size_t i = 0; i < name.size();) {
    const Char c = char_at(name, i);
    const auto kind = category_at(c.code);
    const bool start = c.code == '_' || is_alpha(c.code) || kind == UTF8PROC_CATEGORY_NL;
    const bool later = kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
                       kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_PC || c.code == 0xb7;
    if (!start && (i == 0 || !later)) return false;
    i += c.length;
  }
  return !name.empty();
}

std::string map_case(int32_t code, Case to) {
  std::string out;
  if (to == Case::kUpper || to == Case::kTitle) {
    if (const LongCase* entry = long_case(code)) {
      for (const int32_t c : to == Case::kUpper ? entry->upper : entry->title) {
        if (c != 0) append_utf8(out, c);
      }
      return out;
    }
    append_utf8(out, to == Case::kUpper ? utf8proc_toupper(code) : utf8proc_totitle(code));
    return out;
  }
  if (to == Case::kLower) {
    if (code == 0x130) return "i\xCC\x87";
    append_utf8(out, utf8proc_tolower(code));
    return out;
  }
  utf8proc_int32_t folded[8];
  const auto count = utf8proc_decompose_char(code, folded, 8, UTF8PROC_CASEFOLD, nullptr);
  if (count <= 0 || count > 8) {
    append_utf8(out, code);
    return out;
  }
  for (int i = 0; i < count; ++i) append_utf8(out, folded[i]);
  return out;
}

Text lower_text(const Text& text) {
  const std::string_view bytes = text.bytes;
  return map_text(text, [&](const Char& c, size_t at) -> std::string {
    if (c.code < 0) return std::string(bytes.substr(at, c.length));
    if (c.code == 0x3a3) return is_final_sigma(bytes, at) ? "\xCF\x82" : "\xCF\x83";
    return map_case(c.code, Case::kLower);
  });
}

Text upper_text(const Text& text) {
  const std::string_view bytes = text.bytes;
  return map_text(text, [&](const Char& c, size_t at) -> std::string {
    return c.code < 0 ? std::string(bytes.substr(at, c.length)) : map_case(c.code, Case::kUpper);
  });
}

std::string lower_bytes(std::string_view bytes) {
  Text text;
  text.bytes = bytes;
  return lower_text(text).bytes;
}

size_t find_text(std::string_view bytes, std::string_view wanted, size_t from) {
  if (from > bytes.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  const void* found = ::memmem(bytes.data() + from, bytes.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - bytes.data());
}

TextSpan strip_span(std::string_view bytes, const std::string* chars, bool left, bool right) {
  std::vector<int32_t> set;
  if (chars != nullptr) {
    for (size_t i = 0; i < chars->size();) {
      const Char c = char_at(*chars, i);
      set.push_back(c.code);
      i += c.length;
    }
  }
  const auto drop = [&](int32_t code) {
    return chars == nullptr ? is_space(code) : std::find(set.begin(), set.end(), code) != set.end();
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const Char c = char_at(bytes, begin);
    if (!drop(c.code)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(bytes[last]) & 0xC0) == 0x80 && end - last < 4) --last;
    Char c = char_at(bytes, last);
    if (last + c.length != end) c = {}, last = end - 1;
    if (!drop(c.code)) break;
    end = last;
  }
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end)};
}

}  // namespace twinkle::jinja
