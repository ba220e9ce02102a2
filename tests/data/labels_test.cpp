// Labels against transformers' return_assistant_tokens_mask: ten families of templates with generation blocks
// (tests/parity/make_label_goldens.py), and without them a table by hand of published templates.
#include "tests/data/data_testing.h"
#include "tests/tiny_model.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

TEST(Labels, EqualTheMasksOfTransformers) {
  const Json goldens = read_json_file(TWINKLE_SOURCE_DIR "/tests/data/label_goldens.json");
  Json config = goldens.at("variables");
  const auto tokenizer = Tokenizer::from_json(read_json_file(test_data("tokenizers/minimind/tokenizer.json")),
                                              config, "minimind");
  int64_t compared = 0, tokens = 0;
  for (const Json& c : goldens.at("cases")) {
    const auto tmpl = make_template("", tokenizer, {.chat_template = c.at("template").get<std::string>()});
    const auto features = tmpl->encode({.messages = c.at("messages")});
    ASSERT_EQ(features.size(), 1u);
    const std::string where = c.at("family").get<std::string>() + " " + c.at("messages").dump().substr(0, 60);
    ASSERT_EQ(features[0].input_ids, c.at("ids").get<std::vector<int32_t>>()) << where;
    const auto mask = c.at("mask").get<std::vector<int>>();
    for (size_t t = 0; t + 1 < mask.size(); ++t) {
      ASSERT_EQ(features[0].labels[t] != kIgnoreIndex, mask[t + 1] == 1) << where << " token " << t + 1;
      if (mask[t + 1] == 1) {
        ASSERT_EQ(features[0].labels[t], features[0].input_ids[t + 1]) << where;
      }
    }
    ++compared;
    tokens += static_cast<int64_t>(mask.size());
  }
  EXPECT_EQ(compared, 50);
  std::printf("%lld conversations, %lld tokens\n", static_cast<long long>(compared),
              static_cast<long long>(tokens));
}

std::vector<std::string> trained_runs(const Template& tmpl, const Trajectory& row) {
  const InputFeature f = tmpl.encode(row).at(0);
  std::vector<std::string> runs;
  std::vector<int32_t> run;
  for (const int32_t label : f.labels) {
    if (label != kIgnoreIndex) {
      run.push_back(label);
    } else if (!run.empty()) {
      runs.push_back(tmpl.decode(run, false));
      run.clear();
    }
  }
  return runs;
}

// What is trained on, turn by turn, in published templates without generation blocks: by hand.
TEST(Labels, PublishedTemplatesByHand) {
  struct Case {
    std::string file;
    std::vector<std::string> trained;
  };
  const std::vector<Case> cases = {
      {"meta-llama-Llama-3.1-8B-Instruct.jinja", {"A1<|eot_id|>", "A2<|eot_id|>"}},
      {"google-gemma-2-2b-it.jinja", {"A1<end_of_turn>\n", "A2<end_of_turn>\n"}},
      {"microsoft-Phi-3.5-mini-instruct.jinja", {"A1<|end|>\n", "A2<|end|>\n<|im_end|>"}},
      {"Qwen-Qwen2.5-7B-Instruct.jinja", {"A1<|im_end|>\n", "A2<|im_end|>\n"}},
      {"01-ai-Yi-1.5-chat.jinja", {"A1<|im_end|>\n", "A2<|im_end|>\n"}},
      {"Kimi-K2-Instruct.jinja", {"A1<|im_end|>", "A2<|im_end|>"}},
  };
  const Json messages = Json::array({{{"role", "user"}, {"content", "Q1"}},
                                     {{"role", "assistant"}, {"content", "A1"}},
                                     {{"role", "user"}, {"content", "Q2"}},
                                     {{"role", "assistant"}, {"content", "A2"}}});
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  for (const Case& c : cases) {
    const auto tmpl =
        make_template("", tokenizer, {.chat_template = read_file(test_data("chat-templates/" + c.file))});
    EXPECT_EQ(trained_runs(*tmpl, {.messages = messages}), c.trained) << c.file;
  }
}

