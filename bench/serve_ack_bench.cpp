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
#include <fcntl.h>

#include <cstdio>
#include <fstream>

#include "bench/http_load.h"
#include "bench/train_body.h"
#include "twinkle/core/json.h"

namespace twinkle::bench {
namespace {

// Records a second that a log can make durable when `group` of them come at a time.
double durable_records_per_s(const std::string& folder, size_t bytes, size_t group) {
  const std::string path = folder + "/serve_ack_bench.tmp";
  const std::string records(bytes * group, 'x');
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw unavailable("[bench] cannot write to '" + folder + "'");
  size_t groups = 0;
  off_t end = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < 1.5) {
    if (::pwrite(fd, records.data(), records.size(), end) != static_cast<ssize_t>(records.size()) ||
        ::fdatasync(fd) != 0)
      throw unavailable("[bench] cannot write to '" + folder + "'");
    end += static_cast<off_t>(records.size());
    ++groups;
  }
  const double seconds = seconds_since(start);
  ::close(fd);
  ::unlink(path.c_str());
  return static_cast<double>(groups * group) / seconds;
}

int run(int argc, char** argv) {
  const Options options(argc, argv, 3);
  const bool proto = options.text("--wire", "json") == "proto";
  const auto requests = static_cast<size_t>(options.number("--requests", 2000));
  const auto connections = static_cast<size_t>(options.number("--connections", 16));
  const std::string key = options.text("--key", "");
  std::vector<std::string> models;
  std::ifstream file(argv[2]);
  for (std::string line; std::getline(file, line);) models.push_back(line);
  if (models.size() < connections) throw invalid_argument("[bench] there are fewer models than connections");

  const int64_t rows = rows_of_json(options.number("--body", 41000));
  const auto rest = std::make_shared<const std::string>(proto ? proto_rest(rows) : json_rest(rows));
  const size_t record = proto_rest(rows).size();
  std::vector<int64_t> numbers(connections);
  std::vector<double> ms;
  size_t sent = 0, failed = 0, body_bytes = 0;
  int bad_status = 0;
  HttpLoad load(std::stoi(argv[1]), connections);
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  load.run(
      [&](size_t i) -> std::optional<Outgoing> {
        if (sent == requests) return std::nullopt;
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
  const double seconds = seconds_since(start), client_cpu = cpu_seconds() - cpu;
  Json out = {{"requests", requests},
              {"failed", failed},
              {"bad_status", bad_status},
              {"body_bytes", body_bytes},
              {"requests_per_s", static_cast<double>(requests - failed) / seconds},
              {"p50_ms", percentile(ms, 0.5)},
              {"p99_ms", percentile(ms, 0.99)},
              {"max_ms", percentile(ms, 1)},
              {"client_cpus", client_cpu / seconds}};
  if (const std::string folder = options.text("--folder", ""); !folder.empty())
    out["limit_per_s"] = durable_records_per_s(folder, record, connections);
  std::printf("%s\n", out.dump().c_str());
  return failed == 0 ? 0 : 1;
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
