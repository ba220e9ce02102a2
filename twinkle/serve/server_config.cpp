#include "twinkle/serve/server_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/core/yaml.h"

namespace twinkle::serve {
namespace {

using Kind = YamlNode::Kind;

enum class Form { kValue, kMap, kFree };  // kFree: a map into which nobody looks

// A key of the Python Twinkle's file, by its path; those of an application's `args` begin with its kind.
struct Key {
  const char* path;
  Form form;
  ParamType type = ParamType::kString;
  const char* option = "";  // whose value it is
  const char* note = "";    // what to know when it is given
  double min = -1e18;
  std::vector<std::string> choices = {};
  double scale = 1;  // of a number, to the option's unit
};

constexpr const char* kOneProcess = "this server is one process that uses the whole machine";
constexpr const char* kNotHere = "this has no counterpart here";
constexpr const char* kNoDeadline =
    "operations are carried out however long they wait; clients poll for them";
constexpr const char* kParked = "adapters that are not used are written out and come back when they are";

std::vector<Key> application_keys(const std::string& kind) {
  std::vector<Key> out;
  if (kind == "server") {
    out = {{"server_config", Form::kMap},
           {"server_config.expiration_timeout", Form::kValue, ParamType::kFloat, "session_timeout", "", 1},
           {"server_config.cleanup_interval", Form::kValue, ParamType::kFloat, "", kNotHere, 0},
           {"server_config.per_token_model_limit", Form::kValue, ParamType::kInt, "limit_models", "", 0},
           {"server_config.metrics_update_interval", Form::kValue, ParamType::kFloat, "",
            "/metrics tells what is so when it is asked", 0},
           {"server_config.actor_name", Form::kValue, ParamType::kString, "", kOneProcess},
           {"http_options", Form::kMap},
           {"http_options.host", Form::kValue, ParamType::kString, "host"},
           {"http_options.port", Form::kValue, ParamType::kInt, "port", "", 1},
           {"route_prefix", Form::kValue, ParamType::kString, "", "the API is at /api/v1"}};
    return out;
  }
  out = {
      {"nproc_per_node", Form::kValue, ParamType::kInt, "", kOneProcess, 1},
      {"ncpu_proc_per_node", Form::kValue, ParamType::kInt, "", kOneProcess, 1},
      {"device_group", Form::kFree},
      {"device_mesh", Form::kFree},
      {"queue_config", Form::kMap},
      {"queue_config.rps_limit", Form::kValue, ParamType::kFloat, "limit_requests_per_second", "", 0},
      {"queue_config.tps_limit", Form::kValue, ParamType::kFloat, "limit_tokens_per_minute", "", 0, {}, 60},
      {"queue_config.window_seconds", Form::kValue, ParamType::kFloat, "",
       "requests count for a second and tokens for a minute", 0},
      {"queue_config.queue_timeout", Form::kValue, ParamType::kFloat, "", kNoDeadline, 0},
      {"queue_config.execution_timeout", Form::kValue, ParamType::kFloat, "", kNoDeadline, 0},
      {"queue_config.enabled", Form::kValue, ParamType::kBool},
      {"queue_config.token_cleanup_multiplier", Form::kValue, ParamType::kFloat, "", kNotHere, 0},
      {"queue_config.token_cleanup_interval", Form::kValue, ParamType::kFloat, "", kNotHere, 0},
      {"queue_config.max_input_tokens", Form::kValue, ParamType::kInt, "",
       "a sequence may be as long as the model's context", 1}};
  if (kind == "processor") return out;
  out.push_back({"model_id", Form::kValue, ParamType::kString, "model_id"});
  if (kind == "sampler") {
    out.push_back({"sampler_type",
                   Form::kValue,
                   ParamType::kString,
                   "",
                   "samples come from the same engine as training",
                   -1e18,
                   {"mock", "vllm", "torch"}});
    out.push_back({"engine_args", Form::kFree});
    return out;
  }
  out.push_back({"backend",
                 Form::kValue,
                 ParamType::kString,
                 "",
                 "there is one engine",
                 -1e18,
                 {"mock", "transformers", "megatron"}});
  out.push_back({"adapter_config", Form::kMap});
  out.push_back({"adapter_config.adapter_timeout", Form::kValue, ParamType::kFloat, "", kParked, 0});
  out.push_back({"adapter_config.adapter_max_lifetime", Form::kValue, ParamType::kFloat, "", kParked, 0});
  out.push_back({"max_loras", Form::kValue, ParamType::kInt, "models_in_memory", "", 1});
  out.push_back({"max_length", Form::kValue, ParamType::kInt, "",
                 "a sequence may be as long as the model's context", 1});
  return out;
}

const std::vector<Key>& top_keys() {
  static const std::vector<Key> keys = {
      {"ray_namespace", Form::kValue, ParamType::kString, "", kOneProcess},
      {"proxy_location",
       Form::kValue,
       ParamType::kString,
       "",
       kOneProcess,
       -1e18,
       {"EveryNode", "HeadOnly", "Disabled"}},
      {"http_options", Form::kMap},
      {"http_options.host", Form::kValue, ParamType::kString, "host"},
      {"http_options.port", Form::kValue, ParamType::kInt, "port", "", 1},
      {"telemetry", Form::kMap},
      {"telemetry.enabled", Form::kValue, ParamType::kBool},
      {"telemetry.service_name", Form::kValue},
      {"telemetry.otlp_endpoint", Form::kValue},
      {"telemetry.debug", Form::kValue, ParamType::kBool},
      {"telemetry.export_interval_ms", Form::kValue, ParamType::kInt, "", "", 1},
      {"telemetry.resource_attributes", Form::kFree},
      {"persistence", Form::kMap},
      {"persistence.mode", Form::kValue, ParamType::kString, "", "", -1e18, {"memory", "file", "redis"}},
      {"persistence.file_path", Form::kValue},
      {"persistence.redis_url", Form::kValue},
      {"persistence.key_prefix", Form::kValue},
      {"task_queue", Form::kFree, ParamType::kString, "",
       "an application's queue_config says what counts; this is read by nobody"}};
  return keys;
}

class ConfigReader {
 public:
  ConfigReader(const std::string& name, const std::vector<ArgGroup>& groups) : name_(name), groups_(groups) {}

