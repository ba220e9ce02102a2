#include "twinkle/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/train/train_testing.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::TempDir;

TrainerState state_of(int64_t step) {
  return {.kind = "lora",
          .cur_step = step,
          .gradient_accumulation_steps = 2,
          .consumed_train_samples = 17,
          .sequences_seen = 34,
          .tokens_seen = 1234,
          .skipped_steps = 4,
          .schedule_position = step,
          .adapter_seed = 0xFFFFFFFFFFFFFFFFull,
          .has_optimizer = true,
          .loss = {"CrossEntropyLoss", {{"reduction", "sum"}}},
          .optimizer = {"AdamW", {{"lr", 0.001}}},
          .base_model = "models/stories",
          .isa = "avx2",
          .manifest = {{"run", 1}}};
}

std::vector<Optimizer::StateTensor> optimizer_state() {
  return {{"exp_avg.w", at::tensor({1.0f, -0.0f, 3.5f})},
          {"exp_avg_sq.w", at::tensor({1e-30f, 2.0f}).reshape({1, 2})}};
}

void write(const std::string& path, int64_t step, const std::string& weights = "weights") {
  write_checkpoint(path, state_of(step), optimizer_state(), [&](const std::string& directory) {
    write_file_atomic(directory + "/adapter_model.safetensors", weights);
  });
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  TempDir dir;
  const std::string path = dir / "out/checkpoint-step-3";
  write(path, 3);
  const TrainerState s = read_checkpoint(path);
  EXPECT_EQ(s.kind, "lora");
  EXPECT_EQ(s.cur_step, 3);
  EXPECT_EQ(s.gradient_accumulation_steps, 2);
  EXPECT_EQ(s.consumed_train_samples, 17);
  EXPECT_EQ(s.sequences_seen, 34);
  EXPECT_EQ(s.tokens_seen, 1234);
  EXPECT_EQ(s.skipped_steps, 4);
  EXPECT_EQ(s.adapter_seed, 0xFFFFFFFFFFFFFFFFull);
  EXPECT_EQ(s.loss.options["reduction"], "sum");
  EXPECT_EQ(s.optimizer.name, "AdamW");
  EXPECT_EQ(s.scheduler.name, "");
  EXPECT_EQ(s.manifest["run"], 1);
  EXPECT_EQ(s.files.size(), 2u);
  EXPECT_EQ(s.files.at("adapter_model.safetensors").bytes, 7);
  const auto state = read_optimizer_state(path);
  ASSERT_EQ(state.size(), 2u);
  for (const auto& expected : optimizer_state()) {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const auto& x) { return x.name == expected.name; });
    ASSERT_NE(found, state.end()) << expected.name;
    EXPECT_TRUE(at::equal(found->value, expected.value));
    EXPECT_EQ(found->value.sizes(), expected.value.sizes());
  }
  for (const auto& entry : fs::directory_iterator(dir / "out"))
    EXPECT_EQ(entry.path().filename(), "checkpoint-step-3");
}

TEST(Checkpoint, AFailureLeavesTheOldOne) {
  TempDir dir;
  const std::string path = dir / "checkpoint-step-3";
  write(path, 3, "old");
  EXPECT_EQ(message_of([&] {
              write_checkpoint(path, state_of(4), {}, [](const std::string& directory) {
                write_file_atomic(directory + "/adapter_model.safetensors", "half");
                throw exhausted("[disk] full");
              });
            }),
            "[disk] full");
  EXPECT_EQ(read_checkpoint(path).cur_step, 3);
  EXPECT_EQ(read_file(path + "/adapter_model.safetensors"), "old");
  write(path, 5, "newer");
  EXPECT_EQ(read_checkpoint(path).cur_step, 5);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(Checkpoint, LeftOversOfDeadWritersGo) {
  TempDir dir;
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  int status = 0;
  ::waitpid(gone, &status, 0);
  const std::string dead = dir / (".tmp-" + std::to_string(gone) + "-checkpoint-step-9"),
                    alive = dir / ".tmp-1-checkpoint-step-9";
  fs::create_directories(dead);
  fs::create_directories(alive);
  write(dir / "checkpoint-step-1", 1);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 1u);
}

