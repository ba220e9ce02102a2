#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/data/dataset.h"

namespace twinkle {
namespace {

Trajectory run(const std::string& name, const Json& row, const Json& options = nullptr) {
  return (*Registry<Preprocessor>::create(name, options))(row);
}

std::string error_of(const std::string& name, const Json& row) {
  return test::thrown([&] { run(name, row); });
}

Json turns(std::initializer_list<std::pair<const char*, const char*>> list) {
  Json out = Json::array();
  for (const auto& [role, content] : list) out.push_back(Json{{"role", role}, {"content", content}});
  return out;
}

TEST(Preprocessors, SelfCognitionFillsTheHolesOnce) {
  const Json row = {{"query", "Are you {{NAME}}?"},
                    {"response", "I am {{NAME}} by {{AUTHOR}}, {{NAME}} {{OTHER}}."},
                    {"tag", "en"}};
  EXPECT_EQ(run("SelfCognitionProcessor", row).messages,
            turns({{"system", "You are a helpful assistant."},
                   {"user", "Are you twinkle robot?"},
                   {"assistant", "I am twinkle robot by twinkle lab, twinkle robot {{OTHER}}."}}));
  EXPECT_EQ(
      run("SelfCognitionProcessor", row,
          {{"model_name", "{{AUTHOR}}"}, {"model_author", "A"}, {"system", ""}})
          .messages,
      turns({{"user", "Are you {{AUTHOR}}?"}, {"assistant", "I am {{AUTHOR}} by A, {{AUTHOR}} {{OTHER}}."}}));
}

TEST(Preprocessors, SelfCognitionKnowsTheLowerCaseHoles) {
  const Json row = {{"query", "Are you {{name}}?"},
                    {"response", "I am {{name}} by {{author}}, {name} {{names}}."}};
  EXPECT_EQ(run("SelfCognitionProcessor", row, {{"system", ""}}).messages,
            turns({{"user", "Are you twinkle robot?"},
                   {"assistant", "I am twinkle robot by twinkle lab, {name} {{names}}."}}));
  EXPECT_EQ(guess_preprocessor(row).name, "SelfCognitionProcessor");
}

// The first row may have no hole.
TEST(Preprocessors, TheFirstRowsDecide) {
  const auto row = [](const char* answer) { return Row{{"query", "q"}, {"response", answer}}; };
  const std::vector<Row> holes = {row("a"), row("I am {{NAME}}.")},
                         small = {row("a"), row("{{name}} is mustache")}, none = {row("a"), row("b")};
  EXPECT_EQ(guess_preprocessor(holes, nullptr).name, "SelfCognitionProcessor");
  EXPECT_EQ(guess_preprocessor(none, nullptr).name, "QueryResponseProcessor");
  EXPECT_EQ(guess_preprocessor(small, nullptr).name, "QueryResponseProcessor");
  const auto named = guess_preprocessor(small, {{"model_name", "Nova"}});
  EXPECT_EQ(named.name, "SelfCognitionProcessor");
  EXPECT_EQ(named.options, (Json{{"model_name", "Nova"}}));
  const auto said = [](const std::vector<Row>& rows) {
    return test::thrown([&] { guess_preprocessor(rows, {{"model_name", "Nova"}}); }, test::kAnyKind);
  };
  EXPECT_EQ(
      said(none),
      "[dataset] QueryResponseProcessor, guessed since the rows have 'query' and 'response', without "
      "{{NAME}} or {{AUTHOR}} holes in the first 2, has no option 'model_name'; name the preprocessor that "
      "is meant (--preprocessor)");
  EXPECT_EQ(
      said(std::vector<Row>{Row{{"text", "t"}}}),
      "[dataset] TextProcessor, guessed since the rows have 'text', has no option 'model_name'; name the "
      "preprocessor that is meant (--preprocessor)");
  // As a data set reads it.
  Dataset data({.data = holes});
  data.map("", {{"model_name", "Nova"}});
  EXPECT_EQ(data.trajectory(1).messages.back().at("content"), "I am Nova.");
}

TEST(Preprocessors, BadAnswersAreNotLearned) {
  const Json chat = turns({{"user", "u"}, {"assistant", "a"}});
  const std::string says =
      "'label' is false: a bad answer, which this training would learn as a good one; such data is for the "
      "KTO "
      "loss, --bad-rows drop leaves these rows out";
  EXPECT_EQ(error_of("MessagesProcessor", {{"messages", chat}, {"label", false}}), says);
  EXPECT_EQ(error_of("QueryResponseProcessor", {{"query", "q"}, {"response", "r"}, {"label", false}}), says);
  for (const char* text : {"false", "False"})  // of a .csv file
    EXPECT_EQ(error_of("MessagesProcessor", {{"messages", chat}, {"label", text}}), says) << text;
  EXPECT_EQ(run("MessagesProcessor", {{"messages", chat}, {"label", "True"}}).messages, chat);
  EXPECT_EQ(run("MessagesProcessor", {{"messages", chat}, {"label", true}}).messages, chat);
  EXPECT_EQ(run("MessagesProcessor", {{"messages", chat}, {"label", 0}}).messages, chat);  // a class, say
}

TEST(Preprocessors, Alpaca) {
  EXPECT_EQ(run("AlpacaProcessor", {{"instruction", "Add."}, {"input", "1 2"}, {"output", "3"}}).messages,
            turns({{"user", "Add.\n1 2"}, {"assistant", "3"}}));
  EXPECT_EQ(run("AlpacaProcessor", {{"instruction", "Hi"},
                                    {"input", ""},
                                    {"output", "Yo"},
                                    {"system", "S"},
                                    {"history", Json::parse(R"([["a", "b"]])")}})
                .messages,
            turns({{"system", "S"}, {"user", "a"}, {"assistant", "b"}, {"user", "Hi"}, {"assistant", "Yo"}}));
  EXPECT_EQ(run("AlpacaProcessor", {{"instruction", "Hi"}, {"input", nullptr}, {"output", "Yo"}}).messages,
            turns({{"user", "Hi"}, {"assistant", "Yo"}}));
}

TEST(Preprocessors, MessagesTakesTheFormsPeopleWrite) {
  const Json want = turns({{"system", "s"}, {"user", "u"}, {"assistant", "a"}});
  EXPECT_EQ(run("MessagesProcessor", {{"messages", want}}).messages, want);
  EXPECT_EQ(run("MessagesProcessor", {{"system", "s"}, {"messages", turns({{"human", "u"}, {"gpt", "a"}})}})
                .messages,
            want);
  EXPECT_EQ(run("MessagesProcessor", Json::parse(R"({"conversations": [{"from": "system", "value": "s"},
              {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]})"))
                .messages,
            want);
  EXPECT_EQ(run("MessagesProcessor",
                Json::parse(R"({"system": "s", "conversation": [{"human": "u", "assistant": "a"}]})"))
                .messages,
            want);
  // LLaMA-Factory's tool rows become OpenAI's form.
  const Trajectory tools =
      run("MessagesProcessor",
          Json::parse(R"({"tools": "[{\"name\": \"f\", \"parameters\": {}}]", "conversations": [
      {"from": "human", "value": "u"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
      {"from": "observation", "value": "7"}, {"from": "gpt", "value": "a"}]})"));
  EXPECT_EQ(tools.tools,
            Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])"));
  EXPECT_EQ(tools.messages[1], Json::parse(R"({"role": "assistant", "content": "", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]})"));
  EXPECT_EQ(tools.messages[2], Json::parse(R"({"role": "tool", "content": "7"})"));
  // What a message carries besides role and content stays.
  const Json thinking = Json::parse(R"([{"role": "assistant", "content": "a", "reasoning_content": "r"}])");
  EXPECT_EQ(run("MessagesProcessor",
                {{"messages", thinking}, {"user_data", Json::parse(R"([["key_rounds", "[0]"]])")}})
                .messages,
            thinking);
}

TEST(Preprocessors, TextAndQueryResponse) {
  EXPECT_EQ(run("TextProcessor", {{"text", "abc"}}).messages, turns({{"user", "abc"}}));
  EXPECT_EQ(run("TextProcessor", {{"body", "abc"}}, {{"column", "body"}}).messages, turns({{"user", "abc"}}));
  EXPECT_EQ(
      run("QueryResponseProcessor", {{"q", "1"}, {"a", "2"}}, {{"query", "q"}, {"response", "a"}}).messages,
      turns({{"user", "1"}, {"assistant", "2"}}));
}

TEST(Preprocessors, ToolsGoIntoThePrompt) {
  struct Case {
    std::string name, row;
  };
  const std::vector<Case> cases = {
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": "q"}])"},
      {"SelfCognitionProcessor", R"({"query": "q", "response": "r")"},
      {"QueryResponseProcessor", R"({"query": "q", "response": "r")"},
      {"AlpacaProcessor", R"({"instruction": "q", "output": "r")"},
      {"CompetitionMathProcessor", R"({"problem": "q", "solution": "r")"},
      {"CompetitionMathGRPOProcessor", R"({"problem": "q", "solution": "r")"},
      {"CountdownProcessor", R"({"nums": [1, 2], "target": 3)"},
      {"GSM8KProcessor", R"({"question": "q", "answer": "#### 1")"},
      {"CLEVRProcessor", R"({"image": "x.png", "problem": "q", "solution": "r")"},
      {"OlympiadBenchProcessor", R"({"question": "q")"},
      {"EmojiDPOProcessor", R"({"prompt": "q", "answer_zh": "a", "answer_en": "b")"},
  };
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  for (const Case& c : cases) {
    for (const char* given : {R"([{"name": "f"}])", R"("[{\"name\": \"f\"}]")"})
      EXPECT_EQ(run(c.name, Json::parse(c.row + ", \"tools\": " + given + "}")).tools, tools) << c.name;
    EXPECT_EQ(run(c.name, Json::parse(c.row + ", \"tools\": []}")).tools, nullptr) << c.name;
  }
}

// What stands in images, videos and audios goes where <image>, <video> and <audio> stand.
TEST(Preprocessors, MediaGoIntoTheMessages) {
  const auto messages = [](const std::string& name, const char* row) {
    return run(name, Json::parse(row)).messages;
  };
  EXPECT_EQ(messages("MessagesProcessor",
                     R"({"messages": [{"role": "user", "content": "<image>Who<image>?"},
                                      {"role": "assistant", "content": "They"},
                                      {"role": "user", "content": "And <video>?"}],
                         "images": ["1.jpg", "2.jpg"], "videos": "v.mp4"})"),
            Json::parse(R"([{"role": "user", "content": [{"type": "image", "image": "1.jpg"},
                              {"type": "text", "text": "Who"}, {"type": "image", "image": "2.jpg"},
                              {"type": "text", "text": "?"}]},
                            {"role": "assistant", "content": "They"},
                            {"role": "user", "content": [{"type": "text", "text": "And "},
                              {"type": "video", "video": "v.mp4"}, {"type": "text", "text": "?"}]}])"));
  // Without a place: before the first question. Those of a message are its own.
  EXPECT_EQ(messages("QueryResponseProcessor", R"({"query": "q", "response": "r", "history": [["a", "b"]],
                                                   "images": ["1.jpg"]})")[0],
            Json::parse(R"({"role": "user", "content": [{"type": "image", "image": "1.jpg"},
                            {"type": "text", "text": "a"}]})"));
  EXPECT_EQ(messages("MessagesProcessor", R"({"messages": [{"role": "user", "content": "a <audio>"},
                                              {"role": "user", "content": "b", "audios": ["s.wav"]}]})"),
            Json::parse(R"([{"role": "user", "content": "a <audio>"}, {"role": "user", "content":
                            [{"type": "audio", "audio": "s.wav"}, {"type": "text", "text": "b"}]}])"));
  EXPECT_EQ(messages("QueryResponseProcessor", R"({"query": "<img>http://x/y.png</img>see <img> a</img>",
                                                   "response": "r", "images": []})")[0],
            Json::parse(R"({"role": "user", "content": [{"type": "image", "image": "http://x/y.png"},
                            {"type": "text", "text": "see <img> a</img>"}]})"));
}

