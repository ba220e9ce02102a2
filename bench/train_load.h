// What the benches of training requests share: models, a load of forward_backward, and what the disk can make
// durable.
#pragma once

#include <fcntl.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/http_load.h"
#include "bench/train_body.h"

namespace twinkle::bench {

/// The lines of a file with a model id a line; it has `at_least` so many.
inline std::vector<std::string> models_of(const std::string& path, size_t at_least) {
  std::vector<std::string> models;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) models.push_back(line);
  if (models.size() < at_least) throw invalid_argument("[bench] there are fewer models than connections");
  return models;
}

struct Sent {
  size_t failed = 0, body_bytes = 0;
  int bad_status = 0;
  double seconds = 0;
  std::vector<double> ms;  // from the first byte of a request to the last of its reply
};

/// `count` times forward_backward of `rows` rows, over all connections of `load`, each to the model of its
/// number.
inline Sent send_training(HttpLoad& load, const std::vector<std::string>& models, const std::string& key,
                          int64_t rows, bool proto, size_t count) {
  const auto rest = std::make_shared<const std::string>(proto ? proto_rest(rows) : json_rest(rows));
  std::vector<int64_t> numbers(models.size());
  Sent out;
  size_t sent = 0;
  const auto start = Clock::now();
  load.run(
      [&](size_t i) -> std::optional<Outgoing> {
        if (sent == count) return std::nullopt;
        ++sent;
        const std::string begin =
            proto ? proto_begin(models[i], ++numbers[i]) : json_begin(models[i], ++numbers[i]);
        out.body_bytes = begin.size() + rest->size();
        return http_request("/api/v1/forward_backward", key, begin, rest, proto);
      },
      [&](size_t, const Incoming& reply) {
        out.ms.push_back(1000 * reply.seconds);
        if (reply.status == 200 && !text_of(reply.body, "request_id").empty()) return;
        ++out.failed;
        out.bad_status = reply.status;
      });
  out.seconds = seconds_since(start);
  return out;
}

/// Seconds to make records of `bytes` durable in `folder`, one sync for each `group` of them: `count`
/// records, or for about `most_seconds`; how many there were goes to `done`.
inline double durable_seconds(const std::string& folder, size_t bytes, size_t group, size_t count,
                              double most_seconds, size_t* done) {
  const std::string path = folder + "/server_bench.tmp", record(bytes, 'x');
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool sound = fd >= 0;
  size_t written = 0;
  const auto start = Clock::now();
  while (sound && written < count && seconds_since(start) < most_seconds) {
    const size_t end = std::min(count, written + group);
    for (; sound && written < end; ++written)
      sound = ::write(fd, record.data(), record.size()) == static_cast<ssize_t>(record.size());
    sound = sound && ::fdatasync(fd) == 0;
  }
  const double seconds = seconds_since(start);
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  if (!sound) throw unavailable("[bench] cannot write to '" + folder + "'");
  *done = written;
  return seconds;
}

}  // namespace twinkle::bench
