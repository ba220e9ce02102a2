// Nearest names, for errors that help: "unknown option 'lerning_rate'; did you mean 'learning_rate'?"
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

/// The closest of `known` by edit distance (case, '-' and '_' do not count), or "" when nothing is near.
std::string nearest_name(std::string_view given, std::span<const std::string> known);

/// " (did you mean 'X'?)" or, when nothing is near, " (known: a, b, c)".
std::string did_you_mean(std::string_view given, std::span<const std::string> known);

}  // namespace twinkle
