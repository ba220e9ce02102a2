#include "twinkle/cli/engine/counted_samples.h"

#include <algorithm>

#include "twinkle/cli/options.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/list_text.h"

namespace twinkle::cli {
namespace {

// What makes conversations of rows, beside the preprocessor.
constexpr const char* kOfRows[] = {"csv_columns", "model_name", "model_author"};
// What makes tokens of conversations.
constexpr const char* kOfTokens[] = {"use_chat_template", "default_system", "enable_thinking",
                                     "chat_template_kwargs"};

// What is kept as a hash shows nothing to people.
bool is_hidden(const std::string& name) { return name == "chat_template" || name == "tokenizer"; }

// An option left out, or given with nothing in it.
bool is_nothing(const Json& value) { return value.empty() || value == ""; }

// What a position of these options counts.
struct Counting {
  bool rows = false;    // those that filters leave: how rows are read decides
  bool tokens = false;  // what rows become: everything decides
  bool loss = false;    // those with a token that is trained on
  bool length = false;  // what the longest length leaves

  explicit Counting(const Json& options) {
    rows = !options.value("filters", Json::array()).empty();
    if (options.value("lazy", false)) return;  // a row counts whatever becomes of it
    const std::string strategy = options.value("truncation_strategy", "raise");
    loss = strategy == "split" || options.value("bad_rows", "raise") == "drop" ||
           options.value("split_rounds", false);
    const bool packs = options.value("packing", "none") != "none";
    tokens = loss || strategy == "delete" || packs;
    length = packs || strategy == "split" || strategy == "delete" ||
             (strategy == "raise" && options.value("bad_rows", "raise") == "drop");
  }
  bool depends_on(const std::string& name) const {
    if (name == "num_samples" || name == "csv_columns") return true;  // a header is a row without them
    if (name == "loss_scale") return loss;
    const bool of_rows = std::find(std::begin(kOfRows), std::end(kOfRows), name) != std::end(kOfRows);
    return tokens || (rows && (of_rows || name == "tokenizer"));
  }
};

// Parts of words need not be UTF-8.
std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

[[noreturn]] void refuse(const std::string& checkpoint, const std::string& name, const Json& was,
                         const Json& now) {
  const std::string with = is_hidden(name) ? "another " + name + " than this run has"
                                           : name + " " + was.dump() + ", this run has " + now.dump();
  throw conflict("[checkpoint] '" + checkpoint + "' counted its samples with " + with +
                 "; give the same, or --ignore-data-skip to begin the data again");
}

// Names whose values differ. A tokenizer is written out by the program, so another program may write it
// otherwise.
std::vector<std::string> differences(const RunManifest& recorded, const Json& samples) {
  std::vector<std::string> out;
  const Json were = recorded.config.is_object() ? recorded.config.value("samples", Json()) : Json();
  if (!were.is_object()) return out;
  const bool same_program = recorded.twinkle_version == RunManifest::of_this_program().twinkle_version;
  for (const auto& [name, now] : samples.items()) {
    if (!were.contains(name) || were[name] == now) continue;
    if (name != "tokenizer" || same_program) out.push_back(name);
  }
  return out;
}

}  // namespace

Json samples_of_run(const ParsedArgs& args, const Template& tmpl, std::optional<int64_t> num_samples) {
  Json out = Json::object();
  const auto options = [&](const auto& names) {
    for (const char* name : names) {
      if (args.values().contains(name)) out[name] = args.get(name);
    }
  };
  options(kOfRows);
  options(kOfTokens);
  out["chat_template"] = tmpl.options().use_chat_template ? sha256_hex(tmpl.chat_template_source()) : "";
  out["template_cls"] = template_name(args);
  Json config = tmpl.tokenizer().config();
  if (config.is_object()) config.erase("chat_template");
  out["tokenizer"] = sha256_hex(text_of(tmpl.tokenizer().to_json()) + text_of(config));
  out["loss_scale"] = tmpl.options().loss_scale;
  out["truncation_strategy"] = tmpl.options().truncation_strategy;
  out["max_length"] = tmpl.options().max_length;
  out["num_samples"] = num_samples ? Json(*num_samples) : Json();
  return out;
}

std::string check_same_samples(const RunManifest& recorded, const ParsedArgs& args,
                               const std::string& dataset_hash, const Json& samples,
                               const std::string& checkpoint) {
  const Json options = recorded.config.value("options", Json::object());
  // What a position counts: rows, what is made of them, their rounds or windows, or bins; and in which order.
  std::vector<std::pair<std::string, Json>> counted = {{"packing", "none"},
                                                       {"split_rounds", false},
                                                       {"streaming", false},
                                                       {"lazy", false},
                                                       {"text_split", "file"},
                                                       {"filters", Json::array()},
                                                       {"filter_options", nullptr},
                                                       {"preprocessor", ""},
                                                       {"preprocessor_options", nullptr},
                                                       {"column_mapping", nullptr}};
  const Counting then(options), now(args.values());
  if (then.length || now.length) {
    counted.insert(counted.end(), {{"truncation_strategy", "raise"}, {"max_length", args.get("max_length")}});
  }
  if (!args.get_bool("streaming")) {
    counted.emplace_back("shuffle", true);
    if (args.get_bool("shuffle")) counted.emplace_back("seed", args.get("seed"));
  }
  for (const auto& [name, usual] : counted) {
    const Json was = options.value(name, usual);
    const Json now_is = args.get(name);
    if (was != now_is && !(is_nothing(was) && is_nothing(now_is))) refuse(checkpoint, name, was, now_is);
  }
  const auto hash = recorded.training_data_hash();
  if (hash && *hash != dataset_hash) {
    throw conflict("[checkpoint] '" + checkpoint + "' was trained on other rows than those of '" +
                   args.get_string("dataset_id") +
                   "'; --ignore-data-skip goes on with these, from their beginning");
  }
  std::vector<std::string> changed;
  for (const std::string& name : differences(recorded, samples)) {
    const Json& was = recorded.config["samples"][name];
    if (then.depends_on(name) || now.depends_on(name)) refuse(checkpoint, name, was, samples[name]);
    // No row was longer than either.
    const bool idle = name == "max_length" && samples["truncation_strategy"] == "raise";
    if (!idle) changed.push_back(name);
  }
  if (changed.empty()) return "";
  return "not as in '" + checkpoint + "': " + joined(changed) + "; the position among the rows is the same";
}

void check_repeated_samples(const RunManifest& recorded, const ParsedArgs& args,
                            const std::string& dataset_hash, const Json& samples) {
  const auto hash = recorded.training_data_hash();
  if (hash && dataset_hash != *hash) {
    throw conflict("[replay] the rows of '" + args.get_string("dataset_id") +
                   "' are not those the run used (SHA-256 " + dataset_hash.substr(0, 12) + "…, the run's " +
                   hash->substr(0, 12) + "…)");
  }
  const std::vector<std::string> names = differences(recorded, samples);
  if (names.empty()) return;
  const std::string& name = names.front();
  const std::string what = is_hidden(name) ? "the " + name + " is not the one the run used"
                                           : name + " was " + recorded.config["samples"][name].dump() +
                                                 ", and is " + samples[name].dump() + " now";
  throw conflict("[replay] " + what + ": the run cannot be repeated");
}

}  // namespace twinkle::cli
