// twinkle sample: asks a model, with or without an adapter.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <span>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/json_lines.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/suggest.h"
#include "twinkle/sample/generate.h"

namespace twinkle::cli {
namespace {

constexpr size_t kRowsTogether = 64;  // rows of --input that are answered together

Json user_message(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

// Reads conversations: from options, from a file, or line by line from standard input.
class Sampler {
 public:
  explicit Sampler(const ParsedArgs& args) : args_(args) {
    const at::Device device = apply_machine(args);
    tokenizer_ = load_tokenizer(args);
    template_ = load_whole_template(args, tokenizer_);
    json_ = args.get_bool("json");
    for (const auto& spec : sampling_param_specs()) sampling_options_[spec.name] = args.get(spec.name);
    params_ = params_of(sampling_options_);
    end_ids_ = template_->stop_ids();
    model_ = load_model(args, device);
    // What the model's config calls an end counts beside what the template says.
    for (const int64_t id : model_->config().eos_token_ids) end_ids_.push_back(static_cast<int32_t>(id));
    EngineOptions engine{.own_thread = false};
    if (args.has("max_tokens_per_pass")) engine.max_tokens_per_pass = args.get_int("max_tokens_per_pass");
    engine_ = std::make_unique<SampleEngine>(*model_, tokenizer_, engine);
    const auto paths = args.get_strings("adapter");
    for (const auto& path : paths)
      engine_->add_version(path, std::shared_ptr<const Adapter>(load_adapter(args, *model_, path)));
    compare_ = args.get_bool("compare");
    if (compare_) {
      versions_ = paths;
      versions_.insert(versions_.begin(), "");
    } else {
      versions_ = {paths.empty() ? "" : paths.front()};
    }
  }

  int run() {
    if (args_.has("input")) return from_file(args_.get_string("input"));
    if (args_.has("messages")) return answer(conversation({{"messages", args_.get("messages")}}).messages);
    if (args_.has("prompt")) return answer(prompt(args_.get_string("prompt")));
    return from_stdin();
  }

 private:
  Json prompt(const std::string& text) const {
    Json messages = Json::array();
    if (args_.has("system")) messages.push_back({{"role", "system"}, {"content", args_.get("system")}});
    messages.push_back(user_message(text));
    return messages;
  }

  static SamplingParams params_of(const Json& options) {
    return sampling_params_from(check_options(sampling_param_specs(), options, "sample"));
  }

  static Trajectory conversation(const Json& row) {
    return (*Registry<Preprocessor>::create("MessagesProcessor"))(row);
  }

  // One request for each adapter that is asked.
  std::vector<SampleRequest> requests_for(const Trajectory& asked, const SamplingParams& params) const {
    const auto ids = template_->encode_prompt(asked).input_ids;
    check_length(args_, "the prompt", static_cast<int64_t>(ids.size()));
    std::vector<SampleRequest> out;
    for (const auto& version : versions_)
      out.push_back({.prompt = ids, .params = params, .version = version, .end_ids = end_ids_});
    return out;
  }

  // A row of --input: a conversation, and options of sampling that count for it alone.
  std::vector<SampleRequest> requests_of_row(const Json& row) const {
    static const std::vector<std::string> kConversation = {"prompt", "system", "messages", "tools"};
    if (!row.is_object()) {
      throw invalid_argument("expected an object with a string 'prompt' or a list 'messages', got " +
                             std::string(json_type_name(row)));
    }
    static const std::vector<std::string> kKnown = [] {
      std::vector<std::string> known = kConversation;
      for (const auto& spec : sampling_param_specs()) known.push_back(spec.name);
      return known;
    }();
    Json options = sampling_options_, talk = Json::object();
    for (const auto& [field, value] : row.items()) {
      if (std::find(kKnown.begin(), kKnown.end(), field) == kKnown.end())
        throw invalid_argument("unknown field '" + field + "'" + did_you_mean(field, kKnown));
      if (value.is_null()) continue;  // as if it were not there
      const bool talks = std::find(kConversation.begin(), kConversation.end(), field) != kConversation.end();
      (talks ? talk : options)[field] = value;
    }
    if (talk.contains("prompt") && talk.contains("messages"))
      throw invalid_argument("has both 'prompt' and 'messages'; remove one");
    if (talk.contains("messages")) return requests_for(conversation(talk), params_of(options));
    if (!talk.contains("prompt") || !talk["prompt"].is_string())
      throw invalid_argument("expected a string 'prompt' or a list 'messages'");
    talk["messages"] = Json::array({user_message(talk["prompt"].get<std::string>())});
    talk.erase("prompt");
    return requests_for(conversation(talk), params_of(options));
  }

  static Json json_of(const std::vector<TokenLogprob>& top) {
    Json out = Json::array();
    for (const auto& t : top) out.push_back({t.id, t.logprob});
    return out;
  }

  static Json json_of(const SampledSequence& s) {
    Json out = {{"text", s.text},
                {"tokens", s.tokens},
                {"logprobs", s.logprobs},
                {"sampled_logprobs", s.sampled_logprobs},
                {"stop_reason", s.stop_reason}};
    for (const auto& top : s.top_logprobs) out["top_logprobs"].push_back(json_of(top));
    return out;
  }

  Json json_of(const SampleResult& r) const {
    Json out = {{"prompt_tokens", r.prompt_tokens}, {"samples", Json::array()}};
    if (!r.version.empty()) out["adapter"] = r.version;
    for (const auto& s : r.sequences) out["samples"].push_back(json_of(s));
    for (const auto& logprob : r.prompt_logprobs)
      out["prompt_logprobs"].push_back(logprob ? Json(*logprob) : Json());
    for (size_t i = 0; i < r.topk_prompt_logprobs.size(); ++i)
      out["topk_prompt_logprobs"].push_back(i == 0 ? Json() : json_of(r.topk_prompt_logprobs[i]));
    return out;
  }

  // Results of one prompt: one a line of JSON, or columns when they are compared.
  Json json_of(std::span<const SampleResult> results) const {
    if (!compare_) return json_of(results.front());
    Json list = Json::array();
    for (const auto& r : results) list.push_back(json_of(r));
    return {{"answers", list}};
  }

  static std::string text_of(const SampleResult& r) {
    std::string out;
    for (size_t i = 0; i < r.sequences.size(); ++i) {
      if (r.sequences.size() > 1)
        out += (i > 0 ? "\n" : "") + std::string("--- ") + std::to_string(i + 1) + "\n";
      out += r.sequences[i].text + "\n";
    }
    return out;
  }

  int answer(const Json& messages) {
    const bool stream = !json_ && !compare_ && args_.get_bool("stream") && params_.num_samples == 1;
    OnText on_text;
    if (stream) {
      on_text = [](size_t, size_t, const std::string& piece) {
        write_out(piece);
        flush_out();
        return true;
      };
    }
    Trajectory asked;
    asked.messages = messages;
    const auto results = generate(*engine_, requests_for(asked, params_), on_text);
    last_ = results.back().sequences.front().text;
    if (json_) {
      write_json(json_of(results));
    } else if (compare_) {
      std::vector<std::pair<std::string, std::string>> columns;
      for (const auto& r : results)
        columns.emplace_back(r.version.empty() ? "base model" : r.version, text_of(r));
      write_out(columns_text(columns));
    } else {
      write_out(stream ? "\n" : text_of(results.front()));
    }
    return 0;
  }

  int from_file(const std::string& path) {
    const std::string text = read_file(path);
    std::vector<SampleRequest> requests;
    std::vector<std::string> places;  // the row of each request
    size_t rows = 0;
    const auto finish_batch = [&] {
      const auto results = generate(*engine_, std::move(requests), nullptr, places);
      for (size_t i = 0; i < results.size(); i += versions_.size())
        write_json(json_of(std::span(results).subspan(i, versions_.size())));
      flush_out();
      requests.clear();
      places.clear();
    };
    each_json_line(text, path, [&](const Json& row, const std::string& where) {
      try {
        for (auto& request : requests_of_row(row)) requests.push_back(std::move(request));
        places.resize(requests.size(), where);
      } catch (const Error& error) {
        throw Error(error.kind(), "[" + where + "] " + error.what());
      }
      if (++rows % kRowsTogether == 0) finish_batch();
    });
    finish_batch();
    return 0;
  }

  // A conversation on a terminal; each line a turn. From a pipe every line is a prompt of its own.
  int from_stdin() {
    const bool terminal = isatty(STDIN_FILENO) == 1;
    Json messages = Json::array();
    std::string line;
    for (;;) {
      if (terminal) write_error("> ");
      if (!std::getline(std::cin, line)) break;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (!terminal) {
        answer(prompt(line));
        continue;
      }
      if (messages.empty())
        messages = prompt(line);
      else
        messages.push_back(user_message(line));
      answer(messages);
      messages.push_back({{"role", "assistant"}, {"content", last_}});
    }
    return 0;
  }

  const ParsedArgs& args_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Template> template_;
  Json sampling_options_ = Json::object();  // of the command, by name
  SamplingParams params_;
  std::vector<int32_t> end_ids_;
  std::unique_ptr<CausalLM> model_;
  std::unique_ptr<SampleEngine> engine_;
  std::vector<std::string> versions_;  // whose answers are wanted; "": the base model
  bool compare_ = false;
  std::string last_;  // the text of the last answer
  bool json_ = false;
};

const AddRun run_sample("sample", [](const ParsedArgs& args) { return Sampler(args).run(); });

}  // namespace
}  // namespace twinkle::cli
