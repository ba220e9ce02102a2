// The program `twinkle-server`. It links no torch, so it listens within milliseconds; the library that
// computes (libtwinkle_server_engine.so) is loaded beside, with the weights, on a thread of its own.
#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "twinkle/cli/command.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/args.h"
#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/serve/server.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

ArgSpec number(std::string name, int64_t value, double least, double most, std::string help) {
  ArgSpec out = arg(std::move(name), ParamType::kInt, value, std::move(help));
  out.param.min = least;
  out.param.max = most;
  return out;
}

std::vector<ArgGroup> launch_groups() {
  ArgGroup server{"ServerArgs", "Server", {}};
  ArgSpec model = required_arg("model_id", ParamType::kString, "Base model: a folder or a .gguf file.");
  model.value_name = "PATH";
  ArgSpec data = arg("data_dir", ParamType::kString, "twinkle-data",
                     "Where keys, checkpoints and everything that was accepted are kept.");
  data.value_name = "PATH";
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
  server.args = {
      model,
      arg("model_name", ParamType::kString, nullptr, "Another name under which clients know the model."),
      data,
      arg("host", ParamType::kString, "127.0.0.1", "Address to listen on."),
      number("port", 8000, 0, 65535, "Port to listen on; 0: any that is free."),
      key,
      url,
      flag,
      number("token_seconds", 3600, 1, 30 * 86400,
             "How long a token holds that a key is exchanged for (client flag pjwt_auth_enabled)."),
      arg("json", ParamType::kBool, false, "Print JSON, one line an event.")};
  ArgGroup engine{"EngineArgs", "Engine", {}};
  ArgSpec dtype = arg("dtype", ParamType::kString, "auto", "Of the base model's weights in memory.");
  dtype.param.choices = {"auto", "fp32", "bf16", "fp16"};
  engine.args = {
      dtype, number("max_rank", 128, 1, 4096, "Largest rank of a LoRA adapter."),
      number("models_in_memory", 32, 1, 100000,
             "Adapters in training that stay in memory; others are written out and come back when used."),
      number("tokens_per_pass", 2048, 1, 1 << 20, "Most tokens of a shared training pass."),
      number("kv_cache_mb", 0, 0, 1 << 24,
             "Memory of keys and values for sampling; 0: 30 % of what is available.")};
  return {server, engine};
}

constexpr const char* kOverview =
    "Twinkle's server: many people train and sample on one base model, through the Tinker API.\n\n"
    "Usage: twinkle-server COMMAND [options]\n\nCommands:\n"
    "  launch   Start the server\n\n"
    "Options of a command: twinkle-server COMMAND --help.\n\n"
    "First step:\n  twinkle-server launch --model-id SmolLM2.gguf\n";

std::string launch_help() {
  return "Usage: twinkle-server launch --model-id PATH [options]\n\n" +
         wrap_text(
             "Listens at once and serves as soon as the weights are loaded: /readyz says when. The official "
             "tinker Python package works with it: set TINKER_BASE_URL to the address and TINKER_API_KEY to "
             "a key. What was acknowledged survives kill -9. Ctrl-C stops in order.",
             0, 100) +
         "\n\n" + render_args_help(launch_groups(), 100);
}

std::unique_ptr<serve::Engine> load_engine(const serve::EngineOptions& options) {
  const std::string path = folder_of_program() + "/../lib/libtwinkle_server_engine.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw unavailable(std::string("[twinkle-server] cannot load the engine: ") + ::dlerror());
  const auto make = reinterpret_cast<serve::MakeEngineFn>(::dlsym(library, "twinkle_make_server_engine"));
  if (make == nullptr) throw unavailable("[twinkle-server] '" + path + "' is not this program's engine");
  return std::unique_ptr<serve::Engine>(make(options));
}

