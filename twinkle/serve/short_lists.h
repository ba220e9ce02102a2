// Lists of numbers in as few bytes as their values need, for records of the log: ids of tokens take one to
// three bytes instead of four, weights that repeat next to nothing. Every number comes back as it was, bit
// for bit. Free of state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::serve {

std::string shorten(const std::vector<int32_t>& values);
std::string shorten(const std::vector<float>& values);
/// What shorten() was given; invalid_argument that begins with the place when `bytes` are none of its. They
/// hold 205 times as many bytes at most.
std::vector<int32_t> ints_from_short(std::string_view bytes, const std::string& place);
std::vector<float> floats_from_short(std::string_view bytes, const std::string& place);

}  // namespace twinkle::serve
