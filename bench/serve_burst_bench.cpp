// deps: core
// What a heartbeat feels while large bodies arrive: BODIES forward_backward of SIZE bytes are sent over
// CONNECTIONS as fast as the server takes them, and every 10 ms a heartbeat is due, whose time counts from
// when it was due. Beside it stand a quiet second before, and the machine's limit: as many bytes written to
// FOLDER and synced once for each CONNECTIONS bodies.
//
//   serve_burst_bench PORT MODELS SESSION [options]
//   --key KEY, --wire json|proto, --bodies N, --size BYTES, --connections N, --folder FOLDER
//
// MODELS: a file with a model id a line, one for each connection at least. Prints one JSON object.
#include <cstdio>
#include <limits>

#include "bench/http_probe.h"
#include "bench/train_load.h"
#include "twinkle/core/json.h"

namespace twinkle::bench {
namespace {

int run(int argc, char** argv) {
  const Options options(argc, argv, 4);
  const bool proto = options.text("--wire", "json") == "proto";
  const auto bodies = static_cast<size_t>(options.number("--bodies", 208));
  const auto connections = static_cast<size_t>(options.number("--connections", 16));
  const std::string key = options.text("--key", "");
  const int port = std::stoi(argv[1]);
  const std::vector<std::string> models = models_of(argv[2], connections);
  const int64_t rows = rows_of_json(options.number("--size", 3'300'000));
  const auto heartbeat =
      http_request("/api/v1/session_heartbeat", key,
                   std::string(R"({"session_id":")") + argv[3] + R"(","type":"session_heartbeat"})");
  const auto quiet = probe_for(port, heartbeat, std::chrono::seconds(1));

  Probe probe(port, heartbeat);
  HttpLoad load(port, connections);
  Sent sent = send_training(load, models, key, rows, proto, bodies);
  const Probe::Seen beats = probe.stop();
  Json out = {{"bodies", bodies},
              {"failed", sent.failed + static_cast<size_t>(beats.failed)},
              {"bad_status", sent.bad_status},
              {"body_bytes", sent.body_bytes},
              {"seconds", sent.seconds},
              {"body_p50_ms", percentile(sent.ms, 0.5)},
              {"body_p99_ms", percentile(sent.ms, 0.99)},
              {"quiet_p99_ms", percentile(quiet.ms, 0.99)},
              {"heartbeats", beats.ms.size()},
              {"heartbeat_p50_ms", percentile(beats.ms, 0.5)},
              {"heartbeat_p99_ms", percentile(beats.ms, 0.99)},
              {"heartbeat_max_ms", percentile(beats.ms, 1)}};
  if (const std::string folder = options.text("--folder", ""); !folder.empty()) {
    size_t done = 0;
    out["limit_s"] = durable_seconds(folder, proto_rest(rows).size(), connections, bodies,
                                     std::numeric_limits<double>::infinity(), &done);
  }
  std::printf("%s\n", out.dump().c_str());
  return sent.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace twinkle::bench

int main(int argc, char** argv) try {
  if (argc < 4) throw twinkle::invalid_argument("usage: serve_burst_bench PORT MODELS SESSION [options]");
  return twinkle::bench::run(argc, argv);
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
