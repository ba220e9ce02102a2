// Whether bytes are UTF-8 text (RFC 3629), which is all that a string of JSON can be written from. Free of
// state.
#pragma once

#include <cstdint>
#include <string_view>

namespace twinkle {

inline bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i++]);
    if (first < 0x80) continue;
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || text.size() - i < static_cast<size_t>(more)) return false;
    // Of the second byte: no code in more bytes than it needs, no surrogate, none above 10FFFF.
    const uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    for (int k = 0; k < more; ++k) {
      const auto byte = static_cast<uint8_t>(text[i++]);
      if (byte < (k == 0 ? least : 0x80) || byte > (k == 0 ? most : 0xBF)) return false;
    }
  }
  return true;
}

}  // namespace twinkle
