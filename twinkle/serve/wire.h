// Numbers as Tinker packs them into a field of bytes: little-endian, one behind the other, no header. Free of
// state.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/protobuf.h"

namespace twinkle::serve {

/// invalid_argument that begins with the place when the size is no multiple of a number's.
template <class T>
std::vector<T> unpack_array(std::string_view bytes, const std::string& place) {
  if (bytes.size() % sizeof(T) != 0) {
    throw invalid_argument(place + ": " + std::to_string(bytes.size()) +
                           " bytes are not a whole number of values of " + std::to_string(sizeof(T)) +
                           " bytes");
  }
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

template <class T>
std::string_view pack_array(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace twinkle::serve
