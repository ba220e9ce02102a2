// Filters by a row's columns, by tokens, and those that bring conversations to one form or find what they are
// about.
#include <atomic>

#include "tests/data/filter_testing.h"
#include "tests/tiny_model.h"

namespace twinkle {
namespace {

std::string of_row(const Row& row, const Json& options = nullptr) {
  return Registry<QualityFilter>::create("ModelFilter", options)->row_drop_reason(row);
}

TEST(ModelFilter, KeepsWhatAllowedModelsWrote) {
  for (const char* name : {"Qwen/Qwen3-235B-A22B", "qwen2.5-7b-instruct", "deepseek-ai/DeepSeek-R1",
                           "zai-org/GLM-4.6", "moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M2"})
    EXPECT_EQ(of_row({{"model_id", name}}), "") << name;
  for (const char* name : {"gpt-4o", "mistral-large", "notqwen3", "qwen", ""})
    EXPECT_EQ(of_row({{"model_id", name}}), "model_not_allowed") << name;
  EXPECT_EQ(of_row({{"model_id", 3}}), "model_not_allowed");
  EXPECT_EQ(of_row(Row::object()), "model_not_allowed");
  const Json own = {{"patterns", {"gpt-4.*", "a|b"}}, {"field", "by"}};
  EXPECT_EQ(of_row({{"by", "GPT-4o"}}, own), "");
  EXPECT_EQ(of_row({{"by", "b"}}, own), "");
  EXPECT_EQ(of_row({{"by", "xb"}}, own), "model_not_allowed");  // the whole name
  EXPECT_EQ(of_row({{"model_id", "gpt-4o"}}, own), "model_not_allowed");
  EXPECT_HAS(refused("ModelFilter", {{"patterns", {"a("}}}), "[ModelFilter] patterns 'a('");
  EXPECT_HAS(refused("ModelFilter", {{"patterns", Json::array()}}), "allows no model");
}

TEST(ModelFilter, ReadsTheColumnBeforeThePreprocessor) {
  const auto row = [](const char* model) -> Row {
    return {{"query", "q"}, {"response", "r"}, {"model_id", model}};
  };
  Dataset data(DatasetMeta{.data = {row("gpt-4o"), row("Qwen/Qwen3-8B")}});
  data.quality_filter("ModelFilter");
  ASSERT_EQ(data.size(), 1);
  EXPECT_EQ(data.filtered()[0].reason, "row 1: ModelFilter: model_not_allowed");
}

TEST(TokenNumFilter, CountsTheAnswersTokens) {
  const test::TempDir dir;
  test::write_text(dir / "tokenizer.json", test::byte_tokenizer({"<|end|>"}).dump());  // a byte is a token
  const auto with = [&](int64_t least, int64_t most, const char* role = "assistant") -> Json {
    return {{"hf_tokenizer", dir.path()}, {"min_num", least}, {"max_num", most}, {"role", role}};
  };
  Trajectory two = talk("0123456789abcdef", "12345");
  two.messages.push_back(said("assistant", "6789"));  // joined by a blank: ten bytes
  EXPECT_EQ(reason("TokenNumFilter", two, with(10, 10)), "");
  EXPECT_EQ(reason("TokenNumFilter", two, with(11, 20)), "token_num");
  EXPECT_EQ(reason("TokenNumFilter", two, with(0, 9)), "token_num");
  EXPECT_EQ(reason("TokenNumFilter", two, with(16, 16, "user")), "");
  // Text that spells a special token is text.
  EXPECT_EQ(reason("TokenNumFilter", talk("q", "<|end|>"), with(7, 7)), "");
  EXPECT_HAS(refused("TokenNumFilter", nullptr), "needs 'hf_tokenizer'");
  EXPECT_HAS(refused("TokenNumFilter", with(5, 4)), "max_num 4 is less than min_num 5");
  EXPECT_HAS(refused("TokenNumFilter", {{"hf_tokenizer", dir / "none"}}), "none");
}

Trajectory of(const Json& messages) { return {.messages = messages}; }

TEST(MessageNormalizer, CallsInTextsBecomeToolCalls) {
  const Json got = edited(
      "MessageNormalizer",
      of(Json::array({
          said("developer", "be brief"),
          said("user", "weather?"),
          said("assistant",
               "<think>\nlook\n</think>\nI look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>"),
          said("user", "sunny"),
          said("assistant", "It is sunny."),
      })));
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[0], said("system", "be brief"));
  EXPECT_EQ(got[2], Json::parse(R"({"role": "assistant", "content": "I look.", "reasoning_content": "look",
      "tool_calls": [{"id": "call_norm_0001", "type": "function",
                      "function": {"name": "get", "arguments": "{\"city\":\"Rome\"}"}}]})"));
  EXPECT_EQ(got[3], Json::parse(R"({"role": "tool", "tool_call_id": "call_norm_0001", "content": "sunny"})"));
  EXPECT_EQ(got[4], said("assistant", "It is sunny."));
}

TEST(MessageNormalizer, ResultsFollowTheirCalls) {
  // Two calls: only what the format marks as a result is one.
  const std::string two = "<read_file><path>a</path></read_file>\n<read_file><path>b</path></read_file>";
  const Json got =
      edited("MessageNormalizer",
             of(Json::array({said("user", "q"), said("assistant", two),
                             said("user", "[read_file for 'a'] Result: A"),
                             said("user", "[read_file for 'b'] Result: B"), said("assistant", "done")})));
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[1].at("tool_calls").size(), 2u);
  EXPECT_EQ(got[2], Json::parse(R"({"role": "tool", "tool_call_id": "call_norm_0001", "content": "A"})"));
  EXPECT_EQ(got[3], Json::parse(R"({"role": "tool", "tool_call_id": "call_norm_0002", "content": "B"})"));
  const Json other =
      edited("MessageNormalizer",
             of(Json::array({said("user", "q"), said("assistant", two), said("user", "thanks")})));
  EXPECT_EQ(other[2], said("user", "thanks"));
}

