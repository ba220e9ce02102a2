#include "twinkle/text/chat_template.h"

#include "twinkle/core/error.h"
#include "twinkle/text/jinja_value.h"

namespace twinkle {
namespace {

constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

// A token of tokenizer_config.json is a text or an object around one.
Json token_text(const Json& value) {
  if (value.is_object() && value.contains("content")) return value.at("content");
  return value;
}

std::string place(size_t message) { return "[chat template] message " + std::to_string(message); }

void prepare_calls(Json* message, size_t index, bool as_text) {
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || !calls->is_array()) return;
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    if (!call.is_object()) continue;
    Json* function =
        call.contains("function") && call.at("function").is_object() ? &call.at("function") : &call;
    const auto arguments = function->find("arguments");
    if (arguments == function->end()) continue;
    if (as_text) {
      if (!arguments->is_string()) *arguments = python_json(*arguments);
    } else if (arguments->is_string()) {
      const std::string text = arguments->get<std::string>();
      Json value = Json::object();
      if (const auto problem = text.empty()
                                   ? std::nullopt
                                   : try_parse_json(text, value, kMaxJsonDepth, WideIntegers::kRefuse)) {
        throw invalid_argument(place(index) + ": the arguments of tool call " + std::to_string(i) +
                               " are not valid JSON: " + text.substr(0, 200) + " (" + problem->reason + ")");
      }
      *arguments = std::move(value);
    }
  }
}

}  // namespace

std::string python_json(const Json& value) {
  jinja::TextBuilder out;
  try {
    jinja::append_json(out, jinja::from_json(value, true), {});
  } catch (const jinja::Fault& fault) {
    throw invalid_argument(std::string("[json] ") + fault.what());
  }
  return out.take().bytes;
}

ChatTemplate::ChatTemplate(const Json& config, std::string_view source) {
  if (!source.empty()) {
    source_ = source;
  } else if (config.is_object() && config.contains("chat_template")) {
    const Json& given = config.at("chat_template");
    if (given.is_string()) {
      source_ = given.get<std::string>();
    } else if (given.is_array()) {
      for (const Json& entry : given) {
        if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
        if (entry.at("name") == "default") source_ = entry.at("template").get<std::string>();
        if (entry.at("name") == "tool_use")
          tool_template_ = JinjaTemplate::parse(entry.at("template").get<std::string>());
      }
    }
  }
  if (source_.empty()) {
    throw invalid_argument(
        "[chat template] the tokenizer has none; give one (chat_template), or train on plain text "
        "(use_chat_template=false)");
  }
  template_ = JinjaTemplate::parse(source_);
  if (config.is_object()) {
    for (const char* name : kTokenNames) {
      if (config.contains(name) && !config.at(name).is_null()) own_[name] = token_text(config.at(name));
    }
    if (config.contains("additional_special_tokens") && config.at("additional_special_tokens").is_array()) {
      Json& list = own_["additional_special_tokens"] = Json::array();
      for (const Json& token : config.at("additional_special_tokens")) list.push_back(token_text(token));
    }
  }
  text_arguments_ = !probe_arguments(false) && probe_arguments(true);
  accepts_blocks_ = probe_blocks();
  for (const char* kind : {"image", "video", "audio"}) {
    if (accepts_blocks_ && probe_media(kind)) media_.emplace_back(kind);
  }
}

const JinjaTemplate& ChatTemplate::pick(bool with_tools) const {
  return with_tools && tool_template_ != nullptr ? *tool_template_ : *template_;
}

// Templates that concatenate the arguments need text, those that walk them need an object.
bool ChatTemplate::probe_arguments(bool as_text) const {
  const Json arguments = {{"probe_key", "probe_value"}};
  Json call = {{"id", "call00001"}, {"type", "function"}, {"function", {{"name", "probe_name"}}}};
  call["function"]["arguments"] = as_text ? Json(python_json(arguments)) : arguments;
  Json messages =
      Json::array({{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", ""}}});
  messages[1]["tool_calls"] = Json::array({call});
  try {
    const std::string text = render_prepared(messages, nullptr, {}).text;
    return text.find("probe_key") != std::string::npos && text.find("'probe_key'") == std::string::npos &&
           text.find("\\\"probe_key") == std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

bool ChatTemplate::probe_blocks() const {
  const Json blocks = Json::array({{{"type", "text"}, {"text", "probe_text"}}});
  const Json messages = Json::array({{{"role", "user"}, {"content", blocks}}});
  try {
    const std::string text = render_prepared(messages, nullptr, {}).text;
    return text.find("probe_text") != std::string::npos && text.find("type") == std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

// Templates pass over what they do not know.
bool ChatTemplate::probe_media(const std::string& kind) const {
  const Json text = {{"type", "text"}, {"text", "probe_text"}};
  const Json block = {{"type", kind}, {kind, "probe_file"}};
  const auto rendered = [&](const Json& blocks) {
    return render_prepared(Json::array({{{"role", "user"}, {"content", blocks}}}), nullptr, {}).text;
  };
  try {
    return rendered(Json::array({block, text})) != rendered(Json::array({text}));
  } catch (const Error&) {
    return false;
  }
}

Rendered ChatTemplate::render(const Json& messages, const Json& tools,
                              const ChatRenderOptions& options) const {
  if (!messages.is_array()) {
    throw invalid_argument("[chat template] messages must be a list, got " +
                           std::string(json_type_name(messages)));
  }
  Json prepared = messages;
  for (size_t i = 0; i < prepared.size(); ++i) {
    if (!prepared[i].is_object()) {
      throw invalid_argument(place(i) + ": expected an object, got " +
                             std::string(json_type_name(prepared[i])));
    }
    const auto role = prepared[i].find("role");
    if (role == prepared[i].end() || !role->is_string())
      throw invalid_argument(place(i) + ": expected a string in 'role'");
    prepare_calls(&prepared[i], i, text_arguments_);
  }
  Rendered out = render_prepared(std::move(prepared), tools, options);
  if (out.read_clock) has_read_clock_.store(true, std::memory_order_relaxed);
  return out;
}

Rendered ChatTemplate::render_prepared(Json messages, const Json& tools,
                                       const ChatRenderOptions& options) const {
  rendered_messages_.fetch_add(static_cast<int64_t>(messages.size()), std::memory_order_relaxed);
  const bool with_tools = tools.is_array() && !tools.empty();
  Json context = Json::object();
  if (options.variables.is_object()) context = options.variables;
  context["messages"] = std::move(messages);
  context["tools"] = with_tools ? tools : Json(nullptr);
  if (!context.contains("documents")) context["documents"] = nullptr;
  context["add_generation_prompt"] = options.add_generation_prompt;
  if (options.enable_thinking) context["enable_thinking"] = *options.enable_thinking;
  return pick(with_tools).render(context, {}, -1, own_);
}

}  // namespace twinkle
