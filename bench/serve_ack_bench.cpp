// deps: core
// How fast a server acknowledges operations. CONNECTIONS clients, each with a model of its own, send
// forward_backward and wait for the name of its result, one request after another; the wire is JSON as the
// tinker package writes it, or protobuf. Nobody waits for results. Beside it stands the machine's limit: as
// many records of that size, made durable with one sync a group of CONNECTIONS, in FOLDER. bench/compare
// serve runs it on twinkle-server and on the peer.
//
//   serve_ack_bench PORT MODELS [options]
//   --key KEY, --wire json|proto, --requests N, --connections N, --body BYTES, --folder FOLDER
//
// MODELS: a file with a model id a line, one for each connection at least. Prints one JSON object.
#include <cstdio>
#include <limits>

#include "bench/train_load.h"
#include "twinkle/core/json.h"

namespace twinkle::bench {
namespace {

int run(int argc, char** argv) {
  const Options options(argc, argv, 3);
  const bool proto = options.text("--wire", "json") == "proto";
  const auto requests = static_cast<size_t>(options.number("--requests", 2000));
  const auto connections = static_cast<size_t>(options.number("--connections", 16));
  const std::string key = options.text("--key", "");
  const std::vector<std::string> models = models_of(argv[2], connections);
  const int64_t rows = rows_of_json(options.number("--body", 41000));
  HttpLoad load(std::stoi(argv[1]), connections);
  const double cpu = cpu_seconds();
  Sent sent = send_training(load, models, key, rows, proto, requests);
  const double client_cpu = cpu_seconds() - cpu;
  Json out = {{"requests", requests},
              {"failed", sent.failed},
              {"bad_status", sent.bad_status},
              {"body_bytes", sent.body_bytes},
              {"requests_per_s", static_cast<double>(requests - sent.failed) / sent.seconds},
              {"p50_ms", percentile(sent.ms, 0.5)},
              {"p99_ms", percentile(sent.ms, 0.99)},
              {"max_ms", percentile(sent.ms, 1)},
              {"client_cpus", client_cpu / sent.seconds}};
  if (const std::string folder = options.text("--folder", ""); !folder.empty()) {
    size_t done = 0;
    const double seconds = durable_seconds(folder, proto_rest(rows).size(), connections,
                                           std::numeric_limits<size_t>::max(), 1.5, &done);
    out["limit_per_s"] = static_cast<double>(done) / seconds;
  }
  std::printf("%s\n", out.dump().c_str());
  return sent.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace twinkle::bench

int main(int argc, char** argv) try {
  if (argc < 3) throw twinkle::invalid_argument("usage: serve_ack_bench PORT MODELS [options]");
  return twinkle::bench::run(argc, argv);
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
