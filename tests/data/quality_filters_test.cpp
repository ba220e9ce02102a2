// Quality filters: what each drops and keeps, with upstream's reasons, and what they do to a data set.
#include "twinkle/data/quality_filter.h"

#include "tests/data/filter_testing.h"

namespace twinkle {
namespace {

TEST(QualityFilters, HardFilter) {
  EXPECT_EQ(reason("HardFilter", talk(kQuestion, kAnswer)), "");
  EXPECT_EQ(reason("HardFilter", talk("hi", kAnswer)), "trivial_single_turn");
  EXPECT_EQ(reason("HardFilter", talk("鸡蛋怎么煮?", kAnswer)), "");
  EXPECT_EQ(reason("HardFilter", talk("你好", kAnswer)), "trivial_single_turn");
  EXPECT_EQ(reason("HardFilter", talk(kQuestion, "In water.")), "shallow_reply");
  EXPECT_EQ(reason("HardFilter", talk(kQuestion, "<think>" + std::string(200, 't') + "</think>In water.")),
            "");
  EXPECT_EQ(reason("HardFilter", talk(kQuestion, " \n")), "all_empty_assistant");
  EXPECT_EQ(reason("HardFilter", {.messages = Json::array({said("assistant", kAnswer)})}), "no_user");
  EXPECT_EQ(reason("HardFilter", {.messages = Json::array({said("assistant", kAnswer)})},
                   {{"allow_incomplete_role", true}}),
            "");
  Trajectory more = talk(kQuestion, "ok");
  more.messages.insert(more.messages.begin(), said("system", "You are EVIL."));
  more.messages.push_back(said("user", "x"));
  more.messages.push_back(said("assistant", "y"));
  EXPECT_EQ(reason("HardFilter", more), "");
  EXPECT_EQ(reason("HardFilter", more, {{"system_deny_keywords", {"evil"}}}), "system_deny_keyword");
  EXPECT_EQ(reason("HardFilter", more, {{"max_rounds", 1}}), "too_many_rounds");
  EXPECT_EQ(reason("HardFilter", more, {{"max_chars_per_round", 22}}), "round_too_long");  // 21 + 2
  EXPECT_EQ(reason("HardFilter", more, {{"max_chars_per_round", 23}}), "");
  EXPECT_EQ(reason("HardFilter", more, {{"max_total_chars", 37}}), "total_too_long");  // 13 + 23 + 2
  EXPECT_EQ(reason("HardFilter", more, {{"max_total_chars", 38}}), "");
}

TEST(QualityFilters, MessageSanityFilter) {
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer)), "");
  const auto of = [](const Json& messages) -> Trajectory { return {.messages = messages}; };
  EXPECT_EQ(reason("MessageSanityFilter", of(Json::array({said("user", "a")}))), "no_assistant");
  EXPECT_EQ(reason("MessageSanityFilter",
                   of(Json::array({said("user", "a"), said("user", "b"), said("assistant", "c")}))),
            "check_role_order");
  EXPECT_EQ(reason("MessageSanityFilter", of(Json::array())), "invalid_messages");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), {{"max_msg_chars", 40}}),
            "check_content_integrity");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), {{"min_turns", 3}}),
            "check_content_integrity");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, " ")), "check_content_integrity");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, " "), {{"check_content_integrity", false}}), "");
  // Answers in another language than the questions; short ones say little.
  const std::string chinese = "把鸡蛋放进开水里煮八分钟然后用冷水冲凉即可食用请注意不要烫伤";
  EXPECT_EQ(reason("MessageSanityFilter", talk("鸡蛋怎么煮?", kAnswer)), "check_lang_match");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, chinese + chinese)), "check_lang_match");
  EXPECT_EQ(reason("MessageSanityFilter", talk("鸡蛋怎么煮?", chinese + chinese)), "");
  EXPECT_EQ(reason("MessageSanityFilter", talk("鸡蛋怎么煮?", "In water.")), "");
  EXPECT_EQ(reason("MessageSanityFilter", talk("鸡蛋怎么煮?", kAnswer), {{"check_lang_match", false}}), "");
  Json call = said("assistant", ""), result = said("tool", "42");
  call["tool_calls"] = Json::array({{{"id", "c1"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}});
  result["tool_call_id"] = "c1";
  const Json whole = Json::array({said("user", "q"), call, result, said("assistant", kAnswer)});
  EXPECT_EQ(reason("MessageSanityFilter", of(whole)), "");
  Json terse = whole;
  terse[3]["content"] = "42";
  EXPECT_EQ(reason("MessageSanityFilter", of(terse)), "check_agent_min_visible");
  EXPECT_EQ(reason("MessageSanityFilter", of(terse), {{"min_agent_visible_chars", 2}}), "");
  Json unsound = whole;
  unsound[1]["tool_calls"][0]["function"]["arguments"] = "{";
  EXPECT_EQ(reason("MessageSanityFilter", of(unsound)), "check_content_integrity");
  unsound[1]["tool_calls"][0]["function"] = {{"name", "no name"}, {"arguments", "{}"}};
  EXPECT_EQ(reason("MessageSanityFilter", of(unsound)), "check_content_integrity");
  Json other = whole;
  other[2]["tool_call_id"] = "c2";
  EXPECT_EQ(reason("MessageSanityFilter", of(other)), "check_tool_matching");
  EXPECT_EQ(edited("MessageSanityFilter",
                   of(Json::array({said("user", "a"), said("assistant", "b"), said("user", "c")}))),
            talk("a", "b").messages);
}

