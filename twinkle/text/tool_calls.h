// Tool calls inside of what a model wrote: parsers by name, whole or as the text arrives, and OpenAI's form
// of the result. Parsers are immutable and safe from many threads; a stream belongs to one thread. No input
// makes a parser throw: what is no call stays text, and a call that cannot be read is kept as it was written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/core/registry.h"
#include "twinkle/text/text_span.h"

namespace twinkle {

struct ToolCall {
  std::string name;
  Json arguments = Json::object();
  std::string id;       // as the model wrote it; "" in most formats
  bool closed = true;   // false: the text ended before the block did
  std::string problem;  // why it cannot be called; "" for a good call
  std::string raw;      // the whole block as written
  bool valid() const { return problem.empty(); }
};

/// What a parser sees at the beginning of a text.
struct ToolCallPiece {
  enum class Kind { kText, kCalls, kMore };
  Kind kind = Kind::kMore;
  size_t length = 0;            // bytes of it; 0 for kMore
  std::vector<ToolCall> calls;  // of kCalls
  bool inside = false;          // kMore: a call has begun, so only one of closers() can complete the piece
};

/// Components of kind "tool_call_parser".
class ToolCallParser {
 public:
  static constexpr std::string_view kKind = "tool_call_parser";
  virtual ~ToolCallParser() = default;
  struct Position {
    bool start = true;       // only white space of the reply came before
    bool line_start = true;  // a line begins here
    bool last = true;        // no more text will follow, and kMore is no answer
  };
  /// The first piece of `text`, which is not empty. What is said of a text holds for every continuation of
  /// it.
  virtual ToolCallPiece next(std::string_view text, const Position& position) const = 0;
  /// A call that has begun becomes complete only with one of these bytes, or at the end.
  virtual std::string_view closers() const = 0;
  /// Where the format has to be found out, parsers look in ascending order: those whose marks nothing else
  /// writes come before those that ordinary text may resemble.
  virtual int search_order() const { return 100; }
  /// The result of a tool inside of a user's message, where the format writes it so.
  virtual std::optional<std::string> extract_tool_result(std::string_view) const { return std::nullopt; }
};

/// A reply taken apart.
struct ParsedReply {
  std::string content;    // without calls; white space before a call and after the last one is dropped
  std::string reasoning;  // of a leading <think> block
  bool has_reasoning = false;
  std::vector<ToolCall> calls;  // valid ones; what cannot be called stays in content
  std::vector<std::string> problems;
};

/// Takes a reply apart as it arrives. What push and finish return, put together, is parse_tool_calls of all.
class ToolCallStream {
 public:
  explicit ToolCallStream(std::shared_ptr<const ToolCallParser> parser);
  struct Event {
    std::string content;
    std::vector<ToolCall> calls;  // after the content
  };
  std::vector<Event> push(std::string_view text);
  std::vector<Event> finish();

 private:
  void drain(bool last, std::vector<Event>* events);
  void add_text(std::string_view text, std::vector<Event>* events);

  std::shared_ptr<const ToolCallParser> parser_;
  std::string buffer_, spaces_;
  ToolCallParser::Position position_;
  bool waiting_ = false, any_call_ = false;
};

/// Calls and content of `text`; reasoning is not looked at.
ParsedReply parse_tool_calls(const ToolCallParser& parser, std::string_view text);

/// A leading <think>...</think> (or a text whose opening tag stood in the prompt and that only closes it)
/// taken off; then the calls of the rest. An unclosed <think> makes all of it reasoning.
ParsedReply parse_reply(const ToolCallParser& parser, std::string_view text);

/// Where the valid calls of a reply stand, ascending; the reasoning is taken off as parse_reply does.
std::vector<TextSpan> tool_call_spans(const ToolCallParser& parser, std::string_view text);

/// not_found with the nearest name.
std::shared_ptr<const ToolCallParser> tool_call_parser(std::string_view name);
/// The first parser that finds a call, in their search_order(); "" when none does.
std::string detect_tool_call_parser(std::string_view text);

/// {"role": "assistant", "content", "reasoning_content"?, "tool_calls"?} in OpenAI's form: arguments are JSON
/// text; ids are the model's own or made from the text, the same for the same text.
Json openai_message(const ParsedReply& reply);
/// One entry of "tool_calls"; `index` names the call within its reply.
Json openai_tool_call(const ToolCall& call, size_t index);

namespace tool_calls {  // for parsers

inline constexpr size_t kNone = std::string_view::npos;
/// End of the JSON value at `at`; npos when the text ends before.
size_t json_end(std::string_view text, size_t at);
/// The value, where control characters inside of strings are let through.
std::optional<Json> read_json(std::string_view text);
size_t skip_space(std::string_view text, size_t at);
std::string_view trim(std::string_view text);
/// Bytes at the end of `text` that may be the beginning of `marker`.
size_t partial_suffix(std::string_view text, std::string_view marker);
/// Text up to the next `marker`, or what of it cannot be its beginning; none when the marker stands first.
std::optional<ToolCallPiece> text_before(std::string_view text, std::string_view marker, bool last);
ToolCallPiece text_piece(size_t length);
ToolCallPiece call_piece(std::string_view text, size_t length, std::vector<ToolCall> calls,
                         bool closed = true);
ToolCallPiece inside_call();
ToolCall broken(std::string problem);
/// A call from {"name", "arguments" or "parameters", "id"?}.
ToolCall from_object(const Json& value);
/// Of a value or a list of them.
std::vector<ToolCall> from_value(const Json& value);

/// The entry of a parser without options.
template <class T>
Registry<ToolCallParser>::Add add(std::string name, std::string help) {
  return {{.name = std::move(name), .help = std::move(help)},
          [](const Options&) { return std::make_unique<T>(); }};
}

}  // namespace tool_calls
}  // namespace twinkle
