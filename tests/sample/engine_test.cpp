// What a request gets: its answer, its end, its errors; and that nothing is left behind.
#include "twinkle/sample/engine.h"

#include <cmath>

#include "tests/sample/sample_testing.h"
#include "twinkle/sample/answer_text.h"
#include "twinkle/sample/generate.h"

namespace twinkle::test {
namespace {

const EngineOptions kByHand{.kv_blocks = 32, .own_thread = false};

TEST(Engine, GreedyTakesTheLikeliestOfTheWholeForward) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(70, 1);
  const auto result = ask(engine, request(prompt, {.max_tokens = 20, .temperature = 0, .ignore_eos = true}));
  std::vector<int32_t> history = prompt;
  for (const int32_t id : result.sequences[0].tokens) {
    InputFeature f;
    f.input_ids = history;
    f.labels.assign(history.size(), kIgnoreIndex);
    const at::Tensor hidden = tiny.model->forward(pack({&f, 1}), nullptr, {});
    const at::Tensor logits =
        tiny.model->logits(tiny.model->arena(), hidden.narrow(0, hidden.size(0) - 1, 1), nullptr);
    // Ids past the tokenizer's last (there is none here) would be left out.
    EXPECT_EQ(id, logits.argmax(1).item<int64_t>());
    history.push_back(id);
  }
  EXPECT_EQ(result.sequences[0].stop_reason, "length");
  EXPECT_EQ(result.sequences[0].sampled_logprobs, std::vector<float>(20, 0.0f));
  EXPECT_EQ(result.sequences[0].text, tiny.tokenizer->decode(result.sequences[0].tokens, true));
  expect_trainer_bits(tiny, nullptr, prompt, result, "greedy");
  expect_nothing_held(engine);
}

TEST(Engine, SamplesDifferRepeatAndDoNotMindCompany) {
  TinySampling tiny;
  const auto prompt = random_tokens(10, 2);
  const auto ask_four = [&](bool company, bool cache) {
    EngineOptions options = kByHand;
    options.prefix_cache = cache;
    options.max_tokens_per_pass = company ? 7 : 512;
    SampleEngine engine(*tiny.model, tiny.tokenizer, options);
    engine.add_version("a", tiny.adapter(4, {"q_proj", "down_proj"}, 5));
    for (int i = 0; company && i < 6; ++i) {
      engine.submit(request(random_tokens(30, 50 + static_cast<uint64_t>(i)), {.max_tokens = 30},
                            i % 2 == 0 ? "a" : ""));
    }
    return ask(engine, request(prompt, {.max_tokens = 32, .seed = 1, .ignore_eos = true, .num_samples = 4}));
  };
  const auto alone = ask_four(false, true), again = ask_four(true, true), uncached = ask_four(true, false);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(alone.sequences[i].tokens, again.sequences[i].tokens);
    EXPECT_EQ(alone.sequences[i].logprobs, again.sequences[i].logprobs);
    EXPECT_EQ(alone.sequences[i].tokens, uncached.sequences[i].tokens);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(alone.sequences[i].tokens, alone.sequences[j].tokens);
  }
}

TEST(Engine, RequestsWithoutSeedDiffer) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const SamplingParams params{.max_tokens = 16, .ignore_eos = true};
  const auto one = ask(engine, request({1, 2, 3}, params)), two = ask(engine, request({1, 2, 3}, params));
  EXPECT_NE(one.sequences[0].tokens, two.sequences[0].tokens);
  // What others ask does not change a tenant's draws.
  SampleEngine again(*tiny.model, tiny.tokenizer, kByHand);
  auto other = request({9}, params);
  other.tenant = "other";
  again.submit(other);
  EXPECT_EQ(ask(again, request({1, 2, 3}, params)).sequences[0].tokens, one.sequences[0].tokens);
}

