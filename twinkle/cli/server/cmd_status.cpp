// `twinkle-server status`.
#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"
#include "twinkle/core/units.h"
#include "twinkle/serve/http_client.h"

namespace twinkle::cli {
namespace {

std::vector<ArgGroup> status_groups() {
  ArgSpec url = arg("url", ParamType::kString, "http://127.0.0.1:8000", "Where the server listens.");
  ArgSpec key = arg("api_key", ParamType::kStringList, nullptr,
                    "A key with the scope admin; without one, only whether the server is ready.");
  return {{"StatusArgs", "Status", {url, key, arg("json", ParamType::kBool, false, "Print JSON.")}}};
}

std::string count(const Json& value) { return with_commas(value.get<int64_t>()); }

void show(const Json& s) {
  char fill[16];
  std::snprintf(fill, sizeof(fill), "%.0f %%", 100 * s.at("passes").at("fill").get<double>());
  write_out(table_text({{"model", s.at("model")},
                        {"ready", s.at("ready").get<bool>() ? "yes" : "no, the weights are being loaded"},
                        {"up for", count(s.at("uptime_seconds")) + " s"},
                        {"memory", bytes_text(s.at("memory_bytes"))},
                        {"connections", count(s.at("connections"))},
                        {"waiting", count(s.at("queue").at("operations")) + " operations"},
                        {"models", count(s.at("models").at("training")) + " in training, " +
                                       count(s.at("models").at("in_memory")) + " in memory"},
                        {"passes", count(s.at("passes").at("train")) + " of training (" + fill + " full), " +
                                       count(s.at("passes").at("sample")) + " of sampling"},
                        {"log", bytes_text(s.at("log").at("bytes"))}}));
  for (const auto& owner : s.at("owners")) {
    write_out("  " + owner.at("name").get<std::string>() + ": " + count(owner.at("models")) + " models, " +
              count(owner.at("checkpoints")) + " checkpoints (" + bytes_text(owner.at("checkpoint_bytes")) +
              "), " + count(owner.at("tokens_trained")) + " tokens trained, " +
              count(owner.at("tokens_sampled")) + " sampled, " + count(owner.at("waiting")) + " waiting\n");
  }
}

int status(const ParsedArgs& args) {
  const std::string url = args.get_string("url");
  const bool json = args.get_bool("json");
  const auto keys = args.get_strings("api_key");
  if (keys.empty()) {
    const bool ready = serve::http_get(url + "/readyz", {}).status == 200;
    if (json) {
      write_json({{"ready", ready}});
    } else {
      write_out(ready ? "ready\n" : "the weights are being loaded\n");
    }
    return ready ? 0 : 1;
  }
  const auto reply = serve::http_get(url + "/api/v1/status", {{"X-API-Key", keys.front()}});
  if (reply.status == 401) throw invalid_argument("[--api-key] the server does not know this key");
  if (reply.status == 403) throw invalid_argument("[--api-key] this key does not have the scope admin");
  if (reply.status != 200) throw unavailable("[status] the server answers " + std::to_string(reply.status));
  const Json body = parse_json(reply.body, url);
  if (json) {
    write_json(body, 2);
  } else {
    show(body);
  }
  return 0;
}

const AddServerCommand add_status({
    .name = "status",
    .summary = "Ask a running server how it does",
    .usage = "[--url http://127.0.0.1:8000] [--api-key KEY]",
    .description =
        "Exit code 0 when the server is ready. With a key of the scope admin: queue, models, passes, "
        "memory, and who uses what.",
    .groups = status_groups,
    .run = status,
    .order = 50,
});

}  // namespace
}  // namespace twinkle::cli
