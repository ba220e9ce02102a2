// labels: quick bits tenants
// Sequences that begin alike: sharing rows in the forward pass changes no bit of anything; sharing them in
// the backward pass gives the same gradients but for rounding, with bits of its own that obey the same law.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_testing.h"
#include "tests/train/tenants_testing.h"

namespace twinkle {
namespace {

using testing::bits;
using testing::lora_of;
using testing::message_of;
using testing::state_of;
using testing::stories;

const std::vector<std::string> kAll = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                       "gate_proj", "up_proj", "down_proj"};

std::vector<int32_t> random_tokens(CounterRng& rng, uint64_t count) {
  std::vector<int32_t> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(3 + rng.next_below(500)));
  return out;
}

InputFeature feature_of(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  InputFeature f{.input_ids = prompt};
  f.input_ids.insert(f.input_ids.end(), answer.begin(), answer.end());
  f.labels.assign(f.input_ids.size(), kIgnoreIndex);
  for (size_t t = prompt.size() - 1; t + 1 < f.input_ids.size(); ++t) f.labels[t] = f.input_ids[t + 1];
  return f;
}

/// Groups of answers; prompts of any length, and some sequences that stand alone.
std::vector<InputFeature> groups(uint64_t seed, int count) {
  CounterRng rng(seed, 11);
  std::vector<InputFeature> list;
  for (int g = 0; g < count; ++g) {
    const auto prompt = random_tokens(rng, rng.next_below(4) == 0 ? 64 : 10 + rng.next_below(120));
    const auto answers = 1 + rng.next_below(4);
    for (uint64_t a = 0; a < answers; ++a)
      list.push_back(feature_of(prompt, random_tokens(rng, 1 + rng.next_below(70))));
  }
  return list;
}

struct User {
  std::string name;  // "": the base model
  LoraConfig lora;
};

std::vector<User> users() {
  return {{"one", lora_of(4, kAll, 1)},
          {"two", lora_of(8, {"q_proj", "down_proj"}, 2)},
          {"dropped", lora_of(4, kAll, 3, 0.2)},
          {"", {}}};
}

MultiLoraOptions options(PrefixSharing sharing, int64_t pass_tokens = 2048) {
  return {.max_loras = 8, .max_r = 64, .model = {.micro_batch_tokens = pass_tokens, .share_prefix = sharing}};
}

/// Scores of everybody, old and new, and a step of training in between, all in shared passes.
struct Record {
  std::vector<std::string> bits;
  int64_t tokens = 0, rows = 0;
};
Record run_of(const MultiLoraOptions& options, uint64_t seed) {
  MultiLoraTransformersModel model(stories(), options);
  std::vector<TenantRequest> requests;
  for (const User& user : users()) {
    if (!user.name.empty()) {
      model.add_adapter_to_model(user.name, user.lora);
      model.set_optimizer("AdamW", {{"lr", 1e-2}}, user.name);
    }
  }
  for (int round = 0; round < 2; ++round) {
    uint64_t number = seed;
    for (const User& user : users()) {
      const auto features = groups(number++, 3);
      requests.push_back({.adapter_name = user.name, .kind = WorkKind::kForward, .features = features});
      if (user.name.empty()) continue;
      requests.push_back({.adapter_name = user.name, .features = features});
      requests.push_back({.adapter_name = user.name, .kind = WorkKind::kStep, .max_grad_norm = 1.0});
    }
    // The prompts of "one", by others.
    requests.push_back({.adapter_name = "two", .kind = WorkKind::kForward, .features = groups(seed, 3)});
    requests.push_back({.kind = WorkKind::kForward, .features = groups(seed, 3)});
  }
  Record record;
  const auto results = model.run(requests);
  for (size_t i = 0; i < requests.size(); ++i) testing::note(record.bits, requests[i], results[i]);
  for (const User& user : users())
    if (!user.name.empty()) record.bits.push_back(state_of(model, user.name));
  record.tokens = model.num_pass_tokens();
  record.rows = model.num_computed_rows();
  return record;
}

