// adapter_config.json as PEFT 0.19 reads and writes it. What PEFT knows and we lack is refused by name when
// it is switched on, and let pass at its default. Pure functions, any thread.
#include <cmath>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/lora/adapter.h"

namespace twinkle {
namespace {

// Null, false, 0, "", [] and {}: an option that is not used.
bool is_unset(const Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return true;
  return (value.is_array() || value.is_object() || value.is_string()) && value.size() == 0;
}

class Reader {
 public:
  Reader(const Json& raw, std::string_view where)
      : raw_(raw), place_("[lora] " + std::string(where) + ": ") {}

  Error error(const std::string& message) const { return invalid_argument(place_ + message); }

  const Json* find(const char* key) const {
    const auto it = raw_.find(key);
    return it == raw_.end() || it->is_null() ? nullptr : &*it;
  }

  double number(const char* key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !std::isfinite(value->get<double>())) throw wrong(key, "a number", *value);
    return value->get<double>();
  }

  int64_t integer(const char* key, int64_t fallback) const {
    const Json* value = find(key);
    return value == nullptr ? fallback : whole(key, *value);
  }

  bool boolean(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) throw wrong(key, "true or false", *value);
    return value->get<bool>();
  }

  // A list of names, or one pattern.
  std::vector<std::string> names(const char* key, bool* is_pattern) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string() && is_pattern != nullptr) {
      *is_pattern = true;
      return {value->get<std::string>()};
    }
    std::vector<std::string> out;
    if (!value->is_array())
      throw wrong(key, is_pattern != nullptr ? "a string or a list of names" : "a list of names", *value);
    for (const auto& name : *value) {
      if (!name.is_string()) throw wrong(key, "a list of names", name);
      out.push_back(name.get<std::string>());
    }
    return out;
  }

  int64_t whole(const char* key, const Json& value) const {
    const bool integral =
        value.is_number_integer() ||
        (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
         std::abs(value.get<double>()) < 1e15);
    if (!integral) throw wrong(key, "a whole number", value);
    return value.get<int64_t>();
  }

  Error wrong(const char* key, const char* needed, const Json& got) const {
    return error("'" + std::string(key) + "': expected " + needed + ", got " +
                 std::string(json_type_name(got)));
  }

 private:
  const Json& raw_;
  std::string place_;
};

// What PEFT writes but has no effect on the numbers.
const std::set<std::string>& ignored_keys() {
  static const std::set<std::string> kKeys = {
      "auto_mapping",  "revision",       "inference_mode", "peft_version", "qalora_group_size",
      "megatron_core", "runtime_config", "peft_type",      "task_type",    "init_lora_weights"};
  return kKeys;
}

const std::set<std::string>& known_keys() {
  static const std::set<std::string> kKeys = {"r",
                                              "lora_alpha",
                                              "lora_dropout",
                                              "use_rslora",
                                              "target_modules",
                                              "exclude_modules",
                                              "layers_to_transform",
                                              "rank_pattern",
                                              "alpha_pattern",
                                              "modules_to_save",
                                              "base_model_name_or_path"};
  return kKeys;
}

void refuse_other_methods(const Json& raw, const Reader& reader) {
  const Json* type = reader.find("peft_type");
  if (type != nullptr && *type != "LORA") {
    throw reader.error(
        "'peft_type': " + (type->is_string() ? "'" + type->get<std::string>() + "'" : "this method") +
        " is not supported (LORA is)");
  }
  const Json* task = reader.find("task_type");
  if (task != nullptr && *task != "CAUSAL_LM") {
    throw reader.error(
        "'task_type': " + (task->is_string() ? "'" + task->get<std::string>() + "'" : "this task") +
        " is not supported (CAUSAL_LM is)");
  }
  // These change the base weights, which the file alone does not tell.
  const Json* init = reader.find("init_lora_weights");
  if (init != nullptr && init->is_string()) {
    const auto name = init->get<std::string>();
    if (name != "gaussian" && name != "eva" && name != "orthogonal") {
      throw reader.error("'init_lora_weights': '" + name + "' changes the base model and is not supported");
    }
  }
  const Json* bias = reader.find("bias");
  if (bias != nullptr && *bias != "none")
    throw reader.error("'bias': trained biases are not supported ('none' is)");
  for (const auto& [key, value] : raw.items()) {
    if (key == "bias" || known_keys().contains(key) || ignored_keys().contains(key) || is_unset(value))
      continue;
    if (key == "use_dora") throw reader.error("'use_dora': DoRA is not supported");
    throw reader.error(
        "'" + key + "' is not supported" +
        (did_you_mean(key, std::vector<std::string>(known_keys().begin(), known_keys().end()))
                     .find("did you") != std::string::npos
             ? did_you_mean(key, std::vector<std::string>(known_keys().begin(), known_keys().end()))
             : ""));
  }
}

