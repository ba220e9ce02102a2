#include "twinkle/cli/engine/engine_options.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/device.h"
#include "twinkle/kernels/isa.h"

namespace twinkle::cli {
namespace {

Isa isa_from_name(const std::string& name) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (isa_name(isa) == name) return isa;
  }
  throw invalid_argument("[isa] unknown instruction set '" + name + "'");
}

// The first weight with a number that is not finite or, from zero, not below `most`; "" when there is none.
std::string unusable_of(const CausalLM& model, double most) {
  for (const auto& p : model.parameters()) {
    const auto [low, high] = at::aminmax(p.is_matrix() ? p.matrix.storage() : p.vector);
    if (!(low.item<double>() > -most && high.item<double>() < most)) return p.name;
  }
  return "";
}

// With weights that are no numbers every answer and score means nothing.
void check_finite(const CausalLM& model, const std::string& path) {
  const std::string bad = unusable_of(model, std::numeric_limits<double>::infinity());
  if (bad.empty()) return;
  throw invalid_argument("[model] '" + path + "': tensor '" + bad +
                         "' holds numbers that are not finite; the file is damaged or its training broke "
                         "down, take another");
}

}  // namespace

at::Device apply_machine(const ParsedArgs& args) {
  apply_threads(args);
  if (args.has("isa")) force_isa(isa_from_name(args.get_string("isa")));
  active_isa();  // a wrong TWINKLE_ISA fails here, before any work
  return open_device(args.get_string("device"));
}

std::unique_ptr<CausalLM> load_model(const ParsedArgs& args, at::Device device) {
  const std::string path = checked_model_path(args);
  auto model = CausalLM::load(path, {.dtype = args.get_string("dtype"), .device = device});
  check_finite(*model, path);
  return model;
}

std::unique_ptr<Adapter> load_adapter(const ParsedArgs& args, const CausalLM& model) {
  const Json& given = args.get("adapter");  // a path, or a list of one
  if (!args.has("adapter") || given.empty()) return nullptr;
  return load_adapter(args, model, (given.is_array() ? given.at(0) : given).get<std::string>());
}

std::unique_ptr<Adapter> load_adapter(const ParsedArgs& args, const CausalLM& model,
                                      const std::string& path) {
  check_adapter_folder(args, "adapter", path);
  return Adapter::load(model, path);
}

void check_merged(const CausalLM& model, const std::string& adapter) {
  constexpr double kMost = 1e18;  // squares of such numbers are summed in fp32
  const std::string bad = unusable_of(model, kMost);
  if (bad.empty()) return;
  throw invalid_argument("[merge] the adapter '" + adapter + "' makes numbers of '" + bad +
                         "' that are not finite, or too large to compute with; look at its weights and at "
                         "lora_alpha in its adapter_config.json");
}

void check_adapter_folder(const ParsedArgs& args, const std::string& option, const std::string& path) {
  if (file_exists(path + "/adapter_config.json")) return;
  const std::string where = "[" + args.source(option) + "] '" + option + "': ";
  if (!file_exists(path))
    throw not_found(where + "no folder '" + path + "'; give one with adapter_config.json");
  if (!is_directory(path))
    throw invalid_argument(where + "'" + path +
                           "' is a file; give the folder it is in, with adapter_config.json");
  std::error_code code;
  const std::filesystem::directory_iterator readable(path, code);
  if (code) throw file_error(where + "cannot read the folder '" + path + "'", code.value());
  if (const auto found = list_checkpoints(path); !found.empty())
    throw not_found(where + "'" + path + "' is the folder of a run; give a checkpoint in it, such as '" +
                    found.back() + "'");
  if (file_exists(path + "/config.json"))
    throw invalid_argument(where + "'" + path +
                           "' holds a whole model, not an adapter; give it as --model-id");
  throw not_found(where + "'" + path +
                  "' has no adapter_config.json; give a folder that twinkle sft or PEFT wrote");
}

