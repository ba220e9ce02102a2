// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds damage, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace twinkle {

/// Of `bytes` that follow others whose checksum is `before`.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
/// The same without the processor's instruction.
uint32_t crc32c_plain(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace twinkle
