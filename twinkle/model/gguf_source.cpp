// GGUF as a model. Names become Hugging Face's; for the llama architecture the rows of q and k, which GGUF
// keeps in interleaved rotary order, are read back in rotate-half order. Reading is thread-safe.
#include "twinkle/model/gguf_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numbers>

#include "twinkle/core/error.h"
#include "twinkle/core/gguf.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/named_source.h"

namespace twinkle {
namespace {

// The shortest decimal that gives the same fp32: 1e-05, not 9.999999747378752e-06.
double shortest(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), static_cast<float>(value)).ptr;
  double out = value;
  std::from_chars(text, end, out);
  return out;
}

struct Family {
  const char *architecture, *model_type;
};

// The value of a list that must be the same for all layers, or of a plain number.
int64_t uniform(const ConfigReader& reader, const std::string& key, std::optional<int64_t> fallback) {
  const Json* value = reader.find(key);
  if (value == nullptr || !value->is_array()) return reader.integer(key, fallback, 1, 1 << 30);
  for (const auto& v : *value) {
    if (v != value->front() || !v.is_number_integer())
      reader.fail(key, "layers that differ in it are not supported");
  }
  if (value->empty() || value->front() < 1 || value->front() > (1 << 30))
    reader.fail(key, "expected numbers >= 1");
  return value->front().get<int64_t>();
}

Json read_scaling(const ConfigReader& reader, const std::string& arch) {
  const std::string prefix = arch + ".rope.scaling.";
  if (reader.find(arch + ".rope.scale_linear") != nullptr) {
    const double factor = shortest(reader.number(arch + ".rope.scale_linear", 1.0));
    return factor == 1.0 ? Json(nullptr) : Json{{"rope_type", "linear"}, {"factor", factor}};
  }
  const std::string type = reader.string(prefix + "type", "none");
  if (type == "none") return nullptr;
  if (type != "linear" && type != "yarn") {
    reader.fail(prefix + "type", "'" + type + "' is not supported (supported: none, linear, yarn)");
  }
  Json out = {{"rope_type", type}, {"factor", shortest(reader.number(prefix + "factor", std::nullopt))}};
  if (type == "yarn") {
    out["original_max_position_embeddings"] =
        reader.integer(prefix + "original_context_length", std::nullopt);
    for (const char* key : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"}) {
      if (reader.number(prefix + key, 1.0) != 1.0) reader.fail(prefix + key, "only 1 is supported");
    }
    if (reader.find(prefix + "yarn_log_multiplier") != nullptr) {
      reader.fail(prefix + "yarn_log_multiplier", "is not supported");
    }
    if (reader.find(prefix + "yarn_beta_fast") != nullptr) {
      out["beta_fast"] = shortest(reader.number(prefix + "yarn_beta_fast", 32.0));
    }
    if (reader.find(prefix + "yarn_beta_slow") != nullptr) {
      out["beta_slow"] = shortest(reader.number(prefix + "yarn_beta_slow", 1.0));
    }
  }
  return out;
}

