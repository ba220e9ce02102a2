#include "twinkle/core/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace twinkle {

void prefer_huge_pages(void* memory, size_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (at + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t last = (at + bytes) / kHugePageBytes * kHugePageBytes;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace twinkle
