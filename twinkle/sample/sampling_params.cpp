#include "twinkle/sample/sampling_params.h"

namespace twinkle {

const std::vector<ParamSpec>& sampling_param_specs() {
  static const std::vector<ParamSpec> specs = {
      {.name = "max_tokens",
       .type = ParamType::kInt,
       .default_value = 512,
       .help = "most tokens to generate",
       .min = 0},
      {.name = "temperature",
       .type = ParamType::kFloat,
       .default_value = 1.0,
       .help = "0 picks the likeliest token (greedy)",
       .min = 0},
      {.name = "top_k",
       .type = ParamType::kInt,
       .default_value = -1,
       .help = "draw among the k likeliest tokens; -1: all",
       .min = -1},
      {.name = "top_p",
       .type = ParamType::kFloat,
       .default_value = 1.0,
       .help = "draw among the fewest tokens whose probability reaches p",
       .min = 0,
       .max = 1,
       .exclusive_min = true},
      {.name = "min_p",
       .type = ParamType::kFloat,
       .default_value = 0.0,
       .help = "drop tokens below p times the largest probability",
       .min = 0,
       .max = 1},
      {.name = "repetition_penalty",
       .type = ParamType::kFloat,
       .default_value = 1.0,
       .help = "above 1 discourages tokens already there",
       .min = 0,
       .exclusive_min = true},
      {.name = "seed",
       .type = ParamType::kInt,
       .default_value = 0,
       .help = "the same seed gives the same tokens",
       .min = 0},
      {.name = "stop",
       .type = ParamType::kStringList,
       .default_value = Json::array(),
       .help = "strings that end the answer"},
      {.name = "ignore_eos",
       .type = ParamType::kBool,
       .default_value = false,
       .help = "go on past the end-of-sequence token"}};
  return specs;
}

SamplingParams sampling_params_from(const Options& options) {
  SamplingParams p;
  p.max_tokens = options.get_int("max_tokens");
  p.temperature = options.get_float("temperature");
  p.top_k = options.get_int("top_k");
  p.top_p = options.get_float("top_p");
  p.min_p = options.get_float("min_p");
  p.repetition_penalty = options.get_float("repetition_penalty");
  p.seed = static_cast<uint64_t>(options.get_int("seed"));
  for (const auto& text : options.get("stop")) p.stop.push_back(text.get<std::string>());
  p.ignore_eos = options.get_bool("ignore_eos");
  return p;
}

}  // namespace twinkle
