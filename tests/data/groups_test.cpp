// Preprocessors of tasks, preferences, KTO and embeddings on the shapes that others write, and how their
// parts are encoded.
#include "tests/data/data_testing.h"

namespace twinkle {
namespace {

std::vector<Part> parts_of(const std::string& name, const Json& row, const Json& options = nullptr) {
  return Registry<Preprocessor>::create(name, options)->parts(row);
}
// "name: role=content role=content | ..."
std::string shown(const std::string& name, const Json& row, const Json& options = nullptr) {
  std::string out;
  for (const Part& part : parts_of(name, row, options)) {
    out += (out.empty() ? "" : " | ") + part.name + ":";
    for (const Json& m : part.trajectory.messages)
      out += " " + m.at("role").get<std::string>() + "=" + m.at("content").get<std::string>();
  }
  return out;
}
std::string error_of(const std::string& name, const Json& row) {
  return test::thrown([&] { parts_of(name, row); });
}
std::string data_of(const std::string& name, const Json& row, const std::string& key,
                    const Json& options = nullptr) {
  const std::vector<Part> parts = parts_of(name, row, options);
  for (const Json& pair : parts[0].trajectory.user_data) {
    if (pair[0] == key) return pair[1].get<std::string>();
  }
  return "none";
}

const Json kChosen = {{"from", "gpt"}, {"value", "good"}}, kRejected = {{"from", "gpt"}, {"value", "bad"}};

TEST(PreferenceRows, InEveryoneShapes) {
  const std::string want = "chosen: user=q assistant=good | rejected: user=q assistant=bad";
  EXPECT_EQ(shown("DPOProcessor", {{"conversations", {{{"from", "human"}, {"value", "q"}}}},
                                   {"chosen", kChosen},
                                   {"rejected", kRejected}}),
            want);
  EXPECT_EQ(
      shown("DPOProcessor", {{"instruction", "q"}, {"input", ""}, {"chosen", "good"}, {"rejected", "bad"}}),
      want);
  EXPECT_EQ(shown("DPOProcessor", {{"prompt", "q"}, {"chosen", "good"}, {"rejected", "bad"}}), want);
  const Json user = {{"role", "user"}, {"content", "q"}}, good = {{"role", "assistant"}, {"content", "good"}},
             bad = {{"role", "assistant"}, {"content", "bad"}};
  EXPECT_EQ(shown("DPOProcessor", {{"chosen", {user, good}}, {"rejected", {user, bad}}}), want);
  EXPECT_EQ(shown("DPOProcessor", {{"prompt", Json::array({user})},
                                   {"chosen", Json::array({good})},
                                   {"rejected", Json::array({bad})}}),
            want);
  EXPECT_EQ(shown("DPOProcessor", {{"messages", {user, good}}, {"rejected_response", "bad"}}), want);
  EXPECT_EQ(shown("DPOProcessor", {{"messages", {user, good}}, {"rejected_messages", {user, bad}}}), want);
  EXPECT_EQ(shown("DPOProcessor", {{"query", "q"}, {"response", "good"}, {"rejected_response", "bad"}}),
            want);
  EXPECT_EQ(shown("DPOProcessor", {{"query", "q"}, {"response", "good"}, {"rejected_messages", {user, bad}}}),
            want);
  EXPECT_EQ(
      shown("EmojiDPOProcessor", {{"prompt", "q"}, {"answer_zh", "好"}, {"answer_en", "ok"}}),
      "chosen: system=You are a helpful assistant. user=q assistant=好 | rejected: system=You are a helpful "
      "assistant. user=q assistant=ok");
  EXPECT_EQ(shown("EmojiDPOProcessor", {{"p", "q"}, {"a", "x"}, {"b", "y"}},
                  {{"system", ""}, {"prompt_key", "p"}, {"chosen_key", "a"}, {"rejected_key", "b"}}),
            "chosen: user=q assistant=x | rejected: user=q assistant=y");
  EXPECT_EQ(error_of("DPOProcessor", {{"prompt", "q"}, {"chosen", "good"}}),
            "has no column 'rejected' (columns: prompt, chosen)");
  EXPECT_EQ(error_of("DPOProcessor", {{"prompt", "q"}, {"chosen", "x"}, {"rejected", "x"}}),
            "the chosen and the rejected answer are the same");
}

// The system message stands in front of both conversations, the question once; tools are in both prompts.
TEST(PreferenceRows, SystemMessagesAndToolsAreInEveryPrompt) {
  const Json system = {{"role", "system"}, {"content", "S"}}, user = {{"role", "user"}, {"content", "q"}},
             good = {{"role", "assistant"}, {"content", "good"}},
             bad = {{"role", "assistant"}, {"content", "bad"}};
  const Json whole = {{"chosen", {user, good}}, {"rejected", {user, bad}}},
             answers = {{"chosen", Json::array({good})}, {"rejected", Json::array({bad})}};
  const auto row = [](Json a, const Json& b) {
    a.update(b);
    return a;
  };
  const Json f = {{"name", "f"}}, tools = {{{"type", "function"}, {"function", f}}};
  const std::string want = "chosen: system=S user=q assistant=good | rejected: system=S user=q assistant=bad";
  const std::vector<Json> pairs = {row({{"prompt", "q"}}, whole),
                                   row({{"prompt", "q"}}, answers),
                                   row({{"prompt", Json::array({user})}}, whole),
                                   row({{"prompt", Json::array({user})}}, answers),
                                   whole,
                                   {{"messages", {user, good}}, {"rejected_messages", {user, bad}}},
                                   {{"messages", {user, good}}, {"rejected_response", "bad"}},
                                   {{"query", "q"}, {"response", "good"}, {"rejected_response", "bad"}},
                                   {{"conversations", Json::array({{{"from", "human"}, {"value", "q"}}})},
                                    {"chosen", kChosen},
                                    {"rejected", kRejected}}};
  for (const Json& pair : pairs) {
    const Json given = row({{"system", "S"}, {"tools", Json::array({f})}}, pair);
    EXPECT_EQ(shown("DPOProcessor", given), want) << given;
    for (const Part& part : parts_of("DPOProcessor", given)) EXPECT_EQ(part.trajectory.tools, tools) << given;
  }
  // System messages among the messages.
  const Json led = {{"chosen", {system, user, good}}, {"rejected", {system, user, bad}}};
  EXPECT_EQ(shown("DPOProcessor", led), want);
  EXPECT_EQ(shown("DPOProcessor", row({{"prompt", "q"}}, led)), want);
  EXPECT_EQ(shown("DPOProcessor", row({{"prompt", {system, user}}}, led)), want);
  EXPECT_EQ(shown("DPOProcessor", row({{"prompt", {system, user}}}, whole)), want);
  EXPECT_EQ(error_of("DPOProcessor", row({{"system", "S"}}, led)),
            "has a 'system' column and a system message; remove one");
  const std::string other =
      "'chosen' begins with another system message or question than the row has; give the answer alone, or "
      "repeat the question";
  EXPECT_EQ(error_of("DPOProcessor", row({{"prompt", "other"}}, whole)), other);
  EXPECT_EQ(error_of("DPOProcessor", row({{"prompt", {{{"role", "system"}, {"content", "T"}}, user}}}, led)),
            other);
  const std::vector<Json> judged = {{{"prompt", "q"}, {"completion", "good"}},
                                    {{"prompt", Json::array({user})}, {"completion", Json::array({good})}},
                                    {{"prompt", "q"}, {"completion", {user, good}}},
                                    {{"messages", {user, good}}},
                                    {{"query", "q"}, {"response", "good"}}};
  for (const Json& one : judged) {
    const Json given = row({{"system", "S"}, {"tools", Json::array({f}).dump()}, {"label", true}}, one);
    EXPECT_EQ(shown("KTOProcessor", given), "desirable: system=S user=q assistant=good") << given;
    EXPECT_EQ(parts_of("KTOProcessor", given)[0].trajectory.tools, tools) << given;
  }
}

// "a b|": what is trained on, of every part.
std::string trained(const std::string& name, const Json& row) {
  Dataset data({.data = {row}});
  data.map(name);
  std::string out;
  for (const Part& part : data.parts(0)) {
    for (const Json& m : part.trajectory.messages) {
      if (m.at("role") == "assistant" && m.value("loss", true))
        out += m.at("content").get<std::string>() + " ";
    }
    out += "|";
  }
  return out;
}

// Answers of the prompt are not trained on, as in TRL, where prompt and completion are two columns; of two
// whole conversations the prompt is what both begin with.
TEST(PreferenceRows, OnlyTheAnswerIsTrainedOn) {
  const auto chat = [](const std::string& answers) {
    Json out = Json::array();
    for (const char c : answers) {
      out.push_back({{"role", "user"}, {"content", "q"}});
      out.push_back({{"role", "assistant"}, {"content", std::string(1, c)}});
    }
    return out;
  };
  Json prompt = chat("a");
  prompt.push_back({{"role", "user"}, {"content", "q"}});
  const Json good = Json::array({chat("g")[1]}), bad = Json::array({chat("b")[1]});
  const Json history = Json::array({Json::array({"q", "a"})});
  const Json call = {{"role", "assistant"}, {"content", "c"}, {"tool_calls", Json::array()}},
             result = {{"role", "tool"}, {"content", "r"}};
  const std::vector<std::pair<Json, std::string>> pairs = {
      {{{"prompt", prompt}, {"chosen", good}, {"rejected", bad}}, "g |b |"},
      {{{"prompt", prompt}, {"chosen", chat("ag")}, {"rejected", chat("ab")}}, "g |b |"},
      {{{"prompt", prompt}, {"chosen", {call, result, good[0]}}, {"rejected", {call, result, bad[0]}}},
       "c g |c b |"},
      {{{"prompt", "q"}, {"history", history}, {"chosen", "g"}, {"rejected", "b"}}, "g |b |"},
      {{{"query", "q"}, {"history", history}, {"response", "g"}, {"rejected_response", "b"}}, "g |b |"},
      {{{"chosen", chat("ag")}, {"rejected", chat("ab")}}, "g |b |"},
      {{{"chosen", chat("ag")}, {"rejected", chat("cb")}}, "a g |c b |"},
      {{{"messages", chat("ag")}, {"rejected_messages", chat("ab")}}, "g |b |"},
      {{{"messages", chat("ag")}, {"rejected_response", "b"}}, "g |b |"},
  };
  for (const auto& [row, want] : pairs) EXPECT_EQ(trained("DPOProcessor", row), want) << row;
  EXPECT_EQ(trained("EmojiDPOProcessor",
                    {{"prompt", "q"}, {"history", history}, {"answer_zh", "g"}, {"answer_en", "b"}}),
            "g |b |");
  const std::vector<std::pair<Json, std::string>> judged = {
      {{{"prompt", prompt}, {"completion", good}, {"label", true}}, "g |"},
      {{{"prompt", prompt}, {"completion", {call, result, good[0]}}, {"label", true}}, "c g |"},
      {{{"messages", chat("ag")}, {"label", false}}, "g |"},
      {{{"messages", {prompt[0], call, result, good[0]}}, {"label", true}}, "c g |"},
  };
  for (const auto& [row, want] : judged) EXPECT_EQ(trained("KTOProcessor", row), want) << row;
  // What the row says of a message stays.
  Json told = chat("ag");
  told[1]["weight"] = 0.5;
  EXPECT_EQ(trained("KTOProcessor", {{"messages", told}, {"label", true}}), "a g |");
}

TEST(KtoRows, LabelsAndTags) {
  const Json chat = {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "a"}}};
  EXPECT_EQ(shown("KTOProcessor", {{"messages", chat}, {"label", true}}), "desirable: user=q assistant=a");
  EXPECT_EQ(shown("KTOProcessor", {{"messages", chat}, {"kto_tag", false}}),
            "undesirable: user=q assistant=a");
  EXPECT_EQ(shown("KTOProcessor", {{"prompt", "q"}, {"completion", "a"}, {"label", true}}),
            "desirable: user=q assistant=a");
  for (const char* text : {"false", "False", "FALSE"})
    EXPECT_EQ(parts_of("KTOProcessor", {{"messages", chat}, {"label", text}})[0].name, "undesirable");
  EXPECT_EQ(parts_of("KTOProcessor", {{"messages", chat}, {"label", "True"}})[0].name, "desirable");
  EXPECT_EQ(error_of("KTOProcessor", {{"messages", chat}, {"label", "yes"}}),
            "expected true or false in 'label', got string");
}

