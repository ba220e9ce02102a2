// A trainer and a sampler in two processes; the sampler answers with what the trainer has just learned.
//   hand_over sampler MODEL SOCKET TIMES [CHAT_TEMPLATE_FILE]   answers a question after each of TIMES syncs
//   hand_over trainer MODEL SOCKET DATA STEPS [CHAT_TEMPLATE_FILE]   trains and syncs after every step
// DATA: rows {query, response} with {{NAME}} and {{AUTHOR}}, as cookbook/data/self_cognition.jsonl.
#include <latch>

#include "twinkle/core/files.h"
#include "twinkle/data/dataset.h"
#include "twinkle/sample/checkpoint_engine.h"

using namespace twinkle;

void answer(const std::string& model_id, const std::string& socket, int64_t times, const std::string& chat) {
  vLLMSampler sampler(model_id, {{"kv_cache_memory_mb", 256}});
  sampler.set_template("", {.chat_template = chat});
  const Trajectory question{.messages = {{{"role", "user"}, {"content", "Who are you?"}}}};
  std::latch left(times);
  const auto ask = [&](const std::string& version) {
    const auto said = sampler.sample(std::vector{question}, {.max_tokens = 24, .temperature = 0});
    std::printf("%s: %s\n", version.c_str(), said[0].sequences[0].text.c_str());
    std::fflush(stdout);
    left.count_down();
  };
  sampler.receive_weights(socket, {.on_weights = ask});
  left.wait();
}

void train(const std::string& model_id, const std::string& socket, const std::string& data, int64_t steps,
           const std::string& chat) {
  TransformersModel model(model_id);
  model.set_template("", {.chat_template = chat});
  model.add_adapter_to_model(
      "default",
      LoraConfig{.r = 8, .lora_alpha = 32, .target_modules = {"all-linear"}, .target_is_pattern = true});
  model.set_optimizer("AdamW", {{"lr", 1e-3}});
  Dataset dataset({.dataset_id = data});
  dataset.map("SelfCognitionProcessor", {{"model_name", "Nova"}, {"model_author", "Stella Labs"}});
  dataset.encode(*model.get_template());
  DataLoader loader(dataset.take_features(), {.batch_size = 2});
  CheckpointEngineManager manager(model, socket);
  for (int64_t step = 1; step <= steps; ++step) {
    model.forward_backward(loader.next());
    model.clip_grad_and_step();
    const SyncResult synced = manager.sync_weights(/*merge_and_sync=*/false);
    std::printf("step %ld: the sampler has %s, %ld bytes\n", static_cast<long>(step), synced.version.c_str(),
                static_cast<long>(synced.bytes_sent));
  }
}

int main(int argc, char** argv) try {
  const std::string role = argc > 4 ? argv[1] : "";
  if (role == "sampler") {
    answer(argv[2], argv[3], std::atoi(argv[4]), argc > 5 ? read_file(argv[5]) : "");
  } else if (role == "trainer" && argc > 5) {
    train(argv[2], argv[3], argv[4], std::atoi(argv[5]), argc > 6 ? read_file(argv[6]) : "");
  } else {
    return std::fprintf(stderr,
                        "usage: hand_over sampler MODEL SOCKET TIMES [CHAT_TEMPLATE_FILE]\n"
                        "       hand_over trainer MODEL SOCKET DATA STEPS [CHAT_TEMPLATE_FILE]\n"),
           2;
  }
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