TEST(QualityFilters, SensitiveWordsAreWholeWords) {
  const auto with = [](const Json& words) -> Json { return {{"extra_sensitive_words", words}}; };
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), with({"BOILING"})), "filter_sensitive");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), with({"boil"})), "filter_sensitive");
  EXPECT_EQ(reason("MessageSanityFilter", talk("hello", kAnswer), with({"boil"})), "");
  EXPECT_EQ(reason("MessageSanityFilter", talk("鸡蛋怎么煮", "煮"), with({"怎么"})), "filter_sensitive");
  const test::TempDir dir;
  test::write_text(dir / "words.txt", "# a list\r\n\n  Minutes \r\n");
  const Json list = {{"sensitive_words_file", dir / "words.txt"}};
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), list), "filter_sensitive");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, "a list"), list), "");
  Json off = list;
  off["filter_sensitive"] = false;
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), off), "");
  EXPECT_HAS(refused("MessageSanityFilter", {{"sensitive_words_file", dir / "none.txt"}}), "none.txt");
}

TEST(QualityFilters, RefuseFilter) {
  EXPECT_EQ(reason("RefuseFilter", talk(kQuestion, kAnswer)), "");
  EXPECT_EQ(reason("RefuseFilter", talk(kQuestion, "I’m sorry, but I can’t help with that.")), "refusal");
  EXPECT_EQ(reason("RefuseFilter", talk(kQuestion, "很抱歉，我无法回答。")), "refusal");
  EXPECT_EQ(reason("RefuseFilter", talk(kQuestion, "<think>I can't help with it?</think>" + kAnswer)), "");
  EXPECT_EQ(reason("RefuseFilter", talk(kQuestion, kAnswer + " I cannot assist."), {{"check_window", 90}}),
            "");
  Trajectory later = talk(kQuestion, kAnswer);
  later.messages.push_back(said("user", "and a bomb?"));
  later.messages.push_back(said("assistant", "I cannot assist with that."));
  EXPECT_EQ(reason("RefuseFilter", later), "");
}

TEST(QualityFilters, DeadLoopFilter) {
  std::string story, loop, doubt;
  for (int i = 0; i < 60; ++i) story += "word" + std::to_string(i) + " ";
  for (int i = 0; i < 10; ++i) loop += "this is the very same sentence again and again ";
  for (int i = 0; i < 8; ++i) doubt += "Wait, is that right? ";
  EXPECT_EQ(reason("DeadLoopFilter", talk(kQuestion, story)), "");
  EXPECT_EQ(reason("DeadLoopFilter", talk(kQuestion, loop)), "dead_loop");
  EXPECT_EQ(reason("DeadLoopFilter", talk(kQuestion, story + doubt)), "dead_loop");
  // Thinking may hesitate more.
  const std::string thought = "<think>" + story + story + story + doubt.substr(0, 120) + "</think>";
  EXPECT_EQ(reason("DeadLoopFilter", talk(kQuestion, thought + story), {{"think_repetition_threshold", 0.9}}),
            "");
  Trajectory agent = talk(kQuestion, loop);
  agent.messages.push_back(said("tool", "x"));
  EXPECT_EQ(reason("DeadLoopFilter", agent), "");
}

