// Faults that users of other programs reported of templates and data loading, each with the smallest input
// that would show it here. docs/data-and-templates.md lists them, with the tests that hold the others.
#include "tests/data/data_testing.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/files.h"
#include "twinkle/data/lazy_dataset.h"
#include "twinkle/data/packing.h"

namespace twinkle {
namespace {

Json said(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::unique_ptr<Template> qwen3(TemplateOptions options = {}) {
  options.chat_template = read_file(test_data("chat-templates/Qwen-Qwen3-0.6B.jinja"));
  return make_template("", Tokenizer::load(test_data("tokenizers/minimind")), options);
}

std::string trained_text(const Template& tmpl, const InputFeature& feature) {
  std::vector<int32_t> ids;
  for (const int32_t label : feature.labels) {
    if (label != kIgnoreIndex) ids.push_back(label);
  }
  return tmpl.decode(ids, false);
}

// Thinking within a chain of tools is kept until the next question.
TEST(DataReports, ThinkingStaysInAnUnfinishedChainOfTools) {
  Json call = said("assistant", "<think>\nlook it up\n</think>\n\n");
  call["tool_calls"] =
      Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"x\": 1}"}}}}});
  Json messages = Json::array({said("user", "q"), call, said("tool", "42"), said("assistant", "It is 42.")});
  const auto tmpl = qwen3();
  const std::string within = tmpl->render({.messages = messages}, false);
  EXPECT_NE(within.find("<think>\nlook it up\n</think>\n\n<tool_call>"), std::string::npos) << within;
  EXPECT_NE(trained_text(*tmpl, tmpl->encode({.messages = messages})[0]).find("look it up"),
            std::string::npos);
  messages.push_back(said("user", "and?"));
  messages.push_back(said("assistant", "That is all."));
  const std::string behind = tmpl->render({.messages = messages}, false);
  EXPECT_EQ(behind.find("look it up"), std::string::npos) << behind;
  // Where each round is trained as the model meets it, the thinking is there again.
  const auto rounds = qwen3({.split_rounds = true})->encode({.messages = messages});
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_NE(trained_text(*tmpl, rounds[0]).find("look it up"), std::string::npos);
}

// A reply that only closes its thinking (the prompt opened it) comes back as the same tokens.
TEST(DataReports, ThinkingThatThePromptOpened) {
  const auto tmpl = qwen3();
  const InputFeature prompt = tmpl->encode_prompt({.messages = Json::array({said("user", "q")})});
  const auto reply = tmpl->tokenizer().encode("<think>\nreason\n</think>\n\nanswer<|im_end|>");
  const auto done = tmpl->concat_input_feature(prompt, reply);
  EXPECT_EQ(done.message.at("content"), "answer");
  EXPECT_EQ(done.message.at("reasoning_content"), "reason");
  const std::string again = tmpl->render({.messages = Json::array({said("user", "q"), done.message})}, false);
  EXPECT_EQ(again, tmpl->decode(done.feature.input_ids, false) + "\n");
  const ParsedReply closed = tmpl->parse_tool_call("reason</think>answer");
  EXPECT_EQ(closed.reasoning, "reason");
  EXPECT_EQ(closed.content, "answer");
}

// JSON in an answer is no call where calls have tags; broken calls and control characters never throw.
TEST(DataReports, WhatIsACallAndWhatIsText) {
  const auto tmpl = qwen3({.tool_call_parser = "hermes_qwen"});
  EXPECT_TRUE(tmpl->parse_tool_call("{\"name\":\"x\",\"arguments\":{}}").calls.empty());
  const auto raw =
      tmpl->parse_tool_call("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"1\n2\"}}</tool_call>");
  ASSERT_EQ(raw.calls.size(), 1u);
  EXPECT_EQ(raw.calls[0].arguments, (Json{{"a", "1\n2"}}));
  const std::string broken = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_call>";
  const auto kept = tmpl->parse_tool_call(broken);
  EXPECT_TRUE(kept.calls.empty());
  EXPECT_EQ(kept.problems.size(), 1u);
  EXPECT_EQ(kept.content, broken);
}

// A row whose answer was cut off, or that has none, would train on nothing without a word.
TEST(DataReports, RowsWithNothingToTrainAreNamed) {
  const auto tmpl = qwen3({.max_length = 8, .truncation_strategy = "right"});
  const Trajectory row{.messages = Json::array({said("user", "a long question, longer than the window"),
                                                said("assistant", "yes")})};
  EXPECT_EQ(tmpl->encode(row)[0].num_trained(), 0);
  EXPECT_EQ(tmpl->check(row), "no token of it is trained on (every label is masked)");
  const Row question = {{"messages", Json::array({said("user", "q")})}};
  Dataset data(DatasetMeta{.data = {Row{{"messages", row.messages}}, question}});
  data.map("MessagesProcessor");
  const std::string said_of_all = test::thrown([&] { data.encode(*tmpl, BadRows::kDrop); });
  EXPECT_HAS(said_of_all, "none of the 2 rows");
  EXPECT_HAS(said_of_all, "row 1: no token of it is trained on");
}

