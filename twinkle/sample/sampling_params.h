// How tokens are drawn; names and defaults as upstream's SamplingParams, with what vLLM and OpenAI add.
//
// The order: logit_bias is added; forbidden tokens (and, before min_tokens, those that end an answer) get
// probability 0; then the penalties, repetition before frequency and presence; then the temperature; then
// top_k, min_p and top_p, each on what the one before left.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/sample/sampling_param_specs.h"

namespace twinkle {

struct SamplingParams {
  int64_t max_tokens = 512;  // 0: nothing is drawn (scoring a prompt)
  double temperature = 1.0;  // 0: greedy (lowest id among equals)
  int64_t top_k = -1;        // -1 or 0: all
  double top_p = 1.0;        // smallest set whose probability reaches top_p, likeliest first, ties by id
  double min_p = 0.0;        // drop tokens below min_p times the largest probability
  double repetition_penalty =
      1.0;                        // over prompt and answer, as in CTRL (Keskar et al. 2019) and transformers
  std::optional<uint64_t> seed;   // unset: the engine gives each request its own
  std::vector<std::string> stop;  // strings that end the answer; not part of the text, but their tokens are
                                  // part of the tokens. One that is a special token ends it as that token.
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  double frequency_penalty = 0.0;  // times the count of the token in the answer, subtracted from its logit
  double presence_penalty = 0.0;   // subtracted once the token is in the answer
  int64_t min_tokens = 0;          // before these many nothing ends the answer
  int64_t num_samples = 1;         // answers; answer i draws from a random stream of its own
  std::map<int32_t, double> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // when not empty, all others are forbidden
  std::vector<int32_t> forbidden_token_ids;
  int64_t logprobs = 0;                // likeliest alternatives to give with each token of the answer
  int64_t sampled_alternatives = 0;    // likeliest of the distribution each token is drawn from
  bool prompt_logprobs = false;        // score the prompt too
  int64_t topk_prompt_logprobs = 0;    // likeliest alternatives at each place of the prompt
  int64_t prompt_logprobs_last_n = 0;  // both of these for the last n tokens of the prompt only; 0: for all
  int64_t prompt_draws = 0;            // tokens drawn at each place of the prompt but the first, at the
                                       // temperature, from all of the vocabulary
};

/// From checked options (see sampling_param_specs). invalid_argument for a logit_bias that is not an object
/// of numbers by token id.
SamplingParams sampling_params_from(const Options& options);
/// Ranges, and token ids against the vocabulary: invalid_argument beginning with `where` and naming the
/// field.
void check_sampling_params(const SamplingParams& params, int64_t vocab_size, const std::string& where);

}  // namespace twinkle
