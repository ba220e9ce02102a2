// Supervised fine-tuning of a LoRA adapter with a loop of your own:
//   sft MODEL DATA OUTPUT_DIR [EPOCHS] [CHAT_TEMPLATE_FILE]
#include "twinkle/core/files.h"
#include "twinkle/data/dataset.h"
#include "twinkle/train/progress.h"
#include "twinkle/train/transformers_model.h"

using namespace twinkle;
int main(int argc, char** argv) try {
  if (argc < 4)
    return std::fprintf(stderr, "usage: sft MODEL DATA OUTPUT_DIR [EPOCHS] [CHAT_TEMPLATE_FILE]\n"), 2;
  TransformersModel model(argv[1]);
  model.add_adapter_to_model(
      "default",
      LoraConfig{.r = 8, .lora_alpha = 32, .target_modules = {"all-linear"}, .target_is_pattern = true});
  model.set_template("", {.chat_template = argc > 5 ? read_file(argv[5]) : ""});

  Dataset dataset({.dataset_id = argv[2]});
  dataset.encode(*model.get_template());
  DataLoader loader(dataset.take_features(), {.batch_size = 4});
  const int64_t steps = loader.batches_per_epoch() * (argc > 4 ? std::atoi(argv[4]) : 1);
  model.set_optimizer("AdamW", {{"lr", 1e-3}});
  model.set_lr_scheduler("LinearWarmupScheduler", {{"num_training_steps", steps}});

  ProgressLine progress(stderr);
  std::vector<double> losses;
  for (int64_t step = 1; step <= steps; ++step) {
    losses.push_back(*model.forward_backward(loader.next()).loss);
    model.clip_grad_and_step(/*max_grad_norm=*/1.0);
    progress.update(step, steps, model.calculate_metric(/*is_training=*/true));
  }
  progress.finish();
  std::printf("%s", line_chart(losses, {.title = "loss"}).c_str());
  const auto saved =
      model.save({.output_dir = argv[3], .consumed_train_samples = loader.consumed_train_samples()});
  model.wait_for_save();
  std::printf("adapter: %s\n", saved->c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
