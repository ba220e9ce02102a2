// Weights from trainer to sampler: in one process by version number, between processes by a stream. The
// sampler then gives the trainer's log-probabilities, and whatever becomes of a stream, it goes on with what
// it had.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/sample/hand_over_testing.h"
#include "tests/temp_dir.h"
#include "twinkle/core/local_socket.h"
#include "twinkle/core/tensor_stream.h"
#include "twinkle/model/weights_id.h"
#include "twinkle/sample/checkpoint_engine.h"
#include "twinkle/train/multi_lora_transformers_model.h"

namespace twinkle::test {
namespace {

// weights_sender as a child.
class Sender {
 public:
  explicit Sender(std::vector<std::string> args) {
    args.insert(args.begin(), TWINKLE_BINARY_DIR "/tests/sample_weights_sender");
    std::vector<char*> argv;
    for (auto& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw unavailable("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    out_ = ::fdopen(ends[0], "r");
  }
  ~Sender() {
    if (pid_ > 0) kill();
    std::fclose(out_);
  }
  std::string line() {
    char text[256] = "";
    if (std::fgets(text, sizeof(text), out_) == nullptr) return "";
    std::string out = text;
    while (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  pid_t pid_ = 0;
  std::FILE* out_ = nullptr;
};

// The answers' log-probabilities are those of the trainer as it is now.
void expect_bits_of(TransformersModel& trainer, const std::vector<SampleResponse>& responses,
                    const std::string& what) {
  for (const auto& response : responses) {
    const ModelOutput out = trainer.forward_only(response.new_input_features);
    for (size_t i = 0; i < response.sequences.size(); ++i)
      ASSERT_EQ(out.logprobs[i], response.sequences[i].logprobs) << what;
  }
}

TEST(HandOver, InOneProcessGoesByVersionNumber) {
  TempDir folder;
  write_model(folder.path(), 3);
  MultiLoraTransformersModel model(folder.path());
  model.set_template();
  model.add_adapter_to_model("nova", LoraConfig{.r = 4, .target_modules = {"q_proj", "down_proj"}});
  model.set_optimizer("AdamW", {{"lr", 0.05}}, "nova");
  vLLMSampler sampler(model, kEngine);
  CheckpointEngineManager manager(model, sampler);
  const auto scored = [&](const std::vector<SampleResponse>& responses) {
    std::vector<std::vector<float>> out;
    for (const auto& r : responses)
      out.push_back(model.forward_only(r.new_input_features, {}, "nova").logprobs[0]);
    return out;
  };
  std::vector<std::vector<float>> before;
  for (int step = 0; step < 3; ++step) {
    Trajectory t;
    t.messages =
        Json::array({{{"role", "user"}, {"content", "who?"}}, {{"role", "assistant"}, {"content", "I."}}});
    model.forward_backward(model.get_template()->encode(t), {}, "nova");
    model.clip_grad_and_step(1.0, 2.0, "nova");
    if (step > 0) {  // not synced yet: the old weights answer
      std::vector<std::vector<float>> now;
      for (const auto& r : sampler.sample(prompts(), kParams, {.adapter_name = "nova"}))
        now.push_back(r.sequences[0].logprobs);
      EXPECT_EQ(now, before);
    }
    const SyncResult synced = manager.sync_weights(step == 1, "nova");
    EXPECT_EQ(synced.version, "nova@" + std::to_string(step + 1));
    EXPECT_EQ(synced.bytes_sent, 0);
    EXPECT_EQ(model.snapshot("nova")->modules[0].slot.a_rK.data_ptr(),
              model.group("nova").adapter()->modules()[0].slot.a_rK.data_ptr())
        << "nothing is copied";
    const auto responses = sampler.sample(prompts(), kParams, {.adapter_name = "nova"});
    before.clear();
    for (const auto& r : responses) {
      EXPECT_EQ(r.version, synced.version);
      before.push_back(r.sequences[0].logprobs);
    }
    EXPECT_EQ(scored(responses), before);
  }
}

TEST(HandOver, InOneProcessOfTheWholeModelAndOfTheOnlyAdapter) {
  for (const std::string what : {"full", "adapter"}) {
    TempDir folder;
    write_model(folder.path(), 3);
    const auto trainer = make_trainer(what, folder.path());
    vLLMSampler sampler(*trainer, kEngine);
    CheckpointEngineManager manager(*trainer, sampler);
    for (int step = 1; step <= 2; ++step) {
      train_step(*trainer);
      const SyncResult synced = manager.sync_weights();
      EXPECT_EQ(synced.version, (what == "full" ? "model@" : "default@") + std::to_string(step));
      const auto responses = sampler.sample(prompts(), kParams);  // names no adapter
      EXPECT_EQ(responses[0].version, what == "full" ? "" : synced.version);
      EXPECT_EQ(responses[0].model_version, what == "full" ? step : 0);
      EXPECT_EQ(responses[0].cached_tokens, 0);
      expect_bits_of(*trainer, responses, what);
      EXPECT_EQ(sampler.sample(prompts(), kParams, {.use_base_model = true})[0].version, "");
    }
    EXPECT_THROW(sampler.receive_weights(folder / "s"), Error) << "these weights are the trainer's";
    EXPECT_THROW(sampler.replace_model_weights({}), Error);
  }
}

// The trainer's weights as they are after each step, computed here.
struct Replay {
  Replay(const std::string& what, const std::string& directory) : what(what), directory(directory) {
    trainer = make_trainer(what, directory);
  }
  void expect_bits(const std::vector<SampleResponse>& responses, const std::string& place) {
    if (what != "merged") return expect_bits_of(*trainer, responses, place);
    MergedAdapter merged(trainer->model(), *trainer->group().adapter());
    for (const auto& r : responses) {
      const auto& all = r.new_input_features[0].input_ids;
      const auto want = score_sequences(trainer->model(), nullptr, {all})[0];
      const std::vector<float> tail(want.end() - static_cast<ptrdiff_t>(r.sequences[0].tokens.size()),
                                    want.end());
      ASSERT_EQ(r.sequences[0].logprobs, tail) << place;
    }
  }
  const std::string what, directory;
  std::unique_ptr<TransformersModel> trainer;
};

template <class SamplerType>
void expect_trainers_bits_after_every_sync(const std::string& what) {
  TempDir folder;
  write_model(folder / "model", 3);
  SamplerType sampler(folder / "model", kEngine);
  sampler.receive_weights(folder / "s");
  constexpr int64_t kSteps = 2;
  Replay replay(what, folder / "model");
  // One process a step, so that the sampler is asked in between.
  for (int64_t step = 1; step <= kSteps; ++step) {
    Sender sender({what, folder / "model", folder / "s", std::to_string(step)});
    for (int64_t i = 1; i <= step; ++i) {
      const std::string said = sender.line();
      EXPECT_EQ(said.substr(0, said.find('@')), what == "adapter" ? "default" : "model") << said;
    }
    ASSERT_EQ(sender.wait(), 0);
    train_step(*replay.trainer);
    const auto responses = sampler.sample(prompts(), kParams);
    replay.expect_bits(responses, what + " step " + std::to_string(step));
    EXPECT_EQ(responses[0].version.empty(), what != "adapter");
    EXPECT_EQ(responses[0].model_version, what == "adapter" ? 0 : step * (step + 1) / 2);
  }
  EXPECT_EQ(sampler.receive_status().received, kSteps * (kSteps + 1) / 2);
  EXPECT_EQ(sampler.receive_status().failed, 0) << sampler.receive_status().last_error;
  expect_nothing_held(sampler.engine());
}

TEST(HandOver, BetweenProcessesAnAdapter) { expect_trainers_bits_after_every_sync<vLLMSampler>("adapter"); }
TEST(HandOver, BetweenProcessesMerged) { expect_trainers_bits_after_every_sync<vLLMSampler>("merged"); }
TEST(HandOver, BetweenProcessesWholeWeights) { expect_trainers_bits_after_every_sync<vLLMSampler>("full"); }
TEST(HandOver, ToASamplerWithoutAThread) {
  expect_trainers_bits_after_every_sync<TorchSampler>("full");
  expect_trainers_bits_after_every_sync<TorchSampler>("adapter");
}

TEST(HandOver, SendsTheBaseWhereTheSamplerHasAnother) {
  TempDir folder;
  write_model(folder / "a", 3);
  write_model(folder / "b", 4);
  vLLMSampler sampler(folder / "b", kEngine);
  sampler.receive_weights(folder / "s");
  Sender sender({"adapter", folder / "a", folder / "s", "2"});
  EXPECT_EQ(sender.line(), "default@1 with base");
  EXPECT_EQ(sender.line(), "default@2");
  ASSERT_EQ(sender.wait(), 0);
  Replay replay("adapter", folder / "a");
  train_step(*replay.trainer);
  train_step(*replay.trainer);
  replay.expect_bits(sampler.sample(prompts(), kParams), "adapter on the base that was sent");
  // Whole weights make the adapter go, which sat on others.
  Sender whole({"full", folder / "a", folder / "s", "1"});
  ASSERT_EQ(whole.wait(), 0);
  EXPECT_TRUE(sampler.versions().empty());
  expect_error(ErrorKind::kNotFound, "[sample] input 0: there is no adapter 'default'",
               [&] { sampler.sample(prompts(), kParams, {.adapter_name = "default"}); });
}

TEST(HandOver, OfAModelOfItsOwnInThisProcess) {
  TempDir folder;
  write_model(folder.path(), 3);
  const auto trainer = make_trainer("adapter", folder.path());
  TorchSampler sampler(folder.path(), kEngine);
  CheckpointEngineManager manager(*trainer, sampler);
  train_step(*trainer);
  EXPECT_EQ(manager.sync_weights(false).version, "default@1");
  expect_bits_of(*trainer, sampler.sample(prompts(), kParams), "adapter");
  EXPECT_EQ(manager.sync_weights().version, "model@1");
  const SyncResult again = manager.sync_weights(false, "nova");
  EXPECT_TRUE(again.sent_base) << "the sampler's model had the adapter merged into it";
  expect_bits_of(*trainer, sampler.sample(prompts(), kParams, {.adapter_name = "nova"}), "adapter again");
}

TEST(HandOver, AKilledSenderLeavesTheOldWeights) {
  for (const std::string what : {"adapter", "full"}) {
    TempDir folder;
    write_model(folder / "model", 3);
    vLLMSampler sampler(folder / "model", kEngine);
    sampler.receive_weights(folder / "s");
    Replay replay(what, folder / "model");
    train_step(*replay.trainer);
    Sender sender({what, folder / "model", folder / "s", "3", "2"});
    EXPECT_FALSE(sender.line().empty());
    ASSERT_EQ(sender.line(), "half");
    const auto meanwhile = sampler.sample(prompts(), kParams);
    replay.expect_bits(meanwhile, "in the middle of a transfer");
    EXPECT_EQ(sampler.receive_status().received, 1);
    EXPECT_EQ(sampler.receive_status().failed, 0);
    sender.kill();
    wait_until([&] { return sampler.receive_status().failed == 1; });
    EXPECT_NE(sampler.receive_status().last_error.find("the other side is gone"), std::string::npos)
        << sampler.receive_status().last_error;
    const auto after = sampler.sample(prompts(), kParams);
    EXPECT_EQ(after[0].version, meanwhile[0].version);
    EXPECT_EQ(after[0].model_version, meanwhile[0].model_version);
    replay.expect_bits(after, "after it died");
    // The next trainer is served.
    Sender next({what, folder / "model", folder / "s", "2"});
    ASSERT_EQ(next.wait(), 0);
    train_step(*replay.trainer);
    replay.expect_bits(sampler.sample(prompts(), kParams), "from the next");
  }
}

TEST(HandOver, WhileAnswersAreMadeEachHasOneVersion) {
  for (const std::string what : {"adapter", "full"}) {
    TempDir folder;
    write_model(folder / "model", 3);
    vLLMSampler sampler(folder / "model", kEngine);
    sampler.receive_weights(folder / "s");
    constexpr int kSteps = 4, kAskers = 2;
    std::atomic<bool> done = false;
    std::vector<std::vector<SampleResponse>> got(kAskers);
    std::vector<std::thread> askers;
    for (int i = 0; i < kAskers; ++i) {
      askers.emplace_back([&, i] {
        SamplingParams params = kParams;
        params.max_tokens = 40;
        for (uint64_t n = 0; !done || n < 2; ++n) {
          params.seed = 100 * static_cast<uint64_t>(i) + n;
          for (auto& r : sampler.sample(prompts(), params))
            got[static_cast<size_t>(i)].push_back(std::move(r));
        }
      });
    }
    Sender sender({what, folder / "model", folder / "s", std::to_string(kSteps)});
    const int status = sender.wait();
    done = true;
    for (auto& asker : askers) asker.join();
    ASSERT_EQ(status, 0);
    std::map<int64_t, std::vector<SampleResponse>> by_step;
    for (const auto& list : got) {
      int64_t last = 0;
      for (const auto& r : list) {
        const int64_t step = what == "full"      ? r.model_version
                             : r.version.empty() ? 0
                                                 : std::stoll(r.version.substr(r.version.find('@') + 1));
        EXPECT_GE(step, last) << "nobody falls back to older weights";
        last = step;
        if (by_step[step].size() < 8) by_step[step].push_back(r);  // each is computed again below
      }
    }
    ASSERT_TRUE(by_step.contains(kSteps));
    Replay replay(what, folder / "model");
    for (int64_t step = 0; step <= kSteps; ++step) {
      if (step > 0) train_step(*replay.trainer);
      replay.expect_bits(by_step[step], what + " step " + std::to_string(step));
    }
    expect_nothing_held(sampler.engine());
  }
}

TEST(HandOver, WhatWasAcceptedIsAnsweredByTheOldWeights) {
  TinySampling tiny;
  const std::vector<int32_t> prompt = random_tokens(20, 1);
  const SamplingParams params{.max_tokens = 50, .seed = 1, .ignore_eos = true};
  for (const bool own_thread : {false, true}) {
    SampleEngine engine(*tiny.model, tiny.tokenizer, {.kv_blocks = 40, .own_thread = own_thread});
    std::vector<std::shared_ptr<SampleJob>> before;
    for (uint64_t i = 0; i < 4; ++i) {
      SampleRequest r = request(prompt, params);
      r.stream = i;
      before.push_back(engine.submit(std::move(r)));
    }
    engine.replace_base([&] {
      for (const auto& job : before) {
        EXPECT_TRUE(job->done());
        expect_trainer_bits(tiny, nullptr, prompt, job->wait(), "accepted before");
        EXPECT_EQ(job->wait().model_version, 0);
      }
      for (auto& parameter : tiny.model->parameters()) {
        if (!parameter.is_matrix()) parameter.vector.mul_(1.1f);
      }
    });
    EXPECT_EQ(engine.model_version(), 1);
    const auto job = engine.submit(request(prompt, params));
    if (!own_thread) run_all(engine);
    const SampleResult after = job->wait();
    EXPECT_EQ(after.model_version, 1);
    EXPECT_EQ(after.cached_tokens, 0);
    engine.between_passes([] {});
    expect_trainer_bits(tiny, nullptr, prompt, after, "asked afterwards");
    // An error in the change lets the waiting in again.
    EXPECT_THROW(engine.replace_base([] { throw conflict("no"); }), Error);
    const auto again = engine.submit(request(prompt, params));
    if (!own_thread) run_all(engine);
    EXPECT_EQ(again->wait().model_version, 1);
    expect_nothing_held(engine);
    engine.shutdown();
    EXPECT_THROW(engine.replace_base([] {}), Error);
  }
}

// While nothing runs, the pass thread waits here.
class Held {
 public:
  explicit Held(SampleEngine& engine)
      : thread_([this, &engine] {
          engine.between_passes([this] {
            inside_ = true;
            while (!let_go_) std::this_thread::yield();
          });
        }) {
    while (!inside_) std::this_thread::yield();
  }
  ~Held() {
    let_go_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> inside_ = false, let_go_ = false;
  std::thread thread_;
};

TEST(HandOver, WhoAsksWithoutANameNeverMeetsTheModelUnderTheAdapter) {
  TempDir folder;
  write_model(folder / "model", 3);
  vLLMSampler sampler(folder / "model", kEngine);
  sampler.receive_weights(folder / "s");
  const auto trainer = make_trainer("adapter", folder / "model");
  CheckpointEngineManager manager(*trainer, folder / "s");
  train_step(*trainer);
  ASSERT_EQ(manager.sync_weights(false).version, "default@1");
  std::vector<SampleResponse> got;
  std::thread sync, asker;
  {
    const Held held(sampler.engine());
    sync = std::thread([&] { EXPECT_EQ(manager.sync_weights(true).version, "model@1"); });
    wait_until([&] { return sampler.versions().empty(); });  // the adapter has gone, the new weights wait
    asker = std::thread([&] { got = sampler.sample(prompts(), kParams); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  sync.join();
  asker.join();
  for (const auto& response : got) EXPECT_EQ(response.model_version, 1);
}

TEST(HandOver, AReplacementThatIsRefusedTakesNoAdapterAway) {
  TempDir folder;
  write_model(folder / "model", 3);
  vLLMSampler sampler(folder / "model", kEngine);
  const auto trainer = make_trainer("adapter", folder / "model");
  sampler.apply_weights("nova", *trainer->group().adapter());
  sampler.engine().begin_replacing_base();
  expect_error(ErrorKind::kConflict, "[sample] the model's weights are being replaced already",
               [&] { sampler.replace_model_weights({}); });
  EXPECT_EQ(sampler.versions(), std::vector<std::string>{"nova@1"});
  sampler.engine().finish_replacing_base([] {});
  EXPECT_EQ(sampler.sample(prompts(), kParams, {.adapter_name = "nova"})[0].version, "nova@1");
}

TEST(HandOver, WhatWaitsForNewWeightsDoesNotGetAnAdapterOfTheOld) {
  TinySampling tiny;
  const std::vector<int32_t> prompt = random_tokens(20, 1);
  for (const bool own_thread : {false, true}) {
    SampleEngine engine(*tiny.model, tiny.tokenizer, {.kv_blocks = 40, .own_thread = own_thread});
    const auto adapter = tiny.adapter(4, {"q_proj"}, 1);
    for (const std::string name : {"old", "stays"}) engine.add_version(name, adapter);
    const auto before = engine.submit(request(prompt, kParams, "old"));
    engine.begin_replacing_base();
    const auto held = engine.submit(request(prompt, kParams, "old")),
               base = engine.submit(request(prompt, kParams)),
               kept = engine.submit(request(prompt, kParams, "stays"));
    engine.remove_version("old");
    engine.finish_replacing_base([&] { EXPECT_TRUE(before->done()); });
    if (!own_thread) run_all(engine);
    EXPECT_EQ(before->wait().model_version, 0);
    expect_error(ErrorKind::kNotFound, "[sample] the weights 'old' were removed meanwhile",
                 [&] { held->wait(); });
    EXPECT_EQ(base->wait().model_version, 1);
    EXPECT_EQ(kept->wait().model_version, 1);
    expect_nothing_held(engine);
  }
}

TEST(HandOver, ASamplerThatSleepsInTheMiddleOfAReplacementCanEnd) {
  TempDir folder;
  write_model(folder / "model", 3);
  auto sampler = std::make_unique<vLLMSampler>(folder / "model", kEngine);
  sampler->receive_weights(folder / "s");
  const auto trainer = make_trainer("full", folder / "model");
  CheckpointEngineManager manager(*trainer, folder / "s");
  std::thread sync, sleeper;
  std::shared_ptr<SampleJob> job;
  {
    const Held held(sampler->engine());
    job = sampler->engine().submit(request(random_tokens(5, 1), kParams));
    sync = std::thread([&] { EXPECT_THROW(manager.sync_weights(), Error); });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it waits for the request
    sleeper = std::thread([&] { sampler->sleep(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  sleeper.join();
  EXPECT_FALSE(job->done());
  sampler.reset();
  sync.join();
  EXPECT_THROW(job->wait(), Error);
}

TEST(HandOver, WhoHearsOfNewWeightsMayAskAndFail) {
  TempDir folder;
  write_model(folder / "model", 3);
  const auto trainer = make_trainer("adapter", folder / "model");
  vLLMSampler sampler(folder / "model", kEngine);
  CheckpointEngineManager manager(*trainer, folder / "s");
  std::atomic<bool> inside = false, asked = false;
  sampler.receive_weights(folder / "s", {.on_weights = [&](const std::string& version) {
                            if (version == "default@3") {
                              inside = true;
                              std::this_thread::sleep_for(std::chrono::milliseconds(100));
                              sampler.receive_status();  // while the other thread stops it
                              asked = true;
                            }
                            if (version == "default@2") sampler.stop_receiving();
                            throw not_found("nothing");
                          }});
  // A base and an adapter in one connection: what is thrown after the first is no answer to the second.
  for (auto& parameter : trainer->model().parameters()) {
    if (!parameter.is_matrix()) parameter.vector.mul_(1.1f);
  }
  const SyncResult synced = manager.sync_weights(false);
  EXPECT_TRUE(synced.sent_base);
  EXPECT_EQ(synced.version, "default@1");
  const auto last = [&] { return sampler.receive_status().last_error; };
  wait_until([&] { return last() == "[receive_weights] on_weights of 'default@1': nothing"; });
  EXPECT_EQ(manager.sync_weights(false).version, "default@2");
  wait_until([&] { return last().find("which cannot wait for its own end") != std::string::npos; });
  EXPECT_EQ(sampler.receive_status().received, 3);
  EXPECT_EQ(sampler.receive_status().failed, 0);
  EXPECT_EQ(manager.sync_weights(false).version, "default@3");
  wait_until([&] { return inside.load(); });
  sampler.stop_receiving();
  EXPECT_TRUE(asked);
}

}  // namespace
}  // namespace twinkle::test
