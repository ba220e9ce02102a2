// Formats whose calls are JSON: hermes_qwen (with Qwen3-Coder's <function=...> body), mistral, llama3_json.
#include <cctype>

#include "twinkle/text/tool_calls.h"

namespace twinkle {
namespace {

using namespace tool_calls;  // NOLINT: the helpers of this file's only purpose

// A parameter's text: one line end at either side belongs to the markup.
std::string_view parameter_text(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

class HermesQwenParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    if (const auto before = text_before(text, kOpen, last)) return *before;
    const size_t body = skip_space(text, kOpen.size());
    if (body == text.size()) return last ? text_piece(text.size()) : ToolCallPiece{};
    if (text[body] == '{' || text[body] == '[') return json_call(text, body, last);
    return markup_call(text, body, last);
  }
  std::string_view closers() const override { return ">}]"; }
  int search_order() const override { return 10; }

 private:
  static constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

  // The value may spell the closing tag in a string, so its end is looked for first; where it is no JSON, the
  // first closing tag ends the call.
  static ToolCallPiece json_call(std::string_view text, size_t body, bool last) {
    std::vector<ToolCall> calls;
    size_t end = json_end(text, body);
    if (end == kNone && !last && !closes_outside(text, body)) return inside_call();
    while (end != kNone) {
      const auto value = read_json(text.substr(body, end - body));
      if (!value) break;
      for (ToolCall& call : from_value(*value)) calls.push_back(std::move(call));
      const size_t after = skip_space(text, end);
      if (text.substr(after, kClose.size()) == kClose)
        return call_piece(text, after + kClose.size(), std::move(calls));
      // Some models write several values into one block.
      if (after < text.size() && text[after] == '{') {
        body = after;
        const size_t following = json_end(text, body);
        if (following == kNone && !last) return inside_call();
        if (following == kNone) return call_piece(text, end, std::move(calls), false);
        end = following;
        continue;
      }
      if (!last && kClose.starts_with(text.substr(after))) return inside_call();
      return call_piece(text, end, std::move(calls), false);
    }
    const size_t close = text.find(kClose, body);
    if (close == kNone) {
      if (!last) return inside_call();
      calls.push_back(broken("the call is cut short"));
      return call_piece(text, text.size(), std::move(calls), false);
    }
    calls.push_back(broken("the call is not valid JSON"));
    return call_piece(text, close + kClose.size(), std::move(calls));
  }

  // Whether a closing tag stands outside of the strings of a value that is never closed.
  static bool closes_outside(std::string_view text, size_t at) {
    bool inside = false;
    for (; at < text.size(); ++at) {
      const char c = text[at];
      if (inside && c == '\\') {
        ++at;
      } else if (c == '"') {
        inside = !inside;
      } else if (!inside && c == '<' && text.substr(at, kClose.size()) == kClose) {
        return true;
      }
    }
    return false;
  }

  static ToolCallPiece markup_call(std::string_view text, size_t body, bool last) {
    const size_t close = text.find(kClose, body);
    if (close == kNone && !last) return inside_call();
    const size_t end = close == kNone ? text.size() : close;
    const size_t length = close == kNone ? end : close + kClose.size();
    const std::string_view inside = trim(text.substr(body, end - body));
    constexpr std::string_view kFunction = "<function=";
    std::vector<ToolCall> calls;
    for (size_t at = inside.find(kFunction); at != kNone;) {
      const size_t name_end = inside.find('>', at);
      if (name_end == kNone) break;
      size_t stop = inside.find("</function>", name_end);
      const size_t following = inside.find(kFunction, name_end);
      if (stop == kNone || stop > following) stop = std::min(following, inside.size());
      ToolCall call;
      call.name = trim(inside.substr(at + kFunction.size(), name_end - at - kFunction.size()));
      if (call.name.empty()) call.problem = "a call has no name";
      read_parameters(inside.substr(name_end + 1, stop - name_end - 1), &call.arguments);
      calls.push_back(std::move(call));
      at = inside.find(kFunction, stop);
    }
    if (calls.empty()) calls.push_back(broken("the call is neither JSON nor a <function=...> block"));
    return call_piece(text, length, std::move(calls), close != kNone);
  }

