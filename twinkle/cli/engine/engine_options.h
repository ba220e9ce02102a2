// What the commands of the engine share: machine options, models and adapters from parsed options.
#pragma once

#include <memory>
#include <string>

#include "twinkle/cli/options.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle::cli {

/// --threads, --isa and --device; returns the device.
at::Device apply_machine(const ParsedArgs& args);

/// The model of --model-id; a checkpoint of full training is a model too. Weights that are not finite are
/// invalid_argument naming the tensor.
std::unique_ptr<CausalLM> load_model(const ParsedArgs& args, at::Device device);
/// The adapter of --adapter (a PEFT folder or a checkpoint), or null.
std::unique_ptr<Adapter> load_adapter(const ParsedArgs& args, const CausalLM& model);
/// The adapter in a folder that --adapter named.
std::unique_ptr<Adapter> load_adapter(const ParsedArgs& args, const CausalLM& model, const std::string& path);

/// invalid_argument when the merged `adapter` left a weight that is not finite, or too large to compute with.
void check_merged(const CausalLM& model, const std::string& adapter);

/// Errors that say what the folder is instead, where it has no adapter_config.json.
void check_adapter_folder(const ParsedArgs& args, const std::string& option, const std::string& path);

/// The adapter that the LoRA options describe.
LoraConfig lora_config(const ParsedArgs& args);
TransformersModelOptions transformers_options(const ParsedArgs& args, at::Device device);

/// Options of a registered component: the value of each of `flags` whose parameter it declares, then the
/// entries of the JSON object `more`. A flag that was given although the component has no such parameter is
/// invalid_argument naming both.
struct FlagValue {
  std::string param, flag;  // flag "": no flag stands behind the value
  Json value;
  Json neutral = nullptr;  // a value that may be given to any component: it asks for nothing
};
Json component_options(const std::string& kind, const std::string& name, const std::vector<FlagValue>& flags,
                       const Json& more, const ParsedArgs& args);

/// What the training options ask of the loss, the optimizer and the schedule. `steps`: of the whole run.
Json loss_options(const ParsedArgs& args);
Json optimizer_options(const ParsedArgs& args);
Json scheduler_options(const ParsedArgs& args, int64_t steps);
/// Makes the three and drops them: what is wrong with them shows before a model is loaded.
void check_components(const ParsedArgs& args, int64_t steps);
/// For when the number of steps is not known yet: longer than any warm-up.
inline constexpr int64_t kAnySteps = int64_t{1} << 52;

}  // namespace twinkle::cli
