// Quality filters: what each drops and keeps, with upstream's reasons, and what they do to a data set.
#include "twinkle/data/quality_filter.h"

#include "tests/data/data_testing.h"
#include "tests/thrown.h"

namespace twinkle {
namespace {

Json said(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }
Trajectory talk(const std::string& question, const std::string& answer) {
  return {.messages = Json::array({said("user", question), said("assistant", answer)})};
}
const std::string kQuestion = "How do I boil an egg?";
const std::string kAnswer =
    "Put the egg into boiling water, wait for eight minutes, and then cool it down under running water.";

std::string reason(const std::string& name, const Trajectory& conversation, const Json& options = nullptr) {
  return Registry<QualityFilter>::create(name, options)->drop_reason(conversation);
}
Json edited(const std::string& name, Trajectory conversation, const Json& options = nullptr) {
  Registry<QualityFilter>::create(name, options)->edit(&conversation);
  return conversation.messages;
}

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
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), {{"max_msg_chars", 40}}),
            "invalid_messages");
  EXPECT_EQ(reason("MessageSanityFilter", talk(kQuestion, kAnswer), {{"extra_sensitive_words", {"BOILING"}}}),
            "filter_sensitive");
  Json call = said("assistant", ""), result = said("tool", "42");
  call["tool_calls"] = Json::array({{{"id", "c1"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}});
  result["tool_call_id"] = "c1";
  const Json whole = Json::array({said("user", "q"), call, result, said("assistant", "42")});
  EXPECT_EQ(reason("MessageSanityFilter", of(whole)), "");
  Json other = whole;
  other[2]["tool_call_id"] = "c2";
  EXPECT_EQ(reason("MessageSanityFilter", of(other)), "check_tool_matching");
  EXPECT_EQ(edited("MessageSanityFilter",
                   of(Json::array({said("user", "a"), said("assistant", "b"), said("user", "c")}))),
            talk("a", "b").messages);
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

}  // namespace
}  // namespace twinkle
