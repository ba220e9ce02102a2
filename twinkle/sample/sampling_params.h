// How tokens are drawn; names and defaults as upstream's SamplingParams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/core/registry.h"

namespace twinkle {

struct SamplingParams {
  int64_t max_tokens = 512;
  double temperature = 1.0;  // 0: greedy (lowest id among equals)
  int64_t top_k = -1;        // -1: all
  double top_p = 1.0;        // smallest set whose probability reaches top_p
  double min_p = 0.0;        // drop tokens below min_p times the largest probability
  double repetition_penalty =
      1.0;  // over prompt and answer, as in CTRL (Keskar et al. 2019) and transformers
  uint64_t seed = 0;
  std::vector<std::string> stop;  // strings that end the answer (not part of the text)
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
};

/// The parameters as options, with ranges and help; what `twinkle sample` is given is checked against them.
const std::vector<ParamSpec>& sampling_param_specs();
/// From checked options (see sampling_param_specs).
SamplingParams sampling_params_from(const Options& options);

}  // namespace twinkle