// Thinking and calls of tools: what Jinja2 writes between the prompt for a turn and the end of the turn.
TEST(Labels, ThinkingAndCallsByHand) {
  struct Case {
    std::string file;
    bool calls;
    std::vector<std::string> trained;
  };
  const std::vector<Case> cases = {
      {"Qwen-Qwen3-0.6B.jinja", false, {"<think>\nR1\n</think>\n\nA1<|im_end|>\n"}},
      {"Qwen3.5-4B.jinja", false, {"R1\n</think>\n\nA1<|im_end|>\n"}},
      {"Qwen3.5-4B.jinja",
       true,
       {"\n</think>\n\n<tool_call>\n<function=look>\n<parameter=x>\n1\n</parameter>\n</function>\n"
        "</tool_call><|im_end|>\n",
        "\n</think>\n\nA2<|im_end|>\n"}},
      {"Qwen3-Coder.jinja",
       true,
       {"<tool_call>\n<function=look>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n",
        "A2<|im_end|>\n"}},
      {"deepseek-ai-DeepSeek-V3.1.jinja", false, {"</think>A1<｜end▁of▁sentence｜>"}},
      {"deepseek-ai-DeepSeek-V3.1.jinja",
       true,
       {"</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"x\": "
        "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        "A2<｜end▁of▁sentence｜>"}},
      {"meta-llama-Llama-3.1-8B-Instruct.jinja",
       true,
       {"{\"name\": \"look\", \"parameters\": {\"x\": 1}}<|eot_id|>", "A2<|eot_id|>"}},
      {"mistralai-Mistral-Nemo-Instruct-2407.jinja",
       true,
       {"[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"x\": 1}, \"id\": \"call00001\"}]<|im_end|>",
        "A2<|im_end|>"}},
      {"GLM-4.6.jinja", false, {"\n<think>R1</think>\nA1"}},
  };
  const Json user = {{"role", "user"}, {"content", "Q1"}};
  Json thought = {{"role", "assistant"}, {"content", "A1"}, {"reasoning_content", "R1"}};
  const Json call = Json::parse(R"({"role": "assistant", "content": "", "tool_calls": [{"id": "call00001",
      "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}]})");
  const Json result = {{"role", "tool"}, {"content", "42"}, {"tool_call_id", "call00001"}, {"name", "look"}};
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "look", "description": "d",
      "parameters": {"type": "object", "properties": {"x": {"type": "integer", "description": "n"}}}}}])");
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  for (const Case& c : cases) {
    const auto tmpl =
        make_template("", tokenizer, {.chat_template = read_file(test_data("chat-templates/" + c.file))});
    Trajectory row{.messages = Json::array({user, thought})};
    if (c.calls) {
      row.messages = Json::array({user, call, result, {{"role", "assistant"}, {"content", "A2"}}});
      row.tools = tools;
    }
    EXPECT_EQ(trained_runs(*tmpl, row), c.trained) << c.file;
  }
}

// Gemma 4 writes the results of tools into the turn of the call, the words of the turn behind them, and
// leaves out the thinking of turns before the last question.
TEST(Labels, CallsWhoseResultsStandInTheTurnByHand) {
  const auto tokenizer = Tokenizer::from_json(test::byte_tokenizer({}), Json(), "bytes");
  const auto tmpl = make_template(
      "", tokenizer, {.chat_template = read_file(test_data("chat-templates/google-gemma-4-31B-it.jinja"))});
  const auto user = [](const char* text) { return Json{{"role", "user"}, {"content", text}}; };
  const auto said = [](const char* text) { return Json{{"role", "assistant"}, {"content", text}}; };
  const auto call = [](const Json& content, const char* thinking) {
    Json out = Json::parse(R"({"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
        "function": {"name": "add", "arguments": {"a": 1}}}]})");
    out["content"] = content;
    if (thinking != nullptr) out["reasoning_content"] = thinking;
    return out;
  };
  const Json result = {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "I see 3."}};
  const std::string bare = "<|tool_call>call:add{a:1}<tool_call|><|tool_response>";
  const std::string thought = "<|channel>thought\nhm\n<channel|>" + bare;
  struct Case {
    Json messages;
    std::vector<std::string> trained;
  };
  const std::string three = "It is 3.<turn|>\n", np = "np<turn|>\n", see = "I see<turn|>\n";
  const Json block = Json::array({{{"type", "text"}, {"text", " I see "}}});
  const std::vector<Case> cases = {
      {{user("q"), call("", "hm"), result, said("It is 3.")}, {thought, three}},
      {{user("q"), call("", "hm"), result, said("It is 3."), user("thanks"), said("np")}, {bare, three, np}},
      {{user("q"), call("", nullptr), result, said("It is 3."), user("thanks"), said("np")},
       {bare, three, np}},
      // The last words run into the next turn of the same speaker.
      {{user("q"), call("I see", nullptr), result, said("It is 3.")}, {bare, see + three}},
      {{user("q"), call(block, nullptr), result, said("It is 3.")}, {bare, see + three}},
      {{user("q"), call("I see", "hm"), result, said("It is 3.")}, {thought, see + three}},
      {{user("q"), call("I see", "hm"), result, said("It is 3."), user("thanks"), said("np")},
       {bare, see + three, np}},
      {{user("q"), call("I see", "hm"), result, call("I see", "hm"), result, user("thanks"), said("np")},
       {bare, see + bare, see, np}},
  };
  for (const Case& c : cases)
    EXPECT_EQ(trained_runs(*tmpl, {.messages = c.messages}), c.trained) << c.messages;
}

}  // namespace
}  // namespace twinkle
