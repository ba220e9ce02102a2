// labels: slow
// The planner against the peak that the kernel counts for this process; one run, so that the peak is its own.
#include <gtest/gtest.h>

#include "tests/train/train_model_testing.h"
#include "twinkle/core/units.h"

namespace twinkle {
namespace {

TEST(PlannerPeak, IsWithinFivePercentOfWhatTheKernelCounts) {
  const int64_t before = resident_bytes();
  const ModelConfig config = model_config_from_json({{"architectures", {"LlamaForCausalLM"}},
                                                     {"model_type", "llama"},
                                                     {"hidden_size", 384},
                                                     {"intermediate_size", 1024},
                                                     {"num_hidden_layers", 8},
                                                     {"num_attention_heads", 6},
                                                     {"num_key_value_heads", 2},
                                                     {"vocab_size", 32000},
                                                     {"max_position_embeddings", 4096},
                                                     {"rms_norm_eps", 1e-6},
                                                     {"rope_theta", 10000.0},
                                                     {"hidden_act", "silu"},
                                                     {"tie_word_embeddings", true}},
                                                    "test");
  TransformersModel model(CausalLM::build(config, *random_weights(config, 1)), "",
                          {.gradient_checkpointing = Recompute::kNever});
  model.add_adapter_to_model("default", testing::lora());
  const auto batch = testing::features({500, 400, 600}, 3);
  int64_t scored = 0;
  for (const auto& f : batch) scored += f.num_trained();
  testing::TempDir dir;
  for (int step = 0; step < 2; ++step) {
    model.forward_backward(batch);
    model.clip_grad_and_step();
    model.save({.output_dir = dir.path()});
  }
  model.wait_for_save();
  PlanInput in;
  in.config = config;
  in.lora_parameters = model.group().adapter()->num_parameters();
  in.lora_rank = 4;
  in.lora_modules_per_layer = 7;
  in.tokens = 1500;
  in.scored = scored;
  in.process_bytes = before;
  const MemoryPlan plan = plan_memory(in);
  const double ratio = static_cast<double>(plan.peak_bytes) / static_cast<double>(peak_resident_bytes());
  EXPECT_NEAR(ratio, 1.0, 0.05) << plan.to_text() << "measured " << bytes_text(peak_resident_bytes());
}

}  // namespace
}  // namespace twinkle
