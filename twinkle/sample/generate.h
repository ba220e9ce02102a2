// Generates continuations of prompts with cached keys and values, all prompts in one batch. A sequence's
// tokens depend on its own prompt, parameters and seed only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "twinkle/lora/adapter.h"
#include "twinkle/sample/pick.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle {

struct GenerateRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;
  uint64_t stream = 0;  // which random stream under the seed (sample n of a prompt)
};

struct Generated {
  std::vector<int32_t> tokens;  // a stop token is included, last
  // Of the distribution each token was drawn from; without temperature, penalties and cut-offs (and greedily)
  // the bits of score_sequences.
  std::vector<double> logprobs;
  std::string text;         // decoded, without special tokens, cut before a stop string
  std::string stop_reason;  // "stop" | "length"
};

/// Called with each new piece of text of request `index`; return false to end that request.
using OnText = std::function<bool(size_t index, const std::string& piece)>;

/// `end_ids` end a sequence unless ignore_eos. Prompts that leave no room in the model's context are
/// invalid_argument naming the request.
std::vector<Generated> generate(CausalLM& model, Adapter* adapter,
                                const std::shared_ptr<const Tokenizer>& tokenizer,
                                const std::vector<GenerateRequest>& requests,
                                const std::vector<int32_t>& end_ids, const OnText& on_text = nullptr);

}  // namespace twinkle
