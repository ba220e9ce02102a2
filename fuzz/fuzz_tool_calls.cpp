// deps: text
// Any bytes as a reply: the first byte picks the parser, the second the size of the pieces. Nothing throws,
// and the pieces give what the whole gives.
#include <cstdint>
#include <string>

#include "twinkle/text/tool_calls.h"

namespace {

std::string shown(const twinkle::ParsedReply& reply) {
  std::string out = reply.content + "|";
  for (const auto& call : reply.calls) {
    out += call.name + call.arguments.dump(-1, ' ', false, twinkle::Json::error_handler_t::replace) +
           (call.closed ? ";" : "...");
  }
  for (const auto& problem : reply.problems) out += "!" + problem;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  if (size < 2) return 0;
  static const char* const kNames[] = {"hermes_qwen", "cline",   "vcp",        "react",
                                       "dsml",        "mistral", "llama3_json"};
  const auto parser = tool_call_parser(kNames[data[0] % 7]);
  const size_t step = 1 + data[1] % 16;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  ParsedReply pieces;
  const auto take = [&](const std::vector<ToolCallStream::Event>& events) {
    for (const auto& event : events) {
      pieces.content += event.content;
      for (const auto& call : event.calls) {
        if (call.valid()) {
          pieces.calls.push_back(call);
        } else {
          pieces.problems.push_back(call.problem);
        }
      }
    }
  };
  ToolCallStream stream(parser);
  for (size_t at = 0; at < text.size(); at += step) take(stream.push(text.substr(at, step)));
  take(stream.finish());
  const ParsedReply whole = parse_tool_calls(*parser, text);
  if (shown(pieces) != shown(whole)) __builtin_trap();
  openai_message(parse_reply(*parser, text));
  return 0;
}
