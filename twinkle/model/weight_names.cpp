// The tensors that a model of a config has, and the check that a source holds exactly those. Pure functions.
#include <algorithm>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/list_text.h"
#include "twinkle/model/weight_source.h"

namespace twinkle {
std::vector<WeightInfo> expected_weights(const ModelConfig& config) {
  std::vector<WeightInfo> out;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    out.push_back({name, std::move(shape), "F32"});
  };
  const auto linear = [&](const std::string& name, int64_t rows, int64_t cols, bool bias) {
    add(name + ".weight", {rows, cols});
    if (bias) add(name + ".bias", {rows});
  };
  const int64_t hidden = config.hidden_size, mlp = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    linear(layer + "self_attn.q_proj", q, hidden, config.qkv_bias);
    linear(layer + "self_attn.k_proj", kv, hidden, config.qkv_bias);
    linear(layer + "self_attn.v_proj", kv, hidden, config.qkv_bias);
    linear(layer + "self_attn.o_proj", hidden, q, config.o_bias);
    if (config.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {config.head_dim});
      add(layer + "self_attn.k_norm.weight", {config.head_dim});
    }
    linear(layer + "mlp.gate_proj", mlp, hidden, config.mlp_bias);
    linear(layer + "mlp.up_proj", mlp, hidden, config.mlp_bias);
    linear(layer + "mlp.down_proj", hidden, mlp, config.mlp_bias);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
  }
  add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, hidden});
  return out;
}

void check_weights(const ModelConfig& config, const WeightSource& source) {
  std::vector<std::string> missing, misshapen, unreadable, unused;
  std::set<std::string> names;
  for (const auto& expected : expected_weights(config)) {
    names.insert(expected.name);
    const WeightInfo* found = source.find(expected.name);
    if (found == nullptr) {
      missing.push_back("'" + expected.name + "'");
    } else if (found->shape != expected.shape) {
      misshapen.push_back("'" + expected.name + "' is " + shape_text(found->shape) + ", expected " +
                          shape_text(expected.shape));
    } else if (found->dtype == "F64" || found->dtype.rfind("F8", 0) == 0 ||
               (found->dtype[0] != 'F' && found->dtype[0] != 'B' && found->dtype[0] != 'Q') ||
               found->dtype == "BOOL") {
      unreadable.push_back("'" + expected.name + "' is " + found->dtype);
    }
  }
  for (const auto& info : source.tensors()) {
    if (names.contains(info.name)) continue;
    if (info.name == "lm_head.weight" && config.tie_word_embeddings) continue;
    if (info.name.ends_with("rotary_emb.inv_freq")) continue;  // a buffer that old files stored
    unused.push_back("'" + info.name + "'");
  }
  std::string message;
  const auto add = [&](const char* what, const std::vector<std::string>& items) {
    if (items.empty()) return;
    message +=
        (message.empty() ? "" : "; ") + std::to_string(items.size()) + " " + what + ": " + first_few(items);
  };
  add("missing", missing);
  add("of the wrong shape", misshapen);
  add("of an unsupported type (F32, F16 and BF16 are read)", unreadable);
  add("that no part of the model uses", unused);
  if (!message.empty()) {
    throw invalid_argument("[weights] '" + source.where() + "' does not fit " + config.architecture +
                           ": tensors " + message);
  }
}

}  // namespace twinkle
