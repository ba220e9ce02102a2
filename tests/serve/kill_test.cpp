// labels: slow bits
// kill -9 of a real process at random instants, over and over, while a client of four models sends, repeats
// and waits: what was acknowledged keeps its id, is carried out once, and the weights at the end are those of
// a run that nobody disturbed, byte for byte.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "tests/serve/core_testing.h"

namespace twinkle::serve {
namespace {

constexpr int kModels = 4, kRounds = 60;

std::string model_name(int m) { return "s:train:" + std::to_string(m); }

// The whole run from its beginning, as a client does that knows nothing of what came before. What is
// acknowledged goes into `acks`.
void run_client(const std::string& dir, const std::string& acks) {
  Rig rig(dir, {.gap_wait = std::chrono::milliseconds(5), .snapshot_operations = 7, .log_bytes = 30000});
  std::ofstream out(acks, std::ios::app);
  const auto submit = [&](Operation op) {
    const std::string key = op.target + "#" + std::to_string(op.seq);
    const std::string id = rig.submit(std::move(op));
    out << key << " " << id << std::endl;
    return id;
  };
  for (int m = 0; m < kModels; ++m) rig.make_model("ann", model_name(m));
  std::vector<std::string> last(kModels);
  for (int r = 0; r < kRounds; ++r) {
    for (int m = 0; m < kModels; ++m) {
      const int64_t seq = r * 3 + 1;
      submit(Rig::call("ann", model_name(m), seq + 1, {r + m, 2}));  // the second chunk first
      submit(Rig::call("ann", model_name(m), seq, {r + m, 1}));
      last[static_cast<size_t>(m)] = submit(Rig::step("ann", model_name(m), seq + 2));
    }
    if (r % 10 == 9) {
      for (const auto& id : last) rig.result(id, "ann");
    }
  }
  for (int m = 0; m < kModels; ++m) {
    if (rig.run(Rig::save("ann", model_name(m), kRounds * 3 + 1, "final")).starts_with("error")) ::_exit(3);
  }
}

std::string final_weights(const std::string& dir) {
  Store store(dir + "/store.db");
  std::string all;
  for (int m = 0; m < kModels; ++m) {
    const auto found = store.checkpoint("tinker://" + model_name(m) + "/weights/final", "ann", 0);
    if (!found) return "no checkpoint of " + model_name(m);
    all += read_file(dir + "/" + found->folder + "/weights.json") + "\n";
  }
  return all;
}

// Exit code of the run in a process of its own, or -1 when it was killed after `ms`.
int run_process(const std::string& dir, const std::string& acks, int ms) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      run_client(dir, acks);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "client: %s\n", e.what());
      ::_exit(2);
    }
    ::_exit(0);
  }
  if (ms >= 0) {
    ::usleep(static_cast<useconds_t>(ms) * 1000);
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Kill, LosesNothingThatWasAcknowledged) {
  const test::TempDir dir;
  ASSERT_EQ(run_process(dir / "calm", dir / "calm.acks", -1), 0);
  const std::string expected = final_weights(dir / "calm");

  std::mt19937 random(20);
  int killed = 0;
  for (int i = 0; i < 40; ++i) {
    const int code = run_process(dir / "storm", dir / "storm.acks", static_cast<int>(random() % 60) + 2);
    ASSERT_TRUE(code == -1 || code == 0) << code;
    killed += code == -1 ? 1 : 0;
  }
  EXPECT_GE(killed, 3);  // a fast disk is soon at the end
  ASSERT_EQ(run_process(dir / "storm", dir / "storm.acks", -1), 0);
  EXPECT_EQ(final_weights(dir / "storm"), expected);

  // One id for each number, over all restarts.
  std::map<std::string, std::string> ids;
  std::ifstream acks(dir / "storm.acks");
  for (std::string key, id; acks >> key >> id;) {
    const auto [at, fresh] = ids.emplace(key, id);
    EXPECT_EQ(at->second, id) << key;
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kModels * kRounds * 3));
}

}  // namespace
}  // namespace twinkle::serve
