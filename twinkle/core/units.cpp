#include "twinkle/core/units.h"

#include <cstdio>

namespace twinkle {

std::string bytes_text(int64_t bytes) {
  char text[32];
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) {
    std::snprintf(text, sizeof text, "%.2f GiB", value / (int64_t{1} << 30));
  } else if (bytes >= 100 << 10) {
    std::snprintf(text, sizeof text, "%.1f MiB", value / (1 << 20));
  } else if (bytes >= 1 << 10) {
    std::snprintf(text, sizeof text, "%.1f KiB", value / (1 << 10));
  } else {
    std::snprintf(text, sizeof text, "%.0f B", value);
  }
  return text;
}

}  // namespace twinkle