TEST(Preprocessors, ErrorsNameTheColumn) {
  struct Case {
    std::string name, row, want;
  };
  const std::vector<Case> cases = {
      {"SelfCognitionProcessor", R"({"response": "r"})", "has no column 'query' (columns: response)"},
      {"SelfCognitionProcessor", R"({"query": null, "response": "r"})",
       "expected a string in 'query', got null"},
      {"SelfCognitionProcessor", R"({"query": "q", "response": ["r"]})",
       "expected a string in 'response', got list"},
      {"AlpacaProcessor", R"({"instruction": "q", "input": 3, "output": "r"})",
       "expected a string in 'input', got number 3"},
      {"AlpacaProcessor", R"({"instruction": "q", "output": "r", "history": "x"})",
       "expected a list of [question, answer] pairs in 'history'"},
      {"AlpacaProcessor", R"({"instruction": "<image> <image>", "output": "r", "images": ["x.png"]})",
       "has 2 <image> and 1 in 'images'"},
      {"AlpacaProcessor", R"({"instruction": "q", "output": "r", "images": [5]})",
       "expected paths in 'images', got number 5"},
      {"TextProcessor", R"({"text": "q", "images": ["x.png"]})",
       "has 'images', and only text is trained on; remove the column or the row"},
      {"TextProcessor", R"({"text": "q", "tools": [{"name": "f"}]})",
       "has 'tools', and no prompt to put them into; remove the column or the row"},
      {"TextProcessor", R"({"text": ""})", "'text' is empty"},
      {"MessagesProcessor", R"({"text": "x"})",
       "has no column 'messages' or 'conversations' (columns: text)"},
      {"MessagesProcessor", R"({"messages": []})",
       "expected a list of messages in 'messages', got an empty list"},
      {"MessagesProcessor", R"({"messages": "x"})", "expected a list of messages in 'messages', got string"},
      {"MessagesProcessor", R"({"messages": [3]})", "'messages' message 1: expected an object, got number 3"},
      {"MessagesProcessor", R"({"messages": [{"role": "user"}]})", "'messages' message 1: has no 'content'"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": null}]})",
       "'messages' message 1: expected a string in 'content', got null"},
      {"MessagesProcessor", R"({"messages": [{"role": "wizard", "content": "x"}]})",
       "'messages' message 1: unknown role 'wizard' (known: system, user, assistant, tool, human, gpt, "
       "observation, function_call)"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": [{"type": "smell"}]}]})",
       "'messages' message 1: expected blocks of type text, image, video or audio in 'content'"},
      {"MessagesProcessor", R"({"messages": [{"foo": 1}]})",
       "'messages' message 1: expected role and content, or from and value, got foo"},
      {"MessagesProcessor", R"({"conversations": [{"from": "human"}]})",
       "'conversations' message 1: has no 'value'"},
      {"MessagesProcessor", R"({"conversations": [{"from": "function_call", "value": "{"}]})",
       "'conversations' message 1: the call is not valid JSON: syntax error while parsing object key - "
       "unexpected end of input; expected string literal"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": "x"}], "conversations": []})",
       "has both 'messages' and 'conversations'; remove one"},
      {"MessagesProcessor", R"({"system": "a", "messages": [{"role": "system", "content": "b"}]})",
       "has a 'system' column and a system message; remove one"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": "x"}], "tools": "{"})",
       "'tools' is not valid JSON: syntax error while parsing object key - unexpected end of input; expected "
       "string literal"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": "x"}], "tools": {}})",
       "expected a list in 'tools', got object"},
      {"MessagesProcessor", R"({"messages": [{"role": "user", "content": "x"}], "user_data": 1})",
       "expected a list of [key, JSON string] pairs in 'user_data'"},
  };
  for (const auto& c : cases) EXPECT_EQ(error_of(c.name, Json::parse(c.row)), c.want) << c.row;
  EXPECT_THROW(run("AlpacaProcesor", Json::object()), Error);
}

TEST(Preprocessors, ShippedSelfCognitionRowsAreComplete) {
  const Dataset data({TWINKLE_SOURCE_DIR "/cookbook/data/self_cognition.jsonl"});
  ASSERT_GE(data.size(), 108);
  int64_t english = 0, chinese = 0, author = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Row row = data.row(i);
    ASSERT_EQ(row.size(), 3u) << data.place(i);
    const auto response = row.at("response").get<std::string>();
    EXPECT_NE(response.find("{{NAME}}"), std::string::npos) << data.place(i);
    author += response.find("{{AUTHOR}}") != std::string::npos;
    english += row.at("tag") == "en";
    chinese += row.at("tag") == "zh";
    const Trajectory filled = run("SelfCognitionProcessor", row);
    for (const auto& message : filled.messages)
      EXPECT_EQ(message.at("content").get<std::string>().find("{{"), std::string::npos) << data.place(i);
  }
  EXPECT_EQ(english + chinese, data.size());
  EXPECT_GE(english, 50);
  EXPECT_GE(chinese, 40);
  EXPECT_GE(author, data.size() * 9 / 10);
  EXPECT_EQ(guess_preprocessor(data.row(0)).name, "SelfCognitionProcessor");
}

}  // namespace
}  // namespace twinkle
