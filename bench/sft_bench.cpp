// deps: train
// LoRA training steps on given rows, as bench/compare runs them beside transformers and PEFT:
//   sft_bench MODEL ROWS.jsonl [--batch N] [--steps N] [--recompute] [--first-step] [--max-tokens-per-pass N]
//             [--dtype auto]
// ROWS holds {"input_ids": [...], "labels": [...]}, labels not shifted. Prints one JSON object: tokens/s,
// useful GFLOP/s and the machine's own limit measured in the same process, peak memory. Useful work: 4 FLOP
// for each frozen weight and token, 4 for each weight of the head and scored token, and attention's products
// over the pairs that causality leaves (7 for forward and backward); adapters, norms and recomputation count
// as nothing.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "bench/timing.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/train/planner.h"
#include "twinkle/train/transformers_model.h"

using namespace twinkle;

namespace {

using bench::Clock;
using bench::seconds_since;

// Seconds since the process was started, its loading included.
double process_age_s() {
  std::string stat = read_file("/proc/self/stat");
  stat = stat.substr(stat.rfind(')') + 2);
  size_t at = 0;
  for (int i = 0; i < 19; ++i) at = stat.find(' ', at) + 1;
  const double started = std::stod(stat.substr(at)) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::stod(read_file("/proc/uptime")) - started;
}

std::vector<InputFeature> read_rows(const std::string& path) {
  std::vector<InputFeature> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line, path);
    InputFeature f;
    f.input_ids = row.at("input_ids").get<std::vector<int32_t>>();
    f.labels = row.at("labels").get<std::vector<int32_t>>();
    f.labels.erase(f.labels.begin());
    f.labels.push_back(kIgnoreIndex);
    out.push_back(std::move(f));
  }
  return out;
}

double useful_flops(const ModelConfig& c, const InputFeature& f) {
  const auto T = static_cast<double>(f.input_ids.size());
  const double attention_weights =
      static_cast<double>(c.hidden_size * c.head_dim * 2 * (c.num_heads + c.num_kv_heads));
  const double mlp_weights = 3.0 * static_cast<double>(c.hidden_size * c.intermediate_size);
  const double body = static_cast<double>(c.num_layers) * (attention_weights + mlp_weights);
  const double head = static_cast<double>(c.hidden_size * c.vocab_size);
  const double pairs = T * (T + 1) / 2;
  const double attention = static_cast<double>(c.num_layers * c.num_heads * c.head_dim) * pairs * 2 * 7;
  return 4 * body * T + 4 * head * static_cast<double>(f.num_trained()) + attention;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: sft_bench MODEL ROWS.jsonl [options]\n"), 2;
  int64_t batch = 8, steps = 1;
  bool first_step = false;
  TransformersModelOptions options;
  for (int i = 3; i < argc; ++i) {
    const auto number = [&] { return ++i < argc ? std::atoll(argv[i]) : 0; };
    if (std::strcmp(argv[i], "--batch") == 0)
      batch = number();
    else if (std::strcmp(argv[i], "--steps") == 0)
      steps = number();
    else if (std::strcmp(argv[i], "--max-tokens-per-pass") == 0)
      options.micro_batch_tokens = number();
    else if (std::strcmp(argv[i], "--dtype") == 0 && i + 1 < argc)
      options.dtype = argv[++i];
    else if (std::strcmp(argv[i], "--recompute") == 0)
      options.gradient_checkpointing = Recompute::kAlways;
    else if (std::strcmp(argv[i], "--first-step") == 0)
      first_step = true;
    else
      return std::fprintf(stderr, "sft_bench: unknown option %s\n", argv[i]), 2;
  }
  TransformersModel model(argv[1], options);
  model.add_adapter_to_model(
      "default",
      LoraConfig{.r = 8, .lora_alpha = 32, .target_modules = {"all-linear"}, .target_is_pattern = true});
  model.set_optimizer("AdamW", {{"lr", 1e-4}, {"weight_decay", 0.0}});
  model.set_loss("CrossEntropyLoss", {{"reduction", "token_mean"}});
  const double loaded = process_age_s();
  const std::vector<InputFeature> rows = read_rows(argv[2]);
  if (first_step) {
    model.forward_backward(std::vector<InputFeature>{rows.at(0)});
    model.clip_grad_and_step();
    const Json out = {{"program", "twinkle"},
                      {"loaded_s", loaded},
                      {"first_step_s", process_age_s()},
                      {"tokens", rows[0].input_ids.size()}};
    return std::printf("%s\n", out.dump().c_str()), 0;
  }
  const auto next = [&](int64_t step) {
    std::vector<InputFeature> out;
    for (int64_t i = 0; i < batch; ++i)
      out.push_back(rows[static_cast<size_t>(step * batch + i) % rows.size()]);
    return out;
  };
  const double loaded_mb = static_cast<double>(peak_resident_bytes()) / (1 << 20);
  if (steps > 1) {  // a step outside the clock: memory is touched for the first time
    model.forward_backward(next(0));
    model.clip_grad_and_step();
  }
  double flops = 0;
  int64_t tokens = 0;
  Json losses = Json::array();
  const auto start = Clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    const auto features = next(step);
    for (const auto& f : features) {
      tokens += static_cast<int64_t>(f.input_ids.size());
      flops += useful_flops(model.model().config(), f);
    }
    losses.push_back(*model.forward_backward(features).loss);
    model.clip_grad_and_step();
  }
  const double seconds = seconds_since(start);
  const double peak_mb = static_cast<double>(peak_resident_bytes()) / (1 << 20);
  const double limit = measure_limit_gflops(model.model().holds_bf16());
  const Json out = {{"program", "twinkle"},
                    {"isa", std::string(isa_name(active_isa()))},
                    {"tokens", tokens},
                    {"seconds", seconds},
                    {"tokens_per_s", static_cast<double>(tokens) / seconds},
                    {"useful_gflops", flops / seconds / 1e9},
                    {"limit_gflops", limit},
                    {"share_of_limit", flops / seconds / 1e9 / limit},
                    {"copy_gbs", measure_copy_gbs()},
                    {"loaded_rss_mb", loaded_mb},
                    {"peak_rss_mb", peak_mb},
                    {"losses", losses}};
  std::printf("%s\n", out.dump().c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