TEST(EmbeddingRows, AnchorsPositivesNegatives) {
  const std::string want = "anchor: user=q | positive: user=p | negative: user=n1 | negative: user=n2";
  EXPECT_EQ(shown("EmbeddingProcessor", {{"query", "q"}, {"pos", {"p"}}, {"neg", {"n1", "n2"}}}), want);
  EXPECT_EQ(shown("EmbeddingProcessor", {{"anchor", "q"}, {"positive", "p"}, {"negative", {"n1", "n2"}}}),
            want);
  const Json u = Json::array({{{"role", "user"}, {"content", "q"}}});
  EXPECT_EQ(shown("EmbeddingProcessor", {{"messages", u},
                                         {"positive_messages", Json::array({u})},
                                         {"negative_messages", Json::array({u, u})}}),
            "anchor: user=q | positive: user=q | negative: user=q | negative: user=q");
  EXPECT_EQ(data_of("EmbeddingProcessor", {{"sentence1", "a"}, {"sentence2", "b"}, {"score", 3.8}}, "score"),
            "3.8");
  EXPECT_EQ(error_of("EmbeddingProcessor", {{"query", "q"}, {"pos", Json::array()}}), "has no positive text");
  EXPECT_EQ(error_of("EmbeddingProcessor", {{"anchor", "q"}, {"positive", "p"}, {"system", "s"}}),
            "has 'system', and texts that are compared take none; remove the column");
  EXPECT_EQ(error_of("EmbeddingProcessor", {{"query", "q"}, {"pos", "p"}, {"tools", {{{"name", "f"}}}}}),
            "has 'tools', and no prompt to put them into; remove the column or the row");
}

