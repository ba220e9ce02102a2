// Tool calls out of replies: values by hand for every format, and the same result whatever pieces a reply
// arrives in.
#include "twinkle/text/tool_calls.h"

#include <gtest/gtest.h>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

// "content | name{arguments} ..." of a reply.
std::string shown(const ParsedReply& reply) {
  std::string out = reply.content + " |";
  for (const ToolCall& call : reply.calls)
    out += " " + call.name + call.arguments.dump() + (call.closed ? "" : "...");
  for (const auto& problem : reply.problems) out += " !" + problem;
  return out;
}

std::string parsed(const std::string& parser, const std::string& text) {
  return shown(parse_tool_calls(*tool_call_parser(parser), text));
}

// The reply in pieces of the given sizes.
std::string streamed(const std::string& parser, const std::string& text, uint64_t seed, uint64_t most) {
  ToolCallStream stream(tool_call_parser(parser));
  CounterRng rng(seed);
  ParsedReply out;
  const auto take = [&](const std::vector<ToolCallStream::Event>& events) {
    for (const auto& event : events) {
      out.content += event.content;
      for (const auto& call : event.calls) {
        if (call.valid()) {
          out.calls.push_back(call);
        } else {
          out.problems.push_back(call.problem);
        }
      }
    }
  };
  for (size_t at = 0; at < text.size();) {
    const size_t n = most == 1 ? 1 : 1 + rng.next_below(most);
    take(stream.push(std::string_view(text).substr(at, n)));
    at += n;
  }
  take(stream.finish());
  return shown(out);
}