Json number_or_integer(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

double LoraConfig::scale_of(int64_t rank, double alpha) const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

void check_lora_config(const LoraConfig& config) {
  const auto fail = [](const std::string& message) { return invalid_argument("[lora] " + message); };
  constexpr int64_t kMaxRank = 65536;
  const auto check_rank = [&](const std::string& name, int64_t rank) {
    if (rank < 1 || rank > kMaxRank)
      throw fail("'" + name + "': must be from 1 to 65536, got " + std::to_string(rank));
  };
  const auto check_alpha = [&](const std::string& name, double alpha) {
    // Alpha 0 would train nothing and not say so.
    if (!(alpha > 0.0) || !std::isfinite(alpha))
      throw fail("'" + name + "': must be > 0, got " + std::to_string(alpha));
  };
  check_rank("r", config.r);
  check_alpha("lora_alpha", config.lora_alpha);
  if (!(config.lora_dropout >= 0.0 && config.lora_dropout < 1.0)) {
    throw fail("'lora_dropout': must be >= 0 and < 1, got " + std::to_string(config.lora_dropout));
  }
  for (const auto& [key, rank] : config.rank_pattern) check_rank("rank_pattern." + key, rank);
  for (const auto& [key, alpha] : config.alpha_pattern) check_alpha("alpha_pattern." + key, alpha);
  for (const int64_t layer : config.layers_to_transform) {
    if (layer < 0) throw fail("'layers_to_transform': layers count from 0, got " + std::to_string(layer));
  }
  const bool patterns_fit = (!config.target_is_pattern || config.target_modules.size() == 1) &&
                            (!config.exclude_is_pattern || config.exclude_modules.size() == 1);
  if (!patterns_fit) throw fail("a pattern for modules stands alone");
  if (config.target_is_pattern && !config.layers_to_transform.empty()) {
    throw fail("'layers_to_transform' needs 'target_modules' as a list, not as a pattern");
  }
}

LoraConfig lora_config_from_json(const Json& raw, std::string_view where) {
  const Reader reader(raw, where);
  if (!raw.is_object()) throw reader.error("expected an object, got " + std::string(json_type_name(raw)));
  refuse_other_methods(raw, reader);
  LoraConfig config;
  config.r = reader.integer("r", 8);
  config.lora_alpha = reader.number("lora_alpha", 8);
  config.lora_dropout = reader.number("lora_dropout", 0.0);
  config.use_rslora = reader.boolean("use_rslora");
  config.target_modules = reader.names("target_modules", &config.target_is_pattern);
  config.exclude_modules = reader.names("exclude_modules", &config.exclude_is_pattern);
  config.modules_to_save = reader.names("modules_to_save", nullptr);
  if (const Json* layers = reader.find("layers_to_transform")) {
    const Json list = layers->is_array() ? *layers : Json::array({*layers});
    for (const auto& layer : list)
      config.layers_to_transform.push_back(reader.whole("layers_to_transform", layer));
  }
  if (const Json* ranks = reader.find("rank_pattern")) {
    if (!ranks->is_object()) throw reader.wrong("rank_pattern", "an object", *ranks);
    for (const auto& [key, rank] : ranks->items())
      config.rank_pattern.emplace_back(key, reader.whole("rank_pattern", rank));
  }
  if (const Json* alphas = reader.find("alpha_pattern")) {
    if (!alphas->is_object()) throw reader.wrong("alpha_pattern", "an object", *alphas);
    for (const auto& [key, alpha] : alphas->items()) {
      if (!alpha.is_number()) throw reader.wrong("alpha_pattern", "numbers", alpha);
      config.alpha_pattern.emplace_back(key, alpha.get<double>());
    }
  }
  if (const Json* base = reader.find("base_model_name_or_path")) {
    if (!base->is_string()) throw reader.wrong("base_model_name_or_path", "a string", *base);
    config.base_model_name_or_path = base->get<std::string>();
  }
  try {
    check_lora_config(config);
  } catch (const Error& e) {
    throw reader.error(std::string(e.what()).substr(std::string_view("[lora] ").size()));
  }
  return config;
}

Json lora_config_to_json(const LoraConfig& config) {
  const auto names = [](const std::vector<std::string>& list, bool is_pattern) -> Json {
    if (list.empty()) return nullptr;
    return is_pattern ? Json(list.front()) : Json(list);
  };
  Json alphas = Json::object(), ranks = Json::object();
  for (const auto& [key, alpha] : config.alpha_pattern) alphas[key] = number_or_integer(alpha);
  for (const auto& [key, rank] : config.rank_pattern) ranks[key] = rank;
  // The keys of PEFT 0.19.1, sorted, as save_pretrained writes them.
  return {{"alora_invocation_tokens", nullptr},
          {"alpha_pattern", alphas},
          {"arrow_config", nullptr},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", config.base_model_name_or_path},
          {"bias", "none"},
          {"corda_config", nullptr},
          {"ensure_weight_tying", false},
          {"eva_config", nullptr},
          {"exclude_modules", names(config.exclude_modules, config.exclude_is_pattern)},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform",
           config.layers_to_transform.empty() ? Json(nullptr) : Json(config.layers_to_transform)},
          {"loftq_config", Json::object()},
          {"lora_alpha", number_or_integer(config.lora_alpha)},
          {"lora_bias", false},
          {"lora_dropout", config.lora_dropout},
          {"lora_ga_config", nullptr},
          {"megatron_config", nullptr},
          {"megatron_core", "megatron.core"},
          {"modules_to_save", names(config.modules_to_save, false)},
          {"peft_type", "LORA"},
          {"peft_version", "0.19.1"},
          {"qalora_group_size", 16},
          {"r", config.r},
          {"rank_pattern", ranks},
          {"revision", nullptr},
          {"target_modules", names(config.target_modules, config.target_is_pattern)},
          {"target_parameters", nullptr},
          {"task_type", "CAUSAL_LM"},
          {"trainable_token_indices", nullptr},
          {"use_bdlora", nullptr},
          {"use_dora", false},
          {"use_qalora", false},
          {"use_rslora", config.use_rslora}};
}

}  // namespace twinkle
