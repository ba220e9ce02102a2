// twinkle sample: asks a model, with or without an adapter.
#include <unistd.h>

#include <iostream>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/json_lines.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/sample/generate.h"

namespace twinkle::cli {
namespace {

constexpr size_t kRowsTogether = 16;  // rows of --input generated in one batch

Json user_message(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

// Reads conversations: from options, from a file, or line by line from standard input.
class Sampler {
 public:
  explicit Sampler(const ParsedArgs& args) : args_(args) {
    const at::Device device = apply_machine(args);
    tokenizer_ = load_tokenizer(args);
    template_ = load_whole_template(args, tokenizer_);
    json_ = args.get_bool("json");
    Json options = Json::object();
    for (const auto& spec : sampling_param_specs()) options[spec.name] = args.get(spec.name);
    params_ = sampling_params_from(check_options(sampling_param_specs(), options, "sample"));
    end_ids_ = template_->stop_ids();
    model_ = load_model(args, device);
    // What the model's config calls an end counts beside what the template says.
    for (const int64_t id : model_->config().eos_token_ids) end_ids_.push_back(static_cast<int32_t>(id));
    adapter_ = load_adapter(args, *model_);
  }

  int run() {
    if (args_.has("input")) return from_file(args_.get_string("input"));
    if (args_.has("messages")) return answer(conversation(args_.get("messages"), "--messages"));
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

  static Json conversation(const Json& messages, const std::string& where) {
    const Trajectory t = (*Registry<Preprocessor>::create("MessagesProcessor"))({{"messages", messages}});
    if (t.messages.empty()) throw invalid_argument("[" + where + "] the conversation has no messages");
    return t.messages;
  }

  std::vector<int32_t> prompt_ids(const Json& messages) const {
    Trajectory trajectory;
    trajectory.messages = messages;
    auto ids = template_->encode_prompt(trajectory).input_ids;
    check_length(args_, "the prompt", static_cast<int64_t>(ids.size()));
    return ids;
  }

  std::vector<GenerateRequest> requests_for(const Json& messages) const {
    std::vector<GenerateRequest> out;
    const auto ids = prompt_ids(messages);
    for (int64_t n = 0; n < args_.get_int("num_samples"); ++n) {
      out.push_back({.prompt = ids, .params = params_, .stream = static_cast<uint64_t>(n)});
    }
    return out;
  }

  static Json json_of(const Generated& g) {
    return {{"text", g.text}, {"tokens", g.tokens}, {"logprobs", g.logprobs}, {"stop_reason", g.stop_reason}};
  }

  int answer(const Json& messages) {
    const auto requests = requests_for(messages);
    const bool stream = !json_ && args_.get_bool("stream") && requests.size() == 1;
    OnText on_text;
    if (stream) {
      on_text = [](size_t, const std::string& piece) {
        write_out(piece);
        flush_out();
        return true;
      };
    }
    last_ = generate(*model_, adapter_.get(), tokenizer_, requests, end_ids_, on_text);
    if (json_) {
      Json list = Json::array();
      for (const auto& g : last_) list.push_back(json_of(g));
      write_json({{"prompt_tokens", requests[0].prompt.size()}, {"samples", list}});
      return 0;
    }
    for (size_t i = 0; i < last_.size(); ++i) {
      if (last_.size() > 1)
        write_out((i > 0 ? "\n" : "") + std::string("--- ") + std::to_string(i + 1) + "\n");
      write_out((stream ? "" : last_[i].text) + "\n");
    }
    return 0;
  }

  int from_file(const std::string& path) {
    const std::string text = read_file(path);
    std::vector<GenerateRequest> requests;
    std::vector<Json> rows;
    const auto finish_batch = [&] {
      const auto results = generate(*model_, adapter_.get(), tokenizer_, requests, end_ids_);
      const auto n = static_cast<size_t>(args_.get_int("num_samples"));
      for (size_t r = 0; r < rows.size(); ++r) {
        Json list = Json::array();
        for (size_t i = 0; i < n; ++i) list.push_back(json_of(results[r * n + i]));
        write_json({{"prompt_tokens", requests[r * n].prompt.size()}, {"samples", list}});
      }
      flush_out();
      requests.clear();
      rows.clear();
    };
    each_json_line(text, path, [&](const Json& row, const std::string& where) {
      Json messages;
      if (row.is_object() && row.contains("messages")) {
        messages = conversation(row["messages"], where);
      } else if (row.is_object() && row.contains("prompt") && row["prompt"].is_string()) {
        messages = Json::array({user_message(row["prompt"].get<std::string>())});
      } else {
        throw invalid_argument("[" + where +
                               "] expected an object with a string 'prompt' or a list 'messages'");
      }
      for (auto& request : requests_for(messages)) requests.push_back(std::move(request));
      rows.push_back(row);
      if (rows.size() == kRowsTogether) finish_batch();
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
      messages.push_back({{"role", "assistant"}, {"content", last_.front().text}});
    }
    return 0;
  }

  const ParsedArgs& args_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Template> template_;
  SamplingParams params_;
  std::vector<int32_t> end_ids_;
  std::unique_ptr<CausalLM> model_;
  std::unique_ptr<Adapter> adapter_;
  std::vector<Generated> last_;
  bool json_ = false;
};

const AddRun run("sample", [](const ParsedArgs& args) { return Sampler(args).run(); });

}  // namespace
}  // namespace twinkle::cli