TEST(MessageNormalizer, WhatIsNoCallStaysText) {
  const std::string json = R"({"name": "get", "parameters": {"x": 1}})";
  Trajectory plain = talk("as JSON please", json);
  EXPECT_EQ(edited("MessageNormalizer", plain), plain.messages);  // nothing says that it is a call
  const auto tool = [](const char* name) -> Json {
    return Json::array({{{"type", "function"}, {"function", {{"name", name}}}}});
  };
  plain.tools = tool("get");
  EXPECT_EQ(edited("MessageNormalizer", plain)[1].at("tool_calls")[0].at("function").at("name"), "get");
  plain.tools = tool("other");
  EXPECT_EQ(edited("MessageNormalizer", plain), plain.messages);  // no such tool
  const Trajectory call = talk("q", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(edited("MessageNormalizer", call, {{"normalize_tool_calls", false}}), call.messages);
}

TEST(MessageNormalizer, MessagesOfOneRoleBecomeOne) {
  Json weighed = said("user", "c");
  weighed["weight"] = 0.5;
  Trajectory conversation =
      of(Json::array({said("system", " "), said("user", "a"), said("user", ""), said("user", "b"), weighed,
                      said("assistant", "x"), said("assistant", "y"), said("user", "z")}));
  conversation.user_data = Json::array({Json::array({"key_rounds", "[6]"}), Json::array({"id", "7"}),
                                        Json::array({"intents", R"({"6": "code"})"})});
  const Trajectory got = edited_by("MessageNormalizer", conversation);
  EXPECT_EQ(got.messages,
            Json::array({said("user", "a\nb"), weighed, said("assistant", "x\ny"), said("user", "z")}));
  // Places in user_data follow their messages.
  EXPECT_EQ(quality::user_data_of(got, "key_rounds"), Json::array({2}));
  EXPECT_EQ(quality::user_data_of(got, "intents"), Json({{"2", "code"}}));
  EXPECT_EQ(quality::user_data_of(got, "id"), 7);
  const Json blocks = Json::parse(R"([{"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "user", "content": [{"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}])");
  const Json merged = edited("MessageNormalizer", of(blocks));
  ASSERT_EQ(merged.size(), 2u);  // blocks are not joined with a text
  EXPECT_EQ(merged[0].at("content").size(), 2u);
  // Without an answer yet, as prompts of a reward have it.
  const Trajectory prompt = talk("1+1?", "");
  EXPECT_EQ(edited("MessageNormalizer", prompt), prompt.messages);
}

TEST(MessageNormalizer, SignsOfLifeGo) {
  const Json got = edited(
      "MessageNormalizer",
      of(Json::array({said("user", "Read HEARTBEAT.md if it exists."), said("assistant", "HEARTBEAT_OK"),
                      said("user", "What is a normal heartbeat at rest?"),
                      said("assistant", "A heartbeat of 60 to 100 a minute."), said("user", "anything?"),
                      said("assistant", "HEARTBEAT_OK"), said("user", "[keep-alive]"),
                      said("assistant", "Nothing new.")})));
  EXPECT_EQ(got, Json::array({said("user", "What is a normal heartbeat at rest?"),
                              said("assistant", "A heartbeat of 60 to 100 a minute.")}));
  Trajectory none = talk("heartbeat", "HEARTBEAT_OK");
  none.messages = edited("MessageNormalizer", none);
  EXPECT_EQ(reason("MessageNormalizer", none), "invalid_messages");
}

Json intents(const Trajectory& conversation, const Json& options = nullptr) {
  return quality::user_data_of(edited_by("IntentClassifier", conversation, options), "intents");
}

TEST(IntentClassifier, FindsWhatRoundsAreAbout) {
  const std::string code = "```python\nprint('hello')\n```",
                    formula = R"($x=1$, \frac{1}{2}, 3 + 4 = 7, $y$)",
                    lines = "int a = f(1);\nint b = f(2);\nreturn a + b;";
  EXPECT_EQ(intents(talk(kQuestion, code)), Json({{"1", "code"}}));
  EXPECT_EQ(intents(talk(lines, "What of it?")), Json({{"1", "code"}}));  // the question of the round
  EXPECT_EQ(intents(talk(kQuestion, formula)), Json({{"1", "math"}}));
  EXPECT_EQ(intents(talk(kQuestion, "面积 ≥ 3, π ≈ 3.14, a ∈ B, √2")), Json({{"1", "math"}}));
  EXPECT_EQ(intents(talk(kQuestion,
                         "First of all, it boils. Because of that, and therefore, suppose X. On the "
                         "other hand Y. Finally, in conclusion, Z.")),
            Json({{"1", "complex_logic"}}));
  EXPECT_EQ(intents(talk(kQuestion, "<think>" + std::string(200, 't') + "</think>Boil it.")),
            Json({{"1", "reasoning"}}));
  EXPECT_EQ(intents(talk(kQuestion, "<think>" + std::string(199, 't') + "</think>Boil it.")), nullptr);
  EXPECT_EQ(intents(talk(kQuestion, kAnswer)), nullptr);
  EXPECT_EQ(intents(talk("That's wrong, isn't it?", kAnswer)), nullptr);  // of nothing said yet
  Trajectory angry = talk(kQuestion, kAnswer);
  angry.messages.push_back(said("user", "That’s wrong."));
  angry.messages.push_back(said("assistant", "Sorry."));
  angry.messages.push_back(said("user", "ok"));
  angry.messages.push_back(said("assistant", code));
  EXPECT_EQ(intents(angry), Json({{"3", "user_dissatisfaction"}, {"5", "code"}}));
  EXPECT_EQ(intents(angry, {{"detectors", {"code"}}}), Json({{"5", "code"}}));
  angry.messages[1]["tool_calls"] = Json::array({{{"function", {{"name", "f"}}}}});
  EXPECT_EQ(intents(angry), Json({{"1", "tool_call"}}));  // nothing else is looked for
  EXPECT_HAS(refused("IntentClassifier", {{"detectors", {"maths"}}}), "did you mean 'math'?");
}

// A data set asks for both at once, so that a conversation is looked at once.
TEST(IntentClassifier, EditsAndJudgesInOneLook) {
  class Looks : public QualityFilter {
   public:
    void edit(Trajectory*) const override { ++edits; }
    std::string drop_reason(const Trajectory&) const override { return ++reasons > 0 ? "" : "no"; }
    std::string edit_and_judge(Trajectory*) const override { return ++both % 2 == 0 ? "even" : ""; }
    mutable std::atomic<int> edits = 0, reasons = 0, both = 0;
  };
  std::vector<Row> rows(10, {{"query", kQuestion}, {"response", kAnswer}});
  Dataset data(DatasetMeta{.data = rows});
  const auto filter = std::make_shared<Looks>();
  data.quality_filter(filter, "Looks");
  EXPECT_EQ(data.size(), 5);
  EXPECT_EQ(filter->both, 10);
  EXPECT_EQ(filter->edits, 0);
  EXPECT_EQ(filter->reasons, 0);
  const auto classifier = Registry<QualityFilter>::create("IntentClassifier", nullptr);
  for (const std::string& answer : {kAnswer, "```\n" + std::string(20, 'x') + "\n```"}) {
    Trajectory at_once = talk(kQuestion, answer);
    const std::string why = classifier->edit_and_judge(&at_once);
    EXPECT_EQ(why, reason("IntentClassifier", talk(kQuestion, answer)));
    EXPECT_EQ(at_once.user_data, edited_by("IntentClassifier", talk(kQuestion, answer)).user_data);
  }
}

TEST(IntentClassifier, TrainsOnTheRoundsItFinds) {
  Trajectory conversation = talk("hello there", "hi");
  conversation.messages.push_back(said("user", "code?"));
  conversation.messages.push_back(said("assistant", "```\nprint('hello')\n```"));
  conversation.user_data = Json::array({Json::array({"key_rounds", "[1]"})});
  const Trajectory got = edited_by("IntentClassifier", conversation);
  EXPECT_EQ(quality::user_data_of(got, "key_rounds"), Json::array({3}));
  EXPECT_EQ(quality::user_data_of(got, "intent"), "code");
  EXPECT_EQ(reason("IntentClassifier", got), "");
  EXPECT_EQ(reason("IntentClassifier", talk(kQuestion, kAnswer)), "no_key_rounds");
  const Json keep = {{"drop_no_key_rounds", false}, {"intent_field", "about"}};
  EXPECT_EQ(reason("IntentClassifier", talk(kQuestion, kAnswer), keep), "");
  Trajectory stale = talk(kQuestion, kAnswer);
  stale.user_data =
      Json::array({Json::array({"key_rounds", "[1]"}), Json::array({"intents", R"({"1": "math"})"})});
  const Trajectory other = edited_by("IntentClassifier", stale, keep);
  EXPECT_EQ(quality::user_data_of(other, "intents"), nullptr);
  EXPECT_EQ(quality::user_data_of(other, "about"), "other");
  EXPECT_EQ(quality::user_data_of(other, "key_rounds"), nullptr);
}

// Whatever form messages have, each filter says something of them, and takes what it made.
TEST(EveryFilter, TakesOddMessages) {
  const Json odd = Json::parse(R"([
      [], [{}], [{"role": "user"}], [{"role": 5, "content": 5}], [{"role": "assistant", "content": null}],
      [{"role": "system", "content": []}, {"role": "user", "content": [{"type": "image"}, 5, {"text": 5}, {"text": "a"}]}],
      [{"role": "assistant", "content": "", "tool_calls": {}}, {"role": "tool"}],
      [{"role": "assistant", "tool_calls": [5, {}, {"function": 5}, {"function": {"name": 5, "arguments": 5}}]}],
      [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "</think><think>"}],
      [{"role": "assistant", "content": "<tool_call>{"}, {"role": "assistant", "content": {"a": 1}}],
      [{"role": "user", "content": "heartbeat"}, {"role": "user", "content": "heartbeat"}]])");
  int64_t filters = 0;
  for (const ComponentInfo* info : Catalog::instance().of_kind(QualityFilter::kKind)) {
    std::unique_ptr<QualityFilter> filter;
    if (test::thrown([&] { filter = Registry<QualityFilter>::create(info->name); }, test::kAnyKind) != "")
      continue;
    ++filters;
    for (const Json& messages : odd) {
      for (const Json& user_data :
           {Json::array(), Json::array({5, Json::array({"key_rounds"}), Json::array({"key_rounds", "["})})}) {
        Trajectory conversation{.messages = messages, .user_data = user_data};
        for (int round = 0; round < 2; ++round) {
          filter->edit(&conversation);
          filter->drop_reason(conversation);
          filter->key(conversation);
          EXPECT_TRUE(conversation.messages.is_array()) << info->name;
        }
      }
    }
  }
  EXPECT_EQ(filters, 13);
}

}  // namespace
}  // namespace twinkle
