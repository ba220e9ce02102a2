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
#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "bench/http_load.h"
#include "bench/http_probe.h"
#include "bench/train_body.h"
#include "twinkle/core/json.h"

namespace twinkle::bench {
namespace {

double write_and_sync_s(const std::string& folder, size_t bytes, size_t group, size_t count) {
  const std::string path = folder + "/serve_burst_bench.tmp";
  const std::string body(bytes, 'x');
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const auto start = Clock::now();
  for (size_t i = 0; i < count; ++i) {
    if (::write(fd, body.data(), body.size()) != static_cast<ssize_t>(body.size()))
      throw unavailable("[bench] cannot write to '" + folder + "'");
    if ((i + 1) % group == 0 || i + 1 == count) ::fdatasync(fd);
  }
  const double seconds = seconds_since(start);
  ::close(fd);
  ::unlink(path.c_str());
  return seconds;
}

int run(int argc, char** argv) {
  const Options options(argc, argv, 4);
  const bool proto = options.text("--wire", "json") == "proto";
  const auto bodies = static_cast<size_t>(options.number("--bodies", 208));
  const auto connections = static_cast<size_t>(options.number("--connections", 16));
  const std::string key = options.text("--key", "");
  const int port = std::stoi(argv[1]);
  std::vector<std::string> models;
  std::ifstream file(argv[2]);
  for (std::string line; std::getline(file, line);) models.push_back(line);
  if (models.size() < connections) throw invalid_argument("[bench] there are fewer models than connections");

  const int64_t rows = rows_of_json(options.number("--size", 3'300'000));
  const auto rest = std::make_shared<const std::string>(proto ? proto_rest(rows) : json_rest(rows));
  const auto heartbeat =
      http_request("/api/v1/session_heartbeat", key,
                   std::string(R"({"session_id":")") + argv[3] + R"(","type":"session_heartbeat"})");
  const auto quiet = probe_for(port, heartbeat, std::chrono::seconds(1));

  std::vector<int64_t> numbers(connections);
  std::vector<double> ms;
  size_t sent = 0, failed = 0, body_bytes = 0;
  int bad_status = 0;
  Probe probe(port, heartbeat);
  HttpLoad load(port, connections);
  const auto start = Clock::now();
  load.run(
      [&](size_t i) -> std::optional<Outgoing> {
        if (sent == bodies) return std::nullopt;
        ++sent;
        const std::string begin =
            proto ? proto_begin(models[i], ++numbers[i]) : json_begin(models[i], ++numbers[i]);
        body_bytes = begin.size() + rest->size();
        return http_request("/api/v1/forward_backward", key, begin, rest, proto);
      },
      [&](size_t, const Incoming& reply) {
        ms.push_back(1000 * reply.seconds);
        if (reply.status == 200 && !text_of(reply.body, "request_id").empty()) return;
        ++failed;
        bad_status = reply.status;
      });
  const double seconds = seconds_since(start);
  const Probe::Seen beats = probe.stop();
  Json out = {{"bodies", bodies},
              {"failed", failed + static_cast<size_t>(beats.failed)},
              {"bad_status", bad_status},
              {"body_bytes", body_bytes},
              {"seconds", seconds},
              {"body_p50_ms", percentile(ms, 0.5)},
              {"body_p99_ms", percentile(ms, 0.99)},
              {"quiet_p99_ms", percentile(quiet.ms, 0.99)},
              {"heartbeats", beats.ms.size()},
              {"heartbeat_p50_ms", percentile(beats.ms, 0.5)},
              {"heartbeat_p99_ms", percentile(beats.ms, 0.99)},
              {"heartbeat_max_ms", percentile(beats.ms, 1)}};
  if (const std::string folder = options.text("--folder", ""); !folder.empty())
    out["limit_s"] = write_and_sync_s(folder, proto_rest(rows).size(), connections, bodies);
  std::printf("%s\n", out.dump().c_str());
  return failed == 0 ? 0 : 1;
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