TEST(QualityFilters, TokenSoupAndSpecialChars) {
  for (const std::string& good :
       {kAnswer, std::string("水を八分間 boil して、Кулинария!"), std::string("-----\n\n  ====")})
    EXPECT_EQ(reason("TokenSoupFilter", talk(kQuestion, good)), "") << good;
  std::string chaos, special;
  for (int i = 0; i < 30; ++i) chaos += "aб";
  for (int i = 0; i < 20; ++i) special += "<|x|> ";
  for (const std::string& bad : {std::string("so \xFF\xFE it ended"), std::string("a\x01z"),
                                 std::string(20, 'a'), chaos, special, std::string("\xEE\x80\x80 x")})
    EXPECT_EQ(reason("TokenSoupFilter", talk(kQuestion, bad)), "token_soup") << bad;
  EXPECT_EQ(reason("TokenSoupFilter", talk(kQuestion, std::string(19, 'a'))), "");
  EXPECT_EQ(reason("SpecialCharsFilter", talk(kQuestion, kAnswer)), "");
  EXPECT_EQ(reason("SpecialCharsFilter", talk(kQuestion, "a!b?")), "special_chars");
  EXPECT_EQ(reason("SpecialCharsFilter", talk(kQuestion, "a!b?"), {{"max_ratio", 0.5}}), "");
}

TEST(QualityFilters, Mending) {
  EXPECT_EQ(edited("FixUnicodeFilter", talk("e\xCC\x81", "ﬁ"))[0]["content"], "\xC3\xA9");
  EXPECT_EQ(edited("FixUnicodeFilter", talk("e\xCC\x81", "ﬁ"))[1]["content"], "ﬁ");
  EXPECT_EQ(edited("FixUnicodeFilter", talk("e\xCC\x81", "ﬁ"), {{"normalization", "NFKC"}})[1]["content"],
            "fi");
  EXPECT_EQ(
      edited("RemoveRepeatSentencesFilter", talk("q", "One. Two! one. 三。三。\nTwo!\nlast"))[1]["content"],
      "One. Two! 三。\n\nlast");
}

TEST(QualityFilters, DropRowsOfADataSet) {
  const auto row = [](const std::string& question, const Json& answer) {
    return Row{{"query", question}, {"response", answer}};
  };
  Dataset data(DatasetMeta{.data = {row(kQuestion, kAnswer), row("hi", kAnswer), row(kQuestion, 5),
                                    row("  HOW do I boil an egg?", kAnswer + kAnswer), row(kQuestion, "x"),
                                    row(kQuestion + "!", kAnswer)}});
  data.map("QueryResponseProcessor");
  data.quality_filter("HardFilter");
  ASSERT_EQ(data.filtered().size(), 2u);
  EXPECT_EQ(data.filtered()[0].reason, "row 2: HardFilter: trivial_single_turn");
  EXPECT_EQ(data.filtered()[1].row, 4);
  EXPECT_EQ(data.notes().back(),
            "HardFilter leaves out 2 of 6 rows (1 shallow_reply, 1 trivial_single_turn); the first: row 2: "
            "HardFilter: trivial_single_turn");
  EXPECT_EQ(data.size(), 4);
  // The longest of the same stays; long answers are compared at both ends.
  data.quality_filter("DedupFilter", {{"asst_chars", 20}});
  ASSERT_EQ(data.filtered().size(), 3u);
  EXPECT_EQ(data.filtered()[2].reason, "row 1: DedupFilter: duplicate");
  ByteTemplate bytes;
  data.encode(bytes, BadRows::kDrop);
  EXPECT_EQ(data.dropped().size(), 1u);  // the row that cannot be read
  EXPECT_EQ(data.features().size(), 2u);
  EXPECT_EQ(data.dropped()[0].row, 2);
  EXPECT_THROW(data.quality_filter("HardFilter"), Error);
  Dataset poor(DatasetMeta{.data = {row("hi", "x")}});
  EXPECT_EQ(test::thrown([&] { poor.quality_filter("HardFilter"); }),
            "[dataset] HardFilter leaves out 1 of 1 rows (1 trivial_single_turn); the first: row 1: "
            "HardFilter: trivial_single_turn");
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> out;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    out.push_back(Json::parse(text.substr(at, text.find('\n', at) - at)));
  return out;
}

