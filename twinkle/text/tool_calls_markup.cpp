// Formats with markup of their own: cline, vcp, react, dsml.
#include <algorithm>
#include <array>

#include "twinkle/text/tool_calls.h"

namespace twinkle {
namespace {

using namespace tool_calls;  // NOLINT: the helpers of this file's only purpose

bool starts(std::string_view text, size_t at, std::string_view what) {
  return at <= text.size() && text.substr(at, what.size()) == what;
}

// The text ends in what may yet become `what`.
bool may_start(std::string_view text, size_t at, std::string_view what) {
  return text.size() - at < what.size() && what.starts_with(text.substr(at));
}

// <read_file><path>a.txt</path></read_file>: a snake_case tag with at least one such tag inside.
class ClineParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    if (const size_t open = text.find('<'); open != 0) return text_piece(std::min(open, text.size()));
    std::string name;
    size_t at = tag(text, 0, &name);
    if (at == kNone) {
      // Either no tag can stand here, or the text ends within one.
      const bool cut = text.find_first_not_of(kNameBytes, 1) == kNone &&
                       (text.size() == 1 || is_first(text[1])) && text.size() <= kLongestName + 1;
      return cut && !last ? ToolCallPiece{} : text_piece(1);
    }
    if (std::find(kDenied.begin(), kDenied.end(), name) != kDenied.end()) return text_piece(at);
    const std::string close = "</" + name + ">";
    ToolCall call;
    call.name = name;
    // Child by child, so that a value may spell the closing tag.
    for (size_t next = skip_space(text, at);; next = skip_space(text, at)) {
      if (starts(text, next, close)) {
        if (call.arguments.empty()) break;
        return call_piece(text, next + close.size(), {std::move(call)});
      }
      if (next == text.size() || may_start(text, next, close)) {
        if (!last) return inside_call();
        break;
      }
      std::string key;
      const size_t value = tag(text, next, &key);
      if (value == kNone) {
        const bool cut = text[next] == '<' && text.find('>', next) == kNone &&
                         text.find_first_not_of(kNameBytes, next + 1) == kNone;
        if (cut && !last) return inside_call();
        break;
      }
      const std::string key_close = "</" + key + ">";
      const size_t end = text.find(key_close, value);
      if (end == kNone) {
        if (!last) return inside_call();
        break;
      }
      call.arguments[key] = std::string(trim(text.substr(value, end - value)));
      at = end + key_close.size();
    }
    return loosely(text, call.name, close, last);
  }
  std::string_view closers() const override { return ">"; }
  int search_order() const override { return 20; }

  std::optional<std::string> extract_tool_result(std::string_view text) const override {
    if (!text.starts_with('[')) return std::nullopt;
    const size_t end = text.find_first_not_of(kNameBytes, 1);
    constexpr std::string_view kFor = " for '", kResult = "']";
    if (end == kNone || end == 1 || !starts(text, end, kFor)) return std::nullopt;
    const size_t quote = text.find('\'', end + kFor.size());
    if (quote == kNone || !starts(text, quote, kResult)) return std::nullopt;
    const size_t word = skip_space(text, quote + kResult.size());
    if (!starts(text, word, "Result:")) return std::nullopt;
    return std::string(text.substr(skip_space(text, word + 7)));
  }

 private:
  static constexpr std::string_view kNameBytes = "abcdefghijklmnopqrstuvwxyz0123456789_";
  static constexpr size_t kLongestName = 64;
  // Markup of models and of HTML, never names of tools.
  static constexpr std::array<std::string_view, 48> kDenied = {
      "think",    "answer",    "tool_call",  "tool_response",
      "function", "parameter", "parameters", "tools",
      "tool",     "system",    "user",       "assistant",
      "message",  "messages",  "content",    "response",
      "output",   "role",      "p",          "a",
      "b",        "i",         "em",         "strong",
      "div",      "span",      "pre",        "code",
      "br",       "hr",        "ul",         "ol",
      "li",       "h1",        "h2",         "h3",
      "h4",       "h5",        "h6",         "table",
      "tr",       "td",        "th",         "tbody",
      "thead",    "img",       "video",      "reasoning_content"};