TEST(SharedPrefix, SharingInTheForwardPassChangesNoBit) {
  RestoreMachine restore;
  for (const Isa isa : vector_isas()) {
    force_isa(isa);
    for (const uint64_t seed : {100U, 200U}) {
      set_num_threads(1);
      const Record off = run_of(options(PrefixSharing::kOff), seed);
      EXPECT_EQ(off.rows, off.tokens);
      const Record small = run_of(options(PrefixSharing::kExact, 300), seed);
      EXPECT_EQ(small.bits, off.bits) << isa_name(isa) << " seed " << seed << " small passes";
      set_num_threads(2);
      const Record exact = run_of(options(PrefixSharing::kExact), seed);
      EXPECT_EQ(exact.bits, off.bits) << isa_name(isa) << " seed " << seed << " two threads";
      EXPECT_LT(exact.rows, off.rows * 9 / 10);
    }
  }
}

TEST(SharedPrefix, NorWithRecomputationOrAnotherLayout) {
  const Record off = run_of(options(PrefixSharing::kOff), 400);
  MultiLoraOptions other = options(PrefixSharing::kExact);
  other.model.gradient_checkpointing = Recompute::kAlways;
  EXPECT_EQ(run_of(other, 400).bits, off.bits);
  other.model.packing = PackingOrder::kLongestFirst;
  EXPECT_EQ(run_of(other, 400).bits, off.bits);
}

/// Losses and weights of two steps of one model.
std::vector<std::string> steps_of(TransformersModel& model, const std::vector<InputFeature>& features) {
  std::vector<std::string> record;
  for (int step = 0; step < 2; ++step) {
    record.push_back(bits(model.forward_backward(features)));
    record.push_back(bits(model.clip_grad_and_step()));
  }
  record.push_back(testing::hash_of(model));
  return record;
}

std::unique_ptr<TransformersModel> model_of(PrefixSharing sharing, int64_t pass_tokens = 4096,
                                            double dropout = 0,
                                            PackingOrder packing = PackingOrder::kAsGiven) {
  auto model = std::make_unique<TransformersModel>(
      stories(), TransformersModelOptions{
                     .micro_batch_tokens = pass_tokens, .share_prefix = sharing, .packing = packing});
  model->add_adapter_to_model("default", lora_of(8, kAll, 5, dropout));
  model->set_optimizer("AdamW", {{"lr", 1e-2}});
  return model;
}

TEST(SharedPrefix, AWholeModelTrainsWithTheSameBits) {
  const auto features = groups(500, 4);
  const auto of = [&](PrefixSharing sharing) {
    TransformersModel model(stories(), {.micro_batch_tokens = 4096, .share_prefix = sharing});
    model.set_optimizer("AdamW", {{"lr", 1e-3}});
    return steps_of(model, features);
  };
  EXPECT_EQ(of(PrefixSharing::kExact), of(PrefixSharing::kOff));
}

/// Rows that a pass over the parts computes.
int64_t rows_of(const std::vector<std::pair<const Adapter*, std::vector<InputFeature>>>& parts, bool training,
                CausalLM& model) {
  std::vector<MicroBatch> micros;
  std::vector<PassPart> list;
  micros.reserve(parts.size());
  for (const auto& [adapter, features] : parts) {
    micros.push_back(
        make_micro_batch(features, {}, 0, static_cast<int64_t>(features.size()), 0, PackingOrder::kAsGiven));
    list.push_back({.micro = &micros.back(), .adapter = adapter, .training = training});
  }
  std::vector<PassPart*> pointers;
  for (auto& part : list) pointers.push_back(&part);
  FusedPass pass(model);
  pass.forward(pointers, {});
  pass.finish();
  return pass.computed_rows();
}