TEST(Engine, EndsAtTokensStringsAndLengths) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(12, 4);
  SamplingParams params{
      .max_tokens = 40, .seed = 9, .ignore_eos = true, .forbidden_token_ids = {256, 257, 258}};
  for (int32_t id = 128; id < 256; ++id) params.forbidden_token_ids.push_back(id);  // one byte, one character
  const auto whole = ask(engine, request(prompt, params)).sequences[0];
  ASSERT_EQ(whole.tokens.size(), 40u);

  // A stop token is there once, as the last.
  const int32_t stop = whole.tokens[7];
  const auto first = static_cast<size_t>(std::ranges::find(whole.tokens, stop) - whole.tokens.begin());
  params.stop_token_ids = {stop};
  auto cut = ask(engine, request(prompt, params)).sequences[0];
  EXPECT_EQ(cut.tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + first + 1));
  EXPECT_EQ(cut.stop_reason, "stop");
  EXPECT_EQ(cut.logprobs.size(), cut.tokens.size());
  // Not before min_tokens: then it can not be drawn at all.
  params.min_tokens = static_cast<int64_t>(first) + 3;
  cut = ask(engine, request(prompt, params)).sequences[0];
  EXPECT_GE(cut.tokens.size(), first + 3);
  for (size_t i = 0; i < first + 2; ++i) EXPECT_NE(cut.tokens[i], stop);
  params.min_tokens = 0;
  params.stop_token_ids.clear();

  // A string over three tokens: the text ends before it, the tokens with it.
  const std::string text = whole.text.substr(20, 3);
  const size_t at = whole.text.find(text);
  params.stop = {"never this", text, text + "and more"};
  cut = ask(engine, request(prompt, params)).sequences[0];
  EXPECT_EQ(cut.text, whole.text.substr(0, at));
  EXPECT_EQ(cut.tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + at + 3));
  EXPECT_EQ(cut.stop_reason, "stop");
  // Begun before min_tokens and completed after it counts; completed before it does not.
  params.stop = {text};
  for (int64_t more = 0; more <= 3; ++more) {
    params.min_tokens = static_cast<int64_t>(at) + more;
    EXPECT_EQ(ask(engine, request(prompt, params)).sequences[0].tokens, cut.tokens) << params.min_tokens;
  }
  params.min_tokens = static_cast<int64_t>(at) + 4;
  EXPECT_GT(ask(engine, request(prompt, params)).sequences[0].tokens.size(), cut.tokens.size());
  params.min_tokens = 0;
  params.stop.clear();

  // The end of a turn, unless it is ignored; named as a string it is the token.
  params.forbidden_token_ids.clear();
  params.allowed_token_ids = {65, kEnd};
  params.logit_bias = {{kEnd, 0.0}};
  params.ignore_eos = false;
  cut = ask(engine, request(prompt, params)).sequences[0];
  ASSERT_EQ(cut.stop_reason, "stop");
  EXPECT_EQ(cut.tokens.back(), kEnd);
  EXPECT_EQ(std::ranges::count(cut.tokens, kEnd), 1);
  EXPECT_EQ(cut.text, std::string(cut.tokens.size() - 1, 'A'));
  params.ignore_eos = true;
  EXPECT_EQ(ask(engine, request(prompt, params)).sequences[0].tokens.size(), 40u);
  params.stop = {"<|im_end|>"};
  EXPECT_EQ(ask(engine, request(prompt, params)).sequences[0].tokens, cut.tokens);
  expect_nothing_held(engine);
}

TEST(Engine, StopsAtTheEndOfTheContext) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(310, 1);
  const auto result = ask(engine, request(prompt, {.max_tokens = 100, .seed = 1, .ignore_eos = true}));
  EXPECT_EQ(result.sequences[0].tokens.size(), 10u);
  EXPECT_EQ(result.sequences[0].stop_reason, "length");
  expect_trainer_bits(tiny, nullptr, prompt, result, "full context");
}

