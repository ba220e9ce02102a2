// labels: slow bits
// kill -9 at each moment of writing a snapshot and of writing the log anew, several times each: around what
// the disk is asked for, and in the middle of a write. After each, a server that starts again answers every
// acknowledged operation under the same id with the same bytes as one that nobody disturbed, and the work
// goes on to the same weights.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/serve/core_testing.h"

namespace twinkle::serve {
namespace {

constexpr int kModels = 2, kRounds = 24, kTimes = 4;

// Dies when a moment is passed for the nth time; never of "".
class Death {
 public:
  Death(std::string moment, int nth) : moment_(std::move(moment)), nth_(nth) {}
  void pass(std::string_view moment, const std::function<void()>& last_words = nullptr) {
    if (moment != moment_ || ++passed_ != nth_) return;
    if (last_words) last_words();
    ::kill(::getpid(), SIGKILL);
    ::pause();
  }

 private:
  const std::string moment_;
  const int nth_;
  std::atomic<int> passed_{0};
};

std::string file_of(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
}

Disk deadly_disk(Death& death) {
  Disk disk;
  disk.write = [&death, system = disk.write](int fd, const char* data, size_t size, int64_t at) -> long {
    const bool fresh = file_of(fd).ends_with(".new");
    if (!fresh && std::string_view(data, size).find("\"snapshot\"") == std::string_view::npos)
      return system(fd, data, size, at);
    const std::string what = fresh ? "new log: " : "record of a snapshot: ";
    death.pass(what + "before a write");
    death.pass(what + "in a write", [&] { system(fd, data, size / 2, at); });
    const long written = system(fd, data, size, at);
    death.pass(what + "after a write");
    return written;
  };
  disk.sync = [&death, system = disk.sync](int fd) {
    const bool fresh = file_of(fd).ends_with(".new");
    const int result = system(fd);
    if (fresh) death.pass("new log: after a sync");
    return result;
  };
  disk.rename = [&death, system = disk.rename](const char* from, const char* to) {
    death.pass("new log: before its name");
    const int result = system(from, to);
    death.pass("new log: after its name");
    return result;
  };
  disk.sync_folder = [&death, system = disk.sync_folder](int fd) {
    const int result = system(fd);
    death.pass("new log: in force");
    return result;
  };
  disk.remove = [&death, system = disk.remove](const char* path) {
    death.pass("new log: before the old one goes");
    const int result = system(path);
    death.pass("new log: after the old one is gone");
    return result;
  };
  return disk;
}

std::string model_name(int m) { return "s:train:" + std::to_string(m); }

// The whole run, as a client does that knows nothing of what came before: `acks` has "number id" of what was
// acknowledged, `answers` "number result" at the end.
void run_client(const std::string& dir, const std::string& moment, int nth) {
  Death death(moment, nth);
  const auto seen = std::make_shared<Rig::Seen>();  // before a start that has snapshots to write
  seen->on_write = [&death](const char* part) { death.pass(std::string("snapshot: ") + part); };
  CoreOptions options{.gap_wait = std::chrono::milliseconds(5),
                      .snapshot_operations = 9,
                      .log_bytes = 20'000,
                      .upkeep_wait = std::chrono::milliseconds(2)};
  options.world.disk = deadly_disk(death);
  Rig rig(dir, options, seen);
  std::ofstream acks(dir + ".acks", std::ios::app);
  std::map<std::string, std::string> ids;
  const auto submit = [&](Operation op) {
    const std::string key = op.target + "#" + std::to_string(op.seq);
    ids[key] = rig.submit(std::move(op));
    acks << key << " " << ids[key] << std::endl;
    return ids[key];
  };
  for (int m = 0; m < kModels; ++m) rig.make_model("ann", model_name(m));
  for (int r = 0; r < kRounds; ++r) {
    std::vector<std::string> last;
    for (int m = 0; m < kModels; ++m) {
      const int64_t seq = r * 3 + 1;
      submit(Rig::call("ann", model_name(m), seq, std::vector<int32_t>(200, r + m)));
      submit(Rig::call("ann", model_name(m), seq + 1, std::vector<int32_t>(200, m), true));
      last.push_back(submit(Rig::step("ann", model_name(m), seq + 2)));
    }
    for (const auto& id : last) rig.result(id, "ann");
  }
  std::ofstream answers(dir + ".answers", std::ios::trunc);
  for (const auto& [key, id] : ids) answers << key << " " << sha256_hex(rig.result(id, "ann")) << "\n";
  for (int m = 0; m < kModels; ++m) answers << rig.weight("ann", model_name(m), kRounds * 3 + 1) << "\n";
}

// The exit code of the run in a process of its own, -1 when it died.
int run_process(const std::string& dir, const std::string& moment = "", int nth = 0) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      run_client(dir, moment, nth);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "client: %s\n", e.what());
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(RewriteKill, AnswersTheSameAfterADeathAtAnyMoment) {
  const test::TempDir dir;
  ASSERT_EQ(run_process(dir / "calm"), 0);
  const std::string expected = read_file(dir / "calm.answers");
  for (const std::string moment :
       {"snapshot: begin", "snapshot: end", "record of a snapshot: before a write",
        "record of a snapshot: in a write", "record of a snapshot: after a write", "new log: before a write",
        "new log: in a write", "new log: after a write", "new log: after a sync", "new log: before its name",
        "new log: after its name", "new log: in force", "new log: before the old one goes",
        "new log: after the old one is gone"}) {
    for (int nth = 1; nth <= kTimes; ++nth) {
      const std::string storm = dir / "storm";
      const int code = run_process(storm, moment, nth);
      ASSERT_TRUE(code == -1 || (code == 0 && nth > 1)) << code << " at " << moment;  // 0: it came less often
      ASSERT_EQ(run_process(storm), 0) << "after death " << nth << " at " << moment;
      EXPECT_EQ(read_file(storm + ".answers"), expected) << "after death " << nth << " at " << moment;
      std::map<std::string, std::string> ids;
      std::ifstream acks(storm + ".acks");
      for (std::string key, id; acks >> key >> id;) EXPECT_EQ(ids.emplace(key, id).first->second, id) << key;
      std::filesystem::remove_all(storm);
      std::filesystem::remove(storm + ".acks");
    }
  }
}

}  // namespace
}  // namespace twinkle::serve
