// deps: serve
// Any bytes as the server's configuration file. Reading throws nothing; whatever is said is told as an error,
// a note or a value of an option that there is, as its type and limits have it; and the values, written as
// options of our own, are read as they are.
#include <set>

#include "fuzz/fuzzing.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/server_config.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

const std::vector<ArgGroup>& groups() {
  const auto number = [](const char* name, double least, double most) {
    ArgSpec out = arg(name, ParamType::kInt, 1, "");
    out.param.min = least;
    out.param.max = most;
    return out;
  };
  const auto list = [](const char* name) {
    ArgSpec out = arg(name, ParamType::kStringList, nullptr, "");
    out.repeats = true;
    return out;
  };
  static const std::vector<ArgGroup> all = [&] {
    ArgSpec config = arg("config", ParamType::kString, nullptr, ""),
            dtype = arg("dtype", ParamType::kString, "auto", ""),
            rate = arg("limit_requests_per_second", ParamType::kFloat, 0.0, "");
    config.aliases = {"server_config"};
    dtype.param.choices = {"auto", "fp32", "bf16", "fp16"};
    rate.param.min = 0;
    return std::vector<ArgGroup>{
        {"ServerArgs",
         "",
         {config, arg("model_id", ParamType::kString, nullptr, ""), list("model_name"),
          arg("data_dir", ParamType::kString, "d", ""), arg("host", ParamType::kString, "h", ""),
          number("port", 0, 65535), list("api_key"), number("session_timeout", 0, 1e9),
          arg("json", ParamType::kBool, false, "")}},
        {"LimitArgs",
         "",
         {rate, number("limit_bytes_in_flight", 0, 1e15), number("limit_models", 0, 1e9),
          number("limit_tokens_per_minute", 0, 1e15)}},
        {"EngineArgs", "", {dtype, number("models_in_memory", 1, 100000)}}};
  }();
  return all;
}

void check(const ServerConfig& config) {
  std::set<std::string> seen;
  for (const ConfigValue& value : config.values) {
    const ArgSpec* spec = find_arg(groups(), value.option);
    require(spec != nullptr && spec->param.name == value.option && value.option != "config");
    require(seen.insert(value.option).second);
    require(check_param(spec->param, value.value, "fuzz") == value.value);
    require(value.where.starts_with("s.yaml line "));
  }
  for (const auto& error : config.errors) require(error.starts_with("[s.yaml"));
  for (const auto& note : config.notes) require(note.starts_with("s.yaml line "));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ServerConfig config =
      read_server_config({reinterpret_cast<const char*>(data), size}, "s.yaml", groups());
  check(config);
  std::string own;
  for (const auto& value : config.values) own += value.option + ": " + value.value.dump() + "\n";
  const ServerConfig again = read_server_config(own, "s.yaml", groups());
  require(again.errors.empty() && again.notes.empty());
  require(std::ranges::equal(again.values, config.values, [](const ConfigValue& a, const ConfigValue& b) {
    return a.option == b.option && a.value == b.value;
  }));
  return 0;
}
