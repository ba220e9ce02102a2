// Reading config.json: the keys that all families share, then the family's own. Immutable afterwards, any
// thread.
#include "twinkle/model/model_config.h"

#include <algorithm>
#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/core/registry.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/rope.h"

namespace twinkle {

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = raw_.find(key);
  return it == raw_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::fail(std::string_view key, const std::string& message) const {
  throw invalid_argument("[config] '" + prefix_ + std::string(key) + "': " + message);
}

int64_t ConfigReader::integer(std::string_view key, std::optional<int64_t> fallback, int64_t min,
                              int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(key, "is missing");
    return *fallback;
  }
  if (!value->is_number()) fail(key, "expected a whole number, got " + std::string(json_type_name(*value)));
  // Some tools write 40960.0 for 40960.
  const double number = value->get<double>();
  if (!std::isfinite(number) || number != std::floor(number)) {
    fail(key, "expected a whole number, got " + value->dump());
  }
  if (number < static_cast<double>(min) || number > static_cast<double>(max)) {
    fail(key,
         "must be from " + std::to_string(min) + " to " + std::to_string(max) + ", got " + value->dump());
  }
  return value->get<int64_t>();
}

double ConfigReader::number(std::string_view key, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(key, "is missing");
    return *fallback;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    fail(key, "expected a number, got " +
                  std::string(value->is_number() ? value->dump() : json_type_name(*value)));
  }
  return value->get<double>();
}

bool ConfigReader::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "expected true or false, got " + std::string(json_type_name(*value)));
  return value->get<bool>();
}

std::string ConfigReader::string(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) fail(key, "expected a string, got " + std::string(json_type_name(*value)));
  return value->get<std::string>();
}

void refuse_unsupported(const ConfigReader& reader, const std::string& architecture) {
  const std::string act = reader.string("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    reader.fail("hidden_act", "'" + act + "' is not supported for " + architecture + " (silu is)");
  }
  if (reader.number("attention_dropout", 0.0) != 0.0) {
    reader.fail("attention_dropout", "dropout within attention is not supported; only 0 is");
  }
  if (reader.number("partial_rotary_factor", 1.0) != 1.0) {
    reader.fail("partial_rotary_factor", "partial rotary embeddings are not supported for " + architecture);
  }
  if (const Json* quantization = reader.find("quantization_config")) {
    const std::string method = quantization->is_object() && quantization->contains("quant_method") &&
                                       (*quantization)["quant_method"].is_string()
                                   ? (*quantization)["quant_method"].get<std::string>()
                                   : "unnamed";
    reader.fail("quantization_config",
                "weights quantised by '" + method +
                    "' are not supported; use an unquantised checkpoint or a GGUF file");
  }
}

void read_sliding_layers(const ConfigReader& reader, int64_t first_sliding, ModelConfig& config) {
  config.sliding_layers.assign(static_cast<size_t>(config.num_layers), false);
  const Json* types = reader.find("layer_types");
  if (types == nullptr) {
    for (int64_t i = first_sliding; i < config.num_layers; ++i)
      config.sliding_layers[static_cast<size_t>(i)] = true;
    return;
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != config.num_layers) {
    reader.fail("layer_types",
                "expected a list of " + std::to_string(config.num_layers) + " names, one a layer");
  }
  for (size_t i = 0; i < types->size(); ++i) {
    const Json& type = (*types)[i];
    if (type == "sliding_attention") {
      config.sliding_layers[i] = true;
    } else if (type != "full_attention") {
      reader.fail("layer_types", "layer " + std::to_string(i) + " is " +
                                     type.dump(-1, ' ', false, Json::error_handler_t::replace) +
                                     "; only full_attention and sliding_attention are supported");
    }
  }
}

