// The samplers by upstream's names: conversations in, answers of the right weights out.
#include "twinkle/sample/samplers.h"

#include <filesystem>

#include "tests/sample/sample_testing.h"
#include "tests/temp_dir.h"

namespace twinkle::test {
namespace {

Trajectory says(const std::string& text) {
  Trajectory t;
  t.messages = Json::array({{{"role", "user"}, {"content", text}}});
  return t;
}

// A model in training over the tiny one, with its tokenizer on disk.
struct Trainer {
  Trainer() {
    write_tiny_model(folder.path());
    model = std::make_unique<TransformersModel>(std::move(tiny.model), folder.path());
    model->set_template();
    model->add_adapter_to_model("default", LoraConfig{.r = 4, .target_modules = {"q_proj", "down_proj"}});
    model->set_optimizer("AdamW", {{"lr", 0.05}});
  }
  void step() {
    model->forward_backward(model->get_template()->encode([] {
      Trajectory t = says("who?");
      t.messages.push_back({{"role", "assistant"}, {"content", "Nova."}});
      return t;
    }()));
    model->clip_grad_and_step();
  }
  TinySampling tiny;
  TempDir folder;
  std::unique_ptr<TransformersModel> model;
};

const SamplingParams kParams{.max_tokens = 12, .seed = 3, .ignore_eos = true};

TEST(Samplers, BothGiveTheSameAnswersAndTheTrainersLogprobs) {
  Trainer trainer;
  trainer.step();
  vLLMSampler one(*trainer.model, {{"kv_cache_memory_mb", 4}});
  TorchSampler two(*trainer.model, {{"kv_cache_memory_mb", 4}});
  const std::string version = one.apply_weights("default", *trainer.model->group().adapter());
  two.apply_weights("default", *trainer.model->group().adapter());
  const std::vector<Trajectory> asked = {says("hello"), says("you?")};
  const auto a = one.sample(asked, kParams, {.adapter_name = "default"}),
             b = two.sample(asked, kParams, {.adapter_name = "default"});
  ASSERT_EQ(a.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(a[i].version, version);
    EXPECT_EQ(a[i].sequences[0].tokens, b[i].sequences[0].tokens);
    EXPECT_EQ(a[i].prompt_token_ids, one.encode_trajectory(asked[i]));
    EXPECT_EQ(a[i].sequences[0].text, one.decode_response(a[i].sequences[0].tokens));
    // What comes back is ready to be trained on, and scores the same there.
    const InputFeature& f = a[i].new_input_features[0];
    EXPECT_EQ(f.num_trained(), 12);
    const ModelOutput out = trainer.model->forward_only(std::vector<InputFeature>{f});
    EXPECT_EQ(out.logprobs[0], a[i].sequences[0].logprobs);
  }
}

TEST(Samplers, AVersionKeepsItsWeightsWhileTrainingGoesOn) {
  Trainer trainer;
  trainer.step();
  vLLMSampler sampler(*trainer.model, {{"kv_cache_memory_mb", 4}});
  sampler.keep_versions(1);
  const std::vector<Trajectory> asked = {says("hello")};
  const std::string first = sampler.apply_weights("default", *trainer.model->group().adapter());
  const auto before = sampler.sample(asked, kParams, {.adapter_name = "default"});
  for (int i = 0; i < 3; ++i) trainer.step();
  EXPECT_EQ(sampler.sample(asked, kParams, {.adapter_name = "default"})[0].sequences[0].logprobs,
            before[0].sequences[0].logprobs);
  const std::string second = sampler.apply_weights("default", *trainer.model->group().adapter());
  const auto after = sampler.sample(asked, kParams, {.adapter_name = "default"});
  EXPECT_EQ(after[0].version, second);
  EXPECT_NE(after[0].sequences[0].logprobs, before[0].sequences[0].logprobs);
  EXPECT_EQ(sampler.sample(asked, kParams, {.adapter_version = first})[0].sequences[0].logprobs,
            before[0].sequences[0].logprobs);
  sampler.apply_weights("default", *trainer.model->group().adapter());
  expect_error(ErrorKind::kNotFound, "[sample] there are no weights '" + first + "' (any more)",
               [&] { sampler.sample(asked, kParams, {.adapter_version = first}); });
  const auto base = sampler.sample(asked, kParams, {.adapter_name = "default", .use_base_model = true});
  EXPECT_EQ(base[0].version, "");
  EXPECT_NE(base[0].sequences[0].logprobs, after[0].sequences[0].logprobs);
  sampler.remove_adapter("default");
  expect_error(ErrorKind::kNotFound, "[sample] there is no adapter 'default'",
               [&] { sampler.sample(asked, kParams, {.adapter_name = "default"}); });
  EXPECT_TRUE(sampler.versions().empty());
}

TEST(Samplers, ReadAdaptersFromFolders) {
  Trainer trainer;
  trainer.step();
  const std::string folder = trainer.folder / "adapter";
  std::filesystem::create_directories(folder);
  trainer.model->group().adapter()->save(folder);
  vLLMSampler sampler(*trainer.model, {{"kv_cache_memory_mb", 4}});
  const std::vector<Trajectory> asked = {says("hello")};
  sampler.apply_weights("memory", *trainer.model->group().adapter());
  sampler.add_adapter_to_sampler("folder", folder);
  const auto want = sampler.sample(asked, kParams, {.adapter_name = "memory"});
  EXPECT_EQ(sampler.sample(asked, kParams, {.adapter_name = "folder"})[0].sequences[0].logprobs,
            want[0].sequences[0].logprobs);
  EXPECT_EQ(sampler.sample(asked, kParams, {.adapter_path = folder})[0].sequences[0].logprobs,
            want[0].sequences[0].logprobs);
  EXPECT_EQ(sampler.versions().size(), 2u);
  EXPECT_THROW(sampler.add_adapter_to_sampler("none", folder + "/none"), Error);
}

TEST(Samplers, StreamTextSleepAndWake) {
  Trainer trainer;
  vLLMSampler threaded(*trainer.model, {{"kv_cache_memory_mb", 4}});
  TorchSampler inline_one(*trainer.model, {{"kv_cache_memory_mb", 4}});
  for (Sampler* sampler : {static_cast<Sampler*>(&threaded), static_cast<Sampler*>(&inline_one)}) {
    const std::vector<Trajectory> asked = {says("tell me")};
    const auto whole = sampler->sample(asked, kParams)[0];
    std::string text;
    const auto streamed = sampler->sample_stream(asked, kParams, [&](const std::string& delta) {
      text += delta;
      return true;
    });
    EXPECT_EQ(text, whole.sequences[0].text);
    EXPECT_EQ(streamed.sequences[0].tokens, whole.sequences[0].tokens);
    EXPECT_THROW(sampler->sample_stream(asked, kParams, [](const std::string&) -> bool { throw 7; }), int);
    sampler->engine().between_passes([] {});
    EXPECT_EQ(sampler->engine().stats().running, 0) << "a callback's exception ends the request";
    sampler->sleep();
    EXPECT_THROW(sampler->sample(asked, kParams), Error);
    sampler->wake_up();
    sampler->reset_prefix_cache();
    EXPECT_EQ(sampler->sample(asked, kParams)[0].sequences[0].logprobs, whole.sequences[0].logprobs);
    EXPECT_EQ(sampler->get_state_keys().front(), "model.embed_tokens.weight");
    // Other weights of the model itself: nothing of the old ones is used.
    sampler->update_base([](CausalLM& model) {
      for (auto& parameter : model.parameters()) {
        if (!parameter.is_matrix()) parameter.vector.mul_(1.1f);
      }
    });
    const auto changed = sampler->sample(asked, kParams)[0];
    EXPECT_EQ(changed.cached_tokens, 0);
    EXPECT_NE(changed.sequences[0].logprobs, whole.sequences[0].logprobs);
  }
}

TEST(Samplers, ACallWithoutAThreadEndsWhenTheSamplerIsPutToSleep) {
  Trainer trainer;
  TorchSampler sampler(*trainer.model, {{"kv_cache_memory_mb", 4}});
  const std::vector<Trajectory> asked = {says("tell me")};
  const SamplingParams params{.max_tokens = 20, .allowed_token_ids = {'a', 'b'}};
  const auto sleep = [&](const std::string&) {
    sampler.sleep();
    return true;
  };
  expect_error(ErrorKind::kUnavailable, "[sample] the sampler was put to sleep in the middle of a call",
               [&] { sampler.sample_stream(asked, params, sleep); });
  sampler.wake_up();
  EXPECT_EQ(sampler.sample(asked, params)[0].sequences[0].tokens.size(), 20U);
  expect_nothing_held(sampler.engine());
}

TEST(Samplers, NameWhatIsWrong) {
  Trainer trainer;
  expect_error(ErrorKind::kInvalidArgument,
               "[engine_args] unknown option 'max_num_seq' (did you mean 'max_num_seqs'?)",
               [&] { vLLMSampler(*trainer.model, {{"max_num_seq", 3}}); });
  TorchSampler sampler(*trainer.model, {{"kv_cache_memory_mb", 4}});
  std::vector<InputFeature> prompts(2);
  prompts[0].input_ids = {1, 2};
  expect_error(ErrorKind::kInvalidArgument, "[sample] input 1: the prompt has no tokens",
               [&] { sampler.sample(prompts, kParams); });
  EXPECT_THROW(sampler.sample_stream(prompts, kParams, [](const std::string&) { return true; }), Error);
  EXPECT_THROW(sampler.sleep(3), Error);
  expect_error(ErrorKind::kInvalidArgument,
               "[sample] adapter_name, adapter_version and adapter_path exclude each other; give one",
               [&] { sampler.sample(prompts, kParams, {.adapter_name = "a", .adapter_version = "a@1"}); });
}

}  // namespace
}  // namespace twinkle::test
