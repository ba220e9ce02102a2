#include "twinkle/cli/server/launch_options.h"

#include <algorithm>
#include <filesystem>

#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/server_config.h"

namespace twinkle::cli {

namespace fs = std::filesystem;

ArgSpec whole_number(std::string name, int64_t value, double least, double most, std::string help) {
  ArgSpec out = arg(std::move(name), ParamType::kInt, value, std::move(help));
  out.param.min = least;
  out.param.max = most;
  return out;
}

ArgSpec path_option(std::string name, Json value, std::string help) {
  ArgSpec out = arg(std::move(name), ParamType::kString, std::move(value), std::move(help));
  out.value_name = "PATH";
  return out;
}

ArgSpec data_dir_option() {
  return path_option("data_dir", "twinkle-data",
                     "Where keys, checkpoints and everything that was accepted are kept.");
}

std::vector<ArgGroup> launch_groups() {
  ArgGroup server{"ServerArgs", "Server", {}};
  ArgSpec config =
      path_option("config", nullptr,
                  "YAML file with these options, or the Python Twinkle's server_config.yaml. What "
                  "is given here is stronger, the environment weaker.");
  config.aliases = {"server_config"};
  ArgSpec names = arg("model_name", ParamType::kStringList, nullptr,
                      "Other names under which clients know the model (may be given several times).");
  names.repeats = true;
  ArgSpec key =
      arg("api_key", ParamType::kStringList, nullptr,
          "Keys to let in, beginning with tml- (may be given several times). Without one, and with none "
          "in the data folder, a key is made and shown once.");
  key.repeats = true;
  ArgSpec url =
      arg("public_url", ParamType::kString, nullptr,
          "Address under which clients reach the server, for the addresses of downloads; without it, "
          "the Host that a client sends.");
  url.value_name = "URL";
  ArgSpec flag =
      arg("client_flag", ParamType::kStringList, nullptr,
          "What client/config tells the tinker package, as NAME=VALUE (may be given several times), "
          "e.g. pjwt_auth_enabled=true.");
  flag.repeats = true;
  ArgSpec hosts =
      arg("allowed_host", ParamType::kStringList, nullptr,
          "Names a Host header may have beside this machine's own, such as a proxy's (may be given "
          "several times). Without any, a server that listens to others takes every name.");
  hosts.repeats = true;
  ArgSpec rate = arg("limit_requests_per_second", ParamType::kFloat, 0.0, "Requests a second of a key.");
  rate.param.min = 0;
  server.args = {
      config,
      path_option("model_id", nullptr, "Base model: a folder or a .gguf file."),
      names,
      data_dir_option(),
      arg("host", ParamType::kString, "127.0.0.1", "Address to listen on."),
      whole_number("port", 8000, 0, 65535, "Port to listen on; 0: any that is free."),
      key,
      path_option("tls_cert", nullptr,
                  "Certificate chain in PEM: the server speaks HTTPS. Read at the start."),
      path_option("tls_key", nullptr, "The certificate's key in PEM."),
      arg("path_prefix", ParamType::kString, nullptr,
          "Path under which a proxy shows the server, such as /twinkle; it may hand it on or not."),
      hosts,
      url,
      flag,
      whole_number("token_seconds", 3600, 1, 30 * 86400,
                   "How long a token holds that a key is exchanged for (client flag pjwt_auth_enabled)."),
      whole_number("session_timeout", 86400, 0, 1e9,
                   "Seconds without a heartbeat or a request after which a session ends: what it saved "
                   "stays, its models leave the memory. Clients tell every 10 s. 0: never."),
      whole_number("result_seconds", 3600, 1, 30 * 86400,
                   "How long the result of an operation can be fetched, also again; a start counts anew."),
      whole_number(
          "log_mb", 256, 1, 1 << 20,
          "Size of the log of operations from which on it is written anew, without what nobody needs "
          "any more."),
      whole_number(
          "snapshot_operations", 64, 1, 1e6,
          "Operations of a model between two snapshots: with fewer, less is carried out again after a "
          "crash."),
      path_option("access_log", nullptr,
                  "File for one JSON line a request (never a key, body or query); '-': stderr. It "
                  "becomes PATH.1 at 64 MiB."),
      arg("json", ParamType::kBool, false, "Print JSON, one line an event.")};
  ArgGroup limits{"LimitArgs", "Limits of keys that have none of their own (0: none)", {}};
  limits.args = {rate,
                 whole_number("limit_bytes_in_flight", 0, 0, 1e15, "Bytes of bodies under way of a key."),
                 whole_number("limit_models", 0, 0, 1e9, "Models in training of an owner."),
                 whole_number("limit_checkpoint_bytes", 0, 0, 1e18, "Bytes of checkpoints of an owner."),
                 whole_number("limit_tokens_per_minute", 0, 0, 1e15,
                              "Tokens a minute of an owner: trained, read as prompts and sampled.")};
  ArgGroup engine{"EngineArgs", "Engine", {}};
  ArgSpec dtype = arg("dtype", ParamType::kString, "auto", "Of the base model's weights in memory.");
  dtype.param.choices = {"auto", "fp32", "bf16", "fp16"};
  engine.args = {
      dtype,
      whole_number("max_rank", 128, 1, 4096, "Largest rank of a LoRA adapter."),
      whole_number(
          "models_in_memory", 32, 1, 100000,
          "Adapters in training that stay in memory; others are written out and come back when used."),
      whole_number("tokens_per_pass", 2048, 1, 1 << 20, "Most tokens of a shared training pass."),
      whole_number("kv_cache_mb", 0, 0, 1 << 24,
                   "Memory of keys and values for sampling; 0: 30 % of what is available."),
      arg("accept_engine_change", ParamType::kBool, false,
          "Go on with models that were trained on another base model, --dtype or instruction set, though "
          "with other numbers.")};
  return {server, limits, engine};
}

std::vector<ConfigValue> read_config_file(const std::string& path) {
  const auto config = serve::read_server_config(read_file(path), path, launch_groups());
  if (!config.errors.empty()) {
    std::string all;
    for (const auto& error : config.errors) all += (all.empty() ? "" : "\n") + error;
    throw invalid_argument(all);
  }
  for (const auto& note : config.notes) write_error("note: " + note + "\n");
  return config.values;
}

LaunchPlan launch_plan(const ParsedArgs& args) {
  LaunchPlan plan;
  if (!args.has("model_id"))
    throw invalid_argument("[twinkle-server launch] needs --model-id: Base model: a folder or a .gguf file.");
  const std::string model = args.get_string("model_id"), from = args.source("model_id");
  if (!fs::exists(model)) {
    throw not_found("[" + (from == "command line" ? "--model-id" : from) + "] there is no '" + model +
                    "'; say with --model-id where the model lies, the name stays known to clients");
  }
  const std::string absolute = fs::absolute(model).lexically_normal().string();
  serve::ServerOptions& server = plan.server;
  server.data_dir = args.get_string("data_dir");
  server.http.host = args.get_string("host");
  server.http.port = static_cast<int>(args.get_int("port"));
  server.api_keys = args.get_strings("api_key");
  for (const auto& key : server.api_keys) {
    if (!key.starts_with("tml-"))
      throw invalid_argument("[--api-key] a key must begin with tml-, or the client refuses to send it");
  }
  server.limits = {.requests_per_second = args.get_float("limit_requests_per_second"),
                   .bytes_in_flight = args.get_int("limit_bytes_in_flight"),
                   .models = args.get_int("limit_models"),
                   .checkpoint_bytes = args.get_int("limit_checkpoint_bytes"),
                   .tokens_per_minute = args.get_int("limit_tokens_per_minute")};
  if (args.has("public_url")) server.tinker.public_url = args.get_string("public_url");
  server.tinker.token_seconds = static_cast<double>(args.get_int("token_seconds"));
  for (const auto& flag : args.get_strings("client_flag")) {
    const size_t equals = flag.find('=');
    if (equals == std::string::npos)
      throw invalid_argument("[--client-flag] must be NAME=VALUE, got '" + flag + "'");
    server.tinker.client_flags[flag.substr(0, equals)] = parse_json(flag.substr(equals + 1), "--client-flag");
  }
  serve::client_flags(server.tinker.client_flags);
  if (args.has("tls_cert") != args.has("tls_key"))
    throw invalid_argument("[--tls-cert] and --tls-key go together: one of them is missing");
  if (args.has("tls_cert")) {
    server.http.tls_cert = args.get_string("tls_cert");
    server.http.tls_key = args.get_string("tls_key");
  }
  if (args.has("path_prefix")) {
    std::string prefix = args.get_string("path_prefix");
    while (prefix.ends_with('/')) prefix.pop_back();
    if (!prefix.empty() && !prefix.starts_with('/'))
      throw invalid_argument("[--path-prefix] must begin with '/', got '" + prefix + "'");
    server.path_prefix = prefix;
  }
  server.allowed_hosts = args.get_strings("allowed_host");
  server.session_timeout = static_cast<double>(args.get_int("session_timeout"));
  server.core.log_bytes = args.get_int("log_mb") << 20;
  server.core.result_seconds = static_cast<double>(args.get_int("result_seconds"));
  server.core.snapshot_operations = args.get_int("snapshot_operations");
  server.core.accept_engine_change = args.get_bool("accept_engine_change");
  if (args.has("access_log")) server.access_log = args.get_string("access_log");
  auto& names = server.tinker.model_names;
  names = args.get_strings("model_name");
  for (const auto& name : {model, absolute, fs::path(absolute).filename().string()}) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (fs::exists(absolute + "/tokenizer.json")) server.tinker.tokenizer_id = absolute;
  plan.engine = {.model = absolute,
                 .dtype = args.get_string("dtype"),
                 .spill_dir = server.data_dir + "/spill",
                 .models_in_memory = args.get_int("models_in_memory"),
                 .max_rank = args.get_int("max_rank"),
                 .tokens_per_pass = args.get_int("tokens_per_pass"),
                 .kv_cache_mb = args.get_int("kv_cache_mb")};
  return plan;
}

}  // namespace twinkle::cli
