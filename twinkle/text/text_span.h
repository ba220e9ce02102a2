// A range of bytes of a text. A plain value.
#pragma once

#include <cstdint>

namespace twinkle {

struct TextSpan {
  int64_t begin = 0, end = 0;  // bytes
};

}  // namespace twinkle
