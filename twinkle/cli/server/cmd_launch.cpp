// `twinkle-server launch`.
#include <dlfcn.h>
#include <signal.h>

#include "twinkle/cli/command.h"
#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

std::unique_ptr<serve::Engine> load_engine(const serve::EngineOptions& options) {
  const std::string path = folder_of_program() + "/../lib/libtwinkle_server_engine.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw unavailable(std::string("[twinkle-server] cannot load the engine: ") + ::dlerror());
  const auto make = reinterpret_cast<serve::MakeEngineFn>(::dlsym(library, "twinkle_make_server_engine"));
  if (make == nullptr) throw unavailable("[twinkle-server] '" + path + "' is not this program's engine");
  return std::unique_ptr<serve::Engine>(make(options));
}

void say(bool json, const Json& event, const std::string& text) {
  if (json) {
    write_json(event);
  } else {
    write_out(text + "\n");
  }
  flush_out();
}

int launch(const ParsedArgs& args) {
  const LaunchPlan plan = launch_plan(args);
  const bool json = args.get_bool("json");
  // Before any thread is there, so that only this one hears of them.
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGINT);
  ::sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // as of a full disk
  serve::Server server(plan.server, [&plan] { return load_engine(plan.engine); });
  const std::string scheme = plan.server.http.tls_cert.empty() ? "http://" : "https://";
  const std::string address = scheme + plan.server.http.host + ":" + std::to_string(server.port());
  Json listening = {{"event", "listening"}, {"address", address}};
  if (!server.new_key().empty()) listening["api_key"] = server.new_key();
  say(json, listening, "listening on " + address);
  if (!server.new_key().empty() && !json) write_out("key, shown once: " + server.new_key() + "\n");
  flush_out();
  for (bool ready = false;;) {
    const timespec moment{.tv_sec = 0, .tv_nsec = 100'000'000};
    if (::sigtimedwait(&stop, nullptr, &moment) > 0) break;
    if (const std::string error = server.engine_error(); !error.empty()) throw unavailable(error);
    if (!ready && server.ready()) {
      ready = true;
      say(json, {{"event", "ready"}}, "ready");
    }
  }
  say(json, {{"event", "stopping"}}, "stopping");
  return 0;
}

const AddServerCommand add_launch({
    .name = "launch",
    .summary = "Start the server",
    .usage = "--model-id PATH [options]",
    .description =
        "Listens at once and serves as soon as the weights are loaded: /readyz says when. The official "
        "tinker "
        "Python package works with it: set TINKER_BASE_URL to the address and TINKER_API_KEY to a key. What "
        "was acknowledged survives kill -9. Ctrl-C stops in order.",
    .groups = launch_groups,
    .run = launch,
    .order = 10,
    .read_config = read_config_file,
});

}  // namespace
}  // namespace twinkle::cli
