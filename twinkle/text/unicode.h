// UTF-8 and the character classes that Hugging Face tokenizers uses (its Unicode versions, not the system's).
// Free functions over constant tables: safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinkle::unicode {

/// Bytes of the character that starts with `lead`; the text must be valid UTF-8.
inline size_t char_bytes(char lead) {
  const auto c = static_cast<unsigned char>(lead);
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/// The character at `at` (valid UTF-8, at < size).
inline char32_t char_at(std::string_view text, size_t at) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) return p[0];
  if (p[0] < 0xE0) return static_cast<char32_t>((p[0] & 0x1F) << 6 | (p[1] & 0x3F));
  if (p[0] < 0xF0) return static_cast<char32_t>((p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F));
  return static_cast<char32_t>((p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 |
                               (p[3] & 0x3F));
}

/// Start of the character before `at` (valid UTF-8, at > 0).
inline size_t previous(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append(std::string& out, char32_t c);
size_t count_chars(std::string_view text);

/// Offset of the first ill-formed sequence, or size() when the bytes are valid UTF-8.
size_t first_invalid(std::string_view bytes);
inline bool is_valid(std::string_view bytes) { return first_invalid(bytes) == bytes.size(); }

/// Length of the longest prefix whose text no further byte can change: all but an unfinished last character.
size_t settled_prefix(std::string_view bytes);

/// Each maximal ill-formed part becomes one U+FFFD (as Python's errors="replace" and Rust's lossy decoding).
/// With `source`, also the byte offset in `bytes` of every byte of the result, and of its end.
std::string replace_invalid(std::string_view bytes, std::vector<size_t>* source = nullptr);

enum Class : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kMark = 8,
  kPunctuation = 16,
  kSymbol = 32,
  kUpper = 64,  // beside kLetter: Lu, Lt
  kLower = 128  // beside kLetter: Ll
};

extern const uint8_t kAsciiClass[128];
uint8_t wide_class(char32_t c);
/// Class bits of the general category (L, N, M, P, S), and kSpace for the White_Space property.
inline uint8_t char_class(char32_t c) { return c < 0x80 ? kAsciiClass[c] : wide_class(c); }

bool is_space(char32_t c);
bool is_numeric(char32_t c);          // Nd, Nl, No
bool is_word(char32_t c);             // \w of Rust's regex
bool is_punctuation(char32_t c);      // ASCII punctuation and P*
bool is_mark(char32_t c);             // M*
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // Cc, Cf, Co
bool is_cjk(char32_t c);              // BERT's blocks of Chinese characters
void append_lower(std::string& out, char32_t c);

/// Characters that newer Unicode has and PCRE2 may not know, of categories that begin with `name` ("L",
/// "Lu"), and those that the regex engine counts as \w beside L, M, Nd and Pc: the inside of a PCRE2 class,
/// \x{..} ranges.
std::string newer_ranges(std::string_view category);
std::string more_word_ranges();

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

/// True when the text is certainly in NFC; false may also be a cautious no.
bool is_surely_nfc(std::string_view text);

/// A part of text that normalisation may change: [begin, end) of the text becomes `out`.
struct Rewrite {
  size_t begin = 0, end = 0;
  std::string out;
};
/// Rewrites, in order and apart from each other, that bring valid UTF-8 to the form. Linear but for the sort
/// of marks.
std::vector<Rewrite> normalize(std::string_view text, Form form);

}  // namespace twinkle::unicode
