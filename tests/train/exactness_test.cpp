// labels: quick bits
// A run's numbers depend on its own requests only: not on how a batch is split over passes, how sequences lie
// in a pass, how many threads run, or whether the run was stopped and resumed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "tests/train/train_model_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

using testing::batch;
using testing::Case;
using testing::hash_of;
using testing::make_model;
using testing::message_of;
using testing::run_of;
using testing::TempDir;
using testing::train_step;

class Exact : public ::testing::TestWithParam<bool> {
 protected:
  Case setup(TransformersModelOptions options = {}) const { return testing::exact_case(GetParam(), options); }
};
INSTANTIATE_TEST_SUITE_P(Train, Exact, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Full" : "Lora"; });

TEST_P(Exact, AnySplitLayoutAndNumberOfThreads) {
  const auto expected = run_of(setup(), 5);
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), 6u);
  EXPECT_EQ(run_of(setup(), 5), expected) << "again";
  EXPECT_EQ(run_of(setup({.micro_batch_tokens = 45}), 5), expected) << "several passes";
  EXPECT_EQ(run_of(setup({.packing = PackingOrder::kReversed}), 5), expected) << "reversed";
  EXPECT_EQ(run_of(setup({.micro_batch_tokens = 70, .packing = PackingOrder::kLongestFirst}), 5), expected)
      << "longest first";
  const int threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_EQ(run_of(setup({.micro_batch_tokens = 30}), 5), expected) << "other threads";
  set_num_threads(threads);
}

// Adapters on the embedding and the head, and modules that are trained whole.
TEST(ExactVocabulary, AnySplitLayoutAndNumberOfThreads) {
  LoraConfig pairs = testing::lora();
  pairs.target_is_pattern = false;
  pairs.target_modules = {"embed_tokens", "lm_head", "q_proj"};
  LoraConfig whole = testing::lora();
  whole.modules_to_save = {"embed_tokens", "lm_head", "model.norm"};
  for (const LoraConfig& config : {pairs, whole}) {
    const auto run = [&](const TransformersModelOptions& options) {
      TransformersModel model(testing::stories(), options);
      model.add_adapter_to_model("default", config);
      model.set_optimizer("AdamW", {{"lr", 1e-2}});
      return run_of({}, 3, 0, &model);
    };
    const auto expected = run({});
    EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), 4u);
    EXPECT_EQ(run({.micro_batch_tokens = 45}), expected) << "several passes";
    EXPECT_EQ(run({.micro_batch_tokens = 1}), expected) << "one sequence a pass";
    EXPECT_EQ(run({.micro_batch_tokens = 70, .packing = PackingOrder::kReversed}), expected) << "reversed";
    EXPECT_EQ(run({.gradient_checkpointing = Recompute::kAlways}), expected) << "recomputed";
    const int threads = num_threads();
    for (const int other : {1, 2, 3}) {
      set_num_threads(other);
      EXPECT_EQ(run({.micro_batch_tokens = 30}), expected) << other << " threads";
    }
    set_num_threads(threads);
  }
}

TEST(ExactVocabulary, DropoutOnTheHeadIsRefusedBeforeTraining) {
  TransformersModel model(testing::stories());
  LoraConfig config = testing::lora(0.1);
  config.target_is_pattern = false;
  config.target_modules = {"lm_head"};
  EXPECT_NE(message_of([&] {
              model.add_adapter_to_model("default", config);
            }).find("lora_dropout cannot be used with an adapter on lm_head"),
            std::string::npos);
  // From files too; they can still be sampled from.
  TempDir dir;
  config.lora_dropout = 0;
  std::filesystem::create_directories(dir.path());
  Adapter::create(model.model(), config)->save(dir.path());
  Json stored = read_json_file(dir / "adapter_config.json");
  stored["lora_dropout"] = 0.1;
  write_file_atomic(dir / "adapter_config.json", stored.dump());
  EXPECT_EQ(Adapter::load(model.model(), dir.path())->config().lora_dropout, 0.1);
  EXPECT_NE(message_of([&] { model.add_adapter_to_model("default", dir.path()); }).find("lm_head"),
            std::string::npos);
}

TEST_P(Exact, OneSequenceAPass) {
  EXPECT_EQ(run_of(setup({.micro_batch_tokens = 1}), 5), run_of(setup(), 5));
}