// Three rows, one too long: each strategy does the same eagerly, lazily, streamed and packed.
TEST(DataReports, TooLongRowsAreTreatedAlikeEverywhere) {
  const std::vector<Row> rows = {{{"query", "q"}, {"response", "one"}},
                                 {{"query", "q"}, {"response", std::string(60, 'x')}},
                                 {{"query", "q"}, {"response", "three"}}};
  const auto lines = [&] {
    std::string out;
    for (const Row& row : rows) out += row.dump() + "\n";
    return out;
  };
  const test::TempDir folder;
  const std::string path = folder / "rows.jsonl";
  write_file_atomic(path, lines());
  for (const char* strategy : {"raise", "delete", "left", "right"}) {
    const std::shared_ptr<const Template> tmpl = qwen3({.max_length = 32, .truncation_strategy = strategy});
    const auto collect = [&](const std::function<std::vector<InputFeature>()>& read) -> std::string {
      try {
        std::string out;
        for (const auto& f : read()) out += Json(f.input_ids).dump() + Json(f.labels).dump() + "\n";
        return out;
      } catch (const Error& e) {
        const std::string text = e.what();
        return text.substr(text.find("the row has"));
      }
    };
    const std::string eager = collect([&] {
      Dataset data({path});
      data.encode(*tmpl);
      return data.take_features();
    });
    EXPECT_EQ(std::count(eager.begin(), eager.end(), '\n'), strategy == std::string("raise")    ? 0
                                                            : strategy == std::string("delete") ? 2
                                                                                                : 3)
        << strategy << ": " << eager;
    const auto lazy = [&](int64_t workers) {
      return collect([&] {
        DataLoader loader(std::make_shared<LazyDataset>(Dataset({path}), tmpl),
                          {.batch_size = 3, .shuffle = false, .num_workers = workers});
        return loader.next();
      });
    };
    EXPECT_EQ(lazy(0), eager) << strategy;
    EXPECT_EQ(lazy(2), eager) << strategy;
    const auto streamed = [&](bool packed) {
      return collect([&] {
        std::unique_ptr<SampleStream> stream =
            std::make_unique<IterableDataset>(DatasetMeta{.dataset_id = path}, tmpl);
        if (packed)
          stream = std::make_unique<IterablePackingDataset>(std::move(stream),
                                                            StreamPackingOptions{.max_length = 128});
        std::vector<InputFeature> out;
        while (auto sample = stream->next()) {
          for (auto& f : *sample) out.push_back(std::move(f));
        }
        return out;
      });
    };
    EXPECT_EQ(streamed(false), eager) << strategy;
    // In a bin the longest may come first; the rows are the same.
    const auto sorted = [](const std::string& text) {
      std::vector<std::string> out;
      for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
        out.push_back(text.substr(begin, text.find('\n', begin) - begin));
      std::sort(out.begin(), out.end());
      return out;
    };
    if (strategy != std::string("raise")) {
      EXPECT_EQ(sorted(streamed(true)), sorted(eager)) << strategy;
    }
  }
}

// What is made ahead but not given out yet comes after a resume.
TEST(DataReports, RowsMadeAheadAreNotLost) {
  std::vector<Row> rows;
  for (int i = 0; i < 12; ++i)
    rows.push_back({{"query", "q"}, {"response", std::string(static_cast<size_t>(1 + i), 'r')}});
  Dataset data(DatasetMeta{.data = rows});
  const auto samples = std::make_shared<LazyDataset>(std::move(data), std::make_shared<ByteTemplate>());
  const DataLoaderOptions options{.batch_size = 2, .seed = 5, .num_workers = 2, .prefetch = 3};
  DataLoader loader(samples, options);
  loader.next();
  const Json state = loader.get_state();
  EXPECT_EQ(state.at("consumed_train_samples"), 2);
  const auto next = loader.next();
  DataLoader resumed(samples, options);
  resumed.restore_state(state);
  const auto again = resumed.next();
  ASSERT_EQ(again.size(), next.size());
  for (size_t i = 0; i < next.size(); ++i) EXPECT_EQ(again[i].input_ids, next[i].input_ids);
}

}  // namespace
}  // namespace twinkle
