// What a decoder model is, read from a Hugging Face config.json by the family that its `architectures` name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

/// Rotary frequencies: the four scalings of the Llama line (as transformers' modeling_rope_utils computes
/// them).
struct RopeConfig {
  double theta = 10000.0;
  std::string type = "default";  // default | linear | dynamic | llama3 | yarn
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position = 0;                     // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor;                // yarn; default 0.1 ln(factor) + 1
  bool truncate = true;                                  // yarn: bounds rounded to whole dims
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  int64_t hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_position = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;
  int64_t sliding_window = 0;        // 0: none
  std::vector<bool> sliding_layers;  // [num_layers]; which layers use the window
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1;
  Json raw = Json::object();  // the config as it was read; kept for saving

  int64_t window_of(int64_t layer) const {
    return sliding_window > 0 && sliding_layers[static_cast<size_t>(layer)] ? sliding_window : 0;
  }
};

/// One model family: which architectures it answers for and how it reads their config. Register with
/// Registry<ModelFamily>::Add under the architecture's name.
class ModelFamily {
 public:
  static constexpr std::string_view kKind = "model";
  virtual ~ModelFamily() = default;
  /// What config.json calls the family beside the architecture: "llama".
  virtual std::string_view model_type() const = 0;
  /// Fills what differs from the common keys; invalid_argument names what is unsupported.
  virtual void read(const Json& raw, ModelConfig& config) const = 0;
};

/// Reads a config.json's value. Missing or misshapen keys and unknown architectures are invalid_argument.
ModelConfig model_config_from_json(const Json& raw, std::string_view where);
/// The config that a GGUF file's metadata describe, in config.json form.
Json config_json_from_gguf(const Json& metadata, std::string_view where);

/// cos and sin tables [positions, head_dim/2], fp32, with transformers' order of roundings (see rope.cpp).
/// Dynamic scaling takes `positions` for the length of the sequence.
struct RopeTables {
  std::vector<float> cos, sin;
  int64_t positions = 0, half_dim = 0;
};
RopeTables rope_tables(const ModelConfig& config, int64_t positions);

}  // namespace twinkle
