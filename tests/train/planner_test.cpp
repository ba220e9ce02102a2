#include "twinkle/train/planner.h"

#include <gtest/gtest.h>

#include "tests/train/train_model_testing.h"

namespace twinkle {
namespace {

using testing::features;
using testing::message_of;

ModelConfig config_of(const std::string& architecture, int64_t head_dim) {
  const Json raw = {{"architectures", {architecture}},
                    {"model_type", architecture == "Qwen3ForCausalLM" ? "qwen3" : "llama"},
                    {"hidden_size", 96},
                    {"intermediate_size", 200},
                    {"num_hidden_layers", 3},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 2},
                    {"head_dim", head_dim},
                    {"vocab_size", 300},
                    {"max_position_embeddings", 4096},
                    {"rms_norm_eps", 1e-6},
                    {"rope_theta", 10000.0},
                    {"hidden_act", "silu"},
                    {"tie_word_embeddings", true}};
  return model_config_from_json(raw, "test");
}

struct Shape {
  std::string architecture;
  bool full = false;
  bool recompute = false;
  double dropout = 0.0;
};

// The planner counts what the layers take from the arena, so it must say what the arena saw.
TEST(Planner, ActivationsAreWhatTheArenaHolds) {
  for (const Shape& shape : std::vector<Shape>{{"LlamaForCausalLM", true, false},
                                               {"LlamaForCausalLM", true, true},
                                               {"Qwen3ForCausalLM", true, false},
                                               {"LlamaForCausalLM", false, false},
                                               {"LlamaForCausalLM", false, true},
                                               {"LlamaForCausalLM", false, false, 0.1},
                                               {"Qwen3ForCausalLM", false, true}}) {
    const ModelConfig config = config_of(shape.architecture, 24);
    TransformersModel model(
        CausalLM::build(config, *random_weights(config, 1)), "",
        {.gradient_checkpointing = shape.recompute ? Recompute::kAlways : Recompute::kNever});
    if (!shape.full) model.add_adapter_to_model("default", testing::lora(shape.dropout));
    std::vector<InputFeature> batch = features({300, 211, 100}, 3);
    int64_t scored = 0;
    for (auto& f : batch) {
      for (auto& id : f.input_ids) id %= 300;
      for (auto& label : f.labels) label = label == kIgnoreIndex ? label : label % 300;
      scored += f.num_trained();
    }
    model.forward_backward(batch);
    PlanInput in;
    in.config = config;
    in.full = shape.full;
    in.tokens = 611;
    in.scored = scored;
    in.recompute = shape.recompute;
    if (!shape.full) {
      in.lora_rank = 4;
      in.lora_modules_per_layer = 7;
      in.lora_dropout = shape.dropout > 0;
    }
    const auto measured = static_cast<double>(model.model().arena().peak_bytes());
    const auto planned = static_cast<double>(plan_memory(in).arena_bytes);
    EXPECT_GE(planned, measured);
    in.scored = in.tokens;
    EXPECT_EQ(model.model().arena().reserved_bytes(),
              plan_memory(in).arena_bytes);  // one piece, and it was enough
    EXPECT_NEAR(planned / measured, 1.0, 0.01)
        << shape.architecture << " full " << shape.full << " recompute " << shape.recompute << " dropout "
        << shape.dropout;
  }
}

// Answers to one prompt: rows that are shared are spread out again for backward, or stay together.
TEST(Planner, SharedRowsFitIntoThePlan) {
  for (const PrefixSharing sharing : {PrefixSharing::kExact, PrefixSharing::kGroups}) {
    for (const bool recompute : {false, true}) {
      const ModelConfig config = config_of("Qwen3ForCausalLM", 24);
      TransformersModel model(CausalLM::build(config, *random_weights(config, 1)), "",
                              {.share_prefix = sharing,
                               .gradient_checkpointing = recompute ? Recompute::kAlways : Recompute::kNever});
      model.add_adapter_to_model("default", testing::lora());
      std::vector<InputFeature> batch = features({300, 300, 300, 300}, 3);
      for (auto& f : batch) {
        std::copy_n(batch[0].input_ids.begin(), 101, f.input_ids.begin());
        for (auto& id : f.input_ids) id %= 300;
        for (auto& label : f.labels) label = label == kIgnoreIndex ? label : label % 300;
      }
      const PassSize size = largest_pass(batch, sharing, 2048);
      EXPECT_EQ(size.rows, sharing == PrefixSharing::kExact ? 1200 : 897);
      EXPECT_EQ(size.spread, 1200);
      model.forward_backward(batch);
      const auto& arena = model.model().arena();
      const int64_t planned =
          plan_passes(model.model(), model.group(), size, recompute ? Recompute::kAlways : Recompute::kNever)
              .arena_bytes;
      EXPECT_GE(planned, arena.peak_bytes());
      EXPECT_EQ(planned, arena.reserved_bytes()) << "it was not enough";
      EXPECT_LT(planned, 1.7 * static_cast<double>(arena.peak_bytes()));
    }
  }
}

TEST(Planner, CountsWhatIsTrained) {
  PlanInput in;
  in.config = config_of("LlamaForCausalLM", 24);
  in.process_bytes = 1000;
  in.full = true;
  const MemoryPlan plan = plan_memory(in);
  int64_t sum = 0;
  for (const auto& item : plan.items) sum += item.bytes;
  EXPECT_EQ(sum, plan.peak_bytes);
  // Embedding 304 x 96 (rows rounded up to panels of 16), three layers and the last norm.
  const int64_t layer = 96 * 96 * 2 + 96 * 48 * 2 + 208 * 96 * 2 + 96 * 200 + 2 * 96;
  const int64_t all = 304 * 96 + 3 * layer + 96;
  EXPECT_EQ(plan.to_json()["items"]["weights (fp32)"], all * 4);
  EXPECT_EQ(plan.to_json()["items"]["gradients"], all * 4 + 304 * 96 * 4);
  EXPECT_EQ(plan.to_json()["items"]["optimizer state"], all * 8);
  in.full = false;
  in.weight_bytes = 2;
  in.lora_parameters = 1000;
  EXPECT_EQ(plan_memory(in).to_json()["items"]["frozen weights"], (all - 7 * 96) * 2 + 7 * 96 * 4);
  EXPECT_EQ(plan_memory(in).to_json()["items"]["adapter and its gradients"], 8000);
  EXPECT_NE(plan.to_text().find("  peak "), std::string::npos);
}

TEST(Planner, RefusesWhatDoesNotFitBeforeAllocating) {
  const ModelConfig config = config_of("LlamaForCausalLM", 24);
  TransformersModel model(CausalLM::build(config, *random_weights(config, 1)), "");
  EXPECT_FALSE(plan_passes(model.model(), model.group(), {2048}, Recompute::kAuto).recompute);
  EXPECT_TRUE(plan_passes(model.model(), model.group(), {2048}, Recompute::kAlways).recompute);
  // Between what fits with and without recomputation: found by asking for more and more.
  int64_t tokens = 2048;
  while (!plan_passes(model.model(), model.group(), {tokens}, Recompute::kAuto).recompute) tokens *= 2;
  EXPECT_EQ(message_of([&] {
              plan_passes(model.model(), model.group(), {tokens}, Recompute::kNever);
            }).find("[memory] training with passes of " + std::to_string(tokens) + " tokens does not fit: "),
            0u);
  const int64_t resident = resident_bytes();
  EXPECT_NE(message_of([&] {
              plan_passes(model.model(), model.group(), {int64_t{1} << 40}, Recompute::kAuto);
            }).find("would help"),
            std::string::npos);
  EXPECT_LT(resident_bytes() - resident, 64 << 20);
  EXPECT_FALSE(model.group().prepared());
}

TEST(Planner, ReadsTheMachine) {
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() - (8 << 20));
}

}  // namespace
}  // namespace twinkle
