// Normal draws of any range of a stream, see fill_normal in rng.h.
#pragma once

#include <cstdint>

namespace twinkle {

/// out[i - begin] for i in [begin, end): the elements that fill_normal(..., key, std) gives for these i.
void fill_normal_range(float* out, int64_t begin, int64_t end, uint64_t key, float std);

}  // namespace twinkle
