// Declarations of tokenize, render, inspect and list: the commands that mostly do without torch.
#include "twinkle/cli/command.h"
#include "twinkle/cli/inspect.h"
#include "twinkle/cli/options.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

// Whose tokenizer: a model's, or one by itself.
ArgGroup tokenizer_args() {
  ArgGroup group{"ModelArgs", "Tokenizer", {}};
  group.args = {path_arg("model_id", "Model folder or .gguf file whose tokenizer to use."),
                path_arg("tokenizer_id",
                         "Another tokenizer: a folder, or a tokenizer.json, tokenizer.model, *.tiktoken, "
                         "vocab.txt or .gguf file.")};
  return group;
}

ArgSpec color_arg() {
  ArgSpec out = arg("color", ParamType::kString, "auto", "Colours: only on a terminal, or as said.");
  out.param.choices = {"auto", "always", "never"};
  return out;
}

void refuse(const ParsedArgs& args, const char* name, const char* why) {
  if (args.given(name))
    throw invalid_argument("[" + args.source(name) + "] '" + std::string(name) + "': " + why);
}

bool never(const ParsedArgs&) { return false; }

void check_tokenizer(const ParsedArgs& args) {
  if (!args.has("model_id") && !args.has("tokenizer_id"))
    throw invalid_argument("[command line] needs --model-id or --tokenizer-id");
}

std::vector<ArgGroup> tokenize_groups() {
  ArgGroup input{"InputArgs", "Text", {}};
  input.args = {
      arg("text", ParamType::kString, nullptr, "Text to cut into tokens (default: standard input)."),
      path_arg("input", "File with the text."),
      arg("ids", ParamType::kIntList, nullptr, "Token ids to turn back into text."),
      arg("add_special_tokens", ParamType::kBool, false,
          "Add what the tokenizer puts around a text (BOS, EOS)."),
      arg("parse_special", ParamType::kBool, true, "Read the spelling of a special token as that token."),
      path_arg("save", "Write the tokenizer to this file as a tokenizer.json; without a text that is all."),
      color_arg()};
  return {input, tokenizer_args(), program_args()};
}

void check_tokenize(const ParsedArgs& args) {
  check_tokenizer(args);
  int sources = 0;
  for (const char* name : {"text", "input", "ids"}) sources += args.has(name) ? 1 : 0;
  if (sources > 1)
    throw invalid_argument("[twinkle tokenize] the text, --input and --ids exclude each other");
  if (args.has("ids")) {
    for (const char* name : {"add_special_tokens", "parse_special", "color"})
      refuse(args, name, "is for text; with 'ids' text comes out");
  }
  if (args.get_bool("json")) refuse(args, "color", "JSON has no colours");
}

const AddCommand tokenize({
    .name = "tokenize",
    .summary = "Cut text into tokens, or turn ids back into text",
    .description =
        "Shows the tokens of a text with their ids, or the text of --ids. Reads tokenizer.json, vocab.json "
        "with merges.txt, SentencePiece and tiktoken models, BERT's vocab.txt and GGUF files, and "
        "writes any of them as a tokenizer.json.\n\nExample: twinkle "
        "tokenize \"Hello world\" --model-id SmolLM2.gguf",
    .usage = "[TEXT] [options]",
    .positionals = {"text"},
    .groups = tokenize_groups,
    .check = check_tokenize,
    .needs_engine = never,
    .order = 90,
});

std::vector<ArgGroup> render_groups() {
  ArgGroup input{"InputArgs", "Conversation", {}};
  ArgSpec row = arg("row", ParamType::kInt, 1, "Row of --dataset-id, counted from 1.");
  row.param.min = 1;
  input.args = {arg("prompt", ParamType::kString, nullptr, "What the user says."),
                arg("system", ParamType::kString, nullptr, "System message, with --prompt."),
                arg("messages", ParamType::kJson, nullptr, "A whole conversation as JSON."),
                row,
                arg("show_labels", ParamType::kBool, false, "Colour each token by whether it is trained on."),
                arg("add_generation_prompt", ParamType::kBool, nullptr,
                    "End where the model is to answer (default: after a user's message)."),
                color_arg()};
  ArgGroup data = dataset_args();
  for (const char* name : {"data_slice", "bad_rows", "eval_dataset_id", "packing", "streaming", "lazy",
                           "filters", "filter_options", "dropped_log", "save_rows", "encoded_cache"})
    data.remove(name);
  return {input, tokenizer_args(), data, template_args(), program_args()};
}

