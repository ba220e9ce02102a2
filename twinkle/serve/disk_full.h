// What clients are told of a full disk: not that they have too much of something, but that it is worth trying
// again later.
#pragma once

#include <string_view>

#include "twinkle/core/error.h"

namespace twinkle::serve {

inline Error disk_full() {
  return unavailable("[disk] the server's disk is full: nothing more is accepted until there is room");
}
inline bool is_disk_full(const Error& error) { return std::string_view(error.what()).starts_with("[disk]"); }

}  // namespace twinkle::serve