  static bool is_first(char c) { return c >= 'a' && c <= 'z'; }

  // The byte after an opening tag at `at`, with its name; npos when there is none.
  static size_t tag(std::string_view text, size_t at, std::string* name) {
    if (at + 1 >= text.size() || text[at] != '<' || !is_first(text[at + 1])) return kNone;
    const size_t end = text.find_first_not_of(kNameBytes, at + 1);
    if (end == kNone || text[end] != '>' || end - at - 1 > kLongestName) return kNone;
    *name = text.substr(at + 1, end - at - 1);
    return end + 1;
  }

  // Other text stands between the children: the first closing tag ends the block.
  static ToolCallPiece loosely(std::string_view text, const std::string& name, const std::string& close,
                               bool last) {
    const size_t open = name.size() + 2;
    const size_t end = text.find(close, open);
    if (end == kNone) return last ? text_piece(open) : inside_call();
    ToolCall call;
    call.name = name;
    const std::string_view body = text.substr(open, end - open);
    for (size_t at = body.find('<'); at != kNone; at = body.find('<', at)) {
      std::string key;
      const size_t value = tag(body, at, &key);
      const std::string key_close = "</" + key + ">";
      const size_t stop = value == kNone ? kNone : body.find(key_close, value);
      if (stop == kNone) {
        ++at;
        continue;
      }
      call.arguments[key] = std::string(trim(body.substr(value, stop - value)));
      at = stop + key_close.size();
    }
    if (call.arguments.empty()) return text_piece(open);
    return call_piece(text, end + close.size(), {std::move(call)});
  }
};

// <<<[TOOL_REQUEST]>>> with lines key:「始」value「末」; 「始ESCAPE」...「末ESCAPE」 around values that spell
// the marks.
class VcpParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    if (const auto before = text_before(text, kOpen, last)) return *before;
    ToolCall call;
    size_t at = kOpen.size();
    bool closed = false, whole = true;
    while (at < text.size()) {
      const size_t value = text.find(kBegin, at), end = text.find(kClose, at);
      if (end < value) {
        at = end + kClose.size();
        closed = true;
        break;
      }
      if (value == kNone) {
        at = text.size();
        break;
      }
      const bool escaped = starts(text, value, kBeginEscaped);
      const size_t begin = value + (escaped ? kBeginEscaped : kBeginPlain).size();
      const std::string_view stop_mark = escaped ? kEndEscaped : kEndPlain;
      const size_t stop = text.find(stop_mark, begin);
      if (stop == kNone) {
        whole = false;
        break;
      }
      const std::string key = key_before(text.substr(at, value - at));
      const std::string content(text.substr(begin, stop - begin));
      if (key == "tool_name") {
        call.name = trim(content);
      } else if (!key.empty()) {
        call.arguments[key] = content;
      }
      at = stop + stop_mark.size();
    }
    if (!closed && !last) return inside_call();
    if (!whole) {
      const size_t end = text.find(kClose);
      const size_t length = end == kNone ? text.size() : end + kClose.size();
      return call_piece(text, length, {broken("a value of the call is never closed")}, end != kNone);
    }
    if (call.name.empty()) call.problem = "the call has no tool_name";
    return call_piece(text, at, {std::move(call)}, closed);
  }
  std::string_view closers() const override { return ">"; }
  int search_order() const override { return 30; }

 private:
  static constexpr std::string_view kOpen = "<<<[TOOL_REQUEST]>>>", kClose = "<<<[END_TOOL_REQUEST]>>>";
  static constexpr std::string_view kBegin = "「始", kBeginPlain = "「始」", kBeginEscaped = "「始ESCAPE」",
                                    kEndPlain = "「末」", kEndEscaped = "「末ESCAPE」";

  // The identifier in "..., key: ".
  static std::string key_before(std::string_view text) {
    text = trim(text);
    if (!text.ends_with(':')) return "";
    text = trim(text.substr(0, text.size() - 1));
    size_t begin = text.size();
    while (begin > 0 &&
           (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '_'))
      --begin;
    const std::string_view key = text.substr(begin);
    return key.empty() || std::isdigit(static_cast<unsigned char>(key[0])) != 0 ? "" : std::string(key);
  }
};

