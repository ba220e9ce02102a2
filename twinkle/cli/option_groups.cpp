// The tables of options. Upstream's groups: ModelArgs, LoraArgs, DatasetArgs, TemplateArgs, TrainingArgs,
// OptimizerArgs, SchedulerArgs, LossArgs, SamplingArgs.
#include <cctype>
#include <optional>

#include "twinkle/cli/options.h"
#include "twinkle/sample/sampling_param_specs.h"

namespace twinkle::cli {
namespace {

constexpr auto kBool = ParamType::kBool;
constexpr auto kInt = ParamType::kInt;
constexpr auto kFloat = ParamType::kFloat;
constexpr auto kString = ParamType::kString;
constexpr auto kStrings = ParamType::kStringList;
constexpr auto kJson = ParamType::kJson;

// Positions of a pass are 32-bit numbers; products of two such counts stay far from overflow.
constexpr double kMostTokens = 1 << 30;

struct Extra {
  std::optional<double> min, max;
  std::vector<std::string> choices, aliases;
  std::string value;
  bool exclusive_min = false;
};

ArgSpec option(std::string name, ParamType type, Json default_value, std::string help, Extra extra = {}) {
  ArgSpec out = arg(std::move(name), type, std::move(default_value), std::move(help));
  out.param.min = extra.min;
  out.param.max = extra.max;
  out.param.exclusive_min = extra.exclusive_min;
  out.param.choices = std::move(extra.choices);
  out.aliases = std::move(extra.aliases);
  out.value_name = std::move(extra.value);
  return out;
}

}  // namespace

ArgGroup model_args() {
  ArgGroup group{"ModelArgs", "Model", {}};
  group.args = {
      option("model_id", kString, nullptr, "Folder with config.json and *.safetensors, or a .gguf file.",
             {.value = "PATH"}),
      option("tokenizer_id", kString, nullptr, "Tokenizer of another folder or file (default: the model's).",
             {.aliases = {"template_model_id"}, .value = "PATH"}),
      option("dtype", kString, "auto", "How weights are held; auto: as stored (quantised: fp32).",
             {.choices = {"auto", "fp32", "bf16", "fp16"}, .aliases = {"torch_dtype"}}),
      option(
          "init", kString, "pretrained",
          "Start from the stored weights, or from random ones drawn with --seed (only config.json is read).",
          {.choices = {"pretrained", "random"}}),
      option("recompute", kBool, nullptr,
             "Recompute each layer's activations in the backward pass: less memory, same numbers (default: "
             "where memory is short).",
             {.aliases = {"gradient_checkpointing"}}),
      refused_arg("model_cls", kString, nullptr, "the family follows from the model's config.json"),
      refused_arg("mixed_precision", kString, "bf16",
                  "sums are always fp32; choose how weights are held with --dtype"),
      refused_arg("strategy", kString, "accelerate", "one process trains on one device"),
      refused_arg("load_weights", kBool, true, "use --init random"),
      refused_arg("recompute_granularity", kString, "full", "recomputation is by layer, see --recompute"),
      refused_arg("recompute_method", kString, "uniform", "recomputation is by layer, see --recompute"),
      refused_arg("recompute_num_layers", kInt, 1, "recomputation is by layer, see --recompute"),
      refused_arg("recompute_modules", kStrings, nullptr, "recomputation is by layer, see --recompute"),
      refused_arg("ddp_config", kJson, nullptr, "one process trains on one device"),
      refused_arg("fsdp_config", kJson, nullptr, "one process trains on one device"),
      refused_arg("grad_scaler_config", kJson, nullptr, "gradients are fp32 and need no scaling"),
      harmless_arg("memory_efficient_init", kBool, false),
      harmless_arg("trust_remote_code", kBool, true),  // no model's code is ever run
      harmless_arg("use_distributed_optimizer", kBool, true),
      harmless_arg("variable_seq_lengths", kBool, true),
      harmless_arg("enable_liger", kBool, false),
      harmless_arg("enable_fused_ce", kBool, true),
  };
  return group;
}

ArgGroup lora_args() {
  ArgGroup group{"LoraArgs", "LoRA", {}};
  group.args = {
      option("use_lora", kBool, true, "Train an adapter; without, all weights."),
      option("lora_r", kInt, 8, "Rank.", {.min = 1, .max = 4096, .aliases = {"lora_rank"}}),
      option("lora_alpha", kFloat, 32, "Scale: alpha / r.", {.min = 0, .exclusive_min = true}),
      option("lora_dropout", kFloat, 0.05, "Dropout before the adapter.", {.min = 0, .max = 0.999}),
      option("lora_target_modules", kStrings, Json::array({"all-linear"}),
             "Modules to adapt: names, one regular expression, or all-linear.",
             {.aliases = {"target_modules"}}),
      option("lora_modules_to_save", kStrings, Json::array(),
             "Modules trained in full and saved with the adapter.", {.aliases = {"modules_to_save"}}),
      option("use_rslora", kBool, false, "Scale by alpha / sqrt(r)."),
      option("lora_path", kString, nullptr, "Adapter folder (PEFT) to go on from.", {.value = "PATH"}),
      refused_arg("adapter_name", kString, "default", "one adapter is trained; name it by --output-dir"),
  };
  return group;
}

ArgGroup dataset_args() {
  ArgGroup group{"DatasetArgs", "Data", {}};
  group.args = {
      option("dataset_id", kString, nullptr,
             "File (.jsonl, .json, .csv, .tsv, .txt, also .gz or .zst; .parquet, .arrow), a folder of them, "
             "or a "
             "pattern (\"part-*.csv\").",
             {.aliases = {"dataset"}, .value = "PATH"}),
      option("data_slice", kString, nullptr, "Rows to use: start:stop, start:stop:step or a list.",
             {.value = "SLICE"}),
      option(
          "preprocessor", kString, "",
          "How rows become conversations (default: guessed from the columns); see twinkle list preprocessor.",
          {.aliases = {"preprocessor_cls"}, .value = "NAME"}),
      option("preprocessor_options", kJson, nullptr, "Parameters of the preprocessor, as a JSON object."),
      option("column_mapping", kJson, nullptr,
             "New names of columns: {\"in the file\": \"as the preprocessor calls it\"}."),
      option("csv_columns", kStrings, nullptr,
             "Names of the columns of .csv and .tsv files whose first record is no header.",
             {.value = "NAMES"}),
      option("model_name", kString, nullptr,
             "What the model learns to call itself (SelfCognitionProcessor)."),
      option("model_author", kString, nullptr,
             "Who the model learns to say made it (SelfCognitionProcessor)."),
      option(
          "filters", kStrings, Json::array(),
          "Leave out conversations that are not worth learning from, filter after filter; see twinkle list "
          "filter.",
          {.value = "NAMES"}),
      option(
          "filter_options", kJson, nullptr,
          "Parameters of the filters, as a JSON object: {\"HardFilter\": {\"max_rounds\": 20}}. Those that "
          "count or score take the run's tokenizer and model."),
      option("dropped_log", kString, nullptr,
             "File that gets every row that is left out, with the reason, as JSON lines; with --lazy those "
             "that filters leave out.",
             {.aliases = {"dropped_log_path"}, .value = "FILE"}),
      option(
          "save_rows", kString, nullptr,
          "New file that gets every row that is trained on, as it is drawn: conversations in .jsonl, .json, "
          ".csv or .parquet.",
          {.value = "FILE"}),
      option("bad_rows", kString, "raise", "Stop at a row that cannot be used, or drop it and count it.",
             {.choices = {"raise", "drop"}}),
      option("text_split", kString, "file", "Rows of a .txt file: the whole file, each paragraph, each line.",
             {.choices = {"file", "paragraph", "line"}}),
      option("eval_dataset_id", kString, nullptr, "Rows to evaluate on, read like the others.",
             {.value = "PATH"}),
      option("packing", kString, "none",
             "Pack rows into bins of --max-length tokens, of which --batch-size make a batch: the fullest "
             "bins, rows in order, or rows in order and cut where a bin is full.",
             {.choices = {"none", "best_fit", "in_order", "wrapped"}}),
      option("streaming", kBool, false,
             "Read rows in the order of the files, each when it is needed: no row is encoded before training "
             "begins (the files are read once, for their hash), nothing is shuffled, --max-steps or "
             "--train-samples ends the run."),
      option("lazy", kBool, false,
             "Encode a row when its batch is due, not all of them before the first step.",
             {.aliases = {"lazy_tokenize"}}),
      option(
          "encoded_cache", kString, nullptr,
          "Folder where encoded rows are kept for the next run with the same rows, template and tokenizer.",
          {.value = "PATH"}),
      refused_arg("subset_name", kString, "default",
                  "local files have no subsets; give the path of the file"),
      refused_arg("split", kString, "train", "local files have no splits; give the path of the file"),
      refused_arg("revision", kString, nullptr, "local files have no revisions"),
      harmless_arg("num_proc", kInt, nullptr),  // rows are always processed on all threads, in order
  };
  return group;
}

ArgGroup template_args() {
  ArgGroup group{"TemplateArgs", "Template", {}};
  group.args = {
      option("template_cls", kString, "",
             "Template (default: what the model's config asks for); see twinkle list template.",
             {.aliases = {"template"}, .value = "NAME"}),
      option("chat_template", kString, nullptr, "File with a Jinja chat template, instead of the model's.",
             {.value = "PATH"}),
      option("max_length", kInt, 8192, "Longest row in tokens.", {.min = 2, .max = kMostTokens}),
      option("truncation_strategy", kString, "raise", "What happens to a longer row.",
             {.choices = {"raise", "left", "right", "split", "delete"}}),
      option("use_chat_template", kBool, true,
             "Train on answers of conversations; without, on every token of plain text."),
      option("enable_thinking", kBool, true,
             "What the chat template is told: whether the model may think first."),
      option("default_system", kString, nullptr, "System message for conversations that have none."),
      option("chat_template_kwargs", kJson, nullptr,
             "Further variables of the chat template, as a JSON object (reasoning_effort ...)."),
      option(
          "loss_scale", kString, "default",
          "How tokens count in the loss: default, all, last_round, react ...; see twinkle list loss_scale.",
          {.value = "NAME"}),
      option("split_rounds", kBool, false,
             "Train on each round of a conversation as the model meets it: for templates that drop the "
             "thinking of "
             "earlier turns."),
  };
  return group;
}

ArgGroup training_args() {
  ArgGroup group{"TrainingArgs", "Training", {}};
  group.args = {
      option("max_steps", kInt, 200, "Optimizer steps. With --num-train-epochs alone, the epochs decide.",
             {.min = 1}),
      option("num_train_epochs", kFloat, nullptr,
             "Passes over the data; whichever ends first if --max-steps is given too.",
             {.min = 0, .aliases = {"epochs"}, .exclusive_min = true}),
      option("batch_size", kInt, 8, "Rows in a forward and backward.", {.min = 1, .max = kMostTokens}),
      option("gradient_accumulation_steps", kInt, 1, "Batches in an optimizer step.",
             {.min = 1, .max = kMostTokens, .aliases = {"grad_accum"}}),
      option("output_dir", kString, "./output", "Where checkpoints, metrics and the manifest go.",
             {.value = "PATH"}),
      option("overwrite_output_dir", kBool, false,
             "Remove the checkpoints of another run from --output-dir; without, such a folder is refused."),
      option("save_steps", kInt, 50, "Steps between checkpoints; 0: only at the end.", {.min = 0}),
      option("save_total_limit", kInt, nullptr, "Checkpoints kept; older ones are removed.", {.min = 1}),
      option("log_interval", kInt, 10, "Steps between lines of metrics.", {.min = 1}),
      option("eval_interval", kInt, nullptr, "Steps between evaluations (default: only at the end).",
             {.min = 1, .aliases = {"eval_steps"}}),
      option("eval_samples", kInt, nullptr, "Rows of an evaluation (default: all).", {.min = 1}),
      option("train_samples", kInt, nullptr, "Stop after this many rows.", {.min = 1}),
      option("resume_from_checkpoint", kString, nullptr, "Checkpoint folder to continue.",
             {.aliases = {"resume"}, .value = "PATH"}),
      option("resume_only_model", kBool, false,
             "Take only the weights of the checkpoint: optimizer, schedule and data start anew."),
      option("ignore_data_skip", kBool, false, "Start the data from the beginning when resuming."),
      option("seed", kInt, 42, "Seed of shuffling, dropout and fresh weights.", {.min = 0}),
      option("shuffle", kBool, true, "Mix the rows anew each epoch."),
      harmless_arg("micro_batch_size", kInt,
                   2),  // how a batch is cut never changes a bit; see --max-tokens-per-pass
      refused_arg("mini_batch_size", kInt, nullptr, "it belongs to reinforcement learning"),
      harmless_arg("full_determinism", kBool, false),  // every run is
      harmless_arg("padding_free", kBool, false),      // padding never exists
  };
  return group;
}

ArgGroup optimizer_args() {
  ArgGroup group{"OptimizerArgs", "Optimizer", {}};
  group.args = {
      option("optimizer_cls", kString, "AdamW", "Optimizer; see twinkle list optimizer.",
             {.aliases = {"optimizer"}, .value = "NAME"}),
      option("learning_rate", kFloat, 1e-5, "Peak learning rate; 1e-4 to 1e-3 suits LoRA.",
             {.min = 0, .aliases = {"lr"}}),
      option("weight_decay", kFloat, 0.0, "Weight decay of matrices.", {.min = 0}),
      option("adam_beta1", kFloat, 0.9, "Decay of the first moment.", {.min = 0, .max = 0.9999999}),
      option("adam_beta2", kFloat, 0.999, "Decay of the second moment.", {.min = 0, .max = 0.9999999}),
      option("adam_epsilon", kFloat, 1e-8, "Added to the denominator.", {.min = 0}),
      option("state_dtype", kString, "fp32",
             "How the optimizer's state is kept between steps; bf16 takes half the memory (Adam: with "
             "--adam-beta2 0.99 or less).",
             {.choices = {"fp32", "bf16"}}),
      option("max_grad_norm", kFloat, 1.0, "Longer gradients are scaled to this length; 0: never.",
             {.min = 0}),
      option("optimizer_options", kJson, nullptr, "More parameters of the optimizer, as a JSON object."),
  };
  return group;
}

ArgGroup scheduler_args() {
  ArgGroup group{"SchedulerArgs", "Learning rate schedule", {}};
  group.args = {
      option("scheduler_cls", kString, "CosineAnnealingLR", "Schedule; see twinkle list scheduler.",
             {.aliases = {"lr_scheduler", "scheduler"}, .value = "NAME"}),
      option("num_warmup_steps", kInt, 0, "Steps of linear warm-up (schedules named ...Warmup...).",
             {.min = 0, .aliases = {"warmup_steps"}}),
      option("num_training_steps", kInt, nullptr, "Length of the schedule (default: the steps of the run).",
             {.min = 1}),
      option("t_max", kInt, nullptr, "Length of CosineAnnealingLR (default: the steps of the run).",
             {.min = 1}),
      option("eta_min", kFloat, 0.0, "Lowest rate of CosineAnnealingLR.", {.min = 0}),
      option("scheduler_options", kJson, nullptr, "More parameters of the schedule, as a JSON object."),
      refused_arg("lr_decay_steps", kInt, nullptr, "use --num-training-steps"),
      refused_arg("max_lr", kFloat, nullptr, "use --learning-rate"),
  };
  return group;
}

ArgGroup loss_args() {
  static const std::string kOther = "it belongs to a loss for preferences or reinforcement learning";
  ArgGroup group{"LossArgs", "Loss", {}};
  group.args = {
      option("loss_cls", kString, "CrossEntropyLoss", "Loss; see twinkle list loss.",
             {.aliases = {"loss"}, .value = "NAME"}),
      option("loss_reduction", kString, "token_mean",
             "How token losses become one number, over the whole accumulated batch.",
             {.choices = {"token_mean", "sequence_mean", "sum"}}),
      option("loss_options", kJson, nullptr, "More parameters of the loss, as a JSON object."),
      refused_arg("ignore_index", kInt, -100, "labels of -100 are the ones not trained on"),
      refused_arg("loss_type", kString, "sigmoid", kOther),
      refused_arg("epsilon", kFloat, 0.2, kOther),
      refused_arg("epsilon_high", kFloat, nullptr, kOther),
      refused_arg("beta", kFloat, 0.1, kOther),
      refused_arg("sft_weight", kFloat, 1.0, kOther),
      refused_arg("entropy_coef", kFloat, 0.0, kOther),
  };
  return group;
}

ArgGroup sampling_args() {
  ArgGroup group{"SamplingArgs", "Sampling", {}};
  for (const ParamSpec& spec : sampling_param_specs()) {
    ArgSpec shown{.param = spec};
    if (spec.name == "max_tokens") shown.aliases = {"max_new_tokens"};
    if (spec.name == "logprobs" || spec.name == "prompt_logprobs") {
      char& first = shown.param.help.front();
      first = static_cast<char>(std::tolower(static_cast<unsigned char>(first)));
      shown.param.help.insert(0, "With --json or --input: ");
    }
    if (spec.name == "stop") {
      shown.repeats = shown.keep_space = true;
      shown.param.help.pop_back();
      shown.param.help +=
          ", as they are: blanks and line ends count. A comma parts them, but in a JSON list; mentions add "
          "up.";
    }
    group.args.push_back(std::move(shown));
  }
  return group;
}

ArgGroup machine_args() {
  ArgGroup group{"MachineArgs", "Machine", {}};
  group.args = {
      option("device", kString, "cpu", "Where tensors live.", {.choices = {"cpu", "cuda"}}),
      option("isa", kString, nullptr, "Instruction set of the kernels (default: the best of this machine).",
             {.choices = {"plain", "avx2", "avx512", "avx512bf16", "amx"}}),
      option("threads", kInt, nullptr,
             "Threads (default: the cores this process may use); never changes a number.",
             {.min = 1, .max = 1024}),
      option("max_tokens_per_pass", kInt, nullptr,
             "Tokens that go through the model together: less memory, same numbers (but with --isa plain).",
             {.min = 1, .max = kMostTokens}),
  };
  return group;
}

ArgGroup program_args() {
  ArgGroup group{"ProgramArgs", "Program", {}};
  group.args = {
      option("config", kString, nullptr, "YAML file of options.", {.value = "FILE"}),
      option("json", kBool, false, "Print for programs: JSON on standard output."),
  };
  return group;
}

}  // namespace twinkle::cli