  ServerConfig read(std::string_view text) {
    YamlNode root;
    try {
      root = parse_yaml(text, name_);
    } catch (const Error& e) {
      out_.errors.emplace_back(e.what());
      return std::move(out_);
    }
    if (root.kind == Kind::kNull) return std::move(out_);
    if (root.kind != Kind::kMap) {
      error(root, "expected options as 'name: value'");
      return std::move(out_);
    }
    for (const auto& [key, node] : root.map) top(key, node);
    check_persistence(root);
    return std::move(out_);
  }

 private:
  std::string at(const YamlNode& node) const { return name_ + " line " + std::to_string(node.line); }
  void error(const YamlNode& node, const std::string& what) {
    out_.errors.push_back("[" + at(node) + "] " + what);
  }
  void note(const YamlNode& node, const std::string& what) { out_.notes.push_back(at(node) + ": " + what); }

  void top(const std::string& key, const YamlNode& node) {
    if (key == "applications") return applications(node);
    const auto& keys = top_keys();
    if (const auto found = std::ranges::find(keys, key, &Key::path); found != keys.end())
      return known(keys, *found, node, key);
    own(key, node);
  }

  // Options of our own; levels are joined with '_'.
  void own(const std::string& name, const YamlNode& node) {
    const ArgSpec* arg = find_arg(groups_, name);
    if (arg == nullptr && node.kind == Kind::kMap) {
      for (const auto& [key, child] : node.map) own(name + "_" + key, child);
      return;
    }
    if (arg == nullptr) {
      std::vector<std::string> names;
      for (const auto& group : groups_) {
        for (const auto& option : group.args) names.push_back(option.param.name);
      }
      for (const Key& key : top_keys()) {
        if (std::string_view(key.path).find('.') == std::string_view::npos) names.emplace_back(key.path);
      }
      names.emplace_back("applications");
      return error(node, "unknown key '" + name + "'" + did_you_mean(name, names));
    }
    if (arg->param.name == "config") return error(node, "a configuration file cannot name another");
    try {
      Json value = checked_yaml(*arg, node, at(node));
      if (!value.is_null()) put(arg->param.name, std::move(value), node);
    } catch (const Error& e) {
      out_.errors.emplace_back(e.what());
    }
  }

  // The first to say something counts; lists add up.
  void put(const std::string& option, Json value, const YamlNode& node) {
    for (auto& before : out_.values) {
      if (before.option != option) continue;
      if (value.is_array()) {
        for (auto& item : value) {
          if (std::ranges::find(before.value, item) == before.value.end()) before.value.push_back(item);
        }
      } else if (before.value != value) {
        note(node,
             option + " " + value.dump() + ": " + before.value.dump() + " of " + before.where + " counts");
      }
      return;
    }
    out_.values.push_back({option, std::move(value), at(node)});
  }