TEST_P(Exact, ResumeEqualsNeverHavingStopped) {
  TempDir dir;
  const auto straight = run_of(setup(), 7);
  {
    const auto first = make_model(setup());
    run_of(setup(), 4, 0, first.get());
    EXPECT_EQ(*first->save({.output_dir = dir.path(), .consumed_train_samples = 24}),
              dir / "checkpoint-step-4");
    run_of(setup(), 2, 4, first.get());  // goes on while the checkpoint is being written
    EXPECT_EQ(*first->save({.output_dir = dir.path(), .interval = 2}), dir / "checkpoint-step-6");
    EXPECT_EQ(first->save({.output_dir = dir.path(), .interval = 4}), std::nullopt);
  }
  const auto resumed = make_model(setup());
  const ResumeInfo info = resumed->resume_from_checkpoint(dir / "checkpoint-step-4");
  EXPECT_EQ(info.cur_step, 4);
  EXPECT_EQ(info.consumed_train_samples, 24);
  EXPECT_TRUE(info.notes.empty());
  EXPECT_EQ(resumed->cur_step(), 4);
  EXPECT_EQ(resumed->current_lr(), 1e-2 * 46.0 / 48.0);  // the schedule's position 4, not 8
  const auto tail = run_of(setup(), 3, 4, resumed.get());
  EXPECT_EQ(tail, std::vector<std::string>(straight.end() - 4, straight.end()));

  // From a bare model: adapter, optimizer and schedule come from the checkpoint.
  TransformersModel bare(testing::stories());
  bare.resume_from_checkpoint(dir / "checkpoint-step-6");
  EXPECT_EQ(run_of(setup(), 1, 6, &bare), std::vector<std::string>(straight.end() - 2, straight.end()));
}

TEST_P(Exact, WeightsAloneCanBeLoaded) {
  TempDir dir;
  const auto model = make_model(setup());
  run_of(setup(), 3, 0, model.get());
  model->save({.name = "weights", .output_dir = dir.path(), .save_optimizer = false});
  model->wait_for_save();
  EXPECT_FALSE(file_exists(dir / "weights/optimizer.safetensors"));
  const auto other = make_model(setup());
  other->load("weights", dir.path());
  EXPECT_EQ(hash_of(*other), hash_of(*model));
  EXPECT_EQ(other->cur_step(), 0);
  EXPECT_EQ(other->forward_only(batch(1)).logprobs, model->forward_only(batch(1)).logprobs);
  EXPECT_NE(message_of([&] {
              other->resume_from_checkpoint(dir / "weights");
            }).find("was saved without its optimizer"),
            std::string::npos);
  EXPECT_EQ(other->resume_from_checkpoint(dir / "weights", true).cur_step, 3);
}

TEST_P(Exact, ChecksWhatItResumes) {
  TempDir dir;
  const auto model = make_model(setup({.gradient_accumulation_steps = 2}));
  model->forward_backward(batch(0));
  EXPECT_EQ(message_of([&] { model->save({.output_dir = dir.path()}); }),
            "[save] 1 of 2 accumulated calls are pending; save after a step");
  model->forward_backward(batch(1));
  model->clip_grad_and_step();
  EXPECT_EQ(message_of([&] { model->save({.name = "../up", .output_dir = dir.path()}); }),
            "[save] name: '../up' is not a plain file name");
  model->save({.output_dir = dir.path()});
  model->wait_for_save();
  const std::string path = dir / "checkpoint-step-1";
  const auto other_kind = make_model({.full = !GetParam()});
  EXPECT_NE(message_of([&] { other_kind->resume_from_checkpoint(path); }).find("is being trained"),
            std::string::npos);
  const auto other_optimizer = make_model(setup());
  other_optimizer->set_optimizer("SGD");
  EXPECT_NE(message_of([&] {
              other_optimizer->resume_from_checkpoint(path);
            }).find("was trained with AdamW, this run uses SGD"),
            std::string::npos);
  const auto good = make_model(setup());
  EXPECT_EQ(good->resume_from_checkpoint(path).gradient_accumulation_steps, 2);
  EXPECT_EQ(good->group().gradient_accumulation_steps(), 2);
  std::filesystem::resize_file(path + "/optimizer.safetensors", 100);
  EXPECT_NE(message_of([&] { good->resume_from_checkpoint(path); }).find("is torn"), std::string::npos);
}

// A process that saves after every step is killed at some moment; what it left continues to the same weights.
TEST_P(Exact, KillLeavesACheckpointThatContinuesExactly) {
  testing::stories();  // the other process needs it
  TempDir dir;
  const std::string program = TWINKLE_BINARY_DIR "/tests/train_saves_for_ever";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(program.c_str(), program.c_str(), GetParam() ? "full" : "lora", dir.path().c_str(),
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  bool ended = false;
  while (!ended && list_checkpoints(dir.path()).size() < 3) {
    ::usleep(1000);
    ended = ::waitpid(child, &status, WNOHANG) == child;
  }
  ASSERT_FALSE(ended) << "the child ended by itself, status " << status;
  ::usleep(static_cast<useconds_t>(::getpid() % 37) * 1000);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);

  const auto left = list_checkpoints(dir.path());
  ASSERT_GE(left.size(), 3u);
  const auto resumed = make_model(setup());
  const int64_t at = resumed->resume_from_checkpoint(left.back()).cur_step;
  ASSERT_LT(at, 48);
  const auto tail = run_of(setup(), 2, at, resumed.get());
  const auto straight = run_of(setup(), at + 2);
  EXPECT_EQ(tail, std::vector<std::string>(straight.end() - 3, straight.end()));
}

}  // namespace
}  // namespace twinkle