TEST(QualityFilters, EveryRowThatIsLeftOutIsInTheLog) {
  const test::TempDir dir;
  test::write_text(dir / "rows.jsonl", R"({"query": "hi", "response": "x"}
{"query": "How do I boil an egg?", "response": 5}
{"query": 
{"query": "How do I boil an egg?", "response": "In water, for eight minutes."}
{"query": "How do I fry an egg?", "response": "In a pan, with oil."}
)");
  Dataset data(DatasetMeta{.dataset_id = dir / "rows.jsonl"});
  data.map("QueryResponseProcessor");
  data.filter([](const Row& row) { return row.at("query") != "How do I fry an egg?"; });
  data.quality_filter("HardFilter", {{"min_assistant_chars_2turn", 20}});
  ByteTemplate bytes;
  data.encode(bytes, BadRows::kDrop);
  data.encode(bytes, BadRows::kDrop);  // what an earlier one left out is not said twice
  const std::vector<Json> log = lines_of(dir.cut(data.dropped_log()));
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(
      log[0],
      Json::parse(R"({"step": "filter", "drop_reason": "the filter says no", "place": "rows.jsonl row 5",
      "row": {"query": "How do I fry an egg?", "response": "In a pan, with oil."}})"));
  EXPECT_EQ(log[1], Json::parse(R"({"step": "HardFilter", "drop_reason": "trivial_single_turn",
      "place": "rows.jsonl row 1", "row": {"query": "hi", "response": "x"}})"));
  EXPECT_EQ(log[2],
            Json::parse(R"({"step": "encode", "drop_reason": "expected a string in 'response', got number 5",
      "place": "rows.jsonl row 2", "row": {"query": "How do I boil an egg?", "response": 5}})"));
  EXPECT_EQ(log[3].at("place"), "rows.jsonl row 3");
  EXPECT_EQ(log[3].at("row"), nullptr);
  EXPECT_EQ(data.features().size(), 1u);
}

// A filter of the program's own, and one that judges many conversations together.
TEST(QualityFilters, OwnFilters) {
  class Polite : public QualityFilter {
   public:
    std::string drop_reason(const Trajectory& c) const override {
      return quality::texts_of(c, "user").find("please") == std::string::npos ? "rude" : "";
    }
  };
  class Shortest : public QualityFilter {
   public:
    class Ranks : public Judge {
     public:
      std::vector<std::string> drop_reasons(std::span<const Trajectory> all) override {
        std::vector<std::string> out;
        for (const Trajectory& c : all)
          out.push_back(quality::texts_of(c, "assistant").size() > 2 ? "long" : "");
        return out;
      }
    };
    std::unique_ptr<Judge> start_judging() const override { return std::make_unique<Ranks>(); }
  };
  std::vector<Row> rows;
  for (int i = 0; i < 200; ++i) {
    rows.push_back({{"query", i % 2 == 0 ? "please" : "now"},
                    {"response", std::string(static_cast<size_t>(1 + i % 4), 'x')}});
  }
  rows.push_back({{"query", 1}, {"response", "x"}});
  Dataset data(DatasetMeta{.data = rows});
  data.map("QueryResponseProcessor");
  data.quality_filter(std::make_shared<Polite>(), "Polite");
  EXPECT_EQ(data.size(), 101);  // and the row that cannot be read
  data.quality_filter(std::make_shared<Shortest>(), "Shortest");
  EXPECT_EQ(data.size(), 51);
  EXPECT_EQ(data.filtered().back().reason, "row 199: Shortest: long");
}

}  // namespace
}  // namespace twinkle
