// deps: serve
// What a client feels while the server writes its log anew: the longest wait for an acknowledgement, for a
// look at the queue, and for a small forward, in a quiet second and in those in which a log of SIZE MiB is
// replaced. An engine of plain numbers stands in, so that only the log is measured. The machine's limit is
// printed beside: writing and syncing as many bytes at once.
//
//   build/bench/log_rewrite_bench [SIZE MiB, 256] [FOLDER, .]: a folder is made there and removed
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/serve/core_testing.h"
#include "twinkle/core/clock.h"

namespace twinkle::serve {
namespace {

double ms_since(Clock::time_point begin) { return 1000 * twinkle::seconds_since(begin); }

struct Waits {
  double ack = 0, look = 0, forward = 0;
};

// The longest of each within a time.
class Prober {
 public:
  explicit Prober(Rig& rig) : rig_(rig), model_(rig.make_model("bob", "b:train:0")) {}
  Waits probe(double seconds) {
    Waits most;
    const auto begin = Clock::now();
    while (ms_since(begin) < seconds * 1000) {
      auto at = Clock::now();
      const std::string id = rig_.submit(Rig::call("bob", model_, ++seq_, {1}, true));
      most.ack = std::max(most.ack, ms_since(at));
      rig_.result(id, "bob");
      most.forward = std::max(most.forward, ms_since(at));
      at = Clock::now();
      rig_.core().counts();
      most.look = std::max(most.look, ms_since(at));
    }
    return most;
  }

 private:
  Rig& rig_;
  std::string model_;
  int64_t seq_ = 0;
};

double write_and_sync_ms(const std::string& path, int64_t size) {
  const std::string bytes(1 << 20, 'x');
  const auto begin = Clock::now();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  for (int64_t at = 0; at < size; at += static_cast<int64_t>(bytes.size())) {
    if (::write(fd, bytes.data(), bytes.size()) < 0) std::perror("write");
  }
  if (::fdatasync(fd) != 0) std::perror("fdatasync");
  ::close(fd);
  const double ms = ms_since(begin);
  ::unlink(path.c_str());
  return ms;
}

int run(const std::string& dir, int64_t mib) {
  const int64_t size = mib << 20;
  Rig rig(dir + "/data", {.gap_wait = std::chrono::milliseconds(5), .log_bytes = size});
  Prober prober(rig);
  const std::string model = rig.make_model("ann", "a:train:0");
  // Of each call the result stays, and what was asked may go.
  const std::vector<int32_t> tokens(100'000, 1);
  std::vector<std::string> sent;
  int64_t seq = 0;
  while (rig.core().counts().log_bytes < size - (2 << 20))
    rig.result(sent.emplace_back(rig.submit(Rig::call("ann", model, ++seq, tokens, true))), "ann");
  const Waits calm = prober.probe(2);
  const int64_t before = rig.core().counts().log_bytes;
  std::vector<Waits> storm;
  for (int i = 0; i < 3; ++i) rig.submit(Rig::call("ann", model, ++seq, tokens, true));
  const auto begin = Clock::now();
  while (rig.core().counts().log_bytes >= before && ms_since(begin) < 60'000)
    storm.push_back(prober.probe(0.2));
  storm.push_back(prober.probe(1));
  Waits most;
  for (const Waits& waits : storm) {
    most.ack = std::max(most.ack, waits.ack);
    most.look = std::max(most.look, waits.look);
    most.forward = std::max(most.forward, waits.forward);
  }
  const int64_t after = rig.core().counts().log_bytes;
  std::printf("log: %.0f MiB, %.0f MiB when it was written anew, %.1f s after it was due\n",
              static_cast<double>(before) / (1 << 20), static_cast<double>(after) / (1 << 20),
              ms_since(begin) / 1000);
  std::printf("longest wait, ms     quiet   while the log is replaced\n");
  std::printf("  acknowledgement %8.1f %8.1f\n", calm.ack, most.ack);
  std::printf("  look            %8.1f %8.1f\n", calm.look, most.look);
  std::printf("  forward         %8.1f %8.1f\n", calm.forward, most.forward);
  std::printf("writing and syncing as many bytes at once: %.1f ms\n",
              write_and_sync_ms(dir + "/copy", after));
  return 0;
}

}  // namespace
}  // namespace twinkle::serve

int main(int argc, char** argv) {
  const std::string dir = std::string(argc > 2 ? argv[2] : ".") + "/log_rewrite_bench.data";
  std::filesystem::remove_all(dir);
  const int result = twinkle::serve::run(dir, argc > 1 ? std::atoll(argv[1]) : 256);
  std::filesystem::remove_all(dir);
  return result;
}
