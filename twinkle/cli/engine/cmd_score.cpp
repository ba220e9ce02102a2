// twinkle score: JSONL rows with tokens, text or messages in; tokens, log-probabilities and their sum out.
#include <cmath>
#include <iostream>
#include <iterator>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/json_lines.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/sample/score.h"

namespace twinkle::cli {
namespace {

constexpr size_t kRowsScoredTogether = 64;

std::string input_text(const ParsedArgs& args) {
  if (args.has("input") && args.get_string("input") != "-") return read_file(args.get_string("input"));
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// Made at the first row of messages: rows of tokens and text need no chat template.
class Messages {
 public:
  Messages(const ParsedArgs& args, std::shared_ptr<const Tokenizer> tokenizer)
      : args_(args), tokenizer_(std::move(tokenizer)) {}
  bool used() const { return template_ != nullptr; }
  std::vector<int32_t> encode(const Json& row, const std::string& where) {
    if (template_ == nullptr) {
      template_ = load_whole_template(args_, tokenizer_);
      preprocessor_ = Registry<Preprocessor>::create("MessagesProcessor");
    }
    try {
      const auto features = template_->encode((*preprocessor_)(row));
      if (features.size() != 1) throw invalid_argument("'messages': gave no tokens");
      check_length(args_, "the row", static_cast<int64_t>(features[0].input_ids.size()));
      return features[0].input_ids;
    } catch (const Error& error) {
      throw Error(error.kind(), "[" + where + "] " + error.what());
    }
  }

 private:
  const ParsedArgs& args_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Template> template_;
  std::unique_ptr<Preprocessor> preprocessor_;
};

std::vector<int32_t> tokens_of(const Json& row, const std::string& where, const Tokenizer& tokenizer,
                               Messages& messages) {
  if (!row.is_object())
    throw invalid_argument("[" + where + "] expected an object, got " + std::string(json_type_name(row)));
  int forms = 0;
  for (const char* key : {"tokens", "text", "messages"}) forms += row.contains(key) ? 1 : 0;
  if (forms != 1)
    throw invalid_argument("[" + where + "] expected exactly one of 'tokens', 'text' and 'messages'");
  std::vector<int32_t> ids;
  if (row.contains("tokens")) {
    if (!row["tokens"].is_array())
      throw invalid_argument("[" + where + "] 'tokens': expected a list of token ids");
    for (const auto& id : row["tokens"]) {
      if (!id.is_number_integer())
        throw invalid_argument("[" + where + "] 'tokens': expected whole numbers, got " + id.dump());
      const int64_t value = id.get<int64_t>();
      if (value < 0 || value >= INT32_MAX)
        throw invalid_argument("[" + where + "] 'tokens': " + id.dump() + " is not a token id");
      ids.push_back(static_cast<int32_t>(value));
    }
  } else if (row.contains("text")) {
    if (!row["text"].is_string()) throw invalid_argument("[" + where + "] 'text': expected a string");
    ids = tokenizer.encode(row["text"].get_ref<const std::string&>(),
                           {.add_special_tokens = true, .parse_special = false});
  } else {
    ids = messages.encode(row, where);
  }
  if (ids.empty()) throw invalid_argument("[" + where + "] there is nothing to score: no tokens");
  return ids;
}

int score(const ParsedArgs& args) {
  const at::Device device = apply_machine(args);
  const auto tokenizer = load_tokenizer(args);
  Messages messages(args, tokenizer);
  const std::string text = input_text(args),
                    name = args.has("input") ? args.get_string("input") : "standard input";
  std::vector<std::vector<int32_t>> rows;
  std::vector<std::string> places;
  each_json_line(text, name, [&](const Json& row, const std::string& place) {
    places.push_back(place);
    rows.push_back(tokens_of(row, place, *tokenizer, messages));
  });
  for (const char* option :
       {"template_cls", "chat_template", "max_length", "enable_thinking", "default_system"}) {
    if (args.given(option) && !messages.used()) {
      throw invalid_argument("[" + args.source(option) + "] '" + option +
                             "': is for rows of 'messages', and '" + name + "' has none");
    }
  }
  const auto model = load_model(args, device);
  const auto adapter = load_adapter(args, *model);
  const int64_t context = model->config().max_position;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const auto length = static_cast<int64_t>(rows[i].size()); context > 0 && length > context) {
      throw invalid_argument("[" + places[i] + "] the row has " + std::to_string(length) +
                             " tokens, the model's context is " + std::to_string(context) +
                             "; cut it into shorter rows");
    }
    for (const int32_t id : rows[i]) {
      if (id >= model->config().vocab_size) {
        throw invalid_argument("[" + places[i] + "] token " + std::to_string(id) +
                               " is not in the vocabulary of " + std::to_string(model->config().vocab_size));
      }
    }
  }
  const int64_t per_pass = args.has("max_tokens_per_pass") ? args.get_int("max_tokens_per_pass") : 2048;
  std::string out;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsScoredTogether) {
    const size_t end = std::min(rows.size(), begin + kRowsScoredTogether);
    const auto scored = score_sequences(
        *model, adapter.get(),
        {rows.begin() + static_cast<std::ptrdiff_t>(begin), rows.begin() + static_cast<std::ptrdiff_t>(end)},
        per_pass);
    for (size_t i = begin; i < end; ++i) {
      Json logprobs = Json::array({nullptr});
      double sum = 0;
      for (const float x : scored[i - begin]) {
        if (!std::isfinite(x)) {
          throw invalid_argument("[" + places[i] +
                                 "] the model gave log-probabilities that are not numbers: its weights, or "
                                 "those of the adapter, hold NaN or infinity, or are too large");
        }
        logprobs.push_back(x);
        sum += x;
      }
      const Json line = {{"tokens", rows[i]}, {"logprobs", logprobs}, {"sum", sum}};
      if (args.has("output"))
        out += line.dump() + "\n";
      else
        write_json(line);
    }
  }
  if (args.has("output")) write_file_atomic(args.get_string("output"), out);
  return 0;
}

const AddRun run_score("score", score);

}  // namespace
}  // namespace twinkle::cli
