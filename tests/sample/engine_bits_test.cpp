// labels: quick bits
// The law of the sampler: whatever a request shared its passes, its cache and its blocks with, its
// log-probabilities are those of the trainer's forward over the whole sequence, bit for bit, and its tokens
// those it draws alone.
#include "tests/kernels/kernel_testing.h"
#include "tests/sample/sample_testing.h"

namespace twinkle::test {
namespace {

struct Asked {
  SampleRequest request;
  Adapter* adapter;
  std::shared_ptr<SampleJob> job;
};

void run_a_thousand_requests(const std::string& dtype) {
  TinySampling tiny(dtype);
  const std::vector<std::shared_ptr<Adapter>> adapters = {
      tiny.adapter(8, {"all-linear"}, 1), tiny.adapter(2, {"q_proj", "v_proj"}, 2),
      tiny.adapter(5, {"gate_proj", "down_proj", "lm_head"}, 3), tiny.adapter(3, {"o_proj"}, 4, {"norm"})};
  CounterRng rng(2024);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.next_below(n)); };
  std::vector<std::vector<int32_t>> prefixes;
  for (uint64_t i = 0; i < 6; ++i) prefixes.push_back(random_tokens(64 + below(140), 900 + i));
  int64_t preemptions = 0, hits = 0, most_versions = 0;
  // Blocks of three kinds of trouble: hardly any room, tiny passes, room for all.
  const std::vector<EngineOptions> kinds = {
      {.kv_blocks = 9, .max_tokens_per_pass = 200, .own_thread = false},
      {.kv_blocks = 20, .max_tokens_per_pass = 23, .max_running = 16, .own_thread = false},
      {.kv_blocks = 200, .max_tokens_per_pass = 512, .own_thread = false},
      {.kv_blocks = 12, .max_tokens_per_pass = 96, .prefix_cache = false, .own_thread = false}};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    SampleEngine engine(*tiny.model, tiny.tokenizer, kinds[kind]);
    for (size_t a = 0; a < adapters.size(); ++a) engine.add_version(std::to_string(a), adapters[a]);
    std::vector<Asked> asked;
    for (int64_t i = 0; i < 250; ++i) {
      std::vector<int32_t> prompt;
      if (below(3) > 0) {
        prompt = prefixes[static_cast<size_t>(below(prefixes.size()))];
        prompt.resize(static_cast<size_t>(1 + below(prompt.size())));
      }
      const auto more = random_tokens(1 + below(40), rng.next_u64());
      prompt.insert(prompt.end(), more.begin(), more.end());
      SamplingParams p;
      p.max_tokens = below(10) == 0 ? 0 : 1 + below(below(4) == 0 ? 90 : 12);
      p.temperature = below(3) == 0 ? 0.0 : 0.3 + 0.1 * static_cast<double>(below(20));
      if (below(4) == 0) p.top_p = 0.1 + 0.08 * static_cast<double>(below(10));
      if (below(5) == 0) p.top_k = 1 + below(50);
      if (below(6) == 0) p.min_p = 0.05;
      if (below(6) == 0) p.repetition_penalty = 1.3;
      if (below(6) == 0) p.frequency_penalty = 0.5;
      p.seed = rng.next_u64();
      p.ignore_eos = below(2) == 0;
      p.num_samples = below(5) == 0 ? 1 + below(4) : 1;
      p.prompt_logprobs = p.max_tokens == 0 || below(5) == 0;
      p.logprobs = below(8) == 0 ? 2 : 0;
      const int64_t which = below(adapters.size() + 1);
      const bool base = which == static_cast<int64_t>(adapters.size());
      Asked one{request(prompt, p, base ? "" : std::to_string(which)),
                base ? nullptr : adapters[static_cast<size_t>(which)].get(), nullptr};
      one.request.tenant = std::to_string(below(3));
      one.job = engine.submit(one.request);
      asked.push_back(std::move(one));
      for (int64_t steps = below(3); steps > 0; --steps) engine.step();
    }
    run_all(engine);
    for (size_t i = 0; i < asked.size(); ++i) {
      const std::string what = "engine " + std::to_string(kind) + ", request " + std::to_string(i);
      const SampleResult result = asked[i].job->wait();
      expect_trainer_bits(tiny, asked[i].adapter, asked[i].request.prompt, result, what);
      if (testing::Test::HasFatalFailure()) return;
      if (i % 10 != 0) continue;
      SampleEngine alone(*tiny.model, tiny.tokenizer, {.kv_blocks = 40, .own_thread = false});
      for (size_t a = 0; a < adapters.size(); ++a) alone.add_version(std::to_string(a), adapters[a]);
      const SampleResult again = ask(alone, asked[i].request);
      for (size_t s = 0; s < again.sequences.size(); ++s) {
        EXPECT_EQ(again.sequences[s].tokens, result.sequences[s].tokens) << what;
        EXPECT_EQ(again.sequences[s].sampled_logprobs, result.sequences[s].sampled_logprobs) << what;
      }
    }
    const EngineStats stats = engine.stats();
    preemptions += stats.preemptions;
    hits += stats.blocks.hit_tokens;
    most_versions = std::max(most_versions, stats.most_versions);
    expect_nothing_held(engine);
  }
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(hits, 5000);
  EXPECT_EQ(most_versions, 4) << "the base and all adapters but the one that needs passes of its own";
}

TEST(EngineBits, AThousandRandomRequestsHaveTheTrainersBits) {
  RestoreMachine restore;
  for (const auto& [isa, dtype] : product_kinds()) {
    SCOPED_TRACE(std::string(isa_name(isa)) + ", weights in " + dtype);
    force_isa(isa);
    run_a_thousand_requests(dtype);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace twinkle::test
