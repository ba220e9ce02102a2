// Rotary scaling as config.json states it, in its old ("rope_theta", "rope_scaling") and new
// ("rope_parameters") form.
#pragma once

#include <vector>

#include "twinkle/model/model_config.h"

namespace twinkle {

/// Reads and checks the keys; needs max_position and head_dim of `config`. Both forms may be there when they
/// say the same. invalid_argument "[config] ...".
RopeConfig read_rope(const Json& raw, const ModelConfig& config);

/// Inverse frequencies [head_dim / 2] for a sequence of `length` tokens (only dynamic scaling looks at it),
/// and the factor that cos and sin are multiplied with.
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;
};
RopeFrequencies rope_frequencies(const ModelConfig& config, int64_t length);

}  // namespace twinkle
