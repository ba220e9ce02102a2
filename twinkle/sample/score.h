// Scores token sequences: the log-probability of every token given those before it, by the trainer's own
// forward.
#pragma once

#include <vector>

#include "twinkle/lora/adapter.h"

namespace twinkle {

/// logprobs[i][t] is log p(tokens[i][t+1] | tokens[i][0..t]): one fewer than the tokens. Sequences run
/// packed, at most `max_tokens_per_pass` tokens a pass (a longer one alone); the result does not depend on
/// that. Empty sequences and tokens out of range are invalid_argument naming the sequence.
std::vector<std::vector<float>> score_sequences(CausalLM& model, Adapter* adapter,
                                                const std::vector<std::vector<int32_t>>& sequences,
                                                int64_t max_tokens_per_pass = 4096);

}  // namespace twinkle
