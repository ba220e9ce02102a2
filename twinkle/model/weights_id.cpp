#include "twinkle/model/weights_id.h"

#include <algorithm>
#include <limits>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/files.h"
#include "twinkle/model/save.h"

namespace twinkle {

void WeightsId::add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                    uint32_t crc) {
  lines_[name] = dtype + " " + Json(shape).dump() + " " + std::to_string(crc);
}

std::string WeightsId::value() const {
  std::string text;
  for (const auto& [name, line] : lines_) text += name + " " + line + "\n";
  return sha256_hex(text);
}

namespace {

// Of the first `most` bytes of every tensor.
std::string id_of(const CausalLM& model, int64_t most) {
  constexpr int64_t kPiece = 8 << 20;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, most)));
  WeightsId out;
  for (const auto& parameter : model.parameters()) {
    const TensorToWrite tensor = weight_to_write(parameter);
    int64_t bytes = safetensors_dtype_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= size;
    bytes = std::min(bytes, most);
    uint32_t crc = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPiece, bytes - at)));
      tensor.fill(at, part);
      crc = crc32c(part, crc);
    }
    out.add(tensor.name, tensor.dtype, tensor.shape, crc);
  }
  return out.value();
}

}  // namespace

std::string weights_id(const CausalLM& model) { return id_of(model, std::numeric_limits<int64_t>::max()); }

std::string weights_sample_id(const CausalLM& model) { return id_of(model, 4096); }

Json model_facts(const ModelConfig& c) {
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) windows.push_back(c.window_of(layer));
  return {{"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"num_hidden_layers", c.num_layers},
          {"num_attention_heads", c.num_heads},
          {"num_key_value_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"rms_norm_eps", c.rms_norm_eps},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"qkv_bias", c.qkv_bias},
          {"o_bias", c.o_bias},
          {"mlp_bias", c.mlp_bias},
          {"qk_norm", c.qk_norm},
          {"sliding_windows", windows},
          {"rope",
           {c.rope.type, c.rope.theta, c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor,
            c.rope.original_max_position, c.rope.beta_fast, c.rope.beta_slow,
            c.rope.attention_factor ? Json(*c.rope.attention_factor) : Json(nullptr), c.rope.truncate}}};
}

}  // namespace twinkle