LoraConfig lora_config(const ParsedArgs& args) {
  LoraConfig config;
  config.r = args.get_int("lora_r");
  config.lora_alpha = args.get_float("lora_alpha");
  config.lora_dropout = args.get_float("lora_dropout");
  config.use_rslora = args.get_bool("use_rslora");
  config.target_modules = args.get_strings("lora_target_modules");
  if (config.target_modules.size() == 1) {
    // One entry is a pattern when it is all-linear or looks like a regular expression, as in PEFT a string
    // is.
    const std::string& only = config.target_modules[0];
    config.target_is_pattern =
        only == "all-linear" || only.find_first_of("*+?()[]|\\^$") != std::string::npos;
  }
  config.modules_to_save = args.get_strings("lora_modules_to_save");
  config.base_model_name_or_path = args.get_string("model_id");
  config.seed = static_cast<uint64_t>(args.get_int("seed"));
  return config;
}

TransformersModelOptions transformers_options(const ParsedArgs& args, at::Device device) {
  TransformersModelOptions options;
  options.dtype = args.get_string("dtype");
  options.device = device;
  if (args.has("tokenizer_id")) options.tokenizer_id = args.get_string("tokenizer_id");
  options.load_weights = args.get_string("init") == "pretrained";
  options.seed = static_cast<uint64_t>(args.get_int("seed"));
  options.gradient_accumulation_steps = args.get_int("gradient_accumulation_steps");
  if (args.has("max_tokens_per_pass")) options.micro_batch_tokens = args.get_int("max_tokens_per_pass");
  if (args.has("recompute")) {
    options.gradient_checkpointing = args.get_bool("recompute") ? Recompute::kAlways : Recompute::kNever;
  }
  return options;
}

Json component_options(const std::string& kind, const std::string& name, const std::vector<FlagValue>& flags,
                       const Json& more, const ParsedArgs& args) {
  const ComponentInfo& info = Catalog::instance().info(kind, name);
  Json out = Json::object();
  for (const auto& flag : flags) {
    bool declared = false;
    for (const auto& param : info.params) declared |= param.name == flag.param;
    if (declared) {
      out[flag.param] = flag.value;
    } else if (!flag.flag.empty() && args.given(flag.flag) && args.has(flag.flag) &&
               (flag.neutral.is_null() || args.get(flag.flag) != flag.neutral)) {
      throw invalid_argument("[" + args.source(flag.flag) + "] '" + flag.flag + "': " + info.name +
                             " has no such parameter; see twinkle list " + kind + " " + info.name);
    }
  }
  if (more.is_null()) return out;
  if (!more.is_object()) {
    throw invalid_argument("[" + kind + "_options] expected a JSON object, got " +
                           std::string(json_type_name(more)));
  }
  for (const auto& [key, value] : more.items()) out[key] = value;
  return out;
}

Json loss_options(const ParsedArgs& args) {
  return component_options("loss", args.get_string("loss_cls"),
                           {{"reduction", "loss_reduction", args.get("loss_reduction")}},
                           args.get("loss_options"), args);
}

Json optimizer_options(const ParsedArgs& args) {
  const Json betas = Json::array({args.get("adam_beta1"), args.get("adam_beta2")});
  return component_options("optimizer", args.get_string("optimizer_cls"),
                           {{"lr", "learning_rate", args.get("learning_rate")},
                            {"weight_decay", "weight_decay", args.get("weight_decay")},
                            {"betas", "adam_beta1", betas},
                            {"betas", "adam_beta2", betas},
                            {"eps", "adam_epsilon", args.get("adam_epsilon")},
                            {"state_dtype", "state_dtype", args.get("state_dtype")}},
                           args.get("optimizer_options"), args);
}

Json scheduler_options(const ParsedArgs& args, int64_t whole) {
  const Json steps = args.has("num_training_steps") ? args.get("num_training_steps") : Json(whole);
  return component_options("scheduler", args.get_string("scheduler_cls"),
                           {{"num_warmup_steps", "num_warmup_steps", args.get("num_warmup_steps"), 0},
                            {"num_training_steps", "num_training_steps", steps},
                            {"T_max", "t_max", args.has("t_max") ? args.get("t_max") : steps},
                            {"eta_min", "eta_min", args.get("eta_min"), 0.0}},
                           args.get("scheduler_options"), args);
}

void check_components(const ParsedArgs& args, int64_t steps) {
  Registry<Loss>::create(args.get_string("loss_cls"), loss_options(args));
  Registry<Optimizer>::create(args.get_string("optimizer_cls"), optimizer_options(args));
  Registry<LRScheduler>::create(args.get_string("scheduler_cls"), scheduler_options(args, steps))
      ->lr(args.get_float("learning_rate"), 0);
}

}  // namespace twinkle::cli
