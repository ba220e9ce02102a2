// labels: slow bits
// Whole runs of the program, compared bit for bit: with other passes, one thread, killed and resumed,
// interrupted and resumed, replayed. A run's bits are its digest: loss and gradient norm of every step and a
// hash of the weights.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/cli/run_program.h"
#include "tests/tiny_model.h"
#include "twinkle/core/files.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

using test::run_program;
using test::write_text;

class RunBits : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_tiny_model(root_ + "/config");
    write_text(root_ + "/text.txt",
               "to be or not to be that is the question whether it is nobler in the mind to suffer");
    // Rows of many lengths, so that passes are cut in many places.
    CounterRng rng(7);
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      std::string answer;
      for (uint64_t w = 0; w < 1 + rng.next_below(20); ++w)
        answer += "word" + std::to_string(rng.next_below(30)) + " ";
      rows +=
          Json{{"query", "question " + std::to_string(i)}, {"response", answer + "{{NAME}}"}}.dump() + "\n";
    }
    write_text(root_ + "/rows.jsonl", rows);
    const test::Ran ran = run_program("twinkle", {"pt", "--model-id", root_ + "/config", "--init", "random",
                                                  "--dataset-id", root_ + "/text.txt", "--max-length", "32",
                                                  "--max-steps", "1", "--output-dir", root_ + "/pt"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    first_ = run("first", {});
  }

  std::vector<std::string> arguments(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"sft",
                                     "--model-id",
                                     root_ + "/pt/checkpoint-step-1",
                                     "--dataset-id",
                                     root_ + "/rows.jsonl",
                                     "--model-name",
                                     "Nova",
                                     "--lr",
                                     "3e-3",
                                     "--batch-size",
                                     "3",
                                     "--gradient-accumulation-steps",
                                     "2",
                                     "--max-steps",
                                     "50",
                                     "--save-steps",
                                     "7",
                                     "--output-dir",
                                     root_ + "/" + name};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), extra_.begin(), extra_.end());
    return args;
  }

  // The bits of a run that ends by itself.
  std::string run(const std::string& name, const std::vector<std::string>& more) {
    const test::Ran ran = run_program("twinkle", arguments(name, more));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return digest(name);
  }
  std::string digest(const std::string& name) const {
    return read_file(root_ + "/" + name + "/digest.jsonl");
  }

  // Starts the run and sends `signal` once `steps` steps are reported; returns the exit code.
  int run_and_signal(const std::string& name, int steps, int signal,
                     const std::vector<std::string>& more = {}) {
    const std::string metrics = root_ + "/" + name + "/metrics.jsonl";
    std::vector<std::string> words = arguments(name, more);
    words.insert(words.begin(), "twinkle");
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
      std::vector<char*> argv;
      for (auto& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv((std::string(TWINKLE_BINARY_DIR) + "/bin/twinkle").c_str(), argv.data());
      ::_exit(127);
    }
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (file_exists(metrics)) {
        const std::string text = read_file(metrics);
        if (std::count(text.begin(), text.end(), '\n') >= steps) {
          ::kill(pid, signal);
          ::waitpid(pid, &status, 0);
          break;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string last_checkpoint(const std::string& name) const {
    std::string best;
    int64_t step = -1;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + "/" + name)) {
      const std::string file = entry.path().filename().string(), prefix = "checkpoint-step-";
      if (!file.starts_with(prefix) || file.find('.') != std::string::npos) continue;
      const int64_t n = std::stoll(file.substr(prefix.size()));
      if (n > step) step = n, best = entry.path().string();
    }
    return best;
  }

  const test::TempDir temp_;
  const std::string root_ = temp_.path();
  std::string first_;
  std::vector<std::string> extra_;
};

TEST_F(RunBits, PassesThreadsAndRecomputationChangeNothing) {
  EXPECT_EQ(std::count(first_.begin(), first_.end(), '\n'), 51);
  EXPECT_EQ(run("again", {}), first_);
  EXPECT_EQ(run("small-passes", {"--max-tokens-per-pass", "70"}), first_);
  EXPECT_EQ(run("one-row-passes", {"--max-tokens-per-pass", "1"}), first_);
  EXPECT_EQ(run("one-thread", {"--threads", "1"}), first_);
  EXPECT_EQ(run("three-threads", {"--threads", "3"}), first_);
  EXPECT_EQ(run("recomputed", {"--recompute"}), first_);
  EXPECT_NE(run("other-seed", {"--seed", "43"}), first_);
}

TEST_F(RunBits, AccumulationIsOneBatch) {
  // 36 rows: six whole steps an epoch, however they are cut.
  const auto cut = [&](const std::string& name, const char* batch, const char* accumulation) {
    return run(name, {"--data-slice", "0:36", "--max-steps", "12", "--batch-size", batch,
                      "--gradient-accumulation-steps", accumulation});
  };
  const std::string whole = cut("six", "6", "1");
  EXPECT_EQ(cut("twice-three", "3", "2"), whole);
  EXPECT_EQ(cut("six-times-one", "1", "6"), whole);
  // A run may go on with another accumulation than it began with.
  run("one-call", {"--gradient-accumulation-steps", "1", "--max-steps", "16", "--resume-from-checkpoint",
                   root_ + "/first/checkpoint-step-14"});
  EXPECT_TRUE(is_directory(root_ + "/one-call/checkpoint-step-16"));
}