TEST(Engine, ScoresAPromptWithItsAlternatives) {
  TinySampling tiny;
  EngineOptions options = kByHand;
  options.max_tokens_per_pass = 33;
  SampleEngine engine(*tiny.model, tiny.tokenizer, options);
  const auto adapter = tiny.adapter(3, {"v_proj", "lm_head"}, 8);
  engine.add_version("a", adapter);
  const auto prompt = random_tokens(150, 6);
  // A cached prompt is scored as well as a new one.
  for (int round = 0; round < 2; ++round) {
    const auto result = ask(
        engine, request(prompt, {.max_tokens = 0, .prompt_logprobs = true, .topk_prompt_logprobs = 3}, "a"));
    EXPECT_TRUE(result.sequences[0].tokens.empty());
    EXPECT_EQ(result.sequences[0].stop_reason, "length");
    ASSERT_EQ(result.topk_prompt_logprobs.size(), prompt.size());
    EXPECT_TRUE(result.topk_prompt_logprobs[0].empty());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const auto& top = result.topk_prompt_logprobs[i];
      ASSERT_EQ(top.size(), 3u);
      EXPECT_GE(top[0].logprob, top[1].logprob);
      EXPECT_GE(top[1].logprob, top[2].logprob);
      for (const auto& t : top) {
        EXPECT_TRUE(t.id != prompt[i] || t.logprob == *result.prompt_logprobs[i]);
      }
    }
    expect_trainer_bits(tiny, adapter.get(), prompt, result, "scores");
  }
  // The alternatives of drawn tokens: greedy takes the first.
  const auto drawn = ask(
      engine, request(prompt, {.max_tokens = 5, .temperature = 0, .ignore_eos = true, .logprobs = 2}, "a"));
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(drawn.sequences[0].top_logprobs[i].size(), 2u);
    EXPECT_EQ(drawn.sequences[0].top_logprobs[i][0].id, drawn.sequences[0].tokens[i]);
    EXPECT_EQ(drawn.sequences[0].top_logprobs[i][0].logprob, drawn.sequences[0].logprobs[i]);
  }
  EXPECT_EQ(drawn.cached_tokens, 128);
  const auto whole = ask(engine, request(random_tokens(320, 1), {.max_tokens = 0, .prompt_logprobs = true}));
  EXPECT_EQ(whole.prompt_logprobs.size(), 320u) << "a prompt that fills the context can be scored";
  EXPECT_TRUE(
      ask(engine, request({5}, {.max_tokens = 0, .prompt_logprobs = true})).sequences[0].tokens.empty());
  EXPECT_TRUE(ask(engine, request({5, 6}, {.max_tokens = 0})).sequences[0].tokens.empty());
}

TEST(Engine, NamesWhatIsWrong) {
  TinySampling tiny;
  EngineOptions options = kByHand;
  options.kv_blocks = 3;
  options.max_queued = 4;
  SampleEngine engine(*tiny.model, tiny.tokenizer, options);
  using Kind = ErrorKind;
  const auto submit = [&](std::vector<int32_t> prompt, SamplingParams params, std::string version = "") {
    return [&engine, r = request(std::move(prompt), std::move(params), std::move(version))] {
      engine.submit(r);
    };
  };
  expect_error(Kind::kInvalidArgument, "[sample] the prompt has no tokens", submit({}, {}));
  expect_error(Kind::kInvalidArgument,
               "[sample] token 259 at position 1 of the prompt is not in the vocabulary of 259",
               submit({1, 259}, {}));
  expect_error(Kind::kInvalidArgument, "[sample] the prompt has 320 tokens, the model's context is 320",
               submit(random_tokens(320, 1), {}));
  expect_error(Kind::kNotFound, "[sample] there are no weights 'v9' (any more)",
               submit({1}, {.max_tokens = 4}, "v9"));
  expect_error(
      Kind::kExhausted,
      "[sample] the request may need 200 tokens, that is 4 blocks of 64, and the cache holds 3; lower "
      "max_tokens or give the cache more memory",
      submit(random_tokens(100, 1), {.max_tokens = 100}));
  expect_error(Kind::kExhausted, "[sample] 0 answers wait already, at most 4 may; ask again later",
               submit({1}, {.max_tokens = 4, .num_samples = 5}));
  expect_error(Kind::kInvalidArgument, "[sample] 'stop_token_ids' must be of tokens below 259, got 300",
               submit({1}, {.max_tokens = 4, .stop_token_ids = {300}}));
  expect_error(Kind::kConflict, "[sample] there are weights 'a' already", [&] {
    engine.add_version("a", tiny.adapter(2, {"q_proj"}, 1));
    engine.add_version("a", tiny.adapter(2, {"q_proj"}, 1));
  });
  // Everything forbidden: an error of that request, not a NaN; the others are answered.
  const auto good = engine.submit(request({1, 2}, {.max_tokens = 3, .ignore_eos = true}));
  const auto bad =
      engine.submit(request({1, 2}, {.max_tokens = 3, .allowed_token_ids = {4}, .forbidden_token_ids = {4}}));
  run_all(engine);
  EXPECT_EQ(good->wait().sequences[0].tokens.size(), 3u);
  expect_error(Kind::kInvalidArgument,
               "[sample] every token is forbidden; see allowed_token_ids, forbidden_token_ids and min_tokens",
               [&] { bad->wait(); });
  SampleEngine wordless(*tiny.model, nullptr, kByHand);
  EXPECT_THROW(wordless.submit(request({1}, {.stop = {"x"}})), Error);
  EXPECT_EQ(ask(wordless, request({1}, {.max_tokens = 2, .ignore_eos = true})).sequences[0].text, "");
  expect_nothing_held(engine);
}

