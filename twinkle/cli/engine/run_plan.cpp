#include "twinkle/cli/engine/run_plan.h"

#include <algorithm>
#include <functional>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/units.h"
#include "twinkle/lora/targets.h"

namespace twinkle::cli {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// By module name; a tied head has the embedding's.
Shapes module_shapes(const ModelConfig& config) {
  constexpr std::string_view kWeight = ".weight";
  Shapes shapes;
  for (const auto& weight : expected_weights(config)) {
    if (weight.name.ends_with(kWeight))
      shapes[weight.name.substr(0, weight.name.size() - kWeight.size())] = weight.shape;
  }
  if (config.tie_word_embeddings) shapes["lm_head"] = shapes.at("model.embed_tokens");
  return shapes;
}

// Elements, largest rank and adapted linears of a layer.
void count_adapter(const LoraConfig& config, bool every_entry, PlanInput& in) {
  const Shapes shapes = module_shapes(in.config);
  std::vector<std::string> all, matrices;
  for (const auto& [name, shape] : shapes) {
    all.push_back(name);
    if (shape.size() == 2) matrices.push_back(name);
  }
  const LoraConfig expanded = expand_all_linear(config, matrices);
  int64_t in_layers = 0;
  for (const auto& target : match_targets(expanded, matrices, every_entry)) {
    const auto& shape = shapes.at(target.name);
    in.lora_parameters += target.rank * (shape[0] + shape[1]);
    in.lora_rank = std::max(in.lora_rank, target.rank);
    in_layers += target.name.find(".layers.") != std::string::npos ? 1 : 0;
  }
  for (const auto& name : match_modules_to_save(expanded, all))
    in.lora_parameters += elements(shapes.at(name));
  const int64_t layers = std::max<int64_t>(1, in.config.num_layers);
  in.lora_modules_per_layer = std::min<int64_t>(7, (in_layers + layers - 1) / layers);
  in.lora_dropout = config.lora_dropout > 0;
}

int64_t bytes_of_weight(const ParsedArgs& args, const ModelFiles& files) {
  const std::string dtype = args.get_string("dtype");
  if (dtype == "fp32") return 4;
  if (dtype != "auto") return 2;
  if (!files.weights) return 4;
  for (const auto& info : files.weights->tensors()) {
    if (info.shape.size() == 2) return info.dtype == "BF16" || info.dtype == "F16" ? 2 : 4;
  }
  return 4;
}

}  // namespace

PlanInput plan_input(const ParsedArgs& args, const ModelFiles& files) {
  PlanInput in;
  in.config = model_config_from_json(files.config, files.path);
  in.full = !args.get_bool("use_lora");
  in.weight_bytes = bytes_of_weight(args, files);
  in.optimizer_bytes = Registry<Optimizer>::create(args.get_string("optimizer_cls"), optimizer_options(args))
                           ->state_bytes_per_element();
  if (in.full) return in;
  if (!args.has("lora_path")) {
    count_adapter(lora_config(args), true, in);
    return in;
  }
  check_adapter_folder(args, "lora_path", args.get_string("lora_path"));
  const std::string path = args.get_string("lora_path") + "/adapter_config.json";
  count_adapter(lora_config_from_json(read_json_file(path), path), false, in);
  return in;
}

void check_run_fits(const ParsedArgs& args, PlanInput in, std::span<const InputFeature> features) {
  std::vector<int64_t> lengths;
  lengths.reserve(features.size());
  for (const auto& feature : features) lengths.push_back(static_cast<int64_t>(feature.input_ids.size()));
  const auto batch =
      static_cast<std::ptrdiff_t>(std::min(static_cast<int64_t>(lengths.size()), args.get_int("batch_size")));
  std::partial_sort(lengths.begin(), lengths.begin() + batch, lengths.end(), std::greater<>());
  int64_t all = 0;
  if (args.get_string("packing") == "none") {
    for (std::ptrdiff_t i = 0; i < batch; ++i) all += lengths[static_cast<size_t>(i)];
  } else {  // full bins
    for (const int64_t length : lengths) all += length;
    const int64_t context = in.config.max_position, asked = args.get_int("max_length");
    all = std::min(all, args.get_int("batch_size") * (context > 0 ? std::min(asked, context) : asked));
  }
  const int64_t budget = args.has("max_tokens_per_pass") ? args.get_int("max_tokens_per_pass")
                                                         : TransformersModelOptions().micro_batch_tokens;
  in.tokens = in.scored = std::max(lengths.empty() ? 0 : lengths[0], std::min(all, budget));
  if (share_prefixes(features)) in.spread = in.tokens;
  in.data_bytes = 0;  // it lies in memory already
  const int64_t available = available_memory_bytes() + resident_bytes();
  MemoryPlan plan;
  for (const bool recompute : {false, true}) {
    if (args.has("recompute") && args.get_bool("recompute") != recompute) continue;
    in.recompute = recompute;
    plan = plan_memory(in);
    if (plan.peak_bytes <= available) return;
  }
  throw exhausted("[memory] training with passes of " + std::to_string(in.tokens) +
                  " tokens does not fit: " + bytes_text(available) + " are available\n" + plan.to_text() +
                  "Shorter rows (--max-length), smaller passes (--max-tokens-per-pass)" +
                  (args.has("recompute") && !args.get_bool("recompute") ? ", --recompute" : "") +
                  (in.full ? ", LoRA instead of full training" : ", a smaller rank") +
                  " or more memory would help; see twinkle plan.");
}

}  // namespace twinkle::cli
