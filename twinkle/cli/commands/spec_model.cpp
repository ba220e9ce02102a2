// Declarations of sample, score, merge, export and doctor.
#include <algorithm>

#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

// The model to use, without what only training needs.
ArgGroup model_to_use() {
  ArgGroup group = model_args();
  for (const char* name : {"recompute", "recompute_granularity", "recompute_method", "recompute_num_layers",
                           "recompute_modules", "grad_scaler_config", "ddp_config", "fsdp_config",
                           "use_distributed_optimizer", "init", "load_weights"}) {
    group.remove(name);
  }
  ArgSpec adapter =
      arg("adapter", ParamType::kString, nullptr, "LoRA adapter folder (PEFT) or checkpoint to apply.");
  adapter.aliases = {"lora_path", "adapter_id"};
  adapter.value_name = "PATH";
  group.args.insert(group.args.begin() + 1, adapter);
  group.require("model_id");
  return group;
}

ArgGroup template_to_use() {
  ArgGroup group = template_args();
  group.remove("truncation_strategy");
  return group;
}

// A second one must not take the place of the first in silence.
ArgGroup model_with_adapters(const std::string& help) {
  ArgGroup model = model_to_use();
  for (auto& spec : model.args) {
    if (spec.param.name != "adapter") continue;
    spec.param.type = ParamType::kStringList;
    spec.param.default_value = Json::array();
    spec.param.help = help;
    spec.repeats = true;
  }
  return model;
}

std::vector<ArgGroup> sample_groups() {
  ArgGroup input{"InputArgs", "Prompt", {}};
  input.args = {
      arg("prompt", ParamType::kString, nullptr,
          "What the user says; without it lines are read from standard input."),
      arg("system", ParamType::kString, nullptr, "System message."),
      arg("messages", ParamType::kJson, nullptr, "A whole conversation as JSON, instead of --prompt."),
      path_arg("input",
               "JSONL file of rows with 'prompt' (and 'system') or 'messages' (and 'tools'); options of "
               "sampling in a row count for that row. One line of JSON a row."),
      arg("stream", ParamType::kBool, true, "Print text as it is made."),
      arg("compare", ParamType::kBool, false, "Answers of the base and of every --adapter side by side.")};
  ArgGroup model =
      model_with_adapters("LoRA adapter folder (PEFT) or checkpoint to apply; several with --compare.");
  return {input, model, sampling_args(), template_to_use(), machine_args(), program_args()};
}

void check_sample(const ParsedArgs& args) {
  int sources = 0;
  for (const char* name : {"prompt", "messages", "input"}) sources += args.has(name) ? 1 : 0;
  if (sources > 1)
    throw invalid_argument("[twinkle sample] --prompt, --messages and --input exclude each other");
  if (args.has("system") && !args.has("prompt"))
    throw invalid_argument("[" + args.source("system") +
                           "] 'system': goes with --prompt; see --default-system");
  if (!args.get_bool("json") && !args.has("input")) {
    for (const char* name : {"logprobs", "prompt_logprobs"}) {
      const bool none = std::string_view(name) == "logprobs" && args.get_int(name) == 0;
      if (!args.given(name) || !args.has(name) || none) continue;
      throw invalid_argument("[" + args.source(name) + "] '" + name +
                             "': text shows no log-probabilities; add --json");
    }
  }
  if (args.get("adapter").size() > 1 && !args.get_bool("compare")) {
    throw invalid_argument("[" + args.source("adapter") +
                           "] 'adapter': several answer side by side with --compare, one without");
  }
  std::vector<std::string> adapters = args.get_strings("adapter");
  std::ranges::sort(adapters);
  if (const auto twice = std::ranges::adjacent_find(adapters); twice != adapters.end())
    throw invalid_argument("[" + args.source("adapter") + "] 'adapter': '" + *twice + "' is given twice");
}

const AddCommand sample({
    .name = "sample",
    .summary = "Ask a model, with or without an adapter",
    .description = "Generates an answer with the model's chat template and streams it. "
                   "--no-use-chat-template continues plain text.\n\n"
                   "Example: twinkle sample --model-id SmolLM2.gguf --adapter output/checkpoint-50 --prompt "
                   "\"Who are you?\" --temperature 0\n"
                   "Side by side: twinkle sample --model-id SmolLM2.gguf --adapter A --adapter B --compare "
                   "--prompt \"Who are you?\"",
    .groups = sample_groups,
    .check = check_sample,
    .order = 30,
});