// A line "Action: name[input]", or "Action: name" and "Action Input: ...".
class ReactParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    // Pieces end with lines, so an action always stands at the beginning of one.
    const size_t line_end = text.find('\n');
    if (!position.line_start || !starts(text, 0, kAction)) {
      if (line_end != kNone) return text_piece(line_end + 1);
      if (position.line_start && !last && may_start(text, 0, kAction)) return {};
      return text_piece(text.size());
    }
    const size_t name_begin = skip_blank(text, kAction.size());
    size_t at = name_begin;
    while (at < text.size() && is_name(text[at])) ++at;
    if (at == text.size() && !last) return inside_call();
    if (at == name_begin) return line_text(text, line_end, last);
    ToolCall call;
    call.name = text.substr(name_begin, at - name_begin);
    if (at < text.size() && text[at] == '[') {
      const size_t end = bracket_end(text, at, last);
      if (end == kNone) {
        return last ? line_text(text, line_end, last) : inside_call();
      }
      call.arguments["input"] = std::string(text.substr(at + 1, end - at - 2));
      return call_piece(text, end, {std::move(call)});
    }
    at = skip_blank(text, at);
    if (at == text.size() && !last) return inside_call();
    if (at == text.size() || (text[at] != '\n' && text[at] != '\r')) return line_text(text, line_end, last);
    const size_t input = skip_space(text, at);
    if (!starts(text, input, kInput)) {
      if (!last && (input == text.size() || may_start(text, input, kInput))) return inside_call();
      return line_text(text, line_end, last);
    }
    const size_t value = skip_blank(text, input + kInput.size());
    if (value < text.size() && text[value] == '{') {
      const size_t end = json_end(text, value);
      if (end == kNone && !last) return inside_call();
      const auto parsed = end == kNone ? std::nullopt : read_json(text.substr(value, end - value));
      if (parsed && parsed->is_object()) {
        call.arguments = *parsed;
        return call_piece(text, end, {std::move(call)});
      }
      if (end == kNone)
        return call_piece(text, text.size(), {broken("the input of the action is cut short")}, false);
    }
    const size_t end = text.find('\n', value);
    if (end == kNone && !last) return inside_call();
    const size_t stop = end == kNone ? text.size() : end;
    call.arguments["input"] = std::string(trim(text.substr(value, stop - value)));
    return call_piece(text, stop, {std::move(call)});
  }
  std::string_view closers() const override { return "]}\n:"; }
  int search_order() const override { return 40; }

 private:
  static constexpr std::string_view kAction = "Action:", kInput = "Action Input:";

  static bool is_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  }
  static size_t skip_blank(std::string_view text, size_t at) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
    return at;
  }
  static ToolCallPiece line_text(std::string_view text, size_t line_end, bool last) {
    if (line_end == kNone) return last ? text_piece(text.size()) : inside_call();
    return text_piece(line_end + 1);
  }
  // The byte after the bracket that closes the one at `at`; brackets in a JSON value do not count.
  static size_t bracket_end(std::string_view text, size_t at, bool last) {
    const size_t value = skip_space(text, at + 1);
    if (value == text.size()) return kNone;
    if (text[value] == '{' || text[value] == '"') {
      const size_t end = json_end(text, value);
      const size_t close = end == kNone ? text.size() : skip_space(text, end);
      if (close == text.size() && !last) return kNone;
      if (close < text.size() && text[close] == ']') return close + 1;
    }
    int64_t depth = 0;
    for (size_t i = at; i < text.size(); ++i) {
      if (text[i] == '[') ++depth;
      if (text[i] == ']' && --depth == 0) return i + 1;
    }
    return kNone;
  }
};

