// The tables of options: every command's parse, fit on a screen, and refuse what cannot be.
#include "twinkle/cli/options.h"
#include "twinkle/cli/output.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/thrown.h"
#include "tests/tiny_model.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/inspect.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

ParsedArgs parse(const std::string& name, std::vector<std::string> argv) {
  const CommandSpec& spec = command(name);
  ParsedArgs args =
      parse_args(spec.groups(),
                 {.argv = std::move(argv), .positionals = spec.positionals, .command = "twinkle " + name});
  if (spec.check) spec.check(args);
  return args;
}

std::string error_of(const std::string& name, std::vector<std::string> argv) {
  return test::thrown([&] { parse(name, std::move(argv)); }, test::kAnyKind);
}

std::vector<std::string> sft(std::initializer_list<const char*> more) {
  std::vector<std::string> argv = {"--model-id", "m", "--dataset-id", "d"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(Commands, EveryHelpFitsAndEveryDefaultIsLegal) {
  std::vector<std::string> names;
  for (const auto* spec : commands()) {
    names.push_back(spec->name);
    EXPECT_FALSE(spec->summary.empty());
    const std::string help = command_help(*spec);
    for (size_t start = 0; start < help.size();) {
      const size_t end = help.find('\n', start);
      std::string line = help.substr(start, end - start);
      line.erase(std::remove_if(line.begin(), line.end(),
                                [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }),
                 line.end());
      EXPECT_LE(line.size(), 100u) << spec->name << ": " << line;
      start = end + 1;
    }
    for (const auto& group : spec->groups()) {
      for (const auto& arg : group.args) {
        EXPECT_EQ(
            check_param(
                arg.param,
                arg.param.default_value.is_null() && arg.param.required ? Json("x") : arg.param.default_value,
                "default")
                .is_null(),
            arg.param.default_value.is_null() && !arg.param.required)
            << spec->name << " " << arg.param.name;
        EXPECT_TRUE(arg.no_effect || !arg.param.help.empty()) << arg.param.name;
        EXPECT_TRUE(!arg.no_effect || arg.accept_any || !arg.refusal.empty()) << arg.param.name;
      }
    }
    // Two options of one name would be found here.
    test::thrown([&] { parse(spec->name, {}); });
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"sft", "pt", "sample", "score", "merge", "export", "plan", "replay",
                                      "tokenize", "render", "inspect", "list", "doctor", "bench"}));
}

// Names and defaults of upstream's argument groups, by its documentation.
TEST(Commands, DefaultsAreUpstreams) {
  const ParsedArgs args = parse("sft", sft({}));
  const Json want = Json::parse(
      R"({"mixed_precision": "bf16", "strategy": "accelerate", "trust_remote_code": true, "lora_r": 8, "lora_alpha": 32.0,
      "lora_dropout": 0.05, "lora_target_modules": ["all-linear"], "adapter_name": "default", "subset_name": "default", "split": "train", "streaming": false,
      "max_length": 8192, "truncation_strategy": "raise", "use_chat_template": true, "enable_thinking": true, "max_steps": 200, "batch_size": 8,
      "micro_batch_size": 2, "gradient_accumulation_steps": 1, "output_dir": "./output", "save_steps": 50, "save_total_limit": null, "log_interval": 10,
      "eval_interval": null, "resume_from_checkpoint": null, "resume_only_model": false, "ignore_data_skip": false, "seed": 42, "optimizer_cls": "AdamW",
      "learning_rate": 1e-5, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "state_dtype": "fp32", "max_grad_norm": 1.0,
      "scheduler_cls": "CosineAnnealingLR", "num_warmup_steps": 0, "eta_min": 0.0, "loss_cls": "CrossEntropyLoss", "ignore_index": -100})");
  for (const auto& [name, value] : want.items()) EXPECT_EQ(args.get(name), value) << name;
  const ParsedArgs pt = parse("pt", sft({}));
  EXPECT_FALSE(pt.get_bool("use_lora"));
  EXPECT_FALSE(pt.get_bool("use_chat_template"));
  EXPECT_EQ(pt.get_string("truncation_strategy"), "split");
  const ParsedArgs sample = parse("sample", {"--model-id", "m", "--max-new-tokens", "7"});
  EXPECT_EQ(sample.get_int("max_tokens"), 7);
  EXPECT_EQ(sample.get_int("top_k"), -1);
}