TEST(Engine, WeightsThatAreNotNumbersFailTheirOwnRequestOnly) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto broken = tiny.adapter(2, {"q_proj", "o_proj"}, 1),
             sound = tiny.adapter(2, {"q_proj", "o_proj"}, 2);
  broken->modules()[0].slot.b_Nr.fill_(NAN);
  engine.add_version("broken", broken);
  engine.add_version("sound", sound);
  const SamplingParams params{.max_tokens = 6, .seed = 4, .ignore_eos = true};
  const auto want = ask(engine, request({1, 2, 3}, params, "sound"));
  engine.reset_prefix_cache();
  const auto bad = engine.submit(request({1, 2, 3}, params, "broken"));
  const auto good = engine.submit(request({1, 2, 3}, params, "sound"));
  run_all(engine);
  EXPECT_THROW(bad->wait(), Error);
  EXPECT_EQ(good->wait().sequences[0].logprobs, want.sequences[0].logprobs);
  expect_nothing_held(engine);
}

TEST(Engine, ACancelledRequestIsFreeAtOnce) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto job = engine.submit(
      request(random_tokens(100, 3), {.max_tokens = 100, .ignore_eos = true, .num_samples = 3}));
  const auto queued = engine.submit(request(random_tokens(100, 4), {.max_tokens = 100, .ignore_eos = true}));
  const auto other =
      engine.submit(request(random_tokens(10, 5), {.max_tokens = 20, .seed = 1, .ignore_eos = true}));
  for (int i = 0; i < 5; ++i) engine.step();
  job->cancel();
  queued->cancel();
  engine.step();
  EXPECT_EQ(engine.stats().running, 1);
  EXPECT_TRUE(job->done());
  const auto result = job->wait();
  EXPECT_EQ(result.sequences[0].stop_reason, "abort");
  EXPECT_EQ(result.sequences[0].tokens.size(), 5u);
  run_all(engine);
  EXPECT_EQ(other->wait().sequences[0].tokens.size(), 20u);
  job->cancel();  // again: nothing happens
  expect_nothing_held(engine);
}

TEST(Engine, RemovedWeightsAnswerWhatTheyAcceptedOrEndIt) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto adapter = tiny.adapter(4, {"all-linear"}, 7);
  const auto prompt = random_tokens(80, 3);
  const SamplingParams params{.max_tokens = 60, .seed = 2, .ignore_eos = true};
  engine.add_version("v1", adapter);
  const auto want = ask(engine, request(prompt, params, "v1"));
  auto kept = engine.submit(request(prompt, params, "v1"));
  for (int i = 0; i < 4; ++i) engine.step();
  engine.remove_version("v1");
  expect_error(ErrorKind::kNotFound, "[sample] there are no weights 'v1' (any more)",
               [&] { engine.submit(request(prompt, params, "v1")); });
  run_all(engine);
  EXPECT_EQ(kept->wait().sequences[0].tokens, want.sequences[0].tokens);
  EXPECT_EQ(engine.stats().blocks.cached, 0) << "nothing of removed weights stays cached";

  engine.add_version("v1", adapter);
  const auto ended = engine.submit(request(prompt, params, "v1")),
             base = engine.submit(request(prompt, params));
  for (int i = 0; i < 4; ++i) engine.step();
  engine.remove_version("v1", true);
  expect_error(ErrorKind::kNotFound, "[sample] the weights 'v1' were removed meanwhile",
               [&] { ended->wait(); });
  run_all(engine);
  EXPECT_EQ(base->wait().sequences[0].tokens.size(), 60u);

  engine.add_version("v1", adapter);
  const auto unseen = engine.submit(request(prompt, params, "v1"));  // no pass has run since
  engine.remove_version("v1", true);
  expect_error(ErrorKind::kNotFound, "[sample] the weights 'v1' were removed meanwhile",
               [&] { unseen->wait(); });
  expect_nothing_held(engine);
}