TEST(TaskRows, AnswersTravelInUserData) {
  EXPECT_EQ(shown("CompetitionMathProcessor", {{"problem", "p"}, {"solution", "s"}}), ": user=p assistant=s");
  EXPECT_EQ(shown("CompetitionMathGRPOProcessor", {{"problem", "p"}, {"solution", "s"}}),
            ": system=You are a helpful math assistant. Respond with only the final answer in the form "
            "\\boxed{...} and "
            "nothing else. user=p assistant=");
  EXPECT_EQ(data_of("CompetitionMathGRPOProcessor", {{"problem", "p"}, {"solution", "s"}}, "solution"),
            "\"s\"");
  const Json gsm = {{"question", "q"}, {"answer", "so\n#### 1,234"}};
  EXPECT_EQ(data_of("GSM8KProcessor", gsm, "ground_truth"), "\"1234\"");
  EXPECT_EQ(shown("GSM8KProcessor", gsm, {{"system", ""}, {"add_assistant", true}}),
            ": user=q assistant=so\n#### 1,234");
  EXPECT_EQ(error_of("GSM8KProcessor", {{"question", "q"}, {"answer", "5"}}),
            "'answer' has no #### before its result");
  const Json countdown = {{"nums", {30, 100, 93}}, {"target", 23}};
  EXPECT_NE(shown("CountdownProcessor", countdown)
                .find("Using the numbers [30, 100, 93], create an equation that equals 23.\n"),
            std::string::npos);
  EXPECT_EQ(shown("CountdownProcessor", {{"nums", "30,100,93"}, {"response", "23"}}),
            shown("CountdownProcessor", countdown));
  EXPECT_EQ(data_of("CountdownProcessor", countdown, "nums"), "[30,100,93]");
  EXPECT_EQ(data_of("CountdownProcessor", countdown, "target"), "23");
  const Json olympiad = {{"question", "q"},   {"context", nullptr},         {"final_answer", {"2", "3"}},
                         {"solution", {"s"}}, {"is_multiple_answer", true}, {"unit", "cm"}};
  EXPECT_EQ(data_of("OlympiadBenchProcessor", olympiad, "ground_truth"), "\"2, 3 cm\"");
  EXPECT_EQ(data_of("OlympiadBenchProcessor", olympiad, "is_multiple_answer"), "true");
  EXPECT_NE(shown("OlympiadBenchProcessor", olympiad, {{"language", "en"}}).find("in \\boxed{} format"),
            std::string::npos);
  const Json picture = {{"question", "q"}, {"image_1", "x.png"}, {"image_2", nullptr}, {"image_3", "y.png"}};
  EXPECT_EQ(
      Registry<Preprocessor>::create("OlympiadBenchProcessor")->parts(picture)[0].trajectory.messages[1],
      Json::parse(R"({"role": "user", "content": [{"type": "image", "image": "x.png"},
                            {"type": "image", "image": "y.png"}, {"type": "text", "text": "q"}]})"));
  const Json clevr = {
      {"image", {{"bytes", "iVBO"}, {"path", nullptr}}}, {"problem", "how many?"}, {"solution", "3"}};
  EXPECT_EQ(data_of("CLEVRProcessor", clevr, "solution"), "\"3\"");
  EXPECT_EQ(
      Registry<Preprocessor>::create("CLEVRProcessor")->parts(clevr)[0].trajectory.messages[0]["content"][0],
      (Json{{"type", "image"}, {"image", clevr["image"]}}));
  EXPECT_EQ(error_of("CLEVRProcessor", {{"problem", "q"}, {"solution", "3"}}), "has no 'image'");
}

