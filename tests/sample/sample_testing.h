// A tiny model with weights loud enough to disagree with itself, adapters for it, and requests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/thrown.h"
#include "tests/tiny_model.h"
#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/sample/engine.h"
#include "twinkle/sample/score.h"

namespace twinkle::test {

constexpr int32_t kEnd = 258;  // the tiny tokenizer's <|im_end|>

struct TinySampling {
  explicit TinySampling(const std::string& dtype = "fp32") {
    Json json = tiny_config();
    json["initializer_range"] = 0.4;
    json["max_position_embeddings"] = 320;
    const ModelConfig config = model_config_from_json(json, "test");
    model = CausalLM::build(config, *random_weights(config, 3), {.dtype = dtype});
    tokenizer = Tokenizer::from_json(tiny_tokenizer(), tiny_tokenizer_config(), "test");
  }

  /// An adapter that changes what the model says.
  std::shared_ptr<Adapter> adapter(int64_t rank, std::vector<std::string> targets, uint64_t seed,
                                   std::vector<std::string> whole = {}) const {
    LoraConfig config;
    config.r = rank;
    config.lora_alpha = 8;
    config.target_is_pattern = targets.front() == "all-linear";
    config.target_modules = std::move(targets);
    config.modules_to_save = std::move(whole);
    config.seed = seed;
    std::shared_ptr<Adapter> out = Adapter::create(*model, config);
    for (auto& m : out->modules())
      fill_normal(m.slot.b_Nr.data_ptr<float>(), m.slot.b_Nr.numel(), mix_key(seed, hash_name(m.name)), 0.2f);
    for (auto& [name, parameter] : out->saved_modules()) {
      if (!parameter.is_matrix()) parameter.vector.mul_(1.25f);
    }
    return out;
  }

  std::unique_ptr<CausalLM> model;
  std::shared_ptr<const Tokenizer> tokenizer;
};

inline std::vector<int32_t> random_tokens(int64_t n, uint64_t seed) {
  CounterRng rng(seed);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(rng.next_below(256)));
  return out;
}

inline SampleRequest request(std::vector<int32_t> prompt, SamplingParams params, std::string version = "") {
  return {.prompt = std::move(prompt),
          .params = std::move(params),
          .version = std::move(version),
          .end_ids = {kEnd}};
}

/// Runs what is queued in an engine without a thread.
inline void run_all(SampleEngine& engine) {
  while (engine.step()) {
  }
}

inline SampleResult ask(SampleEngine& engine, SampleRequest r) {
  const auto job = engine.submit(std::move(r));
  run_all(engine);
  return job->wait();
}

/// Nothing is held any more; with the prefix cache forgotten every block is free.
inline void expect_nothing_held(SampleEngine& engine) {
  EngineStats s = engine.stats();
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.blocks.used, 0);
  engine.reset_prefix_cache();
  s = engine.stats();
  EXPECT_EQ(s.blocks.free, s.blocks.total);
}

/// The trainer's log-probabilities of prompt + answer are those of the result, bit for bit.
inline void expect_trainer_bits(TinySampling& tiny, Adapter* adapter, const std::vector<int32_t>& prompt,
                                const SampleResult& result, const std::string& what) {
  for (const auto& s : result.sequences) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), s.tokens.begin(), s.tokens.end());
    if (all.size() < 2) continue;
    const std::vector<float> want = score_sequences(*tiny.model, adapter, {all})[0];
    ASSERT_EQ(s.logprobs.size(), s.tokens.size()) << what;
    for (size_t i = 0; i < s.tokens.size(); ++i)
      ASSERT_EQ(s.logprobs[i], want[prompt.size() - 1 + i]) << what << ", answer token " << i;
    if (&s != &result.sequences.front() || result.prompt_logprobs.empty()) continue;
    ASSERT_EQ(result.prompt_logprobs.size(), prompt.size()) << what;
    EXPECT_FALSE(result.prompt_logprobs[0].has_value());
    for (size_t i = 1; i < prompt.size(); ++i)
      ASSERT_EQ(result.prompt_logprobs[i], want[i - 1]) << what << ", prompt token " << i;
  }
}

template <class Call>
void expect_error(ErrorKind kind, const std::string& message, Call call) {
  EXPECT_EQ(thrown(call, kind), message);
}

}  // namespace twinkle::test
