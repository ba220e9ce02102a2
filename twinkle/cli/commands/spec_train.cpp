// Declarations of sft, pt, plan and replay.
#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

std::vector<ArgGroup> sft_groups() {
  std::vector<ArgGroup> groups = {model_args(),    lora_args(),      dataset_args(),   template_args(),
                                  training_args(), optimizer_args(), scheduler_args(), loss_args(),
                                  machine_args(),  program_args()};
  groups[0].require("model_id");
  groups[2].require("dataset_id");
  return groups;
}

// Pre-training: all weights, every token of plain text, long texts cut into windows.
std::vector<ArgGroup> pt_groups() {
  std::vector<ArgGroup> groups = sft_groups();
  groups[1].set_default("use_lora", false);
  groups[2].remove("model_name").remove("model_author");
  groups[3]
      .set_default("use_chat_template", false)
      .set_default("truncation_strategy", "split")
      .set_default("max_length", 1024);
  return groups;
}

std::vector<ArgGroup> plan_groups() {
  std::vector<ArgGroup> groups = sft_groups();
  groups[2] = dataset_args();
  for (auto& option : groups[2].args) {
    if (option.param.name == "dataset_id") {
      option.param.help = "Rows to measure lengths on (default: full rows of --max-length).";
    }
  }
  ArgSpec memory =
      arg("memory_limit_mb", ParamType::kInt, nullptr, "Memory to fit into (default: what is free now).");
  memory.param.min = 1;
  groups[8].args.push_back(memory);
  return groups;
}

void check_pt(const ParsedArgs& args) {
  check_training_args(args);
  if (args.get_bool("use_chat_template")) {
    throw invalid_argument(
        "[" + args.source("use_chat_template") +
        "] 'use_chat_template': pre-training takes plain text; use twinkle sft for conversations");
  }
}

const AddCommand sft({
    .name = "sft",
    .summary = "Fine-tune a model on conversations (LoRA or all weights)",
    .description = "Fine-tunes a model on conversations: a LoRA adapter, or all weights with --no-use-lora. "
                   "Writes checkpoints, metrics.jsonl and the run's "
                   "manifest to --output-dir; --resume-from-checkpoint goes on with the same bits.\n\n"
                   "Example: twinkle sft --model-id SmolLM2.gguf --dataset-id "
                   "cookbook/data/self_cognition.jsonl --model-name Nova --lr 1e-3 --batch-size 2",
    .groups = sft_groups,
    .check = check_training_args,
    .order = 10,
});

const AddCommand pt({
    .name = "pt",
    .summary = "Pre-train a model on plain text",
    .description = "Trains all weights on plain text, every token: .txt files, or rows with a 'text' column. "
                   "Long texts are cut into windows of --max-length. "
                   "--init random starts a model from its config.json alone.\n\n"
                   "Example: twinkle pt --model-id my-config/ --init random --dataset-id books/ --lr 3e-4 "
                   "--max-steps 2000",
    .groups = pt_groups,
    .check = check_pt,
    .order = 20,
});

const AddCommand plan({
    .name = "plan",
    .summary = "Predict the memory that a training run will need",
    .description = "Predicts the peak memory of a training run from its options, part by part, without "
                   "loading the weights, and says whether it fits. Exit code 2 "
                   "when it does not. Takes the options of twinkle sft.",
    .groups = plan_groups,
    .check = check_training_args,
    .order = 70,
});

std::vector<ArgGroup> replay_groups() {
  ArgGroup group{"ReplayArgs", "Replay", {}};
  group.args = {required_arg("run", ParamType::kString, "Output folder of a run, or a checkpoint in it."),
                arg("output_dir", ParamType::kString, nullptr,
                    "Where the repeated run goes (default: a temporary folder)."),
                arg("steps", ParamType::kInt, nullptr, "Repeat this many steps (default: all).")};
  group.args[0].value_name = group.args[1].value_name = "PATH";
  group.args[2].param.min = 1;
  ArgGroup machine = machine_args();
  machine.remove("max_tokens_per_pass");
  return {group, machine, program_args()};
}

const AddCommand replay({
    .name = "replay",
    .summary = "Repeat a run from its manifest and compare, bit for bit",
    .description = "Repeats a run from its manifest on the same instruction set and compares losses and "
                   "weights bit for bit. Exit code 1 when they differ.",
    .usage = "RUN [options]",
    .positionals = {"run"},
    .groups = replay_groups,
    .order = 80,
});

}  // namespace
}  // namespace twinkle::cli