TEST(Engine, ANewVersionDoesNotSeeTheOldOnesCache) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(200, 3);
  const SamplingParams params{.max_tokens = 8, .seed = 2, .ignore_eos = true};
  const auto one = tiny.adapter(4, {"all-linear"}, 7), two = tiny.adapter(4, {"all-linear"}, 8);
  engine.add_version("s", one);
  ask(engine, request(prompt, params, "s"));
  EXPECT_EQ(ask(engine, request(prompt, params, "s")).cached_tokens, 192);
  engine.remove_version("s");
  engine.add_version("s", two);
  const auto got = ask(engine, request(prompt, params, "s"));
  EXPECT_EQ(got.cached_tokens, 0);
  expect_trainer_bits(tiny, two.get(), prompt, got, "second version");
}

TEST(Engine, ATenantDoesNotSeeTheCacheOfAnother) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(200, 3);
  const auto cached = [&](const char* tenant) {
    SampleRequest mine = request(prompt, {.max_tokens = 2, .seed = 2, .ignore_eos = true});
    mine.tenant = tenant;
    return ask(engine, std::move(mine)).cached_tokens;
  };
  EXPECT_EQ(cached("ann"), 0);
  EXPECT_EQ(cached("bob"), 0) << "Bob learns what Ann has asked";
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("ann"), 192);
  EXPECT_EQ(cached("bob"), 192);
}

TEST(Engine, AResetForgetsWhatRunningAnswersComputed) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const SamplingParams params{.max_tokens = 100, .seed = 1, .ignore_eos = true};
  for (const int64_t length : {30, 100}) {  // before and after its first whole block
    const auto prompt = random_tokens(length, 1);
    const auto want = ask(engine, request(prompt, params)).sequences[0];
    engine.reset_prefix_cache();
    const auto job = engine.submit(request(prompt, params));
    for (int i = 0; i < 5; ++i) engine.step();
    engine.reset_prefix_cache();
    run_all(engine);
    EXPECT_EQ(job->wait().sequences[0].tokens, want.tokens);
    EXPECT_EQ(engine.stats().blocks.cached, 0) << "nothing could find it";
    expect_nothing_held(engine);
    ask(engine, request(prompt, params));
    EXPECT_GT(engine.stats().blocks.cached, 0) << "later answers are cached again";
    expect_nothing_held(engine);
  }
}

TEST(Engine, SleepGivesMemoryBackAndGoesOnWithTheSameBits) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  const auto prompt = random_tokens(90, 3);
  const SamplingParams params{.max_tokens = 80, .seed = 2, .ignore_eos = true, .num_samples = 2};
  const auto want = ask(engine, request(prompt, params));
  const auto job = engine.submit(request(prompt, params));
  for (int i = 0; i < 10; ++i) engine.step();
  engine.sleep();
  EXPECT_TRUE(engine.asleep());
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.stats().blocks.free, 32);
  expect_error(ErrorKind::kUnavailable, "[sample] the sampler is asleep; wake_up() lets it go on",
               [&] { engine.submit(request({1}, {.max_tokens = 1})); });
  engine.wake_up();
  run_all(engine);
  const auto got = job->wait();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got.sequences[i].tokens, want.sequences[i].tokens);
    EXPECT_EQ(got.sequences[i].logprobs, want.sequences[i].logprobs);
  }
  engine.shutdown();
  expect_error(ErrorKind::kUnavailable, "[sample] the sampler was shut down",
               [&] { engine.submit(request({1}, {.max_tokens = 1})); });
}

TEST(Engine, ALateTenantIsNotHeldUpByACrowd) {
  TinySampling tiny;
  EngineOptions options = kByHand;
  options.max_running = 4;
  SampleEngine engine(*tiny.model, tiny.tokenizer, options);
  std::vector<std::shared_ptr<SampleJob>> crowd;
  for (uint64_t i = 0; i < 40; ++i) {
    auto r = request(random_tokens(20, i), {.max_tokens = 40, .ignore_eos = true});
    r.tenant = "crowd";
    crowd.push_back(engine.submit(std::move(r)));
  }
  for (int i = 0; i < 10; ++i) engine.step();
  auto r = request(random_tokens(20, 99), {.max_tokens = 10, .ignore_eos = true});
  r.tenant = "late";
  const auto late = engine.submit(std::move(r));
  for (int i = 0; i < 10; ++i) engine.step();
  EXPECT_TRUE(late->done()) << "it takes a place at once";
  EXPECT_GE(engine.stats().preemptions, 1);
  run_all(engine);
  for (const auto& job : crowd) EXPECT_EQ(job->wait().sequences[0].tokens.size(), 40u);
  expect_nothing_held(engine);
}

