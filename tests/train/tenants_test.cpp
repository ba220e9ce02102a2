// labels: quick bits tenants
// Many adapters in one pass: each has the bits it has alone, whatever the others are and do.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "tests/kernels/kernel_testing.h"
#include "tests/train/tenants_testing.h"

namespace twinkle {
namespace {

using testing::alone;
using testing::bits;
using testing::call_of;
using testing::lora_of;
using testing::message_of;
using testing::mixed_tenants;
using testing::note;
using testing::requests_of;
using testing::set_up;
using testing::state_of;
using testing::stories;
using testing::TempDir;
using testing::Tenant;

const std::vector<std::string> kModules = {"all-linear", "embed_tokens"};

MultiLoraOptions options(int64_t max_loras, int64_t pass_tokens = 2048) {
  return {.max_loras = max_loras,
          .max_r = 64,
          .target_modules = kModules,
          .model = {.micro_batch_tokens = pass_tokens}};
}

// All tenants make all their calls at once, in passes of at most so many tokens.
std::map<std::string, std::vector<std::string>> together(const std::vector<Tenant>& tenants, int64_t calls,
                                                         const MultiLoraOptions& options) {
  MultiLoraTransformersModel model(stories(), options);
  for (const auto& t : tenants) set_up(model, t);
  std::vector<TenantRequest> requests;
  for (int64_t call = 0; call < calls; ++call) {
    for (const auto& t : tenants)
      for (auto& request : requests_of(t, call)) requests.push_back(std::move(request));
  }
  const auto results = model.run(requests);
  std::map<std::string, std::vector<std::string>> records;
  for (size_t i = 0; i < requests.size(); ++i)
    note(records[requests[i].adapter_name], requests[i], results[i]);
  for (const auto& t : tenants) records[t.name].push_back(state_of(model, t.name));
  return records;
}

TEST(Tenants, EachHasTheBitsItHasAlone) {
  RestoreMachine restore;
  const auto tenants = mixed_tenants();
  for (const auto& [isa, dtype] : product_kinds()) {
    SCOPED_TRACE(std::string(isa_name(isa)) + ", weights in " + dtype);
    force_isa(isa);
    const auto held = [&dtype = dtype](MultiLoraOptions options) {
      options.model.dtype = dtype;
      return options;
    };
    const auto shared = together(tenants, 6, held(options(8)));
    const auto small = together(tenants, 6, held(options(8, 40)));
    const auto crowded = together(tenants, 6, held(options(2, 100)));
    for (const auto& t : tenants) {
      const auto expected = alone(t, 6, stories(), dtype);
      EXPECT_GT(std::set<std::string>(expected.begin(), expected.end()).size(), 8U) << t.name;
      EXPECT_EQ(shared.at(t.name), expected) << t.name;
      EXPECT_EQ(small.at(t.name), expected) << t.name << ", passes of 40 tokens";
      EXPECT_EQ(crowded.at(t.name), expected) << t.name << ", two adapters in memory";
    }
  }
}

TEST(Tenants, RecomputationChangesNoBit) {
  const auto tenants = mixed_tenants();
  MultiLoraOptions recompute = options(8);
  recompute.model.gradient_checkpointing = Recompute::kAlways;
  EXPECT_EQ(together(tenants, 3, recompute), together(tenants, 3, options(8)));
}

TEST(Tenants, OnePassForAllThatFits) {
  const auto tenants = mixed_tenants();
  MultiLoraTransformersModel model(stories(), options(8));
  std::vector<TenantRequest> requests;
  int64_t tokens = 0;
  for (const auto& t : tenants) {
    set_up(model, t);
    requests.push_back({.adapter_name = t.name, .features = call_of(t, 0)});
  }
  requests.push_back({.kind = WorkKind::kForward, .features = call_of(tenants[0], 1)});
  for (const auto& request : requests)
    for (const auto& f : request.features) tokens += static_cast<int64_t>(f.input_ids.size());
  const auto results = model.run(requests);
  EXPECT_EQ(model.num_passes(), 1);
  EXPECT_EQ(model.num_pass_tokens(), tokens);
  // The base model among adapters is the base model.
  TransformersModel base(stories());
  base.add_adapter_to_model("zero", lora_of(4, {"q_proj"}, 1));
  EXPECT_EQ(results.back().output.logprobs,
            base.forward_only(call_of(tenants[0], 1), {.disable_lora = true}).logprobs);
}

TEST(Tenants, TheMethodsWorkOnTheNamedAdapter) {
  const auto tenants = mixed_tenants();
  MultiLoraTransformersModel model(stories(), options(2));
  std::map<std::string, std::vector<std::string>> records;
  for (const auto& t : tenants) set_up(model, t);
  for (int64_t call = 0; call < 4; ++call) {
    for (const auto& t : tenants) {
      const ForwardArgs args{.temperature = t.temperature};
      if (call % 4 == 3) records[t.name].push_back(bits(model.forward_only(call_of(t, call), args, t.name)));
      if (call % 2 == 0) {
        records[t.name].push_back(bits(model.forward_backward(call_of(t, call), args, t.name)));
      } else {
        // Two steps of one call with another tenant's in between.
        ModelOutput out = model.forward(call_of(t, call), args, t.name);
        const Tenant& other = tenants[t.name == "plain" ? 1 : 0];
        model.forward_only(call_of(other, 99), {}, other.name);
        model.zero_grad(t.name);
        out.loss = model.calculate_loss(t.name);
        records[t.name].push_back(bits(out));
        model.backward(t.name);
      }
      if (t.max_grad_norm > 0) model.clip_grad_norm(t.max_grad_norm, 2.0, t.name);
      records[t.name].push_back(bits(model.step({}, t.name)));
      model.zero_grad(t.name);
      model.lr_step(t.name);
    }
  }
  for (const auto& t : tenants) {
    records[t.name].push_back(state_of(model, t.name));
    EXPECT_EQ(records[t.name], alone(t, 4)) << t.name;
  }
}

TEST(Tenants, FiftyAdaptersOnTwoInMemory) {
  std::vector<Tenant> tenants;
  for (int i = 0; i < 50; ++i) {
    tenants.push_back({.name = "tenant " + std::to_string(i),
                       .lora = lora_of(1 + i % 7, {i % 2 == 0 ? "q_proj" : "down_proj"},
                                       static_cast<uint64_t>(i), i % 3 == 0 ? 0.2 : 0.0),
                       .accumulation = 1 + i % 2,
                       .seed = static_cast<uint64_t>(5000 + i)});
  }
  TempDir dir;
  MultiLoraOptions two = options(2);
  two.spill_dir = dir.path();
  {
    MultiLoraTransformersModel model(stories(), two);
    std::map<std::string, std::vector<std::string>> records;
    for (const auto& t : tenants) set_up(model, t);
    // Gradients are in flight when adapters leave: a call and its step never come together.
    for (int64_t call = 0; call < 3; ++call) {
      for (const int which : {0, 1}) {
        for (const auto& t : tenants) {
          const auto requests = requests_of(t, call);
          const auto results = model.run(std::span(requests).subspan(static_cast<size_t>(which), 1));
          note(records[t.name], requests[static_cast<size_t>(which)], results[0]);
        }
      }
    }
    EXPECT_EQ(model.pool().num_resident(), 2);
    EXPECT_GT(model.pool().times_written(), 250);
    for (const auto& t : tenants) {
      records[t.name].push_back(state_of(model, t.name));
      EXPECT_EQ(records[t.name], alone(t, 3)) << t.name;
    }
    for (const auto& t : tenants) model.remove_adapter(t.name);
    EXPECT_EQ(model.pool().resident_bytes() + model.pool().written_bytes(), 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Tenants, NotANumberStaysWithItsOwner) {
  const auto tenants = mixed_tenants();
  MultiLoraTransformersModel model(stories(), options(10));
  for (const auto& t : tenants) set_up(model, t);
  for (const char* name : {"poisoned", "poisoned head"})
    model.add_adapter_to_model(name, lora_of(8, {name[8] == 0 ? "q_proj" : "lm_head", "down_proj"}, 9));
  std::map<std::string, std::vector<std::string>> records;
  for (int64_t call = 0; call < 3; ++call) {
    std::vector<TenantRequest> requests;
    for (const char* name : {"poisoned", "poisoned head"}) {
      model.group(name).adapter()->modules()[0].slot.b_Nr.fill_(call == 1 ? 0.0f : NAN);
      requests.push_back({.adapter_name = name, .features = call_of(tenants[1], 3 * call)});
      requests.push_back({.adapter_name = name, .kind = WorkKind::kStep, .max_grad_norm = 1});
    }
    for (const auto& t : tenants)
      for (auto& request : requests_of(t, call)) requests.push_back(std::move(request));
    const auto results = model.run(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i >= 4) {
        note(records[requests[i].adapter_name], requests[i], results[i]);
        continue;
      }
      ASSERT_TRUE(results[i].ok()) << results[i].error->what();
      if (i % 2 == 0) {
        EXPECT_EQ(std::isnan(*results[i].output.loss), call != 1);
        continue;
      }
      EXPECT_EQ(results[i].step.skipped, call != 1);
      EXPECT_EQ(results[i].step.stepped, call == 1);
      EXPECT_EQ(results[i].step.reason.find("is not finite") == std::string::npos, call == 1)
          << results[i].step.reason;
    }
  }
  for (const auto& t : tenants) {
    records[t.name].push_back(state_of(model, t.name));
    EXPECT_EQ(records[t.name], alone(t, 3)) << t.name;
  }
  EXPECT_EQ(model.cur_step("poisoned"), 1);
}

TEST(Tenants, ErrorsAreTheOwnersAlone) {
  const auto tenants = mixed_tenants();
  MultiLoraTransformersModel model(stories(), options(10));
  for (const auto& t : tenants) set_up(model, t);
  model.add_adapter_to_model("throws", lora_of(4, {"q_proj"}, 1));
  model.set_loss(std::make_unique<LambdaLoss>([](const at::Tensor&, const LossInput&) -> at::Tensor {
                   throw std::runtime_error("the user's own loss failed");
                 }),
                 "throws");
  model.add_adapter_to_model("explodes", lora_of(4, {"q_proj", "v_proj"}, 1));
  model.set_optimizer("SGD", {{"lr", 1e38}}, "explodes");
  std::map<std::string, std::vector<std::string>> records;
  for (int64_t call = 0; call < 4; ++call) {
    std::vector<TenantRequest> requests;
    requests.push_back({.adapter_name = "throws", .features = call_of(tenants[0], call)});
    requests.push_back({.adapter_name = "nobody", .features = call_of(tenants[0], call)});
    auto wrong = call_of(tenants[0], call);
    wrong[0].input_ids[0] = 512;
    requests.push_back({.adapter_name = "plain", .features = wrong});
    requests.push_back({.features = call_of(tenants[0], call)});
    requests.push_back({.adapter_name = "explodes", .features = call_of(tenants[0], call)});
    requests.push_back({.adapter_name = "explodes", .kind = WorkKind::kStep});
    for (const auto& t : tenants)
      for (auto& request : requests_of(t, call)) requests.push_back(std::move(request));
    const auto results = model.run(requests);
    const auto error = [&](size_t i) { return std::string(results[i].ok() ? "" : results[i].error->what()); };
    EXPECT_NE(error(0).find("the user's own loss failed"), std::string::npos) << error(0);
    EXPECT_NE(error(1).find("there is no adapter 'nobody'"), std::string::npos) << error(1);
    EXPECT_NE(error(2).find("token 512 at position 0 is not in the vocabulary"), std::string::npos)
        << error(2);
    EXPECT_NE(error(3).find("base model is not trained"), std::string::npos) << error(3);
    EXPECT_EQ(error(4), "");
    EXPECT_EQ(error(5).find("these weights are lost") != std::string::npos, call == 0) << error(5);
    EXPECT_EQ(results[5].step.skipped, call > 0);
    for (size_t i = 6; i < requests.size(); ++i)
      note(records[requests[i].adapter_name], requests[i], results[i]);
  }
  for (const auto& t : tenants) {
    records[t.name].push_back(state_of(model, t.name));
    EXPECT_EQ(records[t.name], alone(t, 4)) << t.name;
  }
  EXPECT_EQ(model.cur_step("throws"), 0);
  EXPECT_EQ(model.cur_step("explodes"), 1);
}

// As when the call is made in one pass.
TEST(Tenants, ACallThatIsNotFiniteIsInNoMetric) {
  MultiLoraTransformersModel model(stories(), options(2, 12));
  model.add_adapter_to_model("a", lora_of(4, {"q_proj"}, 1));
  const auto good = testing::features({12, 12}, 1);
  auto bad = good;
  bad[1].weights.assign(12, NAN);
  model.run({{.adapter_name = "a", .features = good}, {.adapter_name = "a", .kind = WorkKind::kStep}});
  const auto results =
      model.run({{.adapter_name = "a", .features = bad}, {.adapter_name = "a", .kind = WorkKind::kStep}});
  EXPECT_TRUE(results[1].step.skipped) << results[1].step.reason;
  EXPECT_EQ(model.calculate_metric(true, "a")["tokens_seen"], 24);
}

TEST(Tenants, AStepThatCanNotClipIsRefused) {
  MultiLoraTransformersModel model(stories(), options(2));
  model.add_adapter_to_model("a", lora_of(4, {"q_proj"}, 1));
  const auto results =
      model.run({{.adapter_name = "a", .features = testing::features({12}, 1)},
                 {.adapter_name = "a", .kind = WorkKind::kStep, .max_grad_norm = NAN},
                 {.adapter_name = "a", .kind = WorkKind::kStep, .max_grad_norm = 0, .norm_type = 3},
                 {.adapter_name = "a", .kind = WorkKind::kStep}});
  EXPECT_FALSE(results[1].ok());
  EXPECT_FALSE(results[2].ok());
  EXPECT_TRUE(results[3].step.stepped);
}

TEST(Tenants, WholeCopiesHavePassesOfTheirOwn) {
  Tenant whole{.name = "whole", .lora = lora_of(4, {"q_proj"}, 1), .seed = 77};
  whole.lora.modules_to_save = {"embed_tokens", "norm"};
  const Tenant plain = mixed_tenants()[0];
  const auto records = together({whole, plain}, 3, options(4));
  EXPECT_EQ(records.at("whole"), alone(whole, 3));
  EXPECT_EQ(records.at("plain"), alone(plain, 3));
  // It never leaves memory, so the others have one place less.
  const Tenant wide = mixed_tenants()[1];
  const auto crowded = together({plain, wide, whole}, 3, options(2));
  for (const auto& t : {plain, wide, whole}) EXPECT_EQ(crowded.at(t.name), alone(t, 3)) << t.name;
}

TEST(Tenants, NoRoomIsTheErrorOfWhoFindsNone) {
  MultiLoraTransformersModel model(stories(), options(1));
  const Tenant plain = mixed_tenants()[0];
  set_up(model, plain);
  LoraConfig whole = lora_of(4, {"q_proj"}, 1);
  whole.modules_to_save = {"norm"};
  model.add_adapter_to_model("whole", whole);  // plain leaves and can not come back
  const auto results = model.run({{.adapter_name = "plain", .features = call_of(plain, 0)},
                                  {.adapter_name = "whole", .features = call_of(plain, 0)}});
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error->kind(), ErrorKind::kExhausted);
  EXPECT_TRUE(results[1].ok());
}

TEST(Tenants, OnlyItsOwnerHearsOfASequenceThatNoMemoryHolds) {
  MultiLoraOptions large = options(3);
  large.max_length = 1'000'000'000;
  MultiLoraTransformersModel model(stories(), large);
  const Tenant plain = mixed_tenants()[0];
  set_up(model, plain);
  model.add_adapter_to_model("greedy", lora_of(4, {"q_proj"}, 1));
  InputFeature endless;
  endless.input_ids.assign(30'000'000, 5);
  endless.labels.assign(30'000'000, 5);
  // Refused anyway, or refused for its length alone.
  for (const auto& [name, kind] :
       {std::pair("nobody", ErrorKind::kNotFound), {"greedy", ErrorKind::kExhausted}}) {
    std::vector<TenantRequest> requests = requests_of(plain, 0);
    requests.push_back({.adapter_name = name, .features = {endless}});
    const auto results = model.run(requests);
    EXPECT_TRUE(results[0].ok() && results[1].step.stepped);
    ASSERT_FALSE(results[2].ok());
    EXPECT_EQ(results[2].error->kind(), kind) << results[2].error->what();
  }
}

// The adapter leaves between two passes of a call and can not be read when it is needed again.
TEST(Tenants, HalfACallLeavesNoGradients) {
  namespace fs = std::filesystem;
  TempDir dir, aside;
  MultiLoraOptions one = options(1, 12);
  one.spill_dir = dir.path();
  MultiLoraTransformersModel model(stories(), one);
  const Tenant t{.name = "a", .lora = lora_of(4, {"q_proj"}, 1)};
  set_up(model, t);
  const auto features = testing::features({12, 12}, 1), other = testing::features({12}, 2);
  std::string file;
  model.add_adapter_to_model("b", lora_of(4, {"q_proj"}, 2));
  model.set_loss(std::make_unique<LambdaLoss>([&](const at::Tensor& logprob_S, const LossInput&) {
                   for (const auto& found : fs::recursive_directory_iterator(dir.path()))
                     if (found.is_regular_file()) file = found.path();
                   fs::rename(file, aside / "kept");
                   return -logprob_S.mean();
                 }),
                 "b");
  const auto results =
      model.run({{.adapter_name = "a", .features = features}, {.adapter_name = "b", .features = other}});
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error->kind(), ErrorKind::kUnavailable) << results[0].error->what();
  ASSERT_TRUE(results[1].ok()) << results[1].error->what();
  ASSERT_FALSE(file.empty());
  fs::rename(aside / "kept", file);
  std::vector<TenantRequest> again = {{.adapter_name = "a", .features = features},
                                      {.adapter_name = "a", .kind = WorkKind::kStep, .max_grad_norm = 1}};
  std::vector<std::string> record, expected;
  const auto second = model.run(again);
  MultiLoraTransformersModel fresh(stories(), one);
  set_up(fresh, t);
  const auto first = fresh.run(again);
  for (size_t i = 0; i < again.size(); ++i) {
    note(record, again[i], second[i]);
    note(expected, again[i], first[i]);
  }
  EXPECT_EQ(record, expected);
  EXPECT_EQ(state_of(model, "a"), state_of(fresh, "a"));
}

TEST(Tenants, ALossOverMoreThanAPassHolds) {
  const Tenant own = mixed_tenants()[6], plain = mixed_tenants()[0];
  const auto records = together({own, plain}, 4, options(4, 20));
  EXPECT_EQ(records.at(own.name), alone(own, 4));
  EXPECT_EQ(records.at(plain.name), alone(plain, 4));
}

TEST(Tenants, FailedAdaptersLeaveNothing) {
  MultiLoraTransformersModel model(stories(), options(3));
  const auto fails = [&](const std::string& name, const LoraConfig& config) {
    return message_of([&] { model.add_adapter_to_model(name, config); });
  };
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(fails("big", lora_of(65, {"q_proj"}, 1)).find("at most 64"), std::string::npos);
    EXPECT_NE(fails("odd", lora_of(4, {"no_such"}, 1)).find("no_such"), std::string::npos);
  }
  EXPECT_FALSE(model.has_adapter("big"));
  EXPECT_TRUE(model.adapter_names().empty());
  EXPECT_EQ(model.pool().resident_bytes(), 0);
  EXPECT_NE(message_of([&] { model.group("big"); }).find("no adapter 'big'"), std::string::npos);
  EXPECT_NE(message_of([&] { model.step(); }).find("say which adapter"), std::string::npos);
  // Made, used, removed and made again: as if it were the first time.
  const Tenant t = mixed_tenants()[2];
  const auto expected = alone(t, 2);
  for (int round = 0; round < 3; ++round) {
    set_up(model, t);
    std::vector<std::string> record;
    for (int64_t call = 0; call < 2; ++call) {
      const auto requests = requests_of(t, call);
      const auto results = model.run(requests);
      for (size_t i = 0; i < requests.size(); ++i) note(record, requests[i], results[i]);
    }
    record.push_back(state_of(model, t.name));
    EXPECT_EQ(record, expected);
    model.run({{.adapter_name = t.name, .features = call_of(t, 9)}});  // gradients in flight when it goes
    model.remove_adapter(t.name);
    EXPECT_EQ(model.pool().resident_bytes(), 0);
  }
}