TEST(SharedPrefix, OnlySequencesOfOneAdapterWithoutDropoutShare) {
  const auto model = CausalLM::load(stories());
  CounterRng rng(1, 1);
  const auto prompt = random_tokens(rng, 40);
  const std::vector<InputFeature> a = {feature_of(prompt, random_tokens(rng, 10))},
                                  b = {feature_of(prompt, random_tokens(rng, 10))};
  const auto plain = Adapter::create(*model, lora_of(4, kAll, 1)),
             other = Adapter::create(*model, lora_of(4, kAll, 1)),
             dropped = Adapter::create(*model, lora_of(4, kAll, 1, 0.1));
  EXPECT_EQ(rows_of({{plain.get(), a}, {plain.get(), b}}, true, *model), 60);
  EXPECT_EQ(rows_of({{nullptr, a}, {nullptr, b}}, false, *model), 60);
  EXPECT_EQ(rows_of({{plain.get(), a}, {other.get(), b}}, true, *model), 100);
  EXPECT_EQ(rows_of({{plain.get(), a}, {nullptr, b}}, true, *model), 100);
  EXPECT_EQ(rows_of({{dropped.get(), a}, {dropped.get(), b}}, true, *model), 100);
  EXPECT_EQ(rows_of({{dropped.get(), a}, {dropped.get(), b}}, false, *model), 60);  // nothing is dropped
}

// Backward over shared rows.

/// All gradients after one call.
at::Tensor gradients(PrefixSharing sharing, const std::vector<InputFeature>& features, bool full,
                     int64_t pass_tokens = 8192) {
  TransformersModel model(stories(), {.micro_batch_tokens = pass_tokens, .share_prefix = sharing});
  if (!full) {
    model.add_adapter_to_model("default", lora_of(8, kAll, 5));
    // B begins as zero, which would hide the gradient of A.
    auto& modules = model.group().adapter()->modules();
    for (size_t i = 0; i < modules.size(); ++i)
      modules[i].slot.b_Nr.copy_(normal(modules[i].slot.b_Nr.sizes(), 70 + i, 0.1f));
  }
  model.forward_backward(features);
  std::vector<at::Tensor> all;
  for (const auto& t : model.group().trained()) {
    const at::Tensor flat = t.grad.flatten().to(at::kDouble);
    all.push_back(flat / (1e-12 + flat.abs().max()));  // every tensor counts by its own scale
  }
  return at::cat(all);
}

TEST(SharedPrefix, GroupsHaveTheGradientsOfSequencesButForRounding) {
  for (const uint64_t seed : {700U, 701U, 702U, 703U}) {
    const auto features = groups(seed, 5);
    for (const bool full : {false, true}) {
      const at::Tensor off = gradients(PrefixSharing::kOff, features, full),
                       shared = gradients(PrefixSharing::kGroups, features, full);
      EXPECT_LT((off - shared).abs().max().item<double>(), 2e-5) << "seed " << seed << " full " << full;
      EXPECT_GT((off - shared).abs().max().item<double>(), 0) << "nothing was shared";
    }
  }
}

// An answer of one token, where inputs end before their last target: all of its rows are the prompt's.
TEST(SharedPrefix, AnAnswerWithoutRowsOfItsOwnSendsNothingBackToTheKeys) {
  CounterRng rng(750, 11);
  for (const uint64_t length : {1U, 40U, 64U, 100U}) {
    const auto prompt = random_tokens(rng, length);
    std::vector<InputFeature> features;
    for (int i = 0; i < 6; ++i)
      features.push_back(feature_of(prompt, random_tokens(rng, i % 2 == 0 ? 30 : 0)));
    for (size_t i = 1; i < features.size(); i += 2) {
      EXPECT_EQ(features[i].num_trained(), 0);
      features[i].labels.back() = static_cast<int32_t>(7 + i);
    }
    for (const bool full : {false, true}) {
      const at::Tensor off = gradients(PrefixSharing::kOff, features, full);
      for (const int64_t pass_tokens : {8192, 1}) {
        const at::Tensor shared = gradients(PrefixSharing::kGroups, features, full, pass_tokens);
        EXPECT_LT((off - shared).abs().max().item<double>(), 2e-5) << "prompt " << length << " full " << full;
      }
    }
  }
}

