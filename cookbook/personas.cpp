// Three personas on one model, trained at the same time in the same passes, that introduce themselves:
//   personas MODEL DATA [STEPS] [CHAT_TEMPLATE_FILE]
// DATA: rows {query, response} with {{NAME}} and {{AUTHOR}}, as cookbook/data/self_cognition.jsonl.
#include "twinkle/core/files.h"
#include "twinkle/data/dataset.h"
#include "twinkle/sample/generate.h"
#include "twinkle/train/multi_lora_transformers_model.h"

using namespace twinkle;

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: personas MODEL DATA [STEPS] [CHAT_TEMPLATE_FILE]\n"), 2;
  MultiLoraTransformersModel model(argv[1], {.max_loras = 3, .max_r = 32});
  model.set_template("", {.chat_template = argc > 4 ? read_file(argv[4]) : ""});

  const std::vector<std::string> names = {"Nova", "Atlas", "Mira"};
  const std::vector<int64_t> ranks = {8, 16, 32};
  std::vector<DataLoader> loaders;
  for (size_t i = 0; i < names.size(); ++i) {
    // Each has its own rank, seed, data and optimizer.
    model.add_adapter_to_model(names[i], LoraConfig{.r = ranks[i],
                                                    .lora_alpha = 4.0 * static_cast<double>(ranks[i]),
                                                    .target_modules = {"all-linear"},
                                                    .target_is_pattern = true,
                                                    .seed = i});
    model.set_optimizer("AdamW", {{"lr", 1e-3}}, names[i]);
    Dataset dataset({.dataset_id = argv[2]});
    dataset.map("SelfCognitionProcessor", {{"model_name", names[i]}, {"model_author", "Stella Labs"}});
    dataset.encode(*model.get_template());
    loaders.emplace_back(dataset.take_features(), DataLoaderOptions{.batch_size = 2, .seed = i});
  }

  const int64_t steps = argc > 3 ? std::atoi(argv[3]) : loaders[0].batches_per_epoch();
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<TenantRequest> requests;
    for (size_t i = 0; i < names.size(); ++i) {
      requests.push_back({.adapter_name = names[i], .features = loaders[i].next()});
      requests.push_back({.adapter_name = names[i], .kind = WorkKind::kStep, .max_grad_norm = 1.0});
    }
    const auto results = model.run(requests);
    std::string line;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].error) throw *results[i].error;
      if (requests[i].kind == WorkKind::kForwardBackward)
        line += "  " + requests[i].adapter_name + " " + std::to_string(*results[i].output.loss);
    }
    std::printf("step %ld/%ld%s\n", static_cast<long>(step), static_cast<long>(steps), line.c_str());
  }

  const Trajectory question{.messages = {{{"role", "user"}, {"content", "Who are you?"}}}};
  const auto prompt = model.get_template()->encode_prompt(question).input_ids;
  // One batch answers for all of them, with the weights of this moment.
  SampleEngine engine(model.model(), model.tokenizer(), {.kv_cache_mb = 256, .own_thread = false});
  std::vector<SampleRequest> ask;
  for (const auto& name : names) {
    engine.add_version(name, model.snapshot(name));
    ask.push_back({.prompt = prompt,
                   .params = {.max_tokens = 40, .temperature = 0},
                   .version = name,
                   .end_ids = model.get_template()->stop_ids()});
  }
  const auto answers = generate(engine, ask);
  for (size_t i = 0; i < names.size(); ++i)
    std::printf("%s: %s\n", names[i].c_str(), answers[i].sequences[0].text.c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
