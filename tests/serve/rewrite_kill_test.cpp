// labels: slow bits
// kill -9 at each moment of writing a snapshot and of writing the log anew: before and after every call of
// the disk that these make, and in the middle of every write. After each, a server that starts again answers
// every acknowledged operation under the same id with the same bytes as one that nobody disturbed, and the
// work goes on to the same weights.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "tests/serve/core_testing.h"

namespace twinkle::serve {
namespace {

constexpr int kModels = 2, kRounds = 24, kMoments = 90;

// Counts moments and dies at one of them; its name is left in a file.
class Death {
 public:
  Death(int at, std::string file) : at_(at), file_(std::move(file)) {}
  void pass(const std::string& moment, const std::function<void()>& last_words = nullptr) {
    if (at_ == 0 || ++passed_ != at_) return;
    if (last_words) last_words();
    std::ofstream(file_, std::ios::app) << moment << std::endl;
    ::kill(::getpid(), SIGKILL);
    ::pause();
  }

 private:
  const int at_;
  const std::string file_;
  std::atomic<int> passed_{0};
};

std::string file_of(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
}

LogDisk deadly_disk(Death& death) {
  LogDisk disk = LogDisk::system();
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
void run_client(const std::string& dir, int die_at) {
  Death death(die_at, dir + ".moments");
  Rig rig(dir,
          {.gap_wait = std::chrono::milliseconds(5),
           .snapshot_operations = 9,
           .log_bytes = 20'000,
           .upkeep_wait = std::chrono::milliseconds(2)},
          0, deadly_disk(death));
  rig.seen().on_write = [&death](const char* moment) { death.pass(std::string("snapshot: ") + moment); };
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
int run_process(const std::string& dir, int die_at) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      run_client(dir, die_at);
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
  ASSERT_EQ(run_process(dir / "calm", 0), 0);
  const std::string expected = read_file(dir / "calm.answers");
  std::set<std::string> moments;
  for (int at = 1; at <= kMoments; ++at) {
    const std::string storm = dir / ("storm" + std::to_string(at));
    const int code = run_process(storm, at);
    ASSERT_TRUE(code == -1 || code == 0) << code;  // 0: there were fewer moments
    ASSERT_EQ(run_process(storm, 0), 0) << "after death " << at;
    const std::string moment = code == -1 ? read_file(storm + ".moments") : "";
    if (code == -1) moments.insert(moment.substr(0, moment.find('\n')));
    EXPECT_EQ(read_file(storm + ".answers"), expected) << "after death " << at << ": " << moment;
    std::map<std::string, std::string> ids;
    std::ifstream acks(storm + ".acks");
    for (std::string key, id; acks >> key >> id;) EXPECT_EQ(ids.emplace(key, id).first->second, id) << key;
    std::filesystem::remove_all(storm);
  }
  for (const char* moment :
       {"snapshot: begin", "snapshot: end", "record of a snapshot: before a write",
        "record of a snapshot: in a write", "record of a snapshot: after a write", "new log: before a write",
        "new log: in a write", "new log: after a write", "new log: after a sync", "new log: before its name",
        "new log: after its name", "new log: in force", "new log: before the old one goes",
        "new log: after the old one is gone"})
    EXPECT_TRUE(moments.contains(moment)) << moment;
}

}  // namespace
}  // namespace twinkle::serve