  // A key of the other form. `shown`: where it stands, for messages.
  void known(const std::vector<Key>& keys, const Key& key, const YamlNode& node, const std::string& shown) {
    if (key.form == Form::kFree) {
      if (node.kind != Kind::kMap && node.kind != Kind::kNull)
        error(node, "'" + shown + "': expected names and values");
      if (*key.note != 0) note(node, "'" + shown + "': " + key.note);
      return;
    }
    if (key.form == Form::kMap) {
      if (node.kind == Kind::kNull) return;
      return map(keys, node, key.path, shown);
    }
    ArgSpec spec = arg(shown, key.type, nullptr, "");
    spec.param.min = key.min;
    if (key.type == ParamType::kString) spec.param.min.reset();
    spec.param.choices = key.choices;
    Json value;
    try {
      value = checked_yaml(spec, node, at(node));
    } catch (const Error& e) {
      out_.errors.emplace_back(e.what());
      return;
    }
    if (value.is_null()) return;
    if (*key.note != 0) note(node, "'" + shown + "': " + key.note);
    if (*key.option == 0) return;
    if (key.scale != 1) {
      // However little, it is a limit: 0 would be none.
      constexpr double kMost = 9e15;
      const double scaled = std::clamp(std::round(value.get<double>() * key.scale), -kMost, kMost);
      value = static_cast<int64_t>(value.get<double>() > 0 ? std::max(scaled, 1.0) : scaled);
    }
    const ArgSpec* own = find_arg(groups_, key.option);
    TW_CHECK(own != nullptr, std::string("'") + key.path + "' sets an option that there is not");
    ParamSpec limits = own->param;
    limits.name = shown;
    try {
      value = check_param(limits, value, at(node));
    } catch (const Error& e) {
      out_.errors.emplace_back(e.what());
      return;
    }
    put(key.option, std::move(value), node);
  }

  void map(const std::vector<Key>& keys, const YamlNode& node, const std::string& path,
           const std::string& shown) {
    if (node.kind != Kind::kMap) return error(node, "'" + shown + "': expected names and values");
    const std::string prefix = path.empty() ? "" : path + ".";
    for (const auto& [key, child] : node.map) {
      const auto found = std::ranges::find(keys, prefix + key, &Key::path);
      if (found == keys.end()) {
        unknown(keys, prefix, key, child, shown);
      } else {
        known(keys, *found, child, shown + "." + key);
      }
    }
  }

  void unknown(const std::vector<Key>& keys, const std::string& prefix, const std::string& key,
               const YamlNode& node, const std::string& shown) {
    std::vector<std::string> names;
    for (const Key& known : keys) {
      std::string_view name = known.path;
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      if (name.find('.') == std::string_view::npos) names.emplace_back(name);
    }
    error(node, "'" + shown + "': unknown key '" + key + "'" + did_you_mean(key, names));
  }

  static const YamlNode* find(const YamlNode& node, std::string_view key) {
    const auto found = std::ranges::find(node.map, key, &YamlEntry::first);
    return found == node.map.end() ? nullptr : &found->second;
  }
  // "" for what is not there or no plain value.
  static std::string text(const YamlNode& node, std::string_view key) {
    const YamlNode* value = find(node, key);
    return value == nullptr ? "" : value->scalar;
  }

  static std::optional<bool> flag(const YamlNode& node, std::string_view key) {
    const YamlNode* value = find(node, key);
    const Json given = value == nullptr ? Json() : yaml_to_json(*value);
    return given.is_boolean() ? std::optional(given.get<bool>()) : std::nullopt;
  }

  void applications(const YamlNode& list) {
    if (list.kind != Kind::kList) return error(list, "'applications': expected a list");
    bool model = false;
    for (size_t i = 0; i < list.list.size(); ++i) {
      const std::string shown = "applications[" + std::to_string(i) + "]";
      application(list.list[i], shown);
      const std::string kind = text(list.list[i], "import_path");
      model |= kind == "model" || kind == "sampler";
    }
    if (!model) error(list, "'applications': none of them is a model (import_path: model)");
  }

  void application(const YamlNode& node, const std::string& shown) {
    if (node.kind != Kind::kMap) return error(node, "'" + shown + "': expected names and values");
    static const std::vector<std::string> kinds = {"server", "model", "sampler", "processor"};
    static const std::vector<std::string> names = {"name", "route_prefix", "import_path", "args",
                                                   "deployments"};
    for (const auto& [key, child] : node.map) {
      if (std::ranges::find(names, key) == names.end())
        error(child, "'" + shown + "': unknown key '" + key + "'" + did_you_mean(key, names));
    }
    const YamlNode* path = find(node, "import_path");
    if (path == nullptr || find(node, "name") == nullptr)
      return error(node, "'" + shown + "': needs 'name' and 'import_path'");
    const std::string kind = path->scalar;
    if (std::ranges::find(kinds, kind) == kinds.end())
      return error(*path,
                   "'" + shown + ".import_path': unknown kind '" + kind + "'" + did_you_mean(kind, kinds));
    if (kind == "processor") note(node, "'" + shown + "': data is processed by the client here");
    const YamlNode* args = find(node, "args");
    if (args == nullptr || args->kind == Kind::kNull) {
      if (kind == "model" || kind == "sampler") error(node, "'" + shown + "': needs 'args'");
      return;
    }
    arguments(kind, *args, shown + ".args");
  }

