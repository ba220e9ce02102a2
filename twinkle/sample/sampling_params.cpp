#include "twinkle/sample/sampling_params.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

std::vector<int32_t> ids_from(const Json& list) {
  std::vector<int32_t> out;
  for (const auto& id : list) out.push_back(static_cast<int32_t>(id.get<int64_t>()));
  return out;
}

std::map<int32_t, double> bias_from(const Json& given) {
  std::map<int32_t, double> out;
  if (given.is_null()) return out;
  const auto refuse = [&](const std::string& got) {
    return invalid_argument("[sample] 'logit_bias': expected an object such as {\"42\": -5}, got " + got);
  };
  if (!given.is_object()) throw refuse(given.dump());
  for (const auto& [key, value] : given.items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) throw refuse("the token id '" + key + "'");
    if (!value.is_number()) throw refuse(value.dump() + " for token " + key);
    if (!out.emplace(id, value.get<double>()).second) {
      throw invalid_argument("[sample] 'logit_bias': token " + std::to_string(id) + " is there twice, as '" +
                             key + "' too");
    }
  }
  return out;
}

}  // namespace

SamplingParams sampling_params_from(const Options& options) {
  SamplingParams p;
  p.max_tokens = options.get_int("max_tokens");
  p.temperature = options.get_float("temperature");
  p.top_k = options.get_int("top_k");
  p.top_p = options.get_float("top_p");
  p.min_p = options.get_float("min_p");
  p.repetition_penalty = options.get_float("repetition_penalty");
  p.frequency_penalty = options.get_float("frequency_penalty");
  p.presence_penalty = options.get_float("presence_penalty");
  p.num_samples = options.get_int("num_samples");
  if (options.has("seed")) p.seed = static_cast<uint64_t>(options.get_int("seed"));
  for (const auto& text : options.get("stop")) p.stop.push_back(text.get<std::string>());
  p.stop_token_ids = ids_from(options.get("stop_token_ids"));
  p.ignore_eos = options.get_bool("ignore_eos");
  p.min_tokens = options.get_int("min_tokens");
  p.logit_bias = bias_from(options.get("logit_bias"));
  p.allowed_token_ids = ids_from(options.get("allowed_token_ids"));
  p.forbidden_token_ids = ids_from(options.get("forbidden_token_ids"));
  p.logprobs = options.get_int("logprobs");
  p.prompt_logprobs = options.has("prompt_logprobs");
  if (p.prompt_logprobs) p.topk_prompt_logprobs = options.get_int("prompt_logprobs");
  return p;
}

void check_sampling_params(const SamplingParams& p, int64_t vocab_size, const std::string& where) {
  const auto refuse = [&](const std::string& field, const std::string& needed, const std::string& got) {
    return invalid_argument(where + "'" + field + "' must be " + needed + ", got " + got);
  };
  const auto number = [&](const char* field, double value, double low, double high, bool low_is_out,
                          const char* needed) {
    if (!(value >= low && value <= high) || (low_is_out && value == low))
      throw refuse(field, needed, Json(value).dump());
  };
  constexpr double kMost = 1.7976931348623157e308;
  number("temperature", p.temperature, 0, kMost, false, "a number from 0");
  number("top_p", p.top_p, 0, 1, true, "above 0 and at most 1");
  number("min_p", p.min_p, 0, 1, false, "from 0 to 1");
  number("repetition_penalty", p.repetition_penalty, 0, kMost, true, "above 0");
  number("frequency_penalty", p.frequency_penalty, -2, 2, false, "from -2 to 2");
  number("presence_penalty", p.presence_penalty, -2, 2, false, "from -2 to 2");
  const auto integer = [&](const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      throw refuse(field, "from " + std::to_string(low) + " to " + std::to_string(high),
                   std::to_string(value));
    }
  };
  constexpr int64_t kManyTokens = int64_t{1} << 31;
  integer("max_tokens", p.max_tokens, 0, std::numeric_limits<int64_t>::max());
  integer("min_tokens", p.min_tokens, 0, p.max_tokens);
  integer("top_k", p.top_k, -1, kManyTokens);
  integer("num_samples", p.num_samples, 1, kMostSamples);
  integer("logprobs", p.logprobs, 0, std::min(kMostAlternatives, vocab_size));
  integer("sampled_alternatives", p.sampled_alternatives, 0, std::min(kMostAlternatives, vocab_size));
  integer("topk_prompt_logprobs", p.topk_prompt_logprobs, 0, std::min(kMostAlternatives, vocab_size));
  integer("prompt_logprobs_last_n", p.prompt_logprobs_last_n, 0, std::numeric_limits<int64_t>::max());
  integer("prompt_draws", p.prompt_draws, 0, kMostAlternatives);
  for (const auto& stop : p.stop) {
    if (stop.empty()) throw invalid_argument(where + "'stop' has an empty string");
  }
  const auto in_vocabulary = [&](const char* field, int32_t id) {
    if (id < 0 || id >= vocab_size)
      throw refuse(field, "of tokens below " + std::to_string(vocab_size), std::to_string(id));
  };
  for (const int32_t id : p.stop_token_ids) in_vocabulary("stop_token_ids", id);
  for (const int32_t id : p.allowed_token_ids) in_vocabulary("allowed_token_ids", id);
  for (const int32_t id : p.forbidden_token_ids) in_vocabulary("forbidden_token_ids", id);
  for (const auto& [id, bias] : p.logit_bias) {
    in_vocabulary("logit_bias", id);
    if (!std::isfinite(bias)) throw refuse("logit_bias", "of finite numbers", Json(bias).dump());
  }
}

}  // namespace twinkle