TEST(Groups, PartsOfARowStayTogether) {
  Dataset data({.data = {{{"prompt", "ab"}, {"chosen", "cd"}, {"rejected", "e"}},
                         {{"prompt", "f"}, {"chosen", "g"}, {"rejected", "hi"}}}});
  data.map("DPOProcessor");
  data.encode(ByteTemplate());
  EXPECT_EQ(data.feature_parts(), (std::vector<std::string>{"chosen", "rejected", "chosen", "rejected"}));
  EXPECT_EQ(data.feature_rows(), (std::vector<int64_t>{0, 0, 1, 1}));
  DataLoader loader(data.take_samples(), {.batch_size = 1, .shuffle = false});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  const auto batch = loader.next();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].input_ids, (std::vector<int32_t>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(batch[1].input_ids, (std::vector<int32_t>{'a', 'b', 'e'}));
  EXPECT_EQ(loader.last_sizes(), std::vector<int64_t>{2});
  // One part that cannot be used takes the row with it.
  Dataset bad({.data = {{{"prompt", "ab"}, {"chosen", "cd"}, {"rejected", ""}},
                        {{"prompt", "f"}, {"chosen", "g"}, {"rejected", "hi"}}}});
  bad.map("DPOProcessor");
  bad.encode(ByteTemplate(), BadRows::kDrop);
  EXPECT_EQ(bad.feature_rows(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(bad.dropped().size(), 1u);
  // Texts that are compared have no labels.
  Dataset embedding({.data = {{{"query", "q"}, {"pos", {"p"}}, {"neg", {"n"}}}}});
  embedding.map("EmbeddingProcessor");
  embedding.encode(ByteTemplate());
  EXPECT_EQ(embedding.feature_parts(), (std::vector<std::string>{"anchor", "positive", "negative"}));
  EXPECT_EQ(embedding.features()[1].num_trained(), 0);
}

TEST(Groups, PromptsHaveNoLabels) {
  Dataset data({.data = {{{"problem", "p"}, {"solution", "s"}}}});
  data.map("CompetitionMathGRPOProcessor");
  EXPECT_THROW(data.encode(ByteTemplate()), Error);
  data.encode(ByteTemplate(), BadRows::kRaise, "", /*add_generation_prompt=*/true);
  ASSERT_EQ(data.features().size(), 1u);
  EXPECT_EQ(data.features()[0].num_trained(), 0);
}

// Prompts and texts to compare that are too long are left out and counted, as rows that are trained on.
TEST(Groups, DeletedPromptsAndTextsAreNoFault) {
  const std::string chat = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const auto tmpl = make_template("", Tokenizer::load(test_data("tokenizers/minimind")),
                                  {.max_length = 20, .truncation_strategy = "delete", .chat_template = chat});
  std::string long_text;
  for (int i = 0; i < 60; ++i) long_text += std::to_string(i) + " and ";
  Dataset texts({.data = {{{"anchor", "a"}, {"positive", "b"}}, {{"anchor", "a"}, {"positive", long_text}}}});
  Dataset prompts({.data = {{{"query", long_text}, {"response", "r"}}, {{"query", "q"}, {"response", "r"}}}});
  texts.map("EmbeddingProcessor");
  prompts.map("QueryResponseProcessor");
  texts.encode(*tmpl);
  prompts.encode(*tmpl, BadRows::kRaise, "", /*add_generation_prompt=*/true);
  EXPECT_EQ(texts.feature_rows(), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(prompts.feature_rows(), (std::vector<int64_t>{1}));
  const std::string why = ": deleted by the template (max_length 20, truncation_strategy delete)";
  ASSERT_EQ(texts.dropped().size(), 1u);
  ASSERT_EQ(prompts.dropped().size(), 1u);
  EXPECT_EQ(texts.dropped()[0].reason, "row 2" + why);
  EXPECT_EQ(prompts.dropped()[0].reason, "row 1" + why);
}

// What a .csv file holds of mapped rows: lists as JSON text, nothing as empty text.
TEST(Groups, ListsMayBeText) {
  const Json asked = {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "a"}}};
  const Json other = {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "b"}}};
  const Json data = Json::array({Json::array({"key", "\"value\""})});
  const auto made = [](const char* name, const Row& row) {
    return Registry<Preprocessor>::create(name)->parts(row);
  };
  const auto chat =
      made("MessagesProcessor",
           {{"messages", asked.dump()}, {"tools", ""}, {"user_data", data.dump()}, {"system", ""}});
  EXPECT_EQ(chat[0].trajectory.messages, asked);
  EXPECT_EQ(chat[0].trajectory.user_data, data);
  EXPECT_TRUE(made("MessagesProcessor", {{"messages", asked.dump()}, {"user_data", ""}})[0]
                  .trajectory.user_data.empty());
  const auto pair = made("DPOProcessor", {{"messages", asked.dump()}, {"rejected_messages", other.dump()}});
  EXPECT_EQ(pair[0].trajectory.messages, asked);
  EXPECT_EQ(pair[1].trajectory.messages, other);
  EXPECT_EQ(made("KTOProcessor", {{"messages", asked.dump()}, {"label", "false"}})[0].name, "undesirable");
  const auto texts = made("EmbeddingProcessor", {{"messages", asked.dump()},
                                                 {"positive_messages", Json::array({other}).dump()},
                                                 {"negative_messages", ""}});
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[1].trajectory.messages, other);
  // The questions and answers of pairs, the texts to compare, the turns before.
  const Json user = Json::array({asked[0]}), good = Json::array({asked[1]}), bad = Json::array({other[1]});
  const std::string want = "chosen: user=q assistant=a | rejected: user=q assistant=b";
  EXPECT_EQ(
      shown("DPOProcessor", {{"prompt", user.dump()}, {"chosen", good.dump()}, {"rejected", bad.dump()}}),
      want);
  EXPECT_EQ(shown("DPOProcessor", {{"prompt", "q"}, {"chosen", good[0].dump()}, {"rejected", bad[0].dump()}}),
            want);
  EXPECT_EQ(shown("DPOProcessor", {{"chosen", asked.dump()}, {"rejected", other.dump()}}), want);
  EXPECT_EQ(shown("KTOProcessor", {{"prompt", user.dump()}, {"completion", good.dump()}, {"label", "True"}}),
            "desirable: user=q assistant=a");
  EXPECT_EQ(shown("EmbeddingProcessor", {{"query", "q"}, {"pos", R"(["p1", "p2"])"}, {"neg", R"(["n"])"}}),
            "anchor: user=q | positive: user=p1 | positive: user=p2 | negative: user=n");
  EXPECT_EQ(shown("EmbeddingProcessor", {{"query", "q"}, {"pos", "[p] [1]"}, {"neg", ""}}),
            "anchor: user=q | positive: user=[p] [1]");
  EXPECT_EQ(
      shown("QueryResponseProcessor", {{"query", "q"}, {"response", "r"}, {"history", R"([["a","b"]])"}}),
      ": user=a assistant=b user=q assistant=r");
  EXPECT_EQ(shown("QueryResponseProcessor", {{"query", "q"}, {"response", "r"}, {"history", ""}}),
            ": user=q assistant=r");
  // Texts that only look like lists are texts.
  EXPECT_EQ(shown("DPOProcessor", {{"prompt", "[q]"}, {"chosen", "[1, 2]"}, {"rejected", R"({"a": 1})"}}),
            R"(chosen: user=[q] assistant=[1, 2] | rejected: user=[q] assistant={"a": 1})");
  EXPECT_EQ(error_of("MessagesProcessor", {{"messages", "[1,"}}).find("'messages' is not valid JSON"), 0u);
  EXPECT_EQ(error_of("MessagesProcessor", {{"messages", "hello"}}),
            "expected a list of messages in 'messages', got string");
}

}  // namespace
}  // namespace twinkle