  void arguments(const std::string& kind, const YamlNode& args, const std::string& shown) {
    if (args.kind != Kind::kMap) return error(args, "'" + shown + "': expected names and values");
    YamlNode rest = args;
    if (kind == "server") {
      if (const YamlNode* models = find(args, "supported_models")) supported(*models, shown);
    } else {
      needs(args, shown, {"device_group", "device_mesh"});
    }
    if (kind == "model") needs(args, shown, {"model_id", "backend"});
    if (kind == "sampler") needs(args, shown, {"model_id", "sampler_type"});
    if (const YamlNode* id = find(args, "model_id"); id != nullptr && kind != "processor") {
      base_model(*id, shown);
      std::erase_if(rest.map, [](const YamlEntry& e) { return e.first == "model_id"; });
    }
    std::erase_if(rest.map, [](const YamlEntry& e) { return e.first == "supported_models"; });
    if (const YamlNode* queue = find(args, "queue_config"); queue != nullptr) {
      if (flag(*queue, "enabled") == false) {
        note(*queue, "'" + shown + ".queue_config': not enabled, so it sets no limits");
        std::erase_if(rest.map, [](const YamlEntry& e) { return e.first == "queue_config"; });
      }
    }
    map(application_keys(kind), rest, "", shown);
  }

  void needs(const YamlNode& args, const std::string& shown, const std::vector<const char*>& keys) {
    for (const char* key : keys) {
      if (find(args, key) == nullptr) error(args, "'" + shown + "': needs '" + key + "'");
    }
  }

  void supported(const YamlNode& list, const std::string& shown) {
    if (list.kind != Kind::kList) return error(list, "'" + shown + ".supported_models': expected a list");
    for (const auto& item : list.list) {
      const std::string name = item.kind == Kind::kMap ? text(item, "model_name") : item.scalar;
      if (name.empty()) {
        error(item, "'" + shown + ".supported_models': expected a name, or {model_name: a name}");
      } else {
        put("model_name", Json::array({name}), item);
      }
    }
  }

  // "ms://Qwen/Qwen3.5-4B": clients may say it with and without the hub.
  void base_model(const YamlNode& node, const std::string& shown) {
    const std::string full = node.scalar;
    const size_t scheme = full.find("://");
    const std::string id = scheme == std::string::npos ? full : full.substr(scheme + 3);
    if (node.kind != Kind::kScalar || id.empty())
      return error(node, "'" + shown + ".model_id': expected a name");
    for (const auto& before : out_.values) {
      if (before.option == "model_id" && before.value != id) {
        return error(node, "'" + shown + ".model_id': '" + id + "' is a second base model beside '" +
                               before.value.get<std::string>() + "' of " + before.where +
                               "; this server keeps one");
      }
    }
    put("model_id", id, node);
    for (const auto& name : {id, full}) put("model_name", Json::array({name}), node);
  }

  void check_persistence(const YamlNode& root) {
    const YamlNode* telemetry = find(root, "telemetry");
    if (telemetry != nullptr && flag(*telemetry, "enabled") == true)
      note(*telemetry, "'telemetry': nothing is sent over OTLP; /metrics has the figures for Prometheus");
    const YamlNode* persistence = find(root, "persistence");
    if (persistence == nullptr || persistence->kind != Kind::kMap) return;
    const std::string mode = text(*persistence, "mode"), file = text(*persistence, "file_path");
    if (mode == "redis") {
      return error(*find(*persistence, "mode"),
                   "'persistence.mode': this server keeps its state in a folder of its own; use 'file'");
    }
    if (mode == "file") {
      if (file.empty()) return error(*persistence, "'persistence': mode 'file' needs 'file_path'");
      const std::string folder = file.ends_with(".json") ? file.substr(0, file.size() - 5) : file;
      put("data_dir", folder, *persistence);
      return note(*persistence, "'persistence': the state is kept in the folder " + folder);
    }
    note(*persistence, "'persistence': the state is on the disk always, in data_dir");
  }

  std::string name_;
  const std::vector<ArgGroup>& groups_;
  ServerConfig out_;
};

}  // namespace

ServerConfig read_server_config(std::string_view text, const std::string& name,
                                const std::vector<ArgGroup>& groups) {
  return ConfigReader(name, groups).read(text);
}

}  // namespace twinkle::serve
