// Long lists of numbers in JSON. As values each number is an object of its own, which makes a request of
// tokens and weights many times larger and slower to read than its text; here such a list is one block of
// bytes. Free of state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

/// Lists with fewer numbers stay as they are.
inline constexpr size_t kLeastPacked = 16;

/// Like parse_json(), the same errors included, but a list of nothing but numbers, kLeastPacked or more of
/// them, is a value for which is_packed() holds and which is nothing else: no list, no number. A list
/// stays a list where packing would change a number: a whole part of more than 18 digits, or a whole number
/// past 2^53 beside fractions.
Json parse_json_packed(std::string_view text, std::string_view where, int max_depth = kMaxJsonDepth);

bool is_packed(const Json& value);
/// For values for which is_packed() holds: its numbers; nothing when one of them was written with a fraction
/// or an exponent.
std::optional<std::vector<int64_t>> packed_integers(const Json& value);
/// For the same: its numbers, rounded as Json::get<float>() does.
std::vector<float> packed_floats(const Json& value);

}  // namespace twinkle