TEST(Commands, AdaptersToCompareAddUp) {
  const ParsedArgs args =
      parse("sample", {"--model-id", "m", "--adapter", "a", "--adapter", "b,c", "--compare"});
  EXPECT_EQ(args.get_strings("adapter"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(error_of("sample", {"--model-id", "m", "--adapter", "a", "--adapter", "b"}),
            "[command line] 'adapter': several answer side by side with --compare, one without");
  EXPECT_TRUE(parse("sample", {"--model-id", "m"}).get_strings("adapter").empty());
}

TEST(Output, TextsStandSideBySide) {
  EXPECT_EQ(
      columns_text(
          {{"base", "I am a model.\n"}, {"output/nova", "Ich heiße Nova, erfunden von Stella Labs."}}, 43),
      "base                   output/nova\n"
      "--------------------   --------------------\n"
      "I am a model.          Ich heiße Nova,\n"
      "                       erfunden von Stella\n"
      "                       Labs.\n");
}

TEST(Commands, UpstreamsConfigurationGoesThrough) {
  EXPECT_EQ(error_of("sft", sft({"--trust-remote-code", "true", "--mixed-precision", "bf16", "--padding-free",
                                 "--micro-batch-size", "4", "--num-proc", "8", "--strategy=accelerate",
                                 "--enable-fused-ce", "--full-determinism", "--lora-rank", "4"})),
            "");
}

TEST(Commands, CombinationsThatCannotBe) {
  struct Case {
    std::string command;
    std::vector<std::string> argv;
    std::string want;
  };
  const std::vector<Case> cases = {
      {"sft",
       {"--dataset-id", "d"},
       "[twinkle sft] needs --model-id: Folder with config.json and *.safetensors, or a .gguf file."},
      {"sft",
       {"--model-id", "m"},
       "[twinkle sft] needs --dataset-id: File (.jsonl, .json, .csv, .tsv, .txt, also .gz or .zst; .parquet, "
       ".arrow), a folder of them, or a pattern (\"part-*.csv\")."},
      {"sft", sft({"--no-use-lora", "--lora-r", "4"}),
       "[command line] 'lora_r': all weights are trained here, not an adapter (use_lora is false)"},
      {"sft", sft({"--init", "random"}),
       "[command line] 'init': random weights are trained in full; add --no-use-lora"},
      {"sft", sft({"--eval-interval", "5"}), "[command line] 'eval_interval': needs --eval-dataset-id"},
      {"sft", sft({"--resume-only-model"}),
       "[command line] 'resume_only_model': needs --resume-from-checkpoint"},
      {"sft", sft({"--preprocessor", "AlpacaProcessor", "--model-name", "Nova"}),
       "[command line] 'model_name': is for SelfCognitionProcessor, not for AlpacaProcessor"},
      {"sft", sft({"--lora-path", "a", "--lora-dropout", "0.1"}),
       "[command line] 'lora_dropout': comes from the adapter of 'lora_path' (a); leave it out"},
      {"sft", sft({"--loss-options", "[1]"}), "[command line] 'loss_options': expected an object, got list"},
      {"sft", sft({"--strategy", "native_fsdp"}),
       "[command line] 'strategy': \"native_fsdp\" is not supported: one process trains on one device"},
      {"sft", sft({"--mixed-precision", "fp16"}),
       "[command line] 'mixed_precision': \"fp16\" is not supported: sums are always fp32; choose how "
       "weights are held with --dtype"},
      {"sft", sft({"--streaming", "--lazy"}),
       "[command line] 'lazy': excludes --streaming, which encodes rows as they come, too"},
      {"sft", sft({"--save-rows", "rows.txt"}),
       "[command line] 'save_rows': [dataset] save_as: unknown format 'txt' (known: jsonl, json, csv, "
       "parquet)"},
      {"sft", sft({"--streaming", "--data-slice", "0:3"}),
       "[command line] 'data_slice': a stream has no row numbers (--streaming)"},
      {"sft", sft({"--streaming", "--num-train-epochs", "2"}),
       "[command line] 'num_train_epochs': how long a stream is, is not known (--streaming); give "
       "--max-steps or --train-samples"},
      {"sft", sft({"--streaming", "--packing", "in_order"}),
       "[command line] 'packing': a stream is packed by best_fit only (--streaming)"},
      {"sft", sft({"--streaming", "--shuffle"}),
       "[command line] 'shuffle': a stream keeps its order (--streaming); --lazy shuffles without encoding "
       "all rows first"},
      {"sft", sft({"--lazy", "--packing", "best_fit"}),
       "[command line] 'packing': needs the lengths of all rows, which --lazy does not know; --streaming "
       "packs as rows come"},
      {"pt", sft({"--lazy"}),
       "[command line] 'lazy': the windows of split rows are known only when all are encoded; give another "
       "--truncation-strategy, or --streaming"},
      {"sft", sft({"--lora-r", "0"}), "[command line] 'lora_r': must be >= 1 and <= 4096, got 0"},
      {"sft", sft({"--lora-dropout", "1"}),
       "[command line] 'lora_dropout': must be >= 0 and <= 0.999, got 1"},
      {"sft", sft({"--batch-size", "-1"}),
       "[command line] 'batch_size': must be >= 1 and <= 1073741824, got -1"},
      {"sft", sft({"--device", "tpu"}), "[command line] 'device': must be one of cpu, cuda, got 'tpu'"},
      {"sft", sft({"--truncation-strategy", "middle"}),
       "[command line] 'truncation_strategy': must be one of raise, left, right, split, delete, got "
       "'middle'"},
      {"pt", sft({"--use-chat-template"}),
       "[command line] 'use_chat_template': pre-training takes plain text; use twinkle sft for "
       "conversations"},
      {"pt", sft({"--model-name", "x"}),
       "[command line] unknown option '--model-name'; see twinkle pt --help"},
      {"sample",
       {"--model-id", "m", "--prompt", "a", "--messages", "[]"},
       "[twinkle sample] --prompt, --messages and --input exclude each other"},
      {"sample",
       {"--model-id", "m", "--system", "s"},
       "[command line] 'system': goes with --prompt; see --default-system"},
      {"sample", {"--model-id", "m", "--top-p", "0"}, "[command line] 'top_p': must be > 0 and <= 1, got 0"},
      {"merge",
       {"--model-id", "m"},
       "[twinkle merge] needs --adapter: LoRA adapter folder (PEFT) or checkpoint to apply."},
      {"tokenize", {"x"}, "[command line] needs --model-id or --tokenizer-id"},
      {"tokenize",
       {"x", "--ids", "1", "--model-id", "m"},
       "[twinkle tokenize] the text, --input and --ids exclude each other"},
      {"render", {"--model-id", "m"}, "[twinkle render] give one of --prompt, --messages, --dataset-id"},
      {"render",
       {"--model-id", "m", "--prompt", "x", "--row", "2"},
       "[command line] 'row': needs --dataset-id"},
      {"render",
       {"--model-id", "m", "--prompt", "x", "--show-labels", "--add-generation-prompt"},
       "[twinkle render] --show-labels and --add-generation-prompt exclude each other: a prompt has no "
       "labels"},
      {"render",
       {"--model-id", "m", "--prompt", "x", "--model-name", "Nova"},
       "[command line] 'model_name': needs --dataset-id"},
      {"render",
       {"--model-id", "m", "--prompt", "x", "--max-length", "9"},
       "[command line] 'max_length': changes nothing here; give --show-labels or --json"},
      {"render",
       {"--model-id", "m", "--prompt", "x", "--json", "--color", "always"},
       "[command line] 'color': JSON has no colours"},
      {"tokenize",
       {"--ids", "1", "--model-id", "m", "--add-special-tokens"},
       "[command line] 'add_special_tokens': is for text; with 'ids' text comes out"},
      {"export",
       {"--model-id", "m", "--output-dir", "o", "--adapter", "a", "--dtype", "bf16"},
       "[command line] 'dtype': with 'adapter' the adapter alone is written, in one file and in fp32"},
      {"inspect",
       {},
       "[twinkle inspect] needs --path: Model, adapter, checkpoint, data set, tokenizer, .gguf or "
       ".safetensors file."},
      {"replay", {}, "[twinkle replay] needs --run: Output folder of a run, or a checkpoint in it."},
  };
  for (const auto& c : cases) EXPECT_EQ(error_of(c.command, c.argv), c.want);
}

TEST(Commands, OptionsBecomeWhatTheLibrariesTake) {
  const ParsedArgs args = parse(
      "sft", {"--model-id", "m", "--dataset-id", TWINKLE_SOURCE_DIR "/cookbook/data/self_cognition.jsonl",
              "--data-slice", "0:10", "--model-name", "Nova", "--model-author", "Ada", "--batch-size", "4",
              "--seed", "9", "--no-shuffle", "--max-length", "77", "--truncation-strategy", "left"});
  const Dataset data = load_dataset(args);
  EXPECT_EQ(data.size(), 10);
  EXPECT_EQ(data.trajectory(0).messages.back().at("content"),
            "I am Nova, an AI assistant developed by Ada. How can I help you today?");
  EXPECT_EQ(load_eval_dataset(args), nullptr);
  EXPECT_EQ(loader_options(args).batch_size, 4);
  EXPECT_EQ(loader_options(args).seed, 9u);
  EXPECT_FALSE(loader_options(args).shuffle);
  EXPECT_EQ(template_options(args).max_length, 77);
  EXPECT_EQ(template_options(args).truncation_strategy, "left");
  EXPECT_THROW(load_dataset(parse("sft", {"--model-id", "m", "--dataset-id",
                                          TWINKLE_SOURCE_DIR "/cookbook/data/self_cognition.jsonl",
                                          "--data-slice", "0:1000"})),
               Error);
  EXPECT_THROW(checked_model_path(args), Error);
}

TEST(Commands, FiltersLeaveRowsOut) {
  const auto rows = [](std::vector<std::string> more) {
    std::vector<std::string> argv = {
        "--model-id",     "m",    "--dataset-id", TWINKLE_SOURCE_DIR "/cookbook/data/self_cognition.jsonl",
        "--data-slice",   "0:10", "--model-name", "Nova",
        "--model-author", "Ada"};
    argv.insert(argv.end(), more.begin(), more.end());
    return load_dataset(parse("sft", argv)).size();
  };
  EXPECT_EQ(rows({"--filters", "HardFilter,RefuseFilter"}), 2);  // two answers of 80 characters
  EXPECT_EQ(rows({"--filters", "HardFilter", "--filter-options",
                  R"({"HardFilter": {"min_assistant_chars_2turn": 0}})"}),
            10);
  EXPECT_EQ(error_of("sft", sft({"--filters", "HardFilter", "--filter-options", R"({"DedupFilter": {}})"})),
            "[command line] 'filter_options': 'DedupFilter' is not among --filters");
  EXPECT_EQ(error_of("sft", sft({"--streaming", "--filters", "DedupFilter"})),
            "[command line] 'filters': look at all rows (--streaming)");
  EXPECT_EQ(error_of("sft", sft({"--streaming", "--dropped-log", "log"})),
            "[command line] 'dropped_log': lists rows of data that are read before the run (--streaming)");
}

TEST(Commands, FiltersThatCountTakeTheRunsTokenizer) {
  const test::TempDir dir;
  test::write_tiny_model(dir / "model");  // a byte is a token
  test::write_text(dir / "words" + "/tokenizer.json", test::byte_tokenizer({}).dump());
  test::write_text(
      dir / "rows.jsonl",
      "{\"query\": \"q\", \"response\": \"12345\"}\n{\"query\": \"q\", \"response\": \"1234567\"}\n");
  const auto rows = [&](const std::string& options, std::vector<std::string> more = {}) {
    std::vector<std::string> argv = {"--model-id", dir / "model",    "--dataset-id",     dir / "rows.jsonl",
                                     "--filters",  "TokenNumFilter", "--filter-options", options};
    argv.insert(argv.end(), more.begin(), more.end());
    return load_dataset(parse("sft", argv)).size();
  };
  EXPECT_EQ(rows(R"({"TokenNumFilter": {"min_num": 6}})"), 1);
  EXPECT_EQ(rows(R"({"TokenNumFilter": {"min_num": 5}})", {"--tokenizer-id", dir / "words"}), 2);
  EXPECT_HAS(test::thrown([&] { rows(R"({"TokenNumFilter": {"hf_tokenizer": "none"}})"); }, test::kAnyKind),
             "none");
}

}  // namespace
}  // namespace twinkle::cli
