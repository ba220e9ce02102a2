#include "twinkle/cli/options.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/no_model.h"
#include "twinkle/core/parallel.h"
#include "twinkle/text/tokenizer_kind.h"

namespace twinkle::cli {
namespace {

// Upstream's default. They run beside the training steps, which use every core.
constexpr int64_t kLazyWorkers = 2;

std::string text_of(const ParsedArgs& args, std::string_view name) {
  return args.has(name) ? args.get_string(name) : "";
}

void only_with(const ParsedArgs& args, std::string_view name, bool condition, const std::string& why) {
  if (args.given(name) && args.has(name) && !condition) {
    throw invalid_argument("[" + args.source(name) + "] '" + std::string(name) + "': " + why);
  }
}

std::string shown(const Json& value) {
  return value.is_null() ? "nothing" : std::string(json_type_name(value));
}

Json column_mapping(const ParsedArgs& args) {
  if (!args.has("column_mapping")) return nullptr;
  const Json& names = args.get("column_mapping");
  if (!names.is_object()) {
    throw invalid_argument("[" + args.source("column_mapping") +
                           "] 'column_mapping': expected an object, got " + shown(names));
  }
  return names;
}

Json preprocessor_options(const ParsedArgs& args) {
  Json options = args.has("preprocessor_options") ? args.get("preprocessor_options") : Json::object();
  if (!options.is_object()) {
    throw invalid_argument("[" + args.source("preprocessor_options") +
                           "] 'preprocessor_options': expected an object, got " + shown(options));
  }
  for (const char* key : {"model_name", "model_author"}) {
    if (args.has(key)) options[key] = args.get(key);
  }
  return options;
}

// Calls fn; what is wrong with the names is said of the option.
template <class Fn>
void with_mapping(const ParsedArgs& args, const Fn& fn) {
  const Json names = column_mapping(args);
  if (names.is_null()) return;
  try {
    fn(names);
  } catch (const Error& e) {
    throw Error(e.kind(), "[" + args.source("column_mapping") + "] 'column_mapping': " + e.what());
  }
}

// What is asked of a filter. One that reads a tokenizer or a model takes the run's own where none is named.
Json options_of_filter(const ParsedArgs& args, const std::string& name) {
  const Json all = args.has("filter_options") ? args.get("filter_options") : Json::object();
  Json options = all.value(name, Json::object());
  if (!options.is_object()) return options;
  const std::string model = text_of(args, "model_id"), tokenizer = text_of(args, "tokenizer_id");
  for (const ParamSpec& param : Catalog::instance().info("filter", name).params) {
    if (options.contains(param.name)) continue;
    if (param.name == "model_id" && !model.empty()) options["model_id"] = model;
    const std::string& counts = tokenizer.empty() ? model : tokenizer;
    if (param.name == "hf_tokenizer" && !counts.empty()) options["hf_tokenizer"] = counts;
  }
  return options;
}

// Rows for evaluation may have the names already.
Dataset open_dataset(const ParsedArgs& args, const std::string& path, const std::string& slice,
                     bool for_evaluation = false) {
  DatasetMeta meta{.dataset_id = path};
  meta.text_split = args.get_string("text_split");
  meta.slice = slice;
  meta.columns = string_list(args, "csv_columns");
  Dataset data(meta);
  with_mapping(args, [&](const Json& names) { data.rename_columns(names, -1, /*may_lack=*/for_evaluation); });
  data.map(text_of(args, "preprocessor"), preprocessor_options(args));
  for (const std::string& name : string_list(args, "filters"))
    data.quality_filter(name, options_of_filter(args, name));
  return data;
}

}  // namespace

namespace {

// What does not go with rows that are read or encoded while training.
void check_reading(const ParsedArgs& args) {
  const bool streaming = args.get_bool("streaming"), lazy = args.get_bool("lazy");
  only_with(args, "lazy", !lazy || !streaming, "excludes --streaming, which encodes rows as they come, too");
  only_with(args, "filters", !streaming, "look at all rows (--streaming)");
  only_with(args, "dropped_log", !streaming, "lists rows of data that are read before the run (--streaming)");
  if (args.has("save_rows")) {
    try {
      row_format(args.get_string("save_rows"), {});
    } catch (const Error& e) {
      throw Error(e.kind(), "[" + args.source("save_rows") + "] 'save_rows': " + e.what());
    }
  }
  only_with(args, "data_slice", !streaming, "a stream has no row numbers (--streaming)");
  only_with(args, "num_train_epochs", !streaming,
            "how long a stream is, is not known (--streaming); give --max-steps or --train-samples");
  only_with(args, "shuffle", !streaming || !args.get_bool("shuffle"),
            "a stream keeps its order (--streaming); --lazy shuffles without encoding all rows first");
  only_with(args, "encoded_cache", !streaming && !lazy, "is for rows that are encoded before the first step");
  const std::string packing = args.get_string("packing");
  only_with(args, "packing", !streaming || packing == "none" || packing == "best_fit",
            "a stream is packed by best_fit only (--streaming)");
  only_with(args, "packing", !lazy || packing == "none",
            "needs the lengths of all rows, which --lazy does not know; --streaming packs as rows come");
  only_with(args, "lazy", !lazy || args.get_string("truncation_strategy") != "split",
            "the windows of split rows are known only when all are encoded; give another "
            "--truncation-strategy, or --streaming");
}

}  // namespace

void check_training_args(const ParsedArgs& args) {
  const auto has = [&](std::string_view name) { return args.values().contains(name); };
  if (has("use_lora")) {
    for (const char* name : {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
                             "lora_modules_to_save", "use_rslora", "lora_path"}) {
      only_with(args, name, args.get_bool("use_lora"),
                "all weights are trained here, not an adapter (use_lora is false)");
    }
  }
  if (args.has("lora_path")) {
    for (const char* name : {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
                             "lora_modules_to_save", "use_rslora"}) {
      only_with(args, name, false,
                "comes from the adapter of 'lora_path' (" + args.get_string("lora_path") + "); leave it out");
    }
  }
  if (has("init") && args.get_string("init") == "random" && has("use_lora") && args.get_bool("use_lora")) {
    throw invalid_argument("[" + args.source("init") +
                           "] 'init': random weights are trained in full; add --no-use-lora");
  }
  only_with(args, "eval_interval", args.has("eval_dataset_id"), "needs --eval-dataset-id");
  only_with(args, "eval_samples", args.has("eval_dataset_id"), "needs --eval-dataset-id");
  only_with(args, "ignore_data_skip",
            !args.get_bool("ignore_data_skip") || args.has("resume_from_checkpoint"),
            "needs --resume-from-checkpoint");
  only_with(args, "resume_only_model",
            !args.get_bool("resume_only_model") || args.has("resume_from_checkpoint"),
            "needs --resume-from-checkpoint");
  const std::string preprocessor = text_of(args, "preprocessor");
  for (const char* name : {"model_name", "model_author"}) {
    only_with(args, name, preprocessor.empty() || preprocessor == "SelfCognitionProcessor",
              "is for SelfCognitionProcessor, not for " + preprocessor);
  }
  check_reading(args);
  for (const char* name :
       {"preprocessor_options", "filter_options", "optimizer_options", "scheduler_options", "loss_options"}) {
    if (!args.has(name)) continue;
    only_with(args, name, args.get(name).is_object(), "expected an object, got " + shown(args.get(name)));
  }
  if (!args.has("filter_options")) return;
  const std::vector<std::string> filters = string_list(args, "filters");
  for (const auto& [name, options] : args.get("filter_options").items()) {
    only_with(args, "filter_options", std::find(filters.begin(), filters.end(), name) != filters.end(),
              "'" + name + "' is not among --filters");
  }
}

std::string checked_model_path(const ParsedArgs& args) {
  const std::string path = text_of(args, "model_id");
  if (path.empty())
    throw invalid_argument(
        "[command line] needs --model-id: a folder with config.json and *.safetensors, or a .gguf file");
  if (!file_exists(path)) {
    throw not_found("[" + args.source("model_id") + "] 'model_id': no file or folder '" + path +
                    "'; give a folder with config.json and *.safetensors, or a .gguf file");
  }
  return path;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) { return Tokenizer::load(path); }

std::shared_ptr<const Tokenizer> load_tokenizer(const ParsedArgs& args) {
  const std::string path = text_of(args, "tokenizer_id");
  if (path.empty()) {
    const std::string model = checked_model_path(args);
    const bool neither =
        is_directory(model) && !file_exists(model + "/config.json") && tokenizer_file_of(model).empty();
    if (neither) throw no_model(model);
    return load_tokenizer(model);
  }
  if (!file_exists(path))
    throw not_found("[" + args.source("tokenizer_id") + "] 'tokenizer_id': no file or folder '" + path + "'");
  return load_tokenizer(path);
}

TemplateOptions template_options(const ParsedArgs& args, int64_t context) {
  TemplateOptions options;
  options.max_length = args.get_int("max_length");
  if (context > 0) options.max_length = std::min(options.max_length, context);
  // Commands that only read rows leave some of these out.
  if (args.has("truncation_strategy")) options.truncation_strategy = args.get_string("truncation_strategy");
  if (args.has("use_chat_template")) options.use_chat_template = args.get_bool("use_chat_template");
  options.enable_thinking = args.get_bool("enable_thinking");
  options.default_system = text_of(args, "default_system");
  if (args.has("chat_template")) {
    const std::string path = args.get_string("chat_template");
    options.chat_template = path.empty() ? "" : read_file(path);
    // "" would mean the tokenizer's own.
    if (options.chat_template.find_first_not_of(" \t\r\n") == std::string::npos) {
      throw invalid_argument("[" + args.source("chat_template") + "] 'chat_template': " +
                             (path.empty() ? "needs the path of a file"
                                           : "the file '" + path +
                                                 "' is empty; leave the option out for the "
                                                 "tokenizer's own template"));
    }
  }
  if (args.has("chat_template_kwargs")) {
    options.chat_template_kwargs = args.get("chat_template_kwargs");
    if (!options.chat_template_kwargs.is_object()) {
      throw invalid_argument("[" + args.source("chat_template_kwargs") +
                             "] 'chat_template_kwargs': expected an object, got " +
                             shown(options.chat_template_kwargs));
    }
  }
  if (args.has("loss_scale")) options.loss_scale = args.get_string("loss_scale");
  if (args.has("split_rounds")) options.split_rounds = args.get_bool("split_rounds");
  return options;
}

std::string template_name(const ParsedArgs& args) {
  std::string name = text_of(args, "template_cls");
  for (const char* source : {"model_id", "tokenizer_id"}) {
    if (name.empty() && args.has(source)) name = template_name_for(args.get_string(source));
  }
  return name.empty() ? "Template" : name;
}

std::unique_ptr<Template> load_template(const ParsedArgs& args, std::shared_ptr<const Tokenizer> tokenizer,
                                        int64_t context) {
  return make_template(template_name(args), std::move(tokenizer), template_options(args, context));
}

std::unique_ptr<Template> load_whole_template(const ParsedArgs& args,
                                              std::shared_ptr<const Tokenizer> tokenizer) {
  TemplateOptions options = template_options(args);
  options.max_length = std::numeric_limits<int64_t>::max();
  return make_template(template_name(args), std::move(tokenizer), options);
}

void check_length(const ParsedArgs& args, const std::string& what, int64_t tokens) {
  const int64_t most = args.get_int("max_length");
  if (tokens <= most) return;
  throw invalid_argument("[" + args.source("max_length") + "] 'max_length': " + what + " has " +
                         std::to_string(tokens) + " tokens, more than " + std::to_string(most) +
                         "; shorten it or raise --max-length");
}

Dataset load_dataset(const ParsedArgs& args) {
  return open_dataset(args, text_of(args, "dataset_id"), text_of(args, "data_slice"));
}

std::unique_ptr<Dataset> load_eval_dataset(const ParsedArgs& args) {
  if (!args.has("eval_dataset_id")) return nullptr;
  auto data = std::make_unique<Dataset>(open_dataset(args, args.get_string("eval_dataset_id"), "", true));
  if (args.has("eval_samples")) {
    const int64_t count = args.get_int("eval_samples");
    if (count > data->size()) {
      throw invalid_argument("[" + args.source("eval_samples") +
                             "] 'eval_samples': " + std::to_string(count) + " rows are asked for, '" +
                             data->name() + "' has " + std::to_string(data->size()));
    }
    *data = open_dataset(args, args.get_string("eval_dataset_id"), "0:" + std::to_string(count), true);
  }
  return data;
}

DataLoaderOptions loader_options(const ParsedArgs& args) {
  return {.batch_size = args.get_int("batch_size"),
          .shuffle = args.get_bool("shuffle"),
          .seed = static_cast<uint64_t>(args.get_int("seed"))};
}

std::vector<std::string> string_list(const ParsedArgs& args, std::string_view name) {
  std::vector<std::string> out;
  if (!args.has(name)) return out;
  for (const Json& item : args.get(name)) out.push_back(item.get<std::string>());
  return out;
}

namespace {

std::string not_for_training(const std::string& part) {
  return "holds a conversation that is '" + part +
         "': preferences and texts to compare are not for supervised training";
}

void refuse_part(const std::string& part, const std::string& place) {
  if (!part.empty()) throw invalid_argument("[dataset] " + place + " " + not_for_training(part));
}

}  // namespace

void encode_for_training(const ParsedArgs& args, const Template& tmpl, Dataset& data) {
  data.encode(tmpl, parse_bad_rows(args.get_string("bad_rows")), text_of(args, "encoded_cache"));
  for (size_t i = 0; i < data.feature_parts().size(); ++i)
    refuse_part(data.feature_parts()[i], data.place(data.feature_rows()[i]));
}

DataLoader make_loader(const ParsedArgs& args, std::vector<InputFeature> features, int64_t max_length,
                       std::string* note) {
  const std::string packing = args.get_string("packing");
  note->clear();
  if (packing == "none") return DataLoader(std::move(features), loader_options(args));
  const auto bins = std::make_shared<PackingDataset>(
      std::move(features), PackingOptions{.max_length = max_length, .strategy = packing});
  char fill[32];
  std::snprintf(fill, sizeof(fill), "%.1f", 100 * bins->fill());
  *note = "packed into " + std::to_string(bins->size()) + " bins of " + std::to_string(max_length) +
          " tokens, " + fill + " % full";
  return DataLoader(bins, loader_options(args));
}

DataLoader make_lazy_loader(const ParsedArgs& args, Dataset data, std::shared_ptr<const Template> tmpl) {
  // The first row that can be used shows what kind they are; others are reported in their turn.
  for (int64_t i = 0; i < std::min<int64_t>(data.size(), 100); ++i) {
    std::string part;
    try {
      part = data.parts(i).front().name;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
      continue;
    }
    refuse_part(part, data.place(i));
    break;
  }
  DataLoaderOptions options = loader_options(args);
  options.bad_rows = parse_bad_rows(args.get_string("bad_rows"));
  options.max_retries = std::numeric_limits<int64_t>::max();  // rows that are dropped may stand in a row
  options.num_workers = kLazyWorkers;
  return DataLoader(std::make_shared<LazyDataset>(std::move(data), std::move(tmpl)), options);
}

StreamingData load_stream(const ParsedArgs& args, std::shared_ptr<const Template> tmpl,
                          std::shared_ptr<RowWriter> recorder) {
  const DatasetMeta meta{.dataset_id = text_of(args, "dataset_id"),
                         .text_split = args.get_string("text_split"),
                         .columns = string_list(args, "csv_columns")};
  const IterableOptions iterable{.bad_rows = parse_bad_rows(args.get_string("bad_rows"))};
  const auto made_anew = [&] {
    auto out = std::make_unique<IterableDataset>(meta, tmpl, iterable);
    with_mapping(args, [&](const Json& names) { out->rename_columns(names); });
    return out;
  };
  StreamingData out;
  // The first rows decide what the others are read as, so that a resumed run reads them alike.
  const std::optional<Row> first = made_anew()->next_row();
  if (!first) throw invalid_argument("[dataset] '" + meta.dataset_id + "' has no rows");
  std::string name = text_of(args, "preprocessor");
  Json options = preprocessor_options(args);
  if (name.empty()) {
    PreprocessorGuess guess = made_anew()->guess(options).value();
    out.notes.push_back("preprocessor " + guess.name + ": " + guess.why);
    name = guess.name;
    options = std::move(guess.options);
  }
  const std::shared_ptr<Preprocessor> preprocessor = Registry<Preprocessor>::create(name, options);
  auto stream = made_anew();
  stream->map_parts([preprocessor](const Row& row) {
    std::vector<Part> parts = preprocessor->parts(row);
    if (!parts.empty() && !parts.front().name.empty())
      throw invalid_argument(not_for_training(parts.front().name));
    return parts;
  });
  if (recorder) stream->record_to(std::move(recorder));
  out.source = stream.get();
  const DataLoaderOptions loader{.batch_size = args.get_int("batch_size"), .shuffle = false};
  if (args.get_string("packing") == "none") {
    out.loader = std::make_unique<DataLoader>(std::move(stream), loader);
  } else {
    out.loader = std::make_unique<DataLoader>(
        std::make_unique<IterablePackingDataset>(
            std::move(stream), StreamPackingOptions{.max_length = tmpl->options().max_length}),
        loader);
  }
  return out;
}

void apply_threads(const ParsedArgs& args) {
  if (args.has("threads")) set_num_threads(static_cast<int>(args.get_int("threads")));
}

}  // namespace twinkle::cli