class Launch {
 public:
  explicit Launch(const ParsedArgs& args) : json_(args.get_bool("json")) {
    const std::string model = args.get_string("model_id");
    if (!fs::exists(model)) throw not_found("[--model-id] there is no '" + model + "'");
    const std::string absolute = fs::absolute(model).lexically_normal().string();
    options_.data_dir = args.get_string("data_dir");
    options_.http.host = args.get_string("host");
    options_.http.port = static_cast<int>(args.get_int("port"));
    if (args.has("api_key")) options_.api_keys = args.get_strings("api_key");
    for (const auto& key : options_.api_keys) {
      if (!key.starts_with("tml-"))
        throw invalid_argument("[--api-key] a key must begin with tml-, or the client refuses to send it");
    }
    if (args.has("public_url")) options_.tinker.public_url = args.get_string("public_url");
    options_.tinker.token_seconds = static_cast<double>(args.get_int("token_seconds"));
    for (const auto& flag :
         args.has("client_flag") ? args.get_strings("client_flag") : std::vector<std::string>()) {
      const size_t equals = flag.find('=');
      if (equals == std::string::npos)
        throw invalid_argument("[--client-flag] must be NAME=VALUE, got '" + flag + "'");
      options_.tinker.client_flags[flag.substr(0, equals)] =
          parse_json(flag.substr(equals + 1), "--client-flag");
    }
    serve::client_flags(options_.tinker.client_flags);
    auto& names = options_.tinker.model_names;
    if (args.has("model_name")) names.push_back(args.get_string("model_name"));
    for (const auto& name : {model, absolute, fs::path(absolute).filename().string()}) names.push_back(name);
    if (fs::exists(absolute + "/tokenizer.json")) options_.tinker.tokenizer_id = absolute;
    engine_ = {.model = absolute,
               .dtype = args.get_string("dtype"),
               .spill_dir = options_.data_dir + "/spill",
               .models_in_memory = args.get_int("models_in_memory"),
               .max_rank = args.get_int("max_rank"),
               .tokens_per_pass = args.get_int("tokens_per_pass"),
               .kv_cache_mb = args.get_int("kv_cache_mb")};
  }

  int run() {
    // Before any thread is there, so that only this one hears of them.
    sigset_t stop;
    ::sigemptyset(&stop);
    ::sigaddset(&stop, SIGINT);
    ::sigaddset(&stop, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    serve::Server server(options_, [engine = engine_] { return load_engine(engine); });
    const std::string address = "http://" + options_.http.host + ":" + std::to_string(server.port());
    Json listening = {{"event", "listening"}, {"address", address}};
    if (!server.new_key().empty()) listening["api_key"] = server.new_key();
    say(listening, "listening on " + address);
    if (!server.new_key().empty() && !json_) write_out("key, shown once: " + server.new_key() + "\n");
    flush_out();
    for (bool ready = false;;) {
      const timespec moment{.tv_sec = 0, .tv_nsec = 100'000'000};
      if (::sigtimedwait(&stop, nullptr, &moment) > 0) break;
      if (const std::string error = server.engine_error(); !error.empty()) throw unavailable(error);
      if (!ready && server.ready()) {
        ready = true;
        say({{"event", "ready"}}, "ready");
      }
    }
    say({{"event", "stopping"}}, "stopping");
    return 0;
  }

 private:
  void say(const Json& event, const std::string& text) const {
    if (json_) {
      write_json(event);
    } else {
      write_out(text + "\n");
    }
    flush_out();
  }

  bool json_;
  serve::ServerOptions options_;
  serve::EngineOptions engine_;
};

int run(const std::vector<std::string>& words) {
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (words.empty() || is_help(words[0]) || words[0] == "help") {
    write_out(words.size() > 1 && words[1] == "launch" ? launch_help() : kOverview);
    return 0;
  }
  if (words[0] == "--version") {
    write_out("twinkle-server " + version() + "\n");
    return 0;
  }
  if (words[0] != "launch") {
    throw invalid_argument("[twinkle-server] unknown command '" + words[0] + "'" +
                           did_you_mean(words[0], std::vector<std::string>{"launch"}));
  }
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (std::ranges::any_of(rest, is_help)) {
    write_out(launch_help());
    return 0;
  }
  return Launch(parse_args(launch_groups(), {.argv = rest,
                                             .environment = process_environment(),
                                             .env_file = default_env_file(),
                                             .command = "twinkle-server launch"}))
      .run();
}

}  // namespace
}  // namespace twinkle::cli

int main(int argc, char** argv) {
  try {
    const int code = twinkle::cli::run(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    twinkle::cli::flush_out();
    return code;
  } catch (const std::exception& e) {
    twinkle::cli::write_error(std::string("error: ") + e.what() + "\n");
    return twinkle::cli::exit_code(e);
  }
}
