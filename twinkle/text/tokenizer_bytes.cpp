#include "twinkle/text/tokenizer_bytes.h"

#include <algorithm>
#include <array>

#include "twinkle/core/error.h"
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

std::string decode_base64(const std::string& in, const std::string& path) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  size_t at = 0;
  for (; at < in.size() && in[at] != '='; ++at) {
    const char c = in[at];
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (value < 0) throw invalid_argument(path + ": not base64 at character " + std::to_string(at));
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (++count == 4) {
      for (int shift = 16; shift >= 0; shift -= 8) out += static_cast<char>(bits >> shift & 0xFF);
      bits = 0;
      count = 0;
    }
  }
  if (count == 1 || in.size() - at > 2) throw invalid_argument(path + ": base64 is cut off");
  if (count == 2) out += static_cast<char>(bits >> 4 & 0xFF);
  if (count == 3) {
    out += static_cast<char>(bits >> 10 & 0xFF);
    out += static_cast<char>(bits >> 2 & 0xFF);
  }
  return out;
}

std::string encode_base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[at + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace twinkle::tokenizer