struct Case {
  const char* parser;
  std::string text, expected;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      // hermes_qwen: text before and after, several calls, nested JSON, the closing tag inside of a string.
      {"hermes_qwen",
       "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": [1, "
       "\"}\"]}}}\n</tool_call>\nDone",
       "I look.\nDone | f{\"a\":{\"b\":[1,\"}\"]}}"},
      {"hermes_qwen",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call>\"}}</"
       "tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
       " | f{\"x\":\"</tool_call>\"} g{}"},
      {"hermes_qwen", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>",
       " | f{\"a\":1}"},
      {"hermes_qwen", "ok <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}", "ok | f{\"a\":1}..."},
      {"hermes_qwen", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1} | !the call is cut short"},
      {"hermes_qwen",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call> and "
       "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call> and | g{} !the call is not valid "
       "JSON"},
      {"hermes_qwen", "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"a\nb\"}}</tool_call>",
       " | f{\"t\":\"a\\nb\"}"},
      {"hermes_qwen",
       "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\",\"arguments\":{}}</tool_call>",
       " | f{} g{}"},
      {"hermes_qwen", "{\"name\": \"x\"}", "{\"name\": \"x\"} |"},
      {"hermes_qwen", "1 < 2 <tool", "1 < 2 <tool |"},
      {"hermes_qwen", "trailing space  \n", "trailing space  \n |"},
      {"hermes_qwen",
       "<tool_call>\n<function=get>\n<parameter=city>\nParis\n</parameter>\n<parameter=n>\n3\n</"
       "parameter>\n<parameter=list>\n[1, {\"a\": 2}]\n</parameter>\n</function>\n</tool_call>",
       " | get{\"city\":\"Paris\",\"n\":3,\"list\":[1,{\"a\":2}]}"},
      {"hermes_qwen", "<tool_call>\n<function=run>\n<parameter=code>\nif a:\n  b\n</parameter>\n</function>",
       " | run{\"code\":\"if a:\\n  b\"}..."},
      {"hermes_qwen", "<tool_call>nothing</tool_call>",
       "<tool_call>nothing</tool_call> | !the call is neither JSON nor a <function=...> block"},
      // cline
      {"cline", "Reading.\n<read_file><path>src/a.cpp</path></read_file> ok",
       "Reading. ok | read_file{\"path\":\"src/a.cpp\"}"},
      {"cline", "<write_to_file>\n<path>a</path>\n<content>x </write_to_file> y</content>\n</write_to_file>",
       " | write_to_file{\"path\":\"a\",\"content\":\"x </write_to_file> y\"}"},
      {"cline",
       "<execute_command>\n  <command>ls -la</command>\n  "
       "<requires_approval>false</requires_approval>\n</execute_command>\n<list_files><path>.</path></"
       "list_files>",
       " | execute_command{\"command\":\"ls -la\",\"requires_approval\":\"false\"} "
       "list_files{\"path\":\".\"}"},
      {"cline", "<div><span>x</span></div> <b>y</b>", "<div><span>x</span></div> <b>y</b> |"},
      {"cline", "a < b <read_file><path>x</path>", "a < b <read_file><path>x</path> |"},
      {"cline", "<do_it>please <key>v</key> now</do_it>", " | do_it{\"key\":\"v\"}"},
      // vcp
      {"vcp",
       "Go <<<[TOOL_REQUEST]>>>\ntool_name:「始」search「末」,\nquery:「始」a "
       "b「末」\n<<<[END_TOOL_REQUEST]>>> end",
       "Go end | search{\"query\":\"a b\"}"},
      {"vcp",
       "<<<[TOOL_REQUEST]>>>tool_name:「始」w「末」text:「始ESCAPE」<<<[END_TOOL_REQUEST]>>>"
       "「末」「末ESCAPE」<<<[END_TOOL_REQUEST]>>>",
       " | w{\"text\":\"<<<[END_TOOL_REQUEST]>>>「末」\"}"},
      {"vcp", "<<<[TOOL_REQUEST]>>>query:「始」a「末」<<<[END_TOOL_REQUEST]>>>",
       "<<<[TOOL_REQUEST]>>>query:「始」a「末」<<<[END_TOOL_REQUEST]>>> | !the call has no tool_name"},
      {"vcp", "<<<[TOOL_REQUEST]>>>tool_name:「始」w「末」", " | w{}..."},
      // react
      {"react", "Thought: look it up\nAction: search[weather in [Paris]]\n",
       "Thought: look it up | search{\"input\":\"weather in [Paris]\"}"},
      {"react", "Action: get\nAction Input: {\"city\": \"Paris\", \"d\": {\"n\": 1}}\nObservation:",
       "\nObservation: | get{\"city\":\"Paris\",\"d\":{\"n\":1}}"},
      {"react", "Action: get\nAction Input: Paris\nmore", "\nmore | get{\"input\":\"Paris\"}"},
      {"react", "Action: f[{\"a\": \"]\"}]", " | f{\"input\":\"{\\\"a\\\": \\\"]\\\"}\"}"},
      {"react", "No Action: here[1]\nFinal Answer: 3", "No Action: here[1]\nFinal Answer: 3 |"},
      {"react", "Action: unfinished[abc", "Action: unfinished[abc |"},
      // dsml
      {"dsml",
       "x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"city\" "
       "string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">{\"a\": "
       "[1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
       "name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       "x | get{\"city\":\"12\",\"n\":{\"a\":[1]}} now{}"},
      {"dsml", "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"></｜DSML｜invoke>", " | f{}..."},
      // mistral
      {"mistral",
       "Sure[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}, \"id\": \"abcdefghi\"}, "
       "{\"name\": \"g\", \"arguments\": {}}]",
       "Sure | f{\"a\":[1,{}]} g{}"},
      {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", " | f{\"a\":1} g{}"},
      {"mistral", "[TOOL_CALLS]f{\"a\": \"]\"} tail", " tail | f{\"a\":\"]\"}"},
      {"mistral", "[TOOL_CALLS] [{\"name\"", "[TOOL_CALLS] [{\"name\" | !the call is cut short"},
      // llama3_json
      {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": {\"b\": 1}}}", " | f{\"a\":{\"b\":1}}"},
      {"llama3_json",
       "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"x\": 1}}",
       " | f{} g{\"x\":1}"},
      {"llama3_json", "{\"answer\": 1}", "{\"answer\": 1} |"},
      {"llama3_json", "The JSON is {\"name\": \"f\", \"parameters\": {}}",
       "The JSON is {\"name\": \"f\", \"parameters\": {}} |"},
      {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\"",
       "{\"name\": \"f\", \"parameters\": {\"a\" |"},
  };
  return list;
}

TEST(ToolCalls, EveryFormatByHand) {
  for (const Case& c : cases()) EXPECT_EQ(parsed(c.parser, c.text), c.expected) << c.parser << ": " << c.text;
}

TEST(ToolCalls, StreamsGiveTheSameWhateverThePieces) {
  for (const Case& c : cases()) {
    const std::string whole = parsed(c.parser, c.text);
    for (uint64_t seed = 0; seed < 12; ++seed) {
      EXPECT_EQ(streamed(c.parser, c.text, seed, seed == 0 ? 1 : 1 + seed * 3), whole)
          << c.parser << ": " << c.text;
    }
    // Every parser on every text: no call of another format may break the equality.
    for (const char* other : {"hermes_qwen", "cline", "vcp", "react", "dsml", "mistral", "llama3_json"}) {
      EXPECT_EQ(streamed(other, c.text, 3, 1), parsed(other, c.text)) << other << ": " << c.text;
    }
  }
}

// Fragments of every format in any order: whatever they add up to, pieces give what the whole gives.
TEST(ToolCalls, AnyMixtureStreamsLikeTheWhole) {
  const std::vector<std::string> fragments = {"<tool_call>",
                                              "</tool_call>",
                                              "{\"name\": \"f\", \"arguments\": ",
                                              "{}",
                                              "}",
                                              "{",
                                              "\"",
                                              "[",
                                              "]",
                                              "\\",
                                              "\n",
                                              " ",
                                              "<function=f>",
                                              "</function>",
                                              "<parameter=a>",
                                              "</parameter>",
                                              "text",
                                              "<read_file>",
                                              "</read_file>",
                                              "<path>",
                                              "</path>",
                                              "<b>",
                                              "<",
                                              ">",
                                              "<<<[TOOL_REQUEST]>>>",
                                              "<<<[END_TOOL_REQUEST]>>>",
                                              "tool_name:",
                                              "「始」",
                                              "「末」",
                                              "「始ESCAPE」",
                                              "「末ESCAPE」",
                                              "Action:",
                                              "Action: f",
                                              "[x]",
                                              "Action Input: ",
                                              "Observation:",
                                              "<｜DSML｜tool_calls>",
                                              "</｜DSML｜tool_calls>",
                                              "<｜DSML｜invoke name=\"f\">",
                                              "</｜DSML｜invoke>",
                                              "<｜DSML｜parameter name=\"a\" string=\"false\">",
                                              "</｜DSML｜parameter>",
                                              "[TOOL_CALLS]",
                                              "f[ARGS]",
                                              "[CALL_ID]",
                                              "<|python_tag|>",
                                              "{\"name\": \"f\", \"parameters\": {}}",
                                              ";",
                                              ",",
                                              ":",
                                              "1"};
  CounterRng rng(17);
  for (const char* parser : {"hermes_qwen", "cline", "vcp", "react", "dsml", "mistral", "llama3_json"}) {
    for (int round = 0; round < 1500; ++round) {
      std::string text;
      const uint64_t count = 1 + rng.next_below(12);
      for (uint64_t k = 0; k < count; ++k) text += fragments[rng.next_below(fragments.size())];
      const std::string whole = parsed(parser, text);
      ASSERT_EQ(streamed(parser, text, 1, 1), whole) << parser << ": " << text;
      ASSERT_EQ(streamed(parser, text, rng.next_u64(), 9), whole) << parser << ": " << text;
    }
  }
}

TEST(ToolCalls, TextFlowsWhileItCannotBeACall) {
  ToolCallStream stream(tool_call_parser("hermes_qwen"));
  auto events = stream.push("a < b");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].content, "a < b");
  EXPECT_TRUE(stream.push(" <tool_").empty());
  EXPECT_TRUE(stream.push("call>{\"name\": \"f\", ").empty());
  EXPECT_TRUE(stream.push("\"arguments\": {}}").empty());
  events = stream.push("</tool_call>");
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(events[0].calls.size(), 1u);
  EXPECT_EQ(events[0].calls[0].name, "f");
  EXPECT_TRUE(stream.finish().empty());
}

TEST(ToolCalls, ReasoningIsTakenOffFirst) {
  const auto parser = tool_call_parser("hermes_qwen");
  const ToolCallParser& hermes = *parser;
  ParsedReply reply = parse_reply(hermes, "<think>\nmaybe <tool_call>\n</think>\n\nanswer");
  EXPECT_EQ(reply.reasoning, "maybe <tool_call>");
  EXPECT_EQ(reply.content, "answer");
  EXPECT_TRUE(reply.calls.empty());
  // The opening tag stood in the prompt.
  reply = parse_reply(hermes, "reason</think>answer");
  EXPECT_TRUE(reply.has_reasoning);
  EXPECT_EQ(reply.reasoning, "reason");
  EXPECT_EQ(reply.content, "answer");
  reply = parse_reply(hermes, "<think>cut");
  EXPECT_EQ(reply.reasoning, "cut");
  EXPECT_EQ(reply.content, "");
  EXPECT_FALSE(parse_reply(hermes, "plain").has_reasoning);
}

TEST(ToolCalls, OpenAiFormHasTextArgumentsAndStableIds) {
  const auto reply = parse_tool_calls(*tool_call_parser("hermes_qwen"),
                                      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>");
  const Json message = openai_message(reply);
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_TRUE(message["content"].is_null());
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "f");
  EXPECT_EQ(call["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(call["id"].get<std::string>().size(), 29u);
  EXPECT_EQ(openai_message(reply), message);
  const auto mistral = parse_tool_calls(
      *tool_call_parser("mistral"), "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{},\"id\":\"abcdefghi\"}]");
  EXPECT_EQ(openai_message(mistral)["tool_calls"][0]["id"], "abcdefghi");
}

TEST(ToolCalls, DetectsInUpstreamsOrder) {
  EXPECT_EQ(detect_tool_call_parser("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
            "hermes_qwen");
  EXPECT_EQ(detect_tool_call_parser("<read_file><path>x</path></read_file>"), "cline");
  EXPECT_EQ(detect_tool_call_parser("Action: f[1]"), "react");
  EXPECT_EQ(detect_tool_call_parser("{\"name\": \"f\", \"parameters\": {}}"), "llama3_json");
  EXPECT_EQ(detect_tool_call_parser("hello {\"a\": 1}"), "");
  EXPECT_EQ(tool_call_parser("cline")->extract_tool_result("[read_file for 'a/b'] Result: text"), "text");
  EXPECT_EQ(tool_call_parser("cline")->extract_tool_result("other"), std::nullopt);
  EXPECT_THROW(tool_call_parser("hermes"), Error);
}

}  // namespace
}  // namespace twinkle