TEST(Tenants, LimitsOfASequence) {
  MultiLoraOptions few = options(2);
  few.max_length = 20;
  MultiLoraTransformersModel model(stories(), few);
  model.add_adapter_to_model("a", lora_of(4, {"q_proj"}, 1));
  const auto results = model.run({{.adapter_name = "a", .features = testing::features({20, 21}, 1)}});
  ASSERT_FALSE(results[0].ok());
  EXPECT_NE(std::string(results[0].error->what()).find("has 21 tokens, at most 20"), std::string::npos);
  EXPECT_NE(message_of([&] { model.forward_only(testing::features({21}, 1), {}, "a"); }).find("max_length"),
            std::string::npos);
  EXPECT_TRUE(model.run({{.adapter_name = "a", .features = testing::features({20}, 1)}})[0].ok());
}

TEST(Tenants, SnapshotsAnswerWithTheirOwnWeights) {
  MultiLoraTransformersModel model(stories(), options(2));
  const Tenant t = mixed_tenants()[0];
  set_up(model, t);
  const auto requests = requests_of(t, 0);
  model.run(requests);
  const auto held = model.snapshot(t.name);
  const at::Tensor before = held->modules[0].slot.b_Nr.clone();
  EXPECT_GT(before.abs().max().item<float>(), 0.0f);
  model.run(requests_of(t, 1));
  EXPECT_TRUE(held->modules[0].slot.b_Nr.equal(before));
  EXPECT_FALSE(model.group(t.name).adapter()->modules()[0].slot.b_Nr.equal(before));
  EXPECT_GT(model.snapshot(t.name)->version, held->version);
  // A step that is skipped or has nothing to do changes nothing.
  const auto current = model.snapshot(t.name);
  model.step({}, t.name);
  EXPECT_EQ(model.snapshot(t.name), current);
  // Nor does what is loaded into the adapter reach them.
  TempDir dir;
  model.save({.name = "saved", .output_dir = dir.path()}, t.name);
  model.wait_for_save();
  const at::Tensor saved = current->modules[0].slot.b_Nr.clone();
  model.run(requests_of(t, 2));
  for (const bool resume : {false, true}) {
    const auto later = model.snapshot(t.name);
    const at::Tensor kept = later->modules[0].slot.b_Nr.clone();
    if (resume) {
      model.resume_from_checkpoint(dir / "saved", false, t.name);
    } else {
      model.load("saved", dir.path(), t.name);
    }
    EXPECT_TRUE(later->modules[0].slot.b_Nr.equal(kept));
    EXPECT_GT(model.snapshot(t.name)->version, later->version);
    EXPECT_TRUE(model.group(t.name).adapter()->modules()[0].slot.b_Nr.equal(saved));
    model.run(requests_of(t, 3));
  }
}