  static void read_parameters(std::string_view body, Json* arguments) {
    constexpr std::string_view kOpenParameter = "<parameter=", kCloseParameter = "</parameter>";
    for (size_t at = body.find(kOpenParameter); at != kNone;) {
      const size_t name_end = body.find('>', at);
      if (name_end == kNone) return;
      const std::string name(
          trim(body.substr(at + kOpenParameter.size(), name_end - at - kOpenParameter.size())));
      const size_t following = std::min(body.find(kOpenParameter, name_end), body.size());
      size_t end = body.find(kCloseParameter, name_end);
      if (end == kNone) end = following;
      const std::string_view value = parameter_text(body.substr(name_end + 1, end - name_end - 1));
      const auto parsed = read_json(value);
      (*arguments)[name] = parsed ? *parsed : Json(std::string(value));
      at = body.find(kOpenParameter, end);
    }
  }
};

// [TOOL_CALLS] and a list (v3), or name{...}, name[ARGS]{...} (v11 and later), one marker a call.
class MistralParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    if (const auto before = text_before(text, kOpen, last)) return *before;
    const size_t body = skip_space(text, kOpen.size());
    const auto unfinished = [&] {
      return last ? call_piece(text, text.size(), {broken("the call is cut short")}, false) : inside_call();
    };
    if (body == text.size()) return unfinished();
    if (text[body] == '[' || text[body] == '{') {
      const size_t end = json_end(text, body);
      if (end == kNone) return unfinished();
      const auto value = read_json(text.substr(body, end - body));
      return call_piece(
          text, end,
          value ? from_value(*value) : std::vector<ToolCall>{broken("the calls are not valid JSON")});
    }
    size_t name_end = body;
    while (name_end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[name_end])) != 0 || text[name_end] == '_' ||
            text[name_end] == '-' || text[name_end] == '.'))
      ++name_end;
    constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";
    ToolCall call;
    call.name = text.substr(body, name_end - body);
    size_t at = skip_space(text, name_end);
    if (text.substr(at, kCallId.size()) == kCallId) {
      const size_t id_end = text.find(kArgs, at);
      if (id_end == kNone) return unfinished();
      call.id = trim(text.substr(at + kCallId.size(), id_end - at - kCallId.size()));
      at = id_end;
    }
    if (text.substr(at, kArgs.size()) == kArgs) at = skip_space(text, at + kArgs.size());
    if (at == text.size() || (text.size() - at < kCallId.size() && text[at] == '[')) return unfinished();
    if (call.name.empty() || text[at] != '{')
      return call_piece(text, kOpen.size(), {broken("no call follows [TOOL_CALLS]")});
    const size_t end = json_end(text, at);
    if (end == kNone) return unfinished();
    const auto value = read_json(text.substr(at, end - at));
    if (value && value->is_object()) {
      call.arguments = *value;
    } else {
      call.problem = "the arguments of '" + call.name + "' are not valid JSON";
    }
    return call_piece(text, end, {std::move(call)});
  }
  std::string_view closers() const override { return "}]"; }
  int search_order() const override { return 60; }

 private:
  static constexpr std::string_view kOpen = "[TOOL_CALLS]";
};

// {"name", "parameters"} as the whole reply, or after <|python_tag|>; several are parted by ';'. A JSON
// object elsewhere in an answer is text.
class Llama3JsonParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    const size_t first = skip_space(text, 0);
    if (position.start && first == text.size()) return text_piece(text.size());
    if (position.start && text[first] == '{') return calls(text, first, last);
    if (const auto before = text_before(text, kTag, last)) return *before;
    const size_t body = skip_space(text, kTag.size());
    if (body == text.size()) return last ? text_piece(text.size()) : ToolCallPiece{};
    if (text[body] != '{') return text_piece(kTag.size());
    return calls(text, body, last);
  }
  std::string_view closers() const override { return "}"; }
  int search_order() const override { return 70; }

 private:
  static constexpr std::string_view kTag = "<|python_tag|>";

  static ToolCallPiece calls(std::string_view text, size_t at, bool last) {
    std::vector<ToolCall> out;
    size_t done = 0;
    for (;;) {
      const size_t end = json_end(text, at);
      if (end == kNone) {
        if (!last) return inside_call();
        break;
      }
      const auto value = read_json(text.substr(at, end - at));
      const bool call = value && value->is_object() && value->contains("name") &&
                        (value->contains("parameters") || value->contains("arguments"));
      if (!call) break;
      out.push_back(from_object(*value));
      done = end;
      const size_t semicolon = skip_space(text, end);
      if (semicolon == text.size()) {
        if (!last) return inside_call();
        break;
      }
      if (text[semicolon] != ';') break;
      at = skip_space(text, semicolon + 1);
      if (at == text.size()) {
        if (!last) return inside_call();
        break;
      }
      if (text[at] != '{') break;
    }
    if (out.empty()) return text_piece(last ? text.size() : std::max<size_t>(at + 1, 1));
    return call_piece(text, done, std::move(out));
  }
};

const auto kHermes = add<HermesQwenParser>(
    "hermes_qwen", "<tool_call> around {\"name\", \"arguments\"} or <function=NAME> (Hermes, Qwen).");
const auto kMistral = add<MistralParser>("mistral", "[TOOL_CALLS] and a JSON list, or name and arguments.");
const auto kLlama3 =
    add<Llama3JsonParser>("llama3_json", "{\"name\", \"parameters\"} as the whole reply (Llama 3).");

}  // namespace
}  // namespace twinkle