void check_score(const ParsedArgs& args) {
  if (args.get("adapter").size() > 1)
    throw invalid_argument("[" + args.source("adapter") + "] 'adapter': give one; score each on its own");
}

std::vector<ArgGroup> score_groups() {
  ArgGroup input{"InputArgs", "Rows", {}};
  input.args = {
      path_arg("input", "JSONL file of rows with 'tokens', 'text' or 'messages' (default: standard input)."),
      path_arg("output", "Where the rows go (default: standard output).")};
  ArgGroup chat = template_to_use();
  chat.remove("use_chat_template");
  return {input, model_with_adapters("LoRA adapter folder (PEFT) or checkpoint to apply."), chat,
          machine_args(), program_args()};
}

const AddCommand score({
    .name = "score",
    .summary = "Log-probabilities of given texts or tokens",
    .description = "Reads JSONL rows with 'tokens', 'text' or 'messages' and writes a row for each: "
                   "'tokens', 'logprobs' (the first is null) and their 'sum'. The "
                   "numbers are those of the trainer's own forward pass.\n\n"
                   "Example: echo '{\"text\": \"Hello world\"}' | twinkle score --model-id SmolLM2.gguf",
    .usage = "[INPUT] [options]",
    .positionals = {"input"},
    .groups = score_groups,
    .check = check_score,
    .order = 40,
});

std::vector<ArgGroup> merge_groups() {
  ArgGroup output{"OutputArgs", "Output", {}};
  output.args = {path_arg("output_dir", "Folder for the merged model."),
                 arg("max_shard_size_mb", ParamType::kInt, 5000, "Largest file of weights.")};
  output.args[1].param.min = 1;
  output.require("output_dir");
  ArgGroup model = model_to_use();
  model.require("adapter");
  return {model, output, machine_args().remove("max_tokens_per_pass"), program_args()};
}

const AddCommand merge({
    .name = "merge",
    .summary = "Fold an adapter into the weights of its model",
    .description =
        "Writes the model with the adapter folded in, as a folder that transformers loads.\n\n"
        "Example: twinkle merge --model-id SmolLM2.gguf --adapter output/checkpoint-50 --output-dir merged",
    .groups = merge_groups,
    .order = 50,
});

std::vector<ArgGroup> export_groups() {
  ArgGroup output{"OutputArgs", "Output", {}};
  output.args = {path_arg("output_dir", "Folder for the files."),
                 arg("max_shard_size_mb", ParamType::kInt, 5000, "Largest file of weights.")};
  output.args[1].param.min = 1;
  output.require("output_dir");
  return {model_to_use(), output, machine_args().remove("max_tokens_per_pass"), program_args()};
}

void check_export(const ParsedArgs& args) {
  if (!args.has("adapter")) return;
  for (const char* name : {"max_shard_size_mb", "dtype"}) {
    if (!args.given(name)) continue;
    throw invalid_argument("[" + args.source(name) + "] '" + name +
                           "': with 'adapter' the adapter alone is written, in one file and in fp32");
  }
}

const AddCommand export_command({
    .name = "export",
    .summary = "Write a model or adapter in the usual formats",
    .description =
        "Writes a model (a folder, a .gguf file or a checkpoint of full training) as config.json, "
        "safetensors and tokenizer files that transformers loads. "
        "With --adapter it writes the adapter alone, as PEFT and vLLM load it; twinkle merge folds it in.\n\n"
        "Example: twinkle export --model-id SmolLM2.gguf --dtype bf16 --output-dir smollm2-hf",
    .groups = export_groups,
    .check = check_export,
    .order = 60,
});

std::vector<ArgGroup> doctor_groups() {
  ArgGroup machine = machine_args();
  machine.remove("max_tokens_per_pass");
  return {machine, program_args()};
}

const AddCommand doctor({
    .name = "doctor",
    .summary = "Look at this machine: processor, memory, speed against its limit",
    .description = "Shows the processor, its instruction sets and which one the kernels use, memory, and "
                   "measures GFLOP/s and GB/s.",
    .groups = doctor_groups,
    .order = 130,
});

}  // namespace
}  // namespace twinkle::cli