TEST_F(RunBits, TheSamplerSaysWhatTheTrainerSays) {
  const std::string model = root_ + "/pt/checkpoint-step-1", adapter = last_checkpoint("first");
  for (const std::string& with : {std::string(), adapter}) {
    for (const char* temperature : {"0", "1"}) {
      std::vector<std::string> ask = {"sample",    "--model-id",   model,    "--no-use-chat-template",
                                      "--prompt",  "to be or not", "--json", "--temperature",
                                      temperature, "--max-tokens", "20",     "--ignore-eos"};
      std::vector<std::string> score = {"score", "--model-id", model};
      for (auto* command : {&ask, &score}) {
        if (!with.empty()) command->insert(command->end(), {"--adapter", with});
      }
      const test::Ran sampled = run_program("twinkle", ask);
      ASSERT_EQ(sampled.code, 0) << sampled.err;
      const Json sample = Json::parse(sampled.out).at("samples")[0];
      const test::Ran cut = run_program(
          "twinkle", {"tokenize", "to be or not", "--model-id", model, "--add-special-tokens", "--json"});
      ASSERT_EQ(cut.code, 0) << cut.err;
      Json tokens = Json::parse(cut.out).at("ids");
      const size_t prompt = tokens.size();
      ASSERT_EQ(Json::parse(sampled.out).at("prompt_tokens"), prompt);
      for (const auto& id : sample.at("tokens")) tokens.push_back(id);
      const test::Ran scored = run_program("twinkle", score, {}, Json{{"tokens", tokens}}.dump());
      ASSERT_EQ(scored.code, 0) << scored.err;
      const Json all = Json::parse(scored.out).at("logprobs");
      EXPECT_EQ(Json(std::vector<Json>(all.begin() + static_cast<std::ptrdiff_t>(prompt), all.end())),
                sample.at("logprobs"));
    }
  }
}

TEST_F(RunBits, TwoRunsDoNotShareAFolder) {
  const FolderLock other(root_ + "/first");
  const test::Ran ran = run_program("twinkle", arguments("first", {"--overwrite-output-dir"}));
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("another run is writing to '" + root_ + "/first'"), std::string::npos) << ran.err;
  EXPECT_EQ(digest("first"), first_);
}

TEST_F(RunBits, KilledAndResumed) {
  CounterRng rng(static_cast<uint64_t>(::getpid()));
  for (int round = 0; round < 3; ++round) {
    const std::string name = "killed" + std::to_string(round);
    const int at = 8 + static_cast<int>(rng.next_below(38));
    EXPECT_EQ(run_and_signal(name, at, SIGKILL), 128 + SIGKILL);
    // The first checkpoint may still have been on its way to the disk; then there is none, and the run starts
    // anew.
    const std::string checkpoint = last_checkpoint(name);
    const std::vector<std::string> resume = {"--resume-from-checkpoint", checkpoint};
    EXPECT_EQ(run(name, checkpoint.empty() ? std::vector<std::string>{} : resume), first_)
        << "killed at step " << at;
  }
}

TEST_F(RunBits, InterruptedLeavesAWholeCheckpointOrNone) {
  EXPECT_EQ(run_and_signal("interrupted", 20, SIGINT), 130);
  const std::string checkpoint = last_checkpoint("interrupted");
  ASSERT_NE(checkpoint, "");
  EXPECT_EQ(run_program("twinkle", {"inspect", checkpoint}).code, 0);
  EXPECT_EQ(run("interrupted", {"--resume-from-checkpoint", checkpoint}), first_);
}

TEST_F(RunBits, ReplayAgreesAndNoticesWhatDiffers) {
  const test::Ran same = run_program("twinkle", {"replay", root_ + "/first", "--json"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(Json::parse(same.out).at("equal"), true);
  EXPECT_EQ(Json::parse(same.out).at("steps"), 50);
  // A run whose record was changed by one digit is noticed.
  std::string changed = first_;
  const size_t at = changed.find("\"loss\"");
  ASSERT_NE(at, std::string::npos);
  const size_t digit = changed.find_first_of("0123456789abcdef", at + 8);
  changed[digit] = changed[digit] == '1' ? '2' : '1';
  write_text(root_ + "/first/digest.jsonl", changed);
  const test::Ran other = run_program("twinkle", {"replay", root_ + "/first"});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.out.find("differ"), std::string::npos) << other.out;
}

TEST_F(RunBits, FullTrainingResumesToo) {
  extra_ = {"--no-use-lora", "--lr", "1e-3"};
  const std::string whole = run("full", {});
  EXPECT_EQ(run("full-passes", {"--max-tokens-per-pass", "90", "--threads", "1"}), whole);
  EXPECT_EQ(run_and_signal("full-killed", 15, SIGKILL), 128 + SIGKILL);
  EXPECT_EQ(run("full-killed", {"--resume-from-checkpoint", last_checkpoint("full-killed")}), whole);
}

TEST_F(RunBits, AFullDiskFailsWithAReasonAndKeepsWhatWasThere) {
  // A limit on file size stands in for a full disk: the first checkpoint fits nowhere.
  const std::string command = "ulimit -f 20; exec " + std::string(TWINKLE_BINARY_DIR) + "/bin/twinkle";
  std::string line = command;
  for (const auto& word : arguments("full-disk", {"--save-total-limit", "2"})) line += " '" + word + "'";
  const std::string log = root_ + "/log";
  const int status = std::system(("bash -c \"" + line + "\" > " + log + " 2>&1").c_str());
  EXPECT_NE(WEXITSTATUS(status), 0);
  EXPECT_TRUE(WIFEXITED(status));
  const std::string said = read_file(log);
  EXPECT_NE(said.find("cannot write"), std::string::npos) << said;
  EXPECT_EQ(last_checkpoint("full-disk"), "") << said;
}

}  // namespace
}  // namespace twinkle