TEST(Tenants, APassOfWeightsThatWereReplacedIsRunAgain) {
  TempDir dir;
  std::vector<std::string> states;
  for (const bool held : {true, false}) {
    MultiLoraTransformersModel model(stories(), options(2));
    const Tenant t = mixed_tenants()[0];
    set_up(model, t);
    model.run(requests_of(t, 0));
    model.save({.name = held ? "held" : "not held", .output_dir = dir.path()}, t.name);
    model.wait_for_save();
    model.run(requests_of(t, 1));
    model.forward(call_of(t, 2), {}, t.name);
    if (!held) model.forward_only(call_of(t, 3), {}, t.name);  // the model holds this pass instead
    model.load(held ? "held" : "not held", dir.path(), t.name);
    model.backward(t.name);
    model.step({}, t.name);
    states.push_back(state_of(model, t.name));
  }
  EXPECT_EQ(states[0], states[1]);
}

// Whatever makes it fail, after the adapter was made for it or before.
TEST(Tenants, AResumeThatFailsLeavesNothing) {
  TempDir dir;
  const Tenant t = mixed_tenants()[1];
  {
    MultiLoraTransformersModel model(stories(), options(1));
    set_up(model, t);
    for (int64_t call = 0; call < 2; ++call) model.run(requests_of(t, call));
    model.save({.name = "saved", .output_dir = dir.path()}, t.name);
    model.save({.name = "bare", .output_dir = dir.path(), .save_optimizer = false}, t.name);
    model.wait_for_save();
  }
  MultiLoraTransformersModel model(stories(), options(1));
  EXPECT_NE(
      testing::message_of([&] { model.resume_from_checkpoint(dir / "saved"); }).find("say which adapter"),
      std::string::npos);
  EXPECT_FALSE(model.has_adapter("default"));
  EXPECT_NE(testing::message_of([&] {
              model.resume_from_checkpoint(dir / "bare", false, "x");
            }).find("saved without its optimizer"),
            std::string::npos);
  EXPECT_TRUE(model.adapter_names().empty());
  model.resume_from_checkpoint(dir / "saved", false, "x");
  EXPECT_EQ(model.cur_step("x"), 1);
  TransformersModel one(stories(), options(1).model);
  EXPECT_NE(
      testing::message_of([&] { one.resume_from_checkpoint(dir / "bare"); }).find("without its optimizer"),
      std::string::npos);
  EXPECT_EQ(one.resume_from_checkpoint(dir / "saved").cur_step, 1);
}

