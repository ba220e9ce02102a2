// labels: quick threads
// Many clients at once: everything is answered, cancelled or refused, and nothing stays held.
#include <atomic>
#include <thread>

#include "tests/sample/sample_testing.h"

namespace twinkle::test {
namespace {

TEST(EngineThreads, TenThousandQueuedRequestsAreAnswered) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, {.kv_blocks = 300, .max_tokens_per_pass = 1024});
  std::vector<std::shared_ptr<SampleJob>> jobs;
  for (uint64_t i = 0; i < 10000; ++i) {
    jobs.push_back(engine.submit(
        request({static_cast<int32_t>(i % 256), 7}, {.max_tokens = 2, .seed = i, .ignore_eos = true})));
  }
  for (size_t i = 0; i < jobs.size(); i += 3) jobs[i]->cancel();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto s = jobs[i]->wait().sequences[0];
    if (s.stop_reason == "abort") {
      EXPECT_EQ(i % 3, 0u);
    } else {
      ASSERT_EQ(s.tokens.size(), 2u);
    }
  }
  expect_nothing_held(engine);
}

TEST(EngineThreads, ClientsCancelAndWeightsComeAndGo) {
  TinySampling tiny;
  const std::vector<std::shared_ptr<Adapter>> adapters = {tiny.adapter(4, {"all-linear"}, 1),
                                                          tiny.adapter(2, {"q_proj"}, 2)};
  SampleEngine engine(*tiny.model, tiny.tokenizer, {.kv_blocks = 24, .max_tokens_per_pass = 64});
  engine.add_version("stays", adapters[0]);
  const SampleRequest asked = [] {
    SampleRequest r = request({1, 2, 3, 4}, {.max_tokens = 12, .seed = 5, .ignore_eos = true}, "stays");
    r.pieces = true;
    return r;
  }();
  const auto want = engine.submit(asked)->wait();
  std::atomic<int> answered = 0, cancelled = 0, gone = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      CounterRng rng(static_cast<uint64_t>(c) + 40);
      for (int i = 0; i < 30; ++i) {
        try {
          SampleRequest r =
              i % 3 == 0
                  ? asked
                  : request(random_tokens(1 + static_cast<int64_t>(rng.next_below(100)), rng.next_u64()),
                            {.max_tokens = 30, .num_samples = 2}, i % 3 == 1 ? "comes" : "");
          r.tenant = std::to_string(c);
          const auto job = engine.submit(r);
          if (i % 5 == 4) job->cancel();
          std::string text;
          while (const auto piece = r.pieces ? job->next() : std::nullopt) text += piece->text;
          const auto result = job->wait();
          if (result.sequences[0].stop_reason == "abort") {
            ++cancelled;
          } else {
            ++answered;
            if (i % 3 == 0) {
              EXPECT_EQ(result.sequences[0].tokens, want.sequences[0].tokens);
              EXPECT_EQ(text, want.sequences[0].text);
            }
          }
        } catch (const Error& e) {
          EXPECT_EQ(e.kind(), ErrorKind::kNotFound) << e.what();
          ++gone;
        }
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    engine.add_version("comes", adapters[1]);
    engine.between_passes([] {});
    engine.remove_version("comes", i % 2 == 0);
    if (i == 7) engine.reset_prefix_cache();
  }
  // A trainer's passes run on the same model meanwhile.
  InputFeature f;
  f.input_ids = random_tokens(40, 9);
  f.labels.assign(40, kIgnoreIndex);
  const at::Tensor first = tiny.model->forward(pack({&f, 1}), nullptr, {}).clone();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(tiny.model->forward(pack({&f, 1}), nullptr, {}).equal(first));
  for (auto& client : clients) client.join();
  EXPECT_EQ(answered + cancelled + gone, 120);
  EXPECT_GT(answered, 0);
  expect_nothing_held(engine);
  const auto late = engine.submit(request({1, 2}, {.max_tokens = 300, .ignore_eos = true}));
  engine.shutdown();  // long before its 300 tokens
  EXPECT_THROW(late->wait(), Error);
}

}  // namespace
}  // namespace twinkle::test
