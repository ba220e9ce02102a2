// Bodies that were compressed with Zstandard.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace twinkle::serve {

/// What is packed in `bytes`. It is unpacked piece by piece and stops at `most` bytes, whatever the frame
/// says of itself: exhausted then; invalid_argument when it is damaged or cut off.
std::string unpack_zstd(std::string_view bytes, int64_t most);

}  // namespace twinkle::serve