TEST(Tenants, CheckpointsOfOneAmongMany) {
  TempDir dir;
  const Tenant t = mixed_tenants()[1];
  MultiLoraTransformersModel model(stories(), options(1));
  set_up(model, t);
  model.add_adapter_to_model("other", lora_of(4, {"q_proj"}, 1));
  for (int64_t call = 0; call < 2; ++call) model.run(requests_of(t, call));
  model.save({.output_dir = dir.path()}, t.name);
  model.group("other");  // leaves while the checkpoint is being written
  model.wait_for_save();
  const std::string expected = state_of(model, t.name);
  model.remove_adapter(t.name);
  model.resume_from_checkpoint(dir / "checkpoint-step-1", false, t.name);
  EXPECT_EQ(state_of(model, t.name), expected);
  EXPECT_EQ(model.get_state_dict(t.name).size(), 5U * 7 * 2);
}

// Written by another thread, when the adapter has gone on and left.
TEST(Tenants, ACapturedCheckpointIsThatOfItsMoment) {
  TempDir dir;
  const Tenant t = mixed_tenants()[1];
  MultiLoraTransformersModel model(stories(), options(1));
  set_up(model, t);
  model.run(requests_of(t, 0));
  EXPECT_NE(testing::message_of([&] { model.capture(dir / "early", t.name); }).find("save after a step"),
            std::string::npos);
  model.run(requests_of(t, 1));
  model.save({.name = "saved", .output_dir = dir.path()}, t.name);
  model.wait_for_save();
  const auto write = model.capture(dir / "captured", t.name);
  for (int64_t call = 2; call < 4; ++call) model.run(requests_of(t, call));
  model.remove_adapter(t.name);
  std::thread(write).join();
  for (const std::string file :
       {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"})
    EXPECT_EQ(read_file(dir / ("captured/" + file)), read_file(dir / ("saved/" + file))) << file;
}

}  // namespace
}  // namespace twinkle
