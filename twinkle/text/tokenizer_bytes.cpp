#include "twinkle/text/tokenizer_bytes.h"

#include <array>

#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int16_t, 512> bytes;
  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = visible ? static_cast<char32_t>(b) : next++;
      unicode::append(chars[static_cast<size_t>(b)], c);
      bytes[c] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet one;
  return one;
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string_view byte_char(unsigned char byte) { return alphabet().chars[byte]; }

int char_byte(char32_t c) { return c < 512 ? alphabet().bytes[c] : -1; }

void map_bytes(TrackedText& text) {
  Rewriter rewriter(text);
  const std::string& bytes = text.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) rewriter.put(byte_char(static_cast<unsigned char>(bytes[i])), i);
  rewriter.finish(text);
}

bool unmap_bytes(std::string_view token, std::string& out) {
  const size_t before = out.size();
  for (size_t at = 0; at < token.size(); at += unicode::char_bytes(token[at])) {
    const int byte = char_byte(unicode::char_at(token, at));
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(byte);
  }
  return true;
}

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex(token[3]), low = hex(token[4]);
  if (token[3] == '+' && low >= 0) return low;  // Rust's parser of numbers takes a sign
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string byte_token(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace twinkle::tokenizer
