#include "twinkle/text/tool_calls.h"

#include <algorithm>

#include "twinkle/core/files.h"

namespace twinkle {
namespace tool_calls {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Raw control characters inside of strings, as models write them, become escapes.
std::string with_escaped_controls(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size() + 16);
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\' && i + 1 < text.size()) {
      out.push_back(c);
      out.push_back(text[++i]);
      continue;
    }
    if (c == '"') inside = !inside;
    if (inside && static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out.push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out.push_back(kHex[static_cast<unsigned char>(c) & 15]);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

size_t json_end(std::string_view text, size_t at) {
  int64_t depth = 0;
  bool inside = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (inside) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        inside = false;
        if (depth == 0) return at + 1;
      }
      continue;
    }
    if (c == '"') {
      inside = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth <= 0) return at + 1;
    }
  }
  return std::string_view::npos;
}

std::optional<Json> read_json(std::string_view text) {
  Json value;
  if (!try_parse_json(text, value, kMaxJsonDepth, WideIntegers::kRefuse)) return value;
  const bool controls =
      std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (controls && !try_parse_json(with_escaped_controls(text), value, kMaxJsonDepth, WideIntegers::kRefuse))
    return value;
  return std::nullopt;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

size_t partial_suffix(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

std::optional<ToolCallPiece> text_before(std::string_view text, std::string_view marker, bool last) {
  const size_t at = text.find(marker);
  if (at == 0) return std::nullopt;
  if (at != std::string_view::npos) return text_piece(at);
  return text_piece(last ? text.size() : text.size() - partial_suffix(text, marker));
}

ToolCallPiece text_piece(size_t length) {
  if (length == 0) return {};
  return {.kind = ToolCallPiece::Kind::kText, .length = length, .calls = {}, .inside = false};
}

ToolCallPiece call_piece(std::string_view text, size_t length, std::vector<ToolCall> calls, bool closed) {
  for (ToolCall& call : calls) {
    call.raw = text.substr(0, length);
    call.closed = closed;
  }
  return {.kind = ToolCallPiece::Kind::kCalls, .length = length, .calls = std::move(calls), .inside = false};
}

ToolCallPiece inside_call() {
  return {.kind = ToolCallPiece::Kind::kMore, .length = 0, .calls = {}, .inside = true};
}

ToolCall broken(std::string problem) {
  ToolCall out;
  out.problem = std::move(problem);
  return out;
}

ToolCall from_object(const Json& value) {
  if (!value.is_object())
    return broken("a call must be an object, got " + std::string(json_type_name(value)));
  const Json* from = &value;
  if (const auto inner = value.find("function"); inner != value.end() && inner->is_object()) from = &*inner;
  const auto name = from->find("name");
  if (name == from->end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    return broken("a call has no 'name'");
  ToolCall out;
  out.name = name->get<std::string>();
  if (const auto id = value.find("id"); id != value.end() && id->is_string()) out.id = id->get<std::string>();
  for (const char* key : {"arguments", "parameters"}) {
    const auto given = from->find(key);
    if (given == from->end() || given->is_null()) continue;
    out.arguments = *given;
    if (out.arguments.is_string()) {
      const std::string text = out.arguments.get<std::string>();
      const auto parsed = trim(text).empty() ? std::optional<Json>(Json::object()) : read_json(text);
      if (!parsed) return broken("the arguments of '" + out.name + "' are not valid JSON");
      out.arguments = *parsed;
    }
    break;
  }
  if (!out.arguments.is_object()) return broken("the arguments of '" + out.name + "' are no object");
  return out;
}

std::vector<ToolCall> from_value(const Json& value) {
  std::vector<ToolCall> out;
  if (!value.is_array()) return {from_object(value)};
  for (const Json& item : value) out.push_back(from_object(item));
  if (out.empty()) out.push_back(broken("the list of calls is empty"));
  return out;
}

}  // namespace tool_calls

namespace {

using Kind = ToolCallPiece::Kind;

bool is_blank(std::string_view text) { return tool_calls::trim(text).empty(); }

std::string safe_dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void strip_newlines(std::string* text) {
  const size_t begin = std::min(text->find_first_not_of('\n'), text->size());
  const size_t end = text->find_last_not_of('\n');
  *text = end == std::string::npos ? "" : text->substr(begin, end + 1 - begin);
}

// The reasoning at the front of a reply, and where the rest begins.
struct Reasoning {
  bool found = false;
  size_t begin = 0, end = 0, rest = 0;
};

Reasoning reasoning_of(std::string_view text) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t open = tool_calls::skip_space(text, 0);
  const bool opens = text.substr(open, kOpen.size()) == kOpen;
  const size_t close = text.find(kClose, open);
  // A closing tag without an opening one ends the reasoning that the prompt began, unless the text opens
  // another block before it.
  const bool closes = close != std::string_view::npos && (opens || text.find(kOpen) > close);
  if (!opens && !closes) return {};
  Reasoning out{true, opens ? open + kOpen.size() : open, text.size(), text.size()};
  if (close == std::string_view::npos) return out;
  out.end = close;
  out.rest = std::min(text.find_first_not_of('\n', close + kClose.size()), text.size());
  return out;
}

}  // namespace

ToolCallStream::ToolCallStream(std::shared_ptr<const ToolCallParser> parser) : parser_(std::move(parser)) {}

// White space waits until it is known that no call follows it.
void ToolCallStream::add_text(std::string_view text, std::vector<Event>* events) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  if (events->empty() || !events->back().calls.empty()) events->push_back({});
  std::string& content = events->back().content;
  content += spaces_;
  content += text.substr(0, end + 1);
  spaces_ = text.substr(end + 1);
}

