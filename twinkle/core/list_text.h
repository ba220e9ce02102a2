// Lists as messages show them.
#pragma once

#include <algorithm>
#include <span>
#include <string>

namespace twinkle {

/// "a, b, c"
inline std::string joined(std::span<const std::string> items) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

/// "a, b, c, d, e and 7 more"
inline std::string first_few(std::span<const std::string> items) {
  constexpr size_t kShown = 5;
  std::string out = joined(items.first(std::min(items.size(), kShown)));
  if (items.size() > kShown) out += " and " + std::to_string(items.size() - kShown) + " more";
  return out;
}

/// "[2, 3]"; of anything that holds whole numbers.
template <class Numbers>
std::string shape_text(const Numbers& shape) {
  std::string out = "[";
  for (const auto size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
  return out + "]";
}

}  // namespace twinkle
