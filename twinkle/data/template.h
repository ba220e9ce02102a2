// Template: conversation -> tokens with labels. Components of kind "template"; `Template` is the general one.
// Encoding is safe from many threads.
//
// With a chat template, trained is what the model itself would write: the assistant turns from the end of
// their prompt to the end of the turn, its closing token included, in the rendering of the whole
// conversation. `user_data` may restrict them ("key_rounds": indices of messages as given), and so may a
// message: {"loss": false}, {"train": false} or {"weight": 0}; other numbers in loss or weight are the weight
// of its tokens.
// Some templates drop the thinking of earlier turns, so in one rendering only the last answer keeps its own.
// With split_rounds each round is rendered as the model meets it, and its answers are trained on there.
// Without one (use_chat_template = false) a row is one message whose text is encoded as Hugging Face does,
// with what the tokenizer adds (no end of sequence unless it is the tokenizer's own), and every token is
// trained.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "twinkle/core/registry.h"
#include "twinkle/data/types.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tool_calls.h"

namespace twinkle {

inline const std::vector<std::string> kTruncationStrategies = {"raise", "left", "right", "split", "delete"};

/// How a template treats rows; names and defaults as upstream (TemplateArgs).
struct TemplateOptions {
  int64_t max_length = 8192;
  std::string truncation_strategy = "raise";  // raise | left | right | split | delete
  bool use_chat_template = true;              // false: plain text, every token is trained (pre-training)
  bool enable_thinking = true;
  std::string default_system;           // put first when the conversation has no system message
  std::string chat_template;            // overrides the tokenizer's
  Json chat_template_kwargs = nullptr;  // further variables of the chat template (reasoning_effort ...)
  std::string loss_scale = "default";   // how tokens count in the loss, see LossScale
  bool split_rounds = false;     // a feature for each question and its answers, after what came before it
  std::string tool_call_parser;  // format of tool calls in replies; "": the first that finds one
};

class Template {
 public:
  static constexpr std::string_view kKind = "template";
  virtual ~Template() = default;

  /// Zero (deleted), one, or several (split) features of a row. Errors name what is wrong; the caller adds
  /// the row.
  virtual std::vector<InputFeature> encode(const Trajectory& trajectory) const = 0;
  /// The prompt of a conversation, ready to be continued: rendered with the generation prompt, nothing
  /// labelled. No tokens when the truncation strategy deletes it.
  virtual InputFeature encode_prompt(const Trajectory& trajectory) const = 0;
  /// The rendered text (for `twinkle render`).
  virtual std::string render(const Trajectory& trajectory, bool add_generation_prompt) const = 0;
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const TemplateOptions& options() const = 0;
  /// Ids that end a turn when the model writes them (eos and the template's end-of-turn token).
  virtual std::vector<int32_t> stop_ids() const = 0;
  /// `whole` as the truncation strategy leaves it; this default only refuses what is too long.
  virtual std::vector<InputFeature> truncate(InputFeature whole) const;
  /// The chat template's text; "" without one. Part of the key of encoded data.
  virtual std::string chat_template_source() const { return ""; }
  /// Whether something encoded so far depends on the time of day: encoded data is not kept then.
  virtual bool has_read_clock() const { return false; }
  /// Names what encodes, beside its options: the class, by default.
  virtual std::string identity() const { return typeid(*this).name(); }

  /// encode() of each, on all cores; an error says which ("[template] conversation 3: ...").
  std::vector<std::vector<InputFeature>> batch_encode(std::span<const Trajectory> trajectories) const;
  /// Why a conversation cannot be encoded to something that trains; "" when it can.
  std::string check(const Trajectory& trajectory) const;
  std::vector<std::string> batch_check(std::span<const Trajectory> trajectories) const;
  std::vector<std::string> batch_decode(std::span<const std::vector<int32_t>> ids,
                                        bool skip_special_tokens = true) const;

  /// A prompt and what the model wrote after it: the new tokens are trained on, the labels of the prompt
  /// stay. The result is cut as truncation_strategy says (raise and split: an error when it is too long;
  /// delete: no tokens). `message` is the reply as an assistant message in OpenAI's form, tool calls taken
  /// out.
  struct Continued {
    InputFeature feature;
    Json message;
  };
  Continued concat_input_feature(const InputFeature& prompt, std::span<const int32_t> new_tokens) const;
  /// The tool calls of a reply, by the parser of the options or the first that finds one.
  ParsedReply parse_tool_call(std::string_view text) const;
};

using TemplateFactory =
    std::function<std::unique_ptr<Template>(std::shared_ptr<const Tokenizer>, const TemplateOptions&)>;

/// Of a class that is made from a tokenizer and options.
template <class T>
TemplateFactory template_factory() {
  return [](std::shared_ptr<const Tokenizer> tokenizer, const TemplateOptions& options) {
    return std::make_unique<T>(std::move(tokenizer), options);
  };
}

/// What is known of a model before it is read, in small letters: the type in its config.json or .gguf file
/// ("" when there is none), and the last part of its path.
struct ModelHints {
  std::string type, name;
  /// The type begins so, or there is no type and the name has that in it.
  bool is(std::string_view in_type, std::string_view in_name) const {
    return type.starts_with(in_type) || (type.empty() && name.find(in_name) != std::string::npos);
  }
};

/// static const RegisterTemplate registered{{.name = "MyTemplate", ...}, template_factory<MyTemplate>(),
///                                          [](const ModelHints& model) { return model.is("my", "my"); }};
/// `suits` says which models want the template; without it none does by itself.
struct RegisterTemplate {
  RegisterTemplate(ComponentInfo info, TemplateFactory factory,
                   std::function<bool(const ModelHints&)> suits = nullptr);
};

/// TemplateOptions as parameters, for help and checking.
std::vector<ParamSpec> template_params();

/// The template that a model wants, by its config.json (model_type), the metadata of a .gguf file, or its
/// name: the registered one that says so, else Template.
std::string template_name_for(const std::string& model_path);

/// The registered template `name` ("" picks the general one) over a tokenizer.
std::unique_ptr<Template> make_template(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer,
                                        const TemplateOptions& options = {});

}  // namespace twinkle
