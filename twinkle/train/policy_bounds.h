// The options of losses that clip a ratio of probabilities: bounds on the ratio itself, not distances from 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/train/loss.h"

namespace twinkle {

inline std::vector<ParamSpec> ratio_bounds() {
  return {{.name = "clip_low_threshold",
           .type = ParamType::kFloat,
           .default_value = 0.8,
           .help = "lower bound of the ratio of probabilities",
           .min = 0},
          {.name = "clip_high_threshold",
           .type = ParamType::kFloat,
           .default_value = 1.2,
           .help = "upper bound of the ratio of probabilities",
           .min = 0}};
}

/// invalid_argument, also when one is no number.
inline void check_ratio_bounds(double low, double high, std::string_view loss) {
  if (low <= high) return;
  throw invalid_argument("[" + std::string(loss) + "] 'clip_low_threshold' " + std::to_string(low) +
                         " is above 'clip_high_threshold' " + std::to_string(high));
}

}  // namespace twinkle