// DeepSeek's markup: <｜DSML｜tool_calls> around <｜DSML｜invoke name="..."> with <｜DSML｜parameter
// name="..." string="true|false">; V3.2 names the outer block function_calls.
class DsmlParser : public ToolCallParser {
 public:
  ToolCallPiece next(std::string_view text, const Position& position) const override {
    const bool last = position.last;
    const size_t found = std::min(text.find(kOpens[0]), text.find(kOpens[1]));
    if (found != 0) {
      if (found != kNone) return text_piece(found);
      const size_t held = std::max(partial_suffix(text, kOpens[0]), partial_suffix(text, kOpens[1]));
      return text_piece(last ? text.size() : text.size() - held);
    }
    const size_t kind = starts(text, 0, kOpens[0]) ? 0 : 1;
    std::vector<ToolCall> calls;
    size_t at = kOpens[kind].size();
    for (;;) {
      const size_t next = skip_space(text, at);
      if (starts(text, next, kCloses[kind])) {
        if (calls.empty()) calls.push_back(broken("the block holds no call"));
        return call_piece(text, next + kCloses[kind].size(), std::move(calls));
      }
      const size_t invoke = text.find(kInvoke, at), close = text.find(kCloses[kind], at);
      if (invoke == kNone && close == kNone) break;
      if (close < invoke) {
        at = close;
        continue;
      }
      ToolCall call;
      const size_t end = read_invoke(text, invoke + kInvoke.size(), &call);
      if (end == kNone) break;
      calls.push_back(std::move(call));
      at = end;
    }
    if (!last) return inside_call();
    const bool rest = text.find(kInvoke, at) != kNone;
    if (rest || calls.empty()) calls.push_back(broken("a call is cut short"));
    return call_piece(text, text.size(), std::move(calls), false);
  }
  std::string_view closers() const override { return ">"; }
  int search_order() const override { return 50; }

 private:
  static constexpr std::array<std::string_view, 2> kOpens = {"<｜DSML｜tool_calls>",
                                                             "<｜DSML｜function_calls>"};
  static constexpr std::array<std::string_view, 2> kCloses = {"</｜DSML｜tool_calls>",
                                                              "</｜DSML｜function_calls>"};
  static constexpr std::string_view kInvoke = "<｜DSML｜invoke name=\"", kInvokeEnd = "</｜DSML｜invoke>",
                                    kParameter = "<｜DSML｜parameter name=\"",
                                    kParameterEnd = "</｜DSML｜parameter>";

  // The byte after the call; npos when the text ends before.
  static size_t read_invoke(std::string_view text, size_t at, ToolCall* call) {
    const size_t quote = text.find("\">", at);
    if (quote == kNone) return kNone;
    call->name = text.substr(at, quote - at);
    if (call->name.empty()) call->problem = "a call has no name";
    at = quote + 2;
    for (;;) {
      const size_t parameter = text.find(kParameter, at), end = text.find(kInvokeEnd, at);
      if (end < parameter) return end + kInvokeEnd.size();
      if (parameter == kNone) return kNone;
      const size_t name = parameter + kParameter.size();
      const size_t name_end = text.find('"', name), tag_end = text.find('>', name);
      if (name_end == kNone || tag_end == kNone) return kNone;
      const size_t stop = text.find(kParameterEnd, tag_end);
      if (stop == kNone) return kNone;
      const std::string key(text.substr(name, name_end - name));
      const std::string_view value = text.substr(tag_end + 1, stop - tag_end - 1);
      const bool string =
          name_end > tag_end || text.substr(name_end, tag_end - name_end).find("string=\"false\"") == kNone;
      const auto parsed = string ? std::nullopt : read_json(value);
      call->arguments[key] = parsed ? *parsed : Json(std::string(value));
      at = stop + kParameterEnd.size();
    }
  }
};

const auto kCline =
    add<ClineParser>("cline", "<tool><key>value</key></tool> in plain text (Cline, OpenClaw).");
const auto kVcp = add<VcpParser>("vcp", "<<<[TOOL_REQUEST]>>> with key:「始」value「末」 (VCPChat).");
const auto kReact = add<ReactParser>("react", "Action: name[input], or Action: and Action Input: lines.");
const auto kDsml = add<DsmlParser>("dsml", "DeepSeek's <｜DSML｜tool_calls> blocks.");

}  // namespace
}  // namespace twinkle