TEST(Checkpoint, RefusesTornAndForeignOnes) {
  TempDir dir;
  const std::string path = dir / "checkpoint-step-3";
  EXPECT_EQ(message_of([&] { read_checkpoint(path); }), "[checkpoint] there is no checkpoint '" + path + "'");
  fs::create_directories(path);
  EXPECT_NE(message_of([&] { read_checkpoint(path); }).find("has no trainer_state.json"), std::string::npos);
  write(path, 3);
  fs::resize_file(path + "/optimizer.safetensors", fs::file_size(path + "/optimizer.safetensors") - 1);
  EXPECT_NE(message_of([&] { read_checkpoint(path); }).find("optimizer.safetensors' is torn: it has"),
            std::string::npos);
  write(path, 3);
  write_file_atomic(path + "/adapter_model.safetensors", "weighty");
  EXPECT_NE(message_of([&] { read_checkpoint(path); }).find("is not what was written: its SHA-256 differs"),
            std::string::npos);
  fs::remove(path + "/adapter_model.safetensors");
  EXPECT_NE(message_of([&] { read_checkpoint(path); }).find("lacks 'adapter_model.safetensors'"),
            std::string::npos);

  write(path, 3);
  const Json written = read_json_file(path + "/trainer_state.json");
  Json changed = written;
  changed["consumed_train_samples"] = 1 + written.at("consumed_train_samples").get<int64_t>();
  write_file_atomic(path + "/trainer_state.json", changed.dump());
  EXPECT_EQ(message_of([&] { read_checkpoint(path); }),
            "[checkpoint] '" + path +
                "/trainer_state.json' was changed after it was written; take another copy of the checkpoint");
  write_file_atomic(path + "/trainer_state.json", written.dump());  // laid out otherwise, the same values
  EXPECT_EQ(read_checkpoint(path).cur_step, 3);

  const auto with_state = [&](const Json& state) {
    write_file_atomic(path + "/trainer_state.json", state.dump());
    return message_of([&] { read_checkpoint(path); });
  };
  EXPECT_NE(
      with_state({{"global_step", 3}}).find("lacks 'checkpoint_version'; it is not a Twinkle checkpoint"),
      std::string::npos);
  Json state = state_of(3).to_json();
  state["checkpoint_version"] = 9;
  EXPECT_NE(with_state(state).find("has version 9; this program reads version 1"), std::string::npos);
  state = state_of(3).to_json();
  state["cur_step"] = -1;
  EXPECT_NE(with_state(state).find("'cur_step' must be a whole number >= 0, got -1"), std::string::npos);
  write_file_atomic(path + "/trainer_state.json", "{");
  EXPECT_NE(message_of([&] { read_checkpoint(path); }), "");
}

TEST(Checkpoint, PrunesTheOldestAndNeverTheOneJustWritten) {
  TempDir dir;
  for (const int64_t step : {100, 9, 20, 3}) write(dir / ("checkpoint-step-" + std::to_string(step)), step);
  fs::create_directories(dir / "checkpoint-step-abc");
  prune_checkpoints(dir.path(), 2, dir / "checkpoint-step-3");
  const auto left = list_checkpoints(dir.path());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(fs::path(left[0]).filename(), "checkpoint-step-3");
  EXPECT_EQ(fs::path(left[1]).filename(), "checkpoint-step-100");
  prune_checkpoints(dir.path(), 0, "");
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 2u);
}

TEST(Checkpoint, PrunesWhatWasLeftFromBeforeTheRunWentBackFirst) {
  TempDir dir;
  for (const int64_t step : {3, 6, 9, 20}) write(dir / ("checkpoint-step-" + std::to_string(step)), step);
  prune_checkpoints(dir.path(), 2, dir / "checkpoint-step-6");
  const auto left = list_checkpoints(dir.path());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(fs::path(left[0]).filename(), "checkpoint-step-3");
  EXPECT_EQ(fs::path(left[1]).filename(), "checkpoint-step-6");
}

TEST(BackgroundWriter, TheLoopWaitsForReadingOnly) {
  BackgroundWriter writer;
  writer.wait_read();
  writer.wait();
  std::atomic<bool> read{false}, done{false}, go{false};
  writer.start([&](const std::function<void()>& done_reading) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    read = true;
    done_reading();
    while (!go) std::this_thread::yield();
    done = true;
  });
  writer.wait_read();
  EXPECT_TRUE(read);
  EXPECT_FALSE(done);
  EXPECT_FALSE(writer.finished());
  go = true;
  writer.wait();
  EXPECT_TRUE(done);
  EXPECT_TRUE(writer.finished());

  writer.start([](const std::function<void()>&) { throw exhausted("[disk] full"); });
  writer.wait_read();  // a failed job holds nobody up
  EXPECT_EQ(message_of([&] { writer.wait(); }), "[disk] full");
  writer.wait();
}

}  // namespace
}  // namespace twinkle
