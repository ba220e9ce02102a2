// Large pages for memory that kernels walk through: an address is translated by a few entries instead of
// thousands, and the processor's prefetcher is not stopped every 4 KB. Advice only; nothing fails without it.
#pragma once

#include <cstddef>

namespace twinkle {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Asks for large pages in the part of [memory, memory + bytes) that they can cover. Call before first touch.
void prefer_huge_pages(void* memory, size_t bytes);

}  // namespace twinkle
