// What the tests of adapters share: a model of two small layers with seeded weights.
#pragma once

#include <memory>
#include <string>

#include "twinkle/model/causal_lm.h"

namespace twinkle::test {

inline std::unique_ptr<CausalLM> tiny_model(bool tied = false, const std::string& dtype = "auto") {
  const Json raw = {{"architectures", {"LlamaForCausalLM"}},
                    {"hidden_size", 16},
                    {"intermediate_size", 24},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"vocab_size", 32},
                    {"initializer_range", 0.3},
                    {"tie_word_embeddings", tied}};
  const ModelConfig config = model_config_from_json(raw, "tiny");
  return CausalLM::build(config, *random_weights(config, 4), {.dtype = dtype});
}

}  // namespace twinkle::test