void check_render(const ParsedArgs& args) {
  check_tokenizer(args);
  int sources = 0;
  for (const char* name : {"prompt", "messages", "dataset_id"}) sources += args.has(name) ? 1 : 0;
  if (sources != 1) throw invalid_argument("[twinkle render] give one of --prompt, --messages, --dataset-id");
  if (args.given("row") && !args.has("dataset_id"))
    throw invalid_argument("[" + args.source("row") + "] 'row': needs --dataset-id");
  if (args.has("system") && !args.has("prompt"))
    throw invalid_argument("[" + args.source("system") +
                           "] 'system': goes with --prompt; see --default-system");
  if (!args.has("dataset_id")) {
    for (const char* name : {"preprocessor", "preprocessor_options", "model_name", "model_author",
                             "text_split", "column_mapping", "csv_columns"})
      refuse(args, name, "needs --dataset-id");
  }
  const bool json = args.get_bool("json");
  if (json) {
    refuse(args, "color", "JSON has no colours");
    refuse(args, "show_labels", "JSON always has the labels");
  }
  if (!json && !args.get_bool("show_labels") && args.get_bool("use_chat_template")) {
    for (const char* name : {"color", "max_length", "truncation_strategy"})
      refuse(args, name, "changes nothing here; give --show-labels or --json");
  }
  if (args.get_bool("show_labels") && args.has("add_generation_prompt") &&
      args.get_bool("add_generation_prompt")) {
    throw invalid_argument(
        "[twinkle render] --show-labels and --add-generation-prompt exclude each other: a prompt has no "
        "labels");
  }
}

const AddCommand render({
    .name = "render",
    .summary = "Show a conversation as the model sees it, and what is trained on",
    .description = "Renders a conversation, or a row of a data set, with the model's chat template. "
                   "--show-labels colours what is trained on: the first thing to look at "
                   "before a run. Without colours what is trained on stands between \u27e6 and \u27e7.\n\n"
                   "Example: twinkle render --model-id SmolLM2.gguf --dataset-id "
                   "cookbook/data/self_cognition.jsonl --show-labels",
    .groups = render_groups,
    .check = check_render,
    .needs_engine = never,
    .order = 100,
});

std::vector<ArgGroup> inspect_groups() {
  ArgGroup group{"InspectArgs", "What to look at", {}};
  ArgSpec kind = arg("kind", ParamType::kString, "auto", "What the path is (default: found out).");
  kind.param.choices = {"auto",        "dataset", "tokenizer", "gguf",
                        "safetensors", "model",   "adapter",   "checkpoint"};
  ArgSpec rows = arg("rows", ParamType::kInt, 3, "Rows of a data set to show.");
  rows.param.min = 0;
  ArgSpec path = required_arg("path", ParamType::kString,
                              "Model, adapter, checkpoint, data set, tokenizer, .gguf or .safetensors file.");
  path.value_name = "PATH";
  group.args = {path, kind, rows, arg("tensors", ParamType::kBool, false, "List every tensor.")};
  ArgSpec split = arg("text_split", ParamType::kString, "file", "Rows of a .txt file.");
  split.param.choices = {"file", "paragraph", "line"};
  group.args.push_back(split);
  group.args.push_back(arg("csv_columns", ParamType::kStringList, nullptr,
                           "Names of the columns of .csv and .tsv files whose first record is no header."));
  return {group, program_args()};
}

const AddCommand inspect({
    .name = "inspect",
    .summary = "Look into a model, adapter, checkpoint, data set or tokenizer",
    .description = "Shows what a file or folder holds.\n\nExample: twinkle inspect SmolLM2.gguf",
    .usage = "PATH [options]",
    .positionals = {"path"},
    .groups = inspect_groups,
    .needs_engine =
        [](const ParsedArgs& args) {
          return kind_needs_engine(inspect_kind(args.get_string("path"), args.get_string("kind")));
        },
    .order = 110,
});

std::vector<ArgGroup> list_groups() {
  ArgGroup group{"ListArgs", "What to list", {}};
  group.args = {arg("kind", ParamType::kString, nullptr,
                    "A kind of component: preprocessor, template, loss, optimizer, scheduler ..."),
                arg("name", ParamType::kString, nullptr, "One component, with its parameters.")};
  return {group, program_args()};
}

const AddCommand list({
    .name = "list",
    .summary = "List losses, optimizers, schedules, templates, preprocessors ...",
    .description = "Lists the components that options name, from the registry that also makes "
                   "them.\n\nExample: twinkle list preprocessor SelfCognitionProcessor",
    .usage = "[KIND] [NAME] [options]",
    .positionals = {"kind", "name"},
    .groups = list_groups,
    // What the torch-free libraries register is listed at once.
    .needs_engine =
        [](const ParsedArgs& args) {
          return !args.has("kind") || Catalog::instance().of_kind(args.get_string("kind")).empty();
        },
    .order = 120,
});

}  // namespace
}  // namespace twinkle::cli