TEST(SharedPrefix, GroupsHaveBitsOfTheirOwnWhateverRunsBeside) {
  const auto features = groups(800, 5);
  RestoreMachine restore;
  set_num_threads(1);
  const auto expected = steps_of(*model_of(PrefixSharing::kGroups), features);
  for (const int threads : {1, 2}) {
    for (const Isa isa : vector_isas()) {
      set_num_threads(threads);
      force_isa(isa);
      EXPECT_EQ(steps_of(*model_of(PrefixSharing::kGroups), features), expected)
          << isa_name(isa) << " " << threads;
    }
  }
  // Passes that hold a group or less, other layouts, recomputation.
  for (const int64_t tokens : {1, 300}) {
    for (const auto packing :
         {PackingOrder::kAsGiven, PackingOrder::kReversed, PackingOrder::kLongestFirst}) {
      EXPECT_EQ(steps_of(*model_of(PrefixSharing::kGroups, tokens, 0, packing), features), expected)
          << tokens;
    }
  }
  // Beside others in shared passes.
  MultiLoraTransformersModel many(stories(), options(PrefixSharing::kGroups, 700));
  many.add_adapter_to_model("default", lora_of(8, kAll, 5));
  many.set_optimizer("AdamW", {{"lr", 1e-2}}, "default");
  many.add_adapter_to_model("other", lora_of(16, kAll, 6));
  std::vector<std::string> record;
  for (int step = 0; step < 2; ++step) {
    const auto results = many.run({{.adapter_name = "other", .features = features},
                                   {.adapter_name = "default", .features = features},
                                   {.adapter_name = "default", .kind = WorkKind::kStep, .max_grad_norm = 1.0},
                                   {.kind = WorkKind::kForward, .features = features}});
    for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.error->what();
    record.push_back(bits(results[1].output));
    record.push_back(bits(results[2].step));
  }
  record.push_back(weights_hash(many.group("default").trained()));
  EXPECT_EQ(record, expected);
}

TEST(SharedPrefix, AccumulatedCallsOfWholeGroupsAreOneCall) {
  const auto features = groups(900, 4);
  const auto runs = feature_runs(features, PrefixSharing::kGroups, true, 0);
  ASSERT_EQ(runs.size(), 4U);
  const auto cut = features.begin() + runs[1].end;
  const auto one = model_of(PrefixSharing::kGroups), two = model_of(PrefixSharing::kGroups);
  one->forward_backward(features);
  one->clip_grad_and_step();
  two->set_gradient_accumulation_steps(2);
  two->forward_backward(std::vector<InputFeature>(features.begin(), cut));
  two->forward_backward(std::vector<InputFeature>(cut, features.end()));
  two->clip_grad_and_step();
  EXPECT_EQ(testing::hash_of(*one), testing::hash_of(*two));
}

TEST(SharedPrefix, GroupsAreRefusedWhereAnswersDropInputs) {
  const auto model = model_of(PrefixSharing::kGroups, 4096, 0.1);
  const auto features = groups(1000, 1);
  EXPECT_EQ(message_of([&] { model->forward_backward(features); }),
            "[forward] share_prefix 'groups' needs an adapter without lora_dropout, this one has 0.1: each "
            "answer draws its own dropout for the prompt, so there is nothing that they could share; set "
            "lora_dropout to 0 or share_prefix to 'exact'");
  EXPECT_EQ(model->forward_only(features).logprobs.size(), features.size());
}

}  // namespace
}  // namespace twinkle