void ToolCallStream::drain(bool last, std::vector<Event>* events) {
  size_t at = 0;
  bool inside = false;
  position_.last = last;
  while (at < buffer_.size()) {
    ToolCallPiece piece = parser_->next(std::string_view(buffer_).substr(at), position_);
    if (piece.kind == Kind::kMore) {
      inside = piece.inside;
      break;
    }
    const std::string_view text = std::string_view(buffer_).substr(at, piece.length);
    position_.start = position_.start && piece.kind == Kind::kText && is_blank(text);
    position_.line_start = text.ends_with('\n');
    at += piece.length;
    const bool good = std::any_of(piece.calls.begin(), piece.calls.end(), [](auto& c) { return c.valid(); });
    if (piece.kind == Kind::kText) {
      add_text(text, events);
      continue;
    }
    if (good) {
      spaces_.clear();
      any_call_ = true;
    } else {
      add_text(text, events);
    }
    if (events->empty()) events->push_back({});
    for (ToolCall& call : piece.calls) events->back().calls.push_back(std::move(call));
  }
  buffer_.erase(0, at);
  waiting_ = inside;
}

std::vector<ToolCallStream::Event> ToolCallStream::push(std::string_view text) {
  std::vector<Event> events;
  buffer_ += text;
  if (waiting_ && text.find_first_of(parser_->closers()) == std::string_view::npos) return events;
  drain(false, &events);
  return events;
}

std::vector<ToolCallStream::Event> ToolCallStream::finish() {
  std::vector<Event> events;
  drain(true, &events);
  if (!any_call_ && !spaces_.empty()) {
    if (events.empty() || !events.back().calls.empty()) events.push_back({});
    events.back().content += spaces_;
  }
  spaces_.clear();
  return events;
}

ParsedReply parse_tool_calls(const ToolCallParser& parser, std::string_view text) {
  ToolCallStream stream(std::shared_ptr<const ToolCallParser>(&parser, [](const ToolCallParser*) {}));
  ParsedReply out;
  const auto take = [&](std::vector<ToolCallStream::Event> events) {
    for (auto& event : events) {
      out.content += event.content;
      for (ToolCall& call : event.calls) {
        if (call.valid()) {
          out.calls.push_back(std::move(call));
        } else {
          out.problems.push_back(std::move(call.problem));
        }
      }
    }
  };
  take(stream.push(text));
  take(stream.finish());
  return out;
}

ParsedReply parse_reply(const ToolCallParser& parser, std::string_view text) {
  const Reasoning reasoning = reasoning_of(text);
  ParsedReply out = parse_tool_calls(parser, text.substr(reasoning.rest));
  out.reasoning = text.substr(reasoning.begin, reasoning.end - reasoning.begin);
  strip_newlines(&out.reasoning);
  out.has_reasoning = reasoning.found;
  return out;
}

std::vector<TextSpan> tool_call_spans(const ToolCallParser& parser, std::string_view text) {
  std::vector<TextSpan> out;
  ToolCallParser::Position position;
  for (size_t at = reasoning_of(text).rest; at < text.size();) {
    const ToolCallPiece piece = parser.next(text.substr(at), position);
    if (piece.kind == Kind::kMore) break;
    const std::string_view part = text.substr(at, piece.length);
    position.start = position.start && piece.kind == Kind::kText && is_blank(part);
    position.line_start = part.ends_with('\n');
    if (std::any_of(piece.calls.begin(), piece.calls.end(), [](auto& c) { return c.valid(); }))
      out.push_back({static_cast<int64_t>(at), static_cast<int64_t>(at + piece.length)});
    at += piece.length;
  }
  return out;
}

std::shared_ptr<const ToolCallParser> tool_call_parser(std::string_view name) {
  return Registry<ToolCallParser>::create(name);
}

std::string detect_tool_call_parser(std::string_view text) {
  std::vector<std::pair<std::shared_ptr<const ToolCallParser>, std::string>> parsers;
  for (const ComponentInfo* info : Catalog::instance().of_kind(ToolCallParser::kKind))
    parsers.emplace_back(tool_call_parser(info->name), info->name);
  std::stable_sort(parsers.begin(), parsers.end(), [](const auto& a, const auto& b) {
    return a.first->search_order() < b.first->search_order();
  });
  for (const auto& [parser, name] : parsers) {
    if (!parse_tool_calls(*parser, text).calls.empty()) return name;
  }
  return "";
}

Json openai_tool_call(const ToolCall& call, size_t index) {
  const std::string arguments = safe_dump(call.arguments);
  std::string id = call.id;
  if (id.empty()) {
    id = "call_" + sha256_hex(std::to_string(index) + "\n" + call.name + "\n" + arguments).substr(0, 24);
  }
  return {{"id", id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", arguments}}}};
}

Json openai_message(const ParsedReply& reply) {
  Json out = {{"role", "assistant"}};
  out["content"] = reply.content.empty() && !reply.calls.empty() ? Json(nullptr) : Json(reply.content);
  if (reply.has_reasoning) out["reasoning_content"] = reply.reasoning;
  for (size_t i = 0; i < reply.calls.size(); ++i)
    out["tool_calls"].push_back(openai_tool_call(reply.calls[i], i));
  return out;
}

}  // namespace twinkle
