// labels: quick bits
// What can be asked of a prompt beside the log-probabilities of its own tokens, and of an answer beside those
// of what was drawn: chosen tokens, draws, the likeliest, a suffix only. The authority is the trainer's
// forward over a sequence with the token in question in its place.
#include <cmath>

#include "tests/sample/sample_testing.h"
#include "twinkle/sample/pick.h"

namespace twinkle::test {
namespace {

// What the trainer says of `id` at a place of the prompt.
float trainers(TinySampling& tiny, Adapter* adapter, std::vector<int32_t> prompt, int64_t place, int32_t id) {
  prompt.resize(static_cast<size_t>(place));
  prompt.push_back(id);
  return score_sequences(*tiny.model, adapter, {prompt})[0].back();
}

struct Fixture {
  TinySampling tiny;
  std::shared_ptr<Adapter> adapter = tiny.adapter(4, {"all-linear"}, 7);
  std::vector<int32_t> prompt = random_tokens(150, 11);

  SampleResult ask_with(const SamplingParams& params, std::vector<PromptTarget> targets = {},
                        int64_t pass_tokens = 512, const std::string& version = "a") {
    SampleEngine engine(*tiny.model, tiny.tokenizer,
                        {.kv_blocks = 40, .max_tokens_per_pass = pass_tokens, .own_thread = false});
    engine.add_version("a", adapter);
    SampleRequest r = request(prompt, params, version);
    r.prompt_targets = std::move(targets);
    SampleResult result = ask(engine, r);
    const SampleResult again = ask(engine, r);  // now with the prompt in the cache
    EXPECT_EQ(result.prompt_target_logprobs, again.prompt_target_logprobs);
    EXPECT_EQ(result.prompt_logprobs, again.prompt_logprobs);
    return result;
  }
};

TEST(PromptScores, ChosenTokensHaveTheTrainersBits) {
  Fixture f;
  const std::vector<PromptTarget> targets = {{3, 5}, {3, 200}, {3, 5}, {70, f.prompt[70]}, {149, 0}};
  for (const int64_t pass_tokens : {512, 40}) {
    for (const int64_t max_tokens : {0, 2}) {
      for (const bool own : {false, true}) {
        const SampleResult got =
            f.ask_with({.max_tokens = max_tokens, .prompt_logprobs = own}, targets, pass_tokens);
        ASSERT_EQ(got.prompt_target_logprobs.size(), targets.size());
        for (size_t i = 0; i < targets.size(); ++i) {
          EXPECT_EQ(got.prompt_target_logprobs[i],
                    trainers(f.tiny, f.adapter.get(), f.prompt, targets[i].place, targets[i].id))
              << i;
        }
        if (own) expect_trainer_bits(f.tiny, f.adapter.get(), f.prompt, got, "prompt");
        EXPECT_EQ(got.prompt_logprobs.empty(), !own);
      }
    }
  }
  expect_error(ErrorKind::kInvalidArgument,
               "[sample] place 0 of a target is not behind the first token of the prompt, or out of order",
               [&] { f.ask_with({}, {{0, 1}}); });
  expect_error(ErrorKind::kInvalidArgument,
               "[sample] target 259 at place 2 of the prompt is not in the vocabulary of 259",
               [&] { f.ask_with({}, {{2, 259}}); });
}

TEST(PromptScores, NumbersThatAreNoneAreAnError) {
  Fixture f;
  for (auto& m : f.adapter->modules()) m.slot.b_Nr.fill_(1e30f);
  SampleEngine engine(*f.tiny.model, f.tiny.tokenizer, {.kv_blocks = 40, .own_thread = false});
  engine.add_version("a", f.adapter);
  const SamplingParams scores{.max_tokens = 0, .prompt_logprobs = true};
  const auto broken = engine.submit(request(f.prompt, scores, "a"));
  const auto sound = engine.submit(request(f.prompt, scores));
  run_all(engine);
  EXPECT_HAS(thrown([&] { broken->wait(); }), "logits that are not numbers");
  EXPECT_EQ(sound->wait().prompt_logprobs.size(), f.prompt.size());
  expect_nothing_held(engine);
}

TEST(PromptScores, ASuffixIsThatOfTheWhole) {
  Fixture f;
  const SamplingParams all{.max_tokens = 1, .prompt_logprobs = true, .topk_prompt_logprobs = 3};
  const SampleResult whole = f.ask_with(all);
  for (const int64_t n : {1, 17, 149, 400}) {
    SamplingParams params = all;
    params.prompt_logprobs_last_n = n;
    const SampleResult got = f.ask_with(params);
    for (size_t i = 0; i < f.prompt.size(); ++i) {
      const bool scored = i > 0 && static_cast<int64_t>(f.prompt.size() - i) <= n;
      EXPECT_EQ(got.prompt_logprobs[i], scored ? whole.prompt_logprobs[i] : std::nullopt) << n << " " << i;
      EXPECT_EQ(got.topk_prompt_logprobs[i].size(), scored ? 3u : 0u) << n << " " << i;
    }
    const auto &a = got.topk_prompt_logprobs.back(), &b = whole.topk_prompt_logprobs.back();
    EXPECT_EQ(a[0].logprob, b[0].logprob);
  }
}

TEST(PromptScores, DrawsFollowTheDistribution) {
  Fixture f;
  f.prompt.resize(3);
  constexpr int64_t kDraws = 1000;
  SamplingParams params{.max_tokens = 0, .temperature = 0.5, .seed = 4, .prompt_draws = kDraws};
  const SampleResult got = f.ask_with(params);
  ASSERT_EQ(got.prompt_draws.size(), 2u);
  for (int64_t place = 1; place <= 2; ++place) {
    const auto& draws = got.prompt_draws[static_cast<size_t>(place) - 1];
    ASSERT_EQ(draws.size(), static_cast<size_t>(kDraws));
    std::map<int32_t, int64_t> count;
    for (const auto& [id, logprob] : draws) {
      ++count[id];
      if (count[id] > 1) continue;
      EXPECT_EQ(logprob, trainers(f.tiny, f.adapter.get(), f.prompt, place, id));
    }
    // Each token about as often as its probability at the temperature says: p^2, normalised.
    double total = 0;
    std::vector<double> p;
    for (int32_t id = 0; id < 259; ++id) {
      p.push_back(std::exp(2.0 * trainers(f.tiny, f.adapter.get(), f.prompt, place, id)));
      total += p.back();
    }
    for (int32_t id = 0; id < 259; ++id) {
      const double expected = kDraws * p[static_cast<size_t>(id)] / total;
      EXPECT_LT(std::abs(static_cast<double>(count[id]) - expected), 6 * std::sqrt(expected) + 3) << id;
    }
  }
  // The same draws however the prompt is cut; other ones for another seed; the likeliest when greedy.
  const auto ids = [&](const SamplingParams& with, int64_t pass_tokens) {
    std::vector<int32_t> out;
    for (const auto& row : f.ask_with(with, {}, pass_tokens).prompt_draws) {
      for (const auto& draw : row) out.push_back(draw.id);
    }
    return out;
  };
  EXPECT_EQ(ids(params, 512), ids(params, 1));
  SamplingParams other = params;
  other.seed = 5;
  EXPECT_NE(ids(params, 512), ids(other, 512));
  other.temperature = 0;
  other.prompt_draws = 2;
  const auto greedy = ids(other, 512);
  EXPECT_EQ(greedy[0], greedy[1]);
  SamplingParams likeliest{.max_tokens = 0, .prompt_logprobs = true, .topk_prompt_logprobs = 1};
  EXPECT_EQ(greedy[0], f.ask_with(likeliest).topk_prompt_logprobs[1][0].id);
}

// What an answer's tokens were drawn among: the alternatives at temperature 2 with a cut-off.
TEST(PromptScores, AlternativesAreOfTheDistributionDrawnFrom) {
  Fixture f;
  SamplingParams params{.max_tokens = 12, .temperature = 2.0, .top_k = 5, .seed = 9, .ignore_eos = true};
  params.sampled_alternatives = 8;
  const SampleResult got = f.ask_with(params);
  const SampledSequence& answer = got.sequences[0];
  ASSERT_EQ(answer.top_sampled.size(), answer.tokens.size());
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    const auto& top = answer.top_sampled[i];
    ASSERT_EQ(top.size(), 5u);
    double sum = 0;
    bool drawn = false;
    for (size_t j = 0; j < top.size(); ++j) {
      sum += std::exp(static_cast<double>(top[j].logprob));
      EXPECT_GE(top[j == 0 ? 0 : j - 1].logprob, top[j].logprob);
      if (top[j].id != answer.tokens[i]) continue;
      drawn = true;
      EXPECT_EQ(top[j].logprob, answer.sampled_logprobs[i]);
    }
    EXPECT_TRUE(drawn);
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

}  // namespace
}  // namespace twinkle::test
