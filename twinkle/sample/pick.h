// Draws one token from logits. A pure function: the draw depends on the logits, the parameters, the text so
// far and (seed, stream, position) only. Safe from many threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/sample/sampling_params.h"

namespace twinkle {

/// Of logits that are NaN or infinite.
Error not_numbers();

/// Where a draw stands.
struct PickPlace {
  std::span<const int32_t> history;       // prompt and answer so far
  int64_t prompt_tokens = 0;              // how many of them are the prompt
  std::span<const int32_t> not_yet = {};  // tokens that may not be drawn here (those that end an answer)
  int64_t drawable = -1;                  // ids from here on are never drawn (rows without a token); -1: none
  uint64_t seed = 0, stream = 0;          // the position of the draw is the length of the answer
};

struct Picked {
  int32_t id = 0;
  double logprob = 0;  // of the distribution drawn from, after temperature, penalties and cut-offs; greedy: 0
};

/// invalid_argument when every token is forbidden, and for logits that are NaN or +inf (weights that are not
/// numbers). `likeliest`, unless greedy, gets the `count` likeliest tokens of the distribution drawn from,
/// ties by id; fewer where it gives fewer a probability.
Picked pick_token(std::span<const float> logits_V, const SamplingParams& params, const PickPlace& place,
                  int64_t count = 0, std::vector<Picked>* likeliest = nullptr);

/// What pick_token gives for each stream, from one walk over the vocabulary.
std::vector<Picked> pick_tokens(std::span<const float> logits_V, const SamplingParams& params,
                                const PickPlace& place, std::span<const uint64_t> streams);

/// The distribution pick_token draws from, [V] probabilities in fp64 (tests, exact expectations).
std::vector<double> sampling_distribution(std::span<const float> logits_V, const SamplingParams& params,
                                          const PickPlace& place);

}  // namespace twinkle