namespace {

void read_token_ids(const ConfigReader& reader, ModelConfig& config) {
  constexpr int64_t kMaxId = (int64_t{1} << 31) - 1;
  config.bos_token_id = reader.integer("bos_token_id", -1, -1, kMaxId);
  const Json* eos = reader.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    const int64_t id = reader.integer("eos_token_id", -1, -1, kMaxId);
    if (id >= 0) config.eos_token_ids.push_back(id);
    return;
  }
  for (const auto& id : *eos) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxId) {
      reader.fail("eos_token_id", "expected a token id or a list of them");
    }
    config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

ModelConfig read_config(const Json& raw) {
  if (!raw.is_object()) {
    throw invalid_argument("[config] expected an object, got " + std::string(json_type_name(raw)));
  }
  const ConfigReader reader(raw);
  const Json* architectures = reader.find("architectures");
  if (architectures == nullptr) {
    reader.fail("architectures", "is missing; it names the kind of model, such as [\"LlamaForCausalLM\"]");
  }
  if (!architectures->is_array() || architectures->empty() || !(*architectures)[0].is_string()) {
    reader.fail("architectures", "expected a list of one name");
  }
  ModelConfig config;
  config.architecture = (*architectures)[0].get<std::string>();
  std::string known;
  bool found = false;
  for (const auto* info : Catalog::instance().of_kind(ModelFamily::kKind)) {
    found |= info->name == config.architecture;
    known += (known.empty() ? "" : ", ") + info->name;
  }
  if (!found) {
    throw invalid_argument("[config] the architecture '" + config.architecture +
                           "' is not supported (supported: " + known + ")");
  }
  config.raw = raw;
  config.model_type = reader.string("model_type", "");
  config.hidden_size = reader.integer("hidden_size", std::nullopt);
  config.intermediate_size = reader.integer("intermediate_size", std::nullopt);
  config.num_layers = reader.integer("num_hidden_layers", std::nullopt, 1, 1 << 16);
  config.num_heads = reader.integer("num_attention_heads", std::nullopt, 1, 1 << 16);
  config.vocab_size = reader.integer("vocab_size", std::nullopt);
  config.num_kv_heads = reader.integer("num_key_value_heads", config.num_heads, 1, 1 << 16);
  config.head_dim = reader.integer("head_dim", 0, 1, 1 << 16);
  config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  config.initializer_range = reader.number("initializer_range", 0.02);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  if (config.rms_norm_eps <= 0.0) reader.fail("rms_norm_eps", "must be > 0");
  if (config.initializer_range < 0.0) reader.fail("initializer_range", "must be >= 0");
  config.sliding_layers.assign(static_cast<size_t>(config.num_layers), false);
  read_token_ids(reader, config);
  refuse_unsupported(reader, config.architecture);

  const auto family = Registry<ModelFamily>::create(config.architecture);
  // transformers goes by the one or the other.
  if (!config.model_type.empty() && config.model_type != family->model_type()) {
    reader.fail("model_type", "'" + config.model_type +
                                  "' contradicts 'architectures': " + config.architecture + " is of type '" +
                                  std::string(family->model_type()) + "'");
  }
  family->read(raw, config);

  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_heads != 0) {
      reader.fail("hidden_size", std::to_string(config.hidden_size) +
                                     " is not a multiple of num_attention_heads " +
                                     std::to_string(config.num_heads) + ", and there is no head_dim");
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0) {
    reader.fail("head_dim",
                "rotary embeddings need an even head size, got " + std::to_string(config.head_dim));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.fail("num_key_value_heads", "num_attention_heads " + std::to_string(config.num_heads) +
                                           " is not a multiple of " + std::to_string(config.num_kv_heads));
  }
  config.rope = read_rope(raw, config);
  return config;
}

}  // namespace

ModelConfig model_config_from_json(const Json& raw, std::string_view where) {
  try {
    return read_config(raw);
  } catch (const Error& e) {
    const std::string text = e.what();
    constexpr std::string_view kPlace = "[config] ";
    if (e.kind() != ErrorKind::kInvalidArgument || text.rfind(kPlace, 0) != 0) throw;
    throw invalid_argument(std::string(kPlace) + std::string(where) + ": " + text.substr(kPlace.size()));
  }
}

}  // namespace twinkle
