// Draws one token from logits. A pure function: the draw depends on the logits, the parameters and (seed,
// stream, position) only.
#pragma once

#include <cstdint>
#include <span>

#include "twinkle/sample/sampling_params.h"

namespace twinkle {

struct Picked {
  int32_t id = 0;
  double logprob = 0;  // of the distribution drawn from (after temperature, penalties and cut-offs); greedy:
                       // under softmax at temperature 1, after penalties
};

/// `history`: prompt and answer so far, for the repetition penalty. Logits that are NaN or +inf are
/// `internal`.
Picked pick_token(std::span<const float> logits_V, const SamplingParams& params,
                  std::span<const int32_t> history, uint64_t stream, uint64_t position);

/// The distribution pick_token draws from, [V] probabilities in fp64 (tests, exact expectations).
std::vector<double> sampling_distribution(std::span<const float> logits_V, const SamplingParams& params,
                                          std::span<const int32_t> history);

}  // namespace twinkle