Json config_of(const Json& metadata) {
  const ConfigReader reader(metadata);
  const std::string arch = reader.string("general.architecture", "");
  if (arch.empty()) reader.fail("general.architecture", "is missing");
  const std::string window_key = arch + ".attention.sliding_window";
  const int64_t window = reader.integer(window_key, 0, 0);
  static const std::map<std::string, Family> kFamilies = {{"llama", {"LlamaForCausalLM", "llama"}},
                                                          {"qwen2", {"Qwen2ForCausalLM", "qwen2"}},
                                                          {"qwen3", {"Qwen3ForCausalLM", "qwen3"}}};
  const auto it = kFamilies.find(arch);
  if (it == kFamilies.end()) {
    reader.fail("general.architecture", "'" + arch + "' is not supported (supported: llama, qwen2, qwen3)");
  }
  // GGUF calls Mistral's models llama too; the window tells them apart.
  const Family family = arch == "llama" && window > 0 ? Family{"MistralForCausalLM", "mistral"} : it->second;
  if (reader.integer(arch + ".expert_count", 0, 0) > 0) {
    reader.fail(arch + ".expert_count", "mixtures of experts are not supported");
  }
  const auto integer = [&](const char* key) { return reader.integer(arch + key, std::nullopt); };
  const int64_t hidden = integer(".embedding_length"),
                heads = uniform(reader, arch + ".attention.head_count", std::nullopt);
  std::optional<int64_t> even_split;
  if (hidden % heads == 0) even_split = hidden / heads;
  const int64_t head_dim = reader.integer(arch + ".attention.key_length", even_split, 1, 1 << 16);
  if (reader.integer(arch + ".attention.value_length", head_dim) != head_dim) {
    reader.fail(arch + ".attention.value_length", "values of another size than keys are not supported");
  }
  if (reader.integer(arch + ".rope.dimension_count", head_dim) != head_dim) {
    reader.fail(arch + ".rope.dimension_count", "partial rotary embeddings are not supported");
  }
  Json out = {
      {"architectures", Json::array({family.architecture})},
      {"model_type", family.model_type},
      {"hidden_size", hidden},
      {"intermediate_size", uniform(reader, arch + ".feed_forward_length", std::nullopt)},
      {"num_hidden_layers", integer(".block_count")},
      {"num_attention_heads", heads},
      {"num_key_value_heads", uniform(reader, arch + ".attention.head_count_kv", heads)},
      {"head_dim", head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", integer(".context_length")},
      {"initializer_range", 0.02},
      {"rms_norm_eps", shortest(reader.number(arch + ".attention.layer_norm_rms_epsilon", std::nullopt))},
      {"rope_theta", shortest(reader.number(arch + ".rope.freq_base", 10000.0))},
      {"rope_scaling", read_scaling(reader, arch)},
      {"attention_dropout", 0.0},
      {"tie_word_embeddings", false}};
  const Json* tokens = reader.find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->is_array() && reader.find(arch + ".vocab_size") == nullptr) {
    out["vocab_size"] = tokens->size();
  } else {
    out["vocab_size"] = integer(".vocab_size");
  }
  if (out["model_type"] == "mistral") out["sliding_window"] = window;
  if (arch != "llama") {
    out["use_sliding_window"] = window > 0;
    out["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
    out["max_window_layers"] = 0;
  }
  for (const auto& [key, target] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                    {"tokenizer.ggml.eos_token_id", "eos_token_id"},
                                    {"tokenizer.ggml.padding_token_id", "pad_token_id"}}) {
    if (reader.find(key) != nullptr) out[target] = reader.integer(key, std::nullopt, 0);
  }
  return out;
}

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; other names stay and will be reported.
std::string hugging_face_name(const std::string& name) {
  static const std::map<std::string, std::string> kTop = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                          {"output_norm.weight", "model.norm.weight"},
                                                          {"output.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string> kInLayer = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},       {"attn_rot_embd", "self_attn.rotary_emb.inv_freq"}};
  if (const auto it = kTop.find(name); it != kTop.end()) return it->second;
  if (name.rfind("blk.", 0) != 0) return name;
  const size_t layer_end = name.find('.', 4);
  if (layer_end == std::string::npos) return name;
  const std::string layer = name.substr(4, layer_end - 4);
  if (layer.empty() || layer.find_first_not_of("0123456789") != std::string::npos) return name;
  const size_t dot = name.rfind('.');
  const auto it = kInLayer.find(dot > layer_end ? name.substr(layer_end + 1, dot - layer_end - 1)
                                                : name.substr(layer_end + 1));
  if (it == kInLayer.end()) return name;
  const std::string suffix = it->first == "attn_rot_embd" || dot == layer_end ? "" : name.substr(dot);
  return "model.layers." + layer + "." + it->second + suffix;
}

struct GgufEntry {
  WeightInfo info;
  const GgufTensor* tensor;
  int64_t rotary_dim;  // rows are interleaved per head of this size; 0: they are not
};

class GgufSource : public NamedSource<GgufEntry> {
 public:
  GgufSource(std::shared_ptr<const GgufFile> file, std::string where, const Json& config)
      : file_(std::move(file)), where_(std::move(where)) {
    const bool llama = file_->metadata().value("general.architecture", "") == "llama";
    const int64_t heads = config["num_attention_heads"].get<int64_t>();
    const int64_t kv_heads = config["num_key_value_heads"].get<int64_t>();
    const int64_t head_dim = config["head_dim"].get<int64_t>();
    for (const auto& tensor : file_->tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // read into the config
      GgufEntry entry{
          {hugging_face_name(tensor.name), tensor.shape, std::string(ggml_type_name(tensor.type))},
          &tensor,
          0};
      const auto is = [&](const char* part) { return entry.info.name.find(part) != std::string::npos; };
      const int64_t count = is(".self_attn.q_proj.") ? heads : is(".self_attn.k_proj.") ? kv_heads : 0;
      if (llama && count > 0 && tensor.shape[0] == count * head_dim) entry.rotary_dim = head_dim;
      const std::string key = entry.info.name;
      if (!tensors_.emplace(key, std::move(entry)).second) {
        throw invalid_argument("[weights] '" + where_ + "': two tensors are named '" + key + "'");
      }
    }
  }

  void read_rows(const std::string& name, int64_t row_begin, int64_t row_end, float* out) const override {
    const GgufEntry& entry = tensors_.at(name);
    const GgufTensor& tensor = *entry.tensor;
    if (tensor.shape.size() == 1) {
      const int64_t n = tensor.shape[0];
      if (entry.rotary_dim == 0) {
        dequantize(tensor.type, tensor.data.data(), n, out);
        return;
      }
      std::vector<float> stored(static_cast<size_t>(n));
      dequantize(tensor.type, tensor.data.data(), n, stored.data());
      for (int64_t i = 0; i < n; ++i) out[i] = stored[static_cast<size_t>(stored_row(i, entry.rotary_dim))];
      return;
    }
    const int64_t cols = tensor.shape[1];
    const int64_t row_bytes = cols / ggml_block_size(tensor.type) * ggml_block_bytes(tensor.type);
    if (entry.rotary_dim == 0) {
      dequantize(tensor.type, tensor.data.data() + row_begin * row_bytes, (row_end - row_begin) * cols, out);
      return;
    }
    for (int64_t row = row_begin; row < row_end; ++row) {
      const std::byte* data = tensor.data.data() + stored_row(row, entry.rotary_dim) * row_bytes;
      dequantize(tensor.type, data, cols, out + (row - row_begin) * cols);
    }
  }

  std::string where() const override { return where_; }

 private:
  // Rotate-half pairs (i, i + dim/2) lie at (2i, 2i + 1) in the file.
  static int64_t stored_row(int64_t row, int64_t dim) {
    const int64_t within = row % dim, half = dim / 2;
    return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
  }

  std::shared_ptr<const GgufFile> file_;
  std::string where_;
};

// Llama 3's scaling is stored as one divisor a frequency. Finds the parameters that give them.
void read_rope_factors(const GgufTensor& tensor, const std::string& where, Json& config) {
  const auto fail = [&](const std::string& message) {
    return invalid_argument("[weights] '" + where + "': 'rope_freqs.weight' " + message);
  };
  const int64_t dim = config["head_dim"].get<int64_t>();
  if (dim < 2 || tensor.shape != std::vector<int64_t>{dim / 2} || tensor.type != GgmlType::kF32) {
    throw fail("is not one fp32 factor a frequency");
  }
  std::vector<float> stored(static_cast<size_t>(dim / 2));
  dequantize(tensor.type, tensor.data.data(), dim / 2, stored.data());
  const double factor = *std::max_element(stored.begin(), stored.end());
  if (std::all_of(stored.begin(), stored.end(), [](float f) { return f == 1.0f; })) return;
  constexpr double kContext = 8192, kLow = 1, kHigh = 4;  // of every Llama 3.1 and 3.2
  for (size_t i = 0; i < stored.size(); ++i) {
    const double wavelength =
        2.0 * std::numbers::pi *
        std::pow(config["rope_theta"].get<double>(), static_cast<double>(2 * i) / static_cast<double>(dim));
    const double smooth = std::clamp((kContext / wavelength - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double expected = 1.0 / ((1.0 - smooth) / factor + smooth);
    if (!(std::abs(static_cast<double>(stored[i]) - expected) <= 1e-3 * expected)) {
      throw fail("holds factors that are not those of llama3 scaling");
    }
  }
  if (!config["rope_scaling"].is_null()) throw fail("comes with another rotary scaling");
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", factor},
                            {"low_freq_factor", kLow},
                            {"high_freq_factor", kHigh},
                            {"original_max_position_embeddings", static_cast<int64_t>(kContext)}};
}

}  // namespace

Json config_json_from_gguf(const Json& metadata, std::string_view where) {
  try {
    return config_of(metadata);
  } catch (const Error& e) {
    const std::string text = e.what();
    constexpr std::string_view kPlace = "[config] ";
    if (e.kind() != ErrorKind::kInvalidArgument || text.rfind(kPlace, 0) != 0) throw;
    throw invalid_argument("[gguf] " + std::string(where) + ": " + text.substr(kPlace.size()));
  }
}

GgufModel make_gguf_model(std::shared_ptr<const GgufFile> file, const std::string& where) {
  GgufModel out;
  out.config = config_json_from_gguf(file->metadata(), where);
  out.config["tie_word_embeddings"] = file->find("output.weight") == nullptr;
  const GgufTensor* embedding = file->find("token_embd.weight");
  if (embedding != nullptr) {
    out.config["vocab_size"] = embedding->shape[0];
    out.config["torch_dtype"] = embedding->type == GgmlType::kF16    ? "float16"
                                : embedding->type == GgmlType::kBF16 ? "bfloat16"
                                                                     : "float32";
  }
  if (out.config["model_type"] == "llama") {
    out.config["attention_bias"] = file->find("blk.0.attn_q.bias") != nullptr;
    out.config["mlp_bias"] = file->find("blk.0.ffn_up.bias") != nullptr;
  }
  if (const GgufTensor* factors = file->find("rope_freqs.weight"))
    read_rope_factors(*factors, where, out.config);
  out.weights = std::make_shared<GgufSource>(std::move(file), where, out.config);
  return out;
}

GgufModel open_gguf_model(const std::string& path) {
  return make_gguf_model(std::make_shared<const GgufFile>(GgufFile::open(path)), path);
}

}  // namespace twinkle
