// labels: slow bits
// The rows of a run, by whole runs of the program: however they are read they are the same bits, a run goes
// on among the rows it began with, and what it trained on or left out is on record.
#include "tests/cli/run_options_testing.h"
#include "tests/thrown.h"

namespace twinkle {
namespace {

using RunRows = RunOptions;

// However rows are read, the same rows in the same order are the same bits, also where a run goes on.
TEST_F(RunRows, StreamedAndLazyRowsResumeAnywhere) {
  const Words options = {"--max-steps", "9", "--save-steps", "4"};
  const std::string whole = run("whole", options);
  const auto with = [](Words base, const Words& more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  for (const char* flag : {"--streaming", "--lazy"}) {
    const std::string name = flag + 2;
    EXPECT_EQ(run(name, with(options, {flag})), whole) << flag;
    EXPECT_EQ(run(name + "-resumed", with(options, {flag, "--resume-from-checkpoint",
                                                    root_ + "/" + name + "/checkpoint-step-4"})),
              tail(whole, 6))
        << flag;
    EXPECT_EQ(replayed(name).value("equal", false), true) << flag;
    // What a position counts is not the same in another reading.
    const Ran other =
        sft("other", with(options, {"--resume-from-checkpoint", root_ + "/" + name + "/checkpoint-step-4"}));
    EXPECT_NE(other.err.find("counted its samples with " + name + " true"), std::string::npos) << other.err;
  }
  const Json state = read_json_file(root_ + "/streaming/checkpoint-step-4/trainer_state.json");
  EXPECT_EQ(state.at("data_state"), (Json{{"consumed_train_samples", 8},
                                          {"epoch", 0},
                                          {"stream", {{"file", 0}, {"row", 0}, {"given", 8}}}}));
  EXPECT_EQ(metrics("streaming").back().at("epoch"), 1.0);
  // Packed as they come.
  const Words packed = with(options, {"--streaming", "--packing", "best_fit"});
  const std::string bins = run("bins", packed);
  EXPECT_NE(bins, whole);
  EXPECT_EQ(
      run("bins-resumed", with(packed, {"--resume-from-checkpoint", root_ + "/bins/checkpoint-step-8"})),
      tail(bins, 2));
}

// What a run draws is on record, and changes no bit of it.
TEST_F(RunRows, RowsThatAreTrainedOnAreSaved) {
  const auto lines_of = [&](const std::string& path) {
    std::vector<Json> lines;
    const std::string text = read_file(path);
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      lines.push_back(Json::parse(text.substr(at, text.find('\n', at) - at)));
    return lines;
  };
  const auto asked = [](const Json& line) { return line.at("messages")[0].at("content").get<std::string>(); };
  const Words options = {"--max-steps", "6", "--save-steps", "2"};
  const std::string plain = run("plain", options);
  for (const char* way : {"--no-shuffle", "--lazy", "--streaming"}) {
    const std::string name = way + 2, file = root_ + "/" + name + ".jsonl";
    const auto with = [&](const Words& more) {
      Words all = options;
      all.push_back(way);
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const Ran ran = sft(name, with({"--save-rows", file}));
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(digest(name), plain) << way;
    EXPECT_NE(ran.err.find("wrote 12 rows to " + file), std::string::npos) << ran.err;
    const std::vector<Json> lines = lines_of(file);
    ASSERT_EQ(lines.size(), 12u) << way;
    for (size_t i = 0; i < lines.size(); ++i)
      EXPECT_EQ(asked(lines[i]), "question " + std::to_string(i % 10)) << way;
    // What was drawn before the checkpoint is in the file of the run that was broken off, which stays.
    const std::string from = root_ + "/" + name + "/checkpoint-step-4",
                      rest_file = root_ + "/" + name + "-rest.jsonl";
    const Ran same = sft(name + "-resumed", with({"--resume-from-checkpoint", from, "--save-rows", file}));
    EXPECT_EQ(same.code, 2);
    EXPECT_NE(same.err.find("is there already; give another file, or remove it"), std::string::npos)
        << same.err;
    run(name + "-resumed", with({"--resume-from-checkpoint", from, "--save-rows", rest_file}));
    const std::vector<Json> rest = lines_of(rest_file);
    ASSERT_EQ(rest.size(), 4u) << way;
    for (size_t i = 0; i < rest.size(); ++i) EXPECT_EQ(rest[i], lines[8 + i]) << way;
    // A replay writes nothing of the kind.
    std::filesystem::remove(file);
    EXPECT_EQ(replayed(name).value("equal", false), true);
    EXPECT_FALSE(file_exists(file));
  }
  const Ran over = sft("over", {"--max-steps", "1", "--save-rows", root_ + "/rows.jsonl"});
  EXPECT_EQ(over.code, 2);
  EXPECT_NE(over.err.find("holds the rows that are read"), std::string::npos) << over.err;
  const Ran twice = sft("twice", {"--max-steps", "1", "--save-rows", root_ + "/twice/metrics.jsonl"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_NE(twice.err.find("is another file of this run"), std::string::npos) << twice.err;
  const Ran folder = sft("folder", {"--max-steps", "1", "--save-rows", root_ + "/none/rows.csv"});
  EXPECT_NE(folder.code, 0);
  EXPECT_NE(folder.err.find("cannot write '" + root_ + "/none/rows.csv.jsonl'"), std::string::npos)
      << folder.err;
}

TEST_F(RunRows, StreamedRowsAreDroppedAndCounted) {
  std::string rows = read_file(root_ + "/rows.jsonl");
  rows.insert(rows.find('\n') + 1, "{\"query\": \"q\", \"response\": 5}\n");
  write_text(root_ + "/bad.jsonl", rows);
  for (const char* flag : {"--streaming", "--lazy"}) {
    const Ran stopped = sft("stopped", {"--max-steps", "3", flag}, "bad.jsonl");
    EXPECT_EQ(stopped.code, 2);
    EXPECT_NE(stopped.err.find("row 2: expected a string in 'response', got number 5"), std::string::npos)
        << stopped.err;
    const Ran dropping =
        sft(std::string("dropping") + flag, {"--max-steps", "3", "--bad-rows", "drop", flag}, "bad.jsonl");
    EXPECT_EQ(dropping.code, 0) << dropping.err;
    EXPECT_NE(dropping.err.find("dropped 1 rows of "), std::string::npos) << dropping.err;
  }
  // Windows of long texts are samples of their own.
  write_text(root_ + "/long.txt", std::string(500, 'a') + "\n\n" + std::string(300, 'b'));
  const Words pt = {
      "pt", "--model-id",   model(), "--dataset-id", root_ + "/long.txt", "--max-length", "64", "--max-steps",
      "5",  "--batch-size", "2",     "--no-shuffle", "--text-split",      "paragraph"};
  Words eager = pt, stream = pt;
  eager.insert(eager.end(), {"--output-dir", root_ + "/eager"});
  stream.insert(stream.end(), {"--streaming", "--output-dir", root_ + "/stream"});
  EXPECT_EQ(run_program("twinkle", eager).code, 0);
  EXPECT_EQ(run_program("twinkle", stream).code, 0);
  EXPECT_EQ(digest("stream"), digest("eager"));
}

TEST_F(RunRows, PackedRunsResumeAndTakeEncodedRows) {
  const Words packed = {"--packing",   "best_fit", "--max-length", "64", "--encoded-cache", root_ + "/cache",
                        "--max-steps", "6",        "--save-steps", "2"};
  const std::string whole = run("packed", packed);
  EXPECT_EQ(run("again", packed), whole);  // from the cache
  ASSERT_TRUE(is_directory(root_ + "/cache"));
  Words resumed = packed;
  resumed.insert(resumed.end(), {"--resume-from-checkpoint", root_ + "/packed/checkpoint-step-2"});
  EXPECT_EQ(tail(run("resumed", resumed), 1), tail(whole, 1));
  // A position in bins means nothing in rows.
  const Ran other = sft("other", {"--max-length", "64", "--max-steps", "6", "--resume-from-checkpoint",
                                  root_ + "/packed/checkpoint-step-2"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("counted its samples with packing \"best_fit\", this run has \"none\""),
            std::string::npos)
      << other.err;
  // Fewer batches than rows: bins hold several.
  const Ran ran = sft("noted", {"--packing", "in_order", "--max-length", "64", "--max-steps", "1"});
  EXPECT_NE(ran.err.find("packed into "), std::string::npos) << ran.err;
}

// Whatever decides which sample a position is has to be the same where a run goes on.
TEST_F(RunRows, APositionIsNotTakenAmongOtherSamples) {
  const auto with = [](Words base, const Words& more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  const Words options = {"--max-steps", "4", "--save-steps", "2"};
  struct Case {
    Words before, after;
    std::string says;  // "": it goes on
  };
  const std::vector<Case> cases = {
      {{"--no-use-lora", "--shuffle"},
       {"--no-use-lora", "--shuffle", "--seed", "7"},
       "seed 42, this run has 7"},
      {{"--shuffle"}, {}, "shuffle true, this run has false"},
      {{"--no-use-lora"}, {"--no-use-lora", "--seed", "7"}, ""},  // rows in order
      {{}, {"--filters", "DedupFilter"}, "filters [], this run has [\"DedupFilter\"]"},
      {{"--filters", "DedupFilter"},
       {"--filters", "DedupFilter", "--filter-options", R"({"DedupFilter": {"asst_chars": 2}})"},
       "filter_options null, this run has {\"DedupFilter\":{\"asst_chars\":2}}"},
      {{"--truncation-strategy", "delete"}, {}, "truncation_strategy \"delete\", this run has \"raise\""},
      {{"--truncation-strategy", "delete"},
       {"--truncation-strategy", "delete", "--max-length", "127"},
       "max_length 128, this run has 127"},
      {{"--truncation-strategy", "left"}, {"--truncation-strategy", "left", "--max-length", "127"}, ""},
      {{},
       {"--preprocessor", "QueryResponseProcessor"},
       "preprocessor \"\", this run has \"QueryResponseProcessor\""},
      {{},
       {"--column-mapping", R"({"query": "response", "response": "query"})"},
       "column_mapping null, this run has {\"query\":\"response\",\"response\":\"query\"}"},
      {{"--streaming", "--no-use-lora"}, {"--streaming", "--no-use-lora", "--seed", "7"}, ""},
      // What becomes of a row decides where rows are packed, split or dropped.
      {{"--packing", "best_fit"},
       {"--packing", "best_fit", "--chat-template", root_ + "/t.jinja"},
       "another chat_template than this run has"},
      {{"--packing", "in_order"},
       {"--packing", "in_order", "--tokenizer-id", root_ + "/words"},
       "another tokenizer than this run has"},
      {{"--packing", "in_order"}, {"--packing", "in_order", "--loss-scale", "all"}, ""},
      {{"--truncation-strategy", "split"},
       {"--truncation-strategy", "split", "--default-system", "s"},
       "default_system null, this run has \"s\""},
      {{"--streaming", "--truncation-strategy", "delete"},
       {"--streaming", "--truncation-strategy", "delete", "--no-enable-thinking"},
       "enable_thinking true, this run has false"},
      {{"--bad-rows", "drop"},
       {"--bad-rows", "drop", "--loss-scale", "all"},
       "loss_scale \"default\", this run has \"all\""},
      {{"--filters", "DedupFilter"}, {"--filters", "DedupFilter", "--default-system", "s"}, ""},
      {{"--lazy", "--bad-rows", "drop"}, {"--lazy", "--bad-rows", "drop", "--default-system", "s"}, ""},
      {{"--lazy", "--bad-rows", "drop"}, {"--lazy", "--bad-rows", "drop", "--max-length", "64"}, ""},
      {{}, {"--chat-template", root_ + "/t.jinja", "--default-system", "s"}, ""}};
  write_text(root_ + "/t.jinja",
             "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}");
  Json words = test::tiny_tokenizer();
  words["normalizer"] = {{"type", "Lowercase"}};
  write_text(root_ + "/words/tokenizer.json", words.dump());
  write_text(root_ + "/words/tokenizer_config.json", test::tiny_tokenizer_config().dump());
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string first = "before-" + std::to_string(i);
    run(first, with(options, cases[i].before));
    const Ran then = sft("after-" + std::to_string(i),
                         with(with(options, cases[i].after),
                              {"--resume-from-checkpoint", root_ + "/" + first + "/checkpoint-step-2"}));
    EXPECT_EQ(then.code, cases[i].says.empty() ? 0 : 2) << i << then.err;
    const std::string says =
        cases[i].says.empty() ? "resumed at step" : "counted its samples with " + cases[i].says;
    EXPECT_HAS(then.err, says);
    if (i + 1 < cases.size()) continue;
    EXPECT_HAS(then.err, "note: not as in '" + root_ + "/" + first +
                             "/checkpoint-step-2': default_system, chat_template; the position among the "
                             "rows is the same");
  }
  // A run of another template is another run: it is repeated from where it went on.
  EXPECT_EQ(replayed("after-" + std::to_string(cases.size() - 1)).value("steps", 0), 2);
  // What a file said then is not asked again.
  write_text(root_ + "/t.jinja", "{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}");
  const Json changed = replayed("after-" + std::to_string(cases.size() - 1));
  ASSERT_TRUE(changed.is_string()) << changed;
  EXPECT_HAS(changed.get<std::string>(), "[replay] the chat_template is not the one the run used");
}

// The rows to evaluate on may be some of those that are trained on.
TEST_F(RunRows, OnePathMayHoldTheRowsOfBoth) {
  for (const Words& reading : std::vector<Words>{{}, {"--data-slice", "1:9"}, {"--streaming"}}) {
    const std::string name = "run" + (reading.empty() ? "" : reading[0]);
    Words options = {"--max-steps",    "4", "--save-steps", "2", "--eval-dataset-id", root_ + "/rows.jsonl",
                     "--eval-samples", "3"};
    options.insert(options.end(), reading.begin(), reading.end());
    const std::string whole = run(name, options);
    Words resumed = options;
    resumed.insert(resumed.end(), {"--resume-from-checkpoint", root_ + "/" + name + "/checkpoint-step-2"});
    EXPECT_EQ(run(name + "-resumed", resumed), tail(whole, 3));
    EXPECT_EQ(replayed(name).value("equal", false), true) << replayed(name);
  }
  // An older manifest has the hash of one of them.
  const std::string path = root_ + "/run/manifest.json";
  Json manifest = read_json_file(path);
  manifest["data_hashes"] = manifest.at("eval_data_hashes");
  write_text(path, manifest.dump());
  EXPECT_HAS(replayed("run").get<std::string>(), "are not those the run used");
  manifest.erase("eval_data_hashes");
  write_text(path, manifest.dump());
  EXPECT_EQ(replayed("run").value("equal", false), true) << replayed("run");
}

// Under other columns the same bytes would train the questions as answers.
TEST_F(RunRows, RowsOfOtherColumnsAreOtherRows) {
  write_text(root_ + "/rows.csv", "ask,answer\nwho,me\nwhat,that\nwhen,now\n");
  for (const char* reading : {"--lazy", "--streaming"}) {
    const auto options = [&](const char* columns) {
      return Words{reading, "--csv-columns", columns, "--max-steps", "2", "--save-steps", "1"};
    };
    const std::string first = std::string("csv") + reading;
    run(first, options("query,response"), "rows.csv");
    Words after = options("response,query");
    after.insert(after.end(), {"--resume-from-checkpoint", root_ + "/" + first + "/checkpoint-step-1"});
    const Ran then = sft(first + "-after", after, "rows.csv");
    EXPECT_EQ(then.code, 2) << then.err;
    EXPECT_HAS(then.err, "was trained on other rows than those of");
  }
}

// A row that is dropped in each epoch is one row, and many may stand in a row.
TEST_F(RunRows, DroppedRowsAreCountedOnce) {
  std::string rows = read_file(root_ + "/rows.jsonl");
  for (int i = 0; i < 30; ++i)
    rows += R"({"query": "q", "response": 5})"
            "\n";
  write_text(root_ + "/some.jsonl", rows);
  for (const char* flag : {"--streaming", "--lazy"}) {
    const Ran ran = sft(flag + 2, {flag, "--bad-rows", "drop", "--max-steps", "16"}, "some.jsonl");
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_HAS(ran.err, "dropped 30 rows of ");
    const Ran plan = run_program("twinkle", {"plan", "--model-id", model(), flag, "--max-length", "64",
                                             "--max-steps", "1", "--dataset-id", root_ + "/none.jsonl"});
    EXPECT_EQ(plan.code, 2);
    EXPECT_HAS(plan.err, "none.jsonl");
  }
}

TEST_F(RunRows, CsvWithOtherColumnsHasTheBitsOfJsonl) {
  std::string csv = "ask,reply\n";
  for (int i = 0; i < 10; ++i) {
    csv += "question " + std::to_string(i) + ",\"" + std::string(static_cast<size_t>(3 + 5 * i % 17), 'a') +
           "\"\n";
  }
  write_text(root_ + "/rows.csv", csv);
  const std::string want = run("jsonl", {"--max-steps", "3"});
  EXPECT_EQ(run("csv", {"--max-steps", "3", "--column-mapping", R"({"ask": "query", "reply": "response"})"},
                "rows.csv"),
            want);
  // Preferences are not for supervised training.
  write_text(root_ + "/dpo.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "b"})"
                                   "\n");
  const Ran ran = sft("dpo", {"--preprocessor", "DPOProcessor"}, "dpo.jsonl");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("dpo.jsonl row 1 holds a conversation that is 'chosen'"), std::string::npos)
      << ran.err;
}

// The run's own model judges the answers, and what is left out is on record.
TEST_F(RunRows, FilteredRowsAreInTheDroppedLog) {
  const auto log_of = [&](const std::string& name, const std::string& options) {
    const Ran ran = sft(name, {"--filters", "ScoreFilter", "--filter-options", options, "--dropped-log",
                               root_ + "/" + name + ".jsonl", "--max-steps", "1", "--eval-dataset-id",
                               root_ + "/rows.jsonl"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<Json> lines;
    const std::string text = read_file(root_ + "/" + name + ".jsonl");
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
      lines.push_back(Json::parse(text.substr(begin, text.find('\n', begin) - begin)));
    return lines;
  };
  EXPECT_TRUE(log_of("all", R"({"ScoreFilter": {"scorers": ["SIFDScorer"]}})").empty());
  // What the model gives each answer, by twinkle score: of the answer's tokens from the second on.
  std::vector<double> perplexity;
  std::string wanted;
  for (int i = 0; i < 10; ++i) {
    const std::string prompt =
        "<|im_start|>user\nquestion " + std::to_string(i) + "<|im_end|>\n<|im_start|>assistant\n";
    const std::string answer(static_cast<size_t>(3 + 5 * i % 17), 'a');
    std::vector<int> ids;
    for (size_t at = 0; at < prompt.size();) {
      const bool start = prompt.compare(at, 12, "<|im_start|>") == 0,
                 end = prompt.compare(at, 10, "<|im_end|>") == 0;
      ids.push_back(start ? 257 : end ? 258 : static_cast<unsigned char>(prompt[at]));
      at += start ? 12 : end ? 10 : 1;
    }
    for (const char c : answer) ids.push_back(c);
    wanted += Json{{"tokens", ids}}.dump() + "\n";
  }
  write_text(root_ + "/score.jsonl", wanted);
  const Ran scored =
      run_program("twinkle", {"score", "--model-id", model(), "--input", root_ + "/score.jsonl"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  for (size_t begin = 0, i = 0; begin < scored.out.size(); begin = scored.out.find('\n', begin) + 1, ++i) {
    const Json line = Json::parse(scored.out.substr(begin, scored.out.find('\n', begin) - begin));
    const size_t size = 3 + 5 * i % 17;
    if (size < 6) continue;  // not judged
    double sum = 0;
    for (size_t k = 0; k + 1 < size; ++k)
      sum += line.at("logprobs")[line.at("logprobs").size() - 1 - k].get<double>();
    perplexity.push_back(std::exp(-sum / static_cast<double>(size - 1)));
  }
  ASSERT_EQ(perplexity.size(), 8u);
  std::vector<double> sorted = perplexity;
  std::sort(sorted.begin(), sorted.end());
  const double most = (sorted[3] + sorted[4]) / 2;
  const std::vector<Json> log = log_of(
      "half",
      Json{{"ScoreFilter", {{"scorers", Json::array({Json{{"PerplexityScorer", {{"max_ppl", most}}}}})}}}}
          .dump());
  ASSERT_EQ(log.size(), 8u);  // four rows to train on and, of the same file, four to evaluate on
  EXPECT_EQ(log[0].at("step"), "ScoreFilter");
  EXPECT_EQ(log[0].at("drop_reason"), "score_all_rounds_failed");
  EXPECT_TRUE(log[0].at("row").contains("response"));
  EXPECT_EQ(log[4].at("row"), log[0].at("row"));
}

}  // namespace
}  // namespace twinkle
