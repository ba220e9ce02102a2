// Strings of the template engine: bytes that remember which of them came from the caller's context and which
// were written inside a generation block, through slicing, joining and case changes. Plain values, no shared
// state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/text/jinja.h"

namespace twinkle::jinja {

/// Immutable once shared. Spans are sorted, disjoint and not empty.
struct Text {
  std::string bytes;
  std::vector<TextSpan> input;
  std::vector<TextSpan> generation;
  bool markup = false;  // made by |safe or |escape; joins escape the other side
};
using TextPtr = std::shared_ptr<const Text>;

TextPtr make_text(std::string bytes);
TextPtr make_input_text(std::string bytes);
bool is_input(const Text& text, int64_t at);

/// Bytes that a text takes, with what it remembers of their origin.
int64_t text_weight(const Text& text);

class TextBuilder {
 public:
  void append(std::string_view bytes) { text_.bytes.append(bytes); }
  void append(const Text& text) { append_slice(text, 0, static_cast<int64_t>(text.bytes.size())); }
  void append_slice(const Text& text, int64_t begin, int64_t end);
  /// Bytes that stand for the character at `at` of `source`: they keep its origin.
  void append_as(const Text& source, int64_t at, std::string_view bytes);
  void mark_generation(int64_t begin, int64_t end);
  int64_t size() const { return static_cast<int64_t>(text_.bytes.size()); }
  const Text& text() const { return text_; }
  void set_markup(bool markup) { text_.markup = markup; }
  Text take() { return std::move(text_); }
  TextPtr finish() { return std::make_shared<const Text>(std::move(text_)); }

 private:
  Text text_;
};

Text slice_bytes(const Text& text, int64_t begin, int64_t end);

// UTF-8. A byte that starts no valid sequence counts as one character (code point -1).
struct Char {
  int32_t code = -1;
  int length = 1;
};
Char char_at(std::string_view bytes, size_t at);
bool is_ascii(std::string_view bytes);
int64_t count_chars(std::string_view bytes);
/// Byte offset of every character, and the total size at the end.
std::vector<int64_t> char_offsets(std::string_view bytes);
void append_utf8(std::string& out, int32_t code);

// Classes and case as Python's str methods define them.
bool is_space(int32_t code);
bool is_line_break(int32_t code);  // of str.splitlines
bool is_printable(int32_t code);
bool is_alpha(int32_t code);
bool is_decimal(int32_t code);
bool is_digit(int32_t code);
bool is_numeric(int32_t code);
bool is_upper(int32_t code);
bool is_lower(int32_t code);
bool is_title(int32_t code);
bool is_cased(int32_t code);
bool is_identifier(std::string_view name);
enum class Case { kUpper, kLower, kTitle, kFold };
std::string map_case(int32_t code, Case to);
/// Lower-casing looks at the neighbours (final sigma), so it works on whole strings.
Text lower_text(const Text& text);
Text upper_text(const Text& text);
std::string lower_bytes(std::string_view bytes);

/// Position of `wanted` at or behind `from`, npos when there is none; linear whatever the texts.
size_t find_text(std::string_view bytes, std::string_view wanted, size_t from);

/// Ends of the text without white space (chars == nullptr) or without characters of `chars`.
TextSpan strip_span(std::string_view bytes, const std::string* chars, bool left, bool right);

}  // namespace twinkle::jinja