TEST(Engine, GivesTextByPieces) {
  TinySampling tiny;
  SampleEngine engine(*tiny.model, tiny.tokenizer, kByHand);
  std::vector<SampleRequest> requests;
  for (uint64_t i = 0; i < 3; ++i)
    requests.push_back(
        request(random_tokens(5, i), {.max_tokens = 30, .seed = i, .stop = {"zq"}, .num_samples = 2}));
  std::vector<std::string> texts(6);
  const auto results = generate(engine, requests, [&](size_t r, size_t s, const std::string& piece) {
    texts[2 * r + s] += piece;
    return true;
  });
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(texts[i], results[i / 2].sequences[i % 2].text);
  int pieces = 0;
  const auto ended =
      generate(engine, {requests[0]}, [&](size_t, size_t, const std::string&) { return ++pieces < 3; });
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(ended[0].sequences[0].stop_reason, "stop");
  EXPECT_THROW(generate(engine, {requests[0]}, [](size_t, size_t, const std::string&) -> bool { throw 7; }),
               int);
  EXPECT_EQ(engine.stats().running, 0) << "a callback's exception ends the request";
  requests[1].prompt.clear();
  expect_error(ErrorKind::kInvalidArgument, "[sample] request 1: the prompt has no tokens",
               [&] { generate(engine, requests); });
  expect_nothing_held(engine);
}

TEST(AnswerText, HoldsBackWhatMayBecomeAStopStringAndHalfCharacters) {
  const auto tokenizer = Tokenizer::from_json(tiny_tokenizer(), tiny_tokenizer_config(), "test");
  AnswerText text(tokenizer, {"bc", "bcd"});
  EXPECT_FALSE(text.push('a', true));
  EXPECT_EQ(text.take(), "a");
  EXPECT_FALSE(text.push('b', true));
  EXPECT_EQ(text.take(), "");
  EXPECT_TRUE(text.push('c', true));
  text.finish();
  EXPECT_EQ(text.take(), "");
  EXPECT_EQ(text.text(), "a");
  AnswerText korean(tokenizer, {});
  for (const int byte : {0xEA, 0xB9}) {
    korean.push(byte, true);
    EXPECT_EQ(korean.take(), "");
  }
  korean.push(0xB0, true);
  EXPECT_EQ(korean.take(), "\xEA\xB9\xB0");
  AnswerText early(tokenizer, {"xy"});
  early.push('x', true);
  early.finish();
  EXPECT_EQ(early.text(), "x") << "what was held back is text in the end";
}

TEST(AnswerText, CountsAStopStringByWhereItEnds) {
  const auto tokenizer = Tokenizer::from_json(tiny_tokenizer(), tiny_tokenizer_config(), "test");
  AnswerText across(tokenizer, {"bc"});
  EXPECT_FALSE(across.push('a', false));
  EXPECT_FALSE(across.push('b', false));
  EXPECT_EQ(across.take(), "a") << "the other may become a stop string";
  EXPECT_TRUE(across.push('c', true));
  across.finish();
  EXPECT_EQ(across.text(), "a");
  AnswerText before(tokenizer, {"bc"});
  for (const char c : {'b', 'c'}) EXPECT_FALSE(before.push(c, false));
  EXPECT_EQ(before.take(), "bc");
  EXPECT_FALSE(before.push('d', true));
  EXPECT_EQ(before.take(), "d");
  // Held back for the sake of a longer one, the short one still came too early.
  for (const bool longer : {false, true}) {
    AnswerText both(tokenizer, {"bc", "bcde"});
    for (const char c : {'b', 'c'}) EXPECT_FALSE(both.push(c, false));
    EXPECT_EQ(both.take(), "");
    EXPECT_FALSE(both.push('d', true));
    EXPECT_EQ(both.push(longer ? 'e' : 'f', true), longer);
    both.finish();
    EXPECT_EQ(both.text(), longer ? "" : "bcdf");
  }
}

}  // namespace
}  // namespace twinkle::test
