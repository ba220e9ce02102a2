// GPT-2's alphabet: each byte as one visible character, so that any bytes are text. Constant tables;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "twinkle/text/tokenizer_text.h"

namespace twinkle::tokenizer {

/// U+2581, which SentencePiece writes for a space.
inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";

/// The character (as UTF-8, one or two bytes) that stands for a byte.
std::string_view byte_char(unsigned char byte);
/// The byte that a character stands for, or -1.
int char_byte(char32_t c);
/// Every byte of the text becomes its character.
void map_bytes(TrackedText& text);
/// The bytes that a token's characters stand for; false (and nothing appended) when one of them stands for
/// none.
bool unmap_bytes(std::string_view token, std::string& out);

/// The byte of a token such as "<0x0A>", or -1. As in the package the two digits may have any case.
int byte_token_value(std::string_view token);
std::string byte_token(unsigned char byte);

/// invalid_argument "path: ..." when it is none.
std::string decode_base64(const std::string& text, const std::string& path);
std::string encode_base64(std::string_view bytes);

}  // namespace twinkle::tokenizer
