// ScoreFilter over a model whose log-probabilities are known: measures worked by hand, which rounds and rows
// pass, and what the model is asked.
#include "twinkle/data/score_filter.h"

#include <cmath>

#include "tests/data/filter_testing.h"
#include "tests/tiny_model.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

constexpr int32_t kStart = 257;  // <|im_start|>, with which every prompt begins

// After a prompt each token has -1; alone an 'h' has -0.5, any other -2. So a prompt makes 'h' less likely by
// 0.5, all others likelier by 1.
class Known : public TokenScorer {
 public:
  std::vector<std::vector<float>> score(const std::vector<std::vector<int32_t>>& sequences) override {
    std::vector<std::vector<float>> out;
    for (const auto& ids : sequences) {
      const bool prompted = ids[0] == kStart;
      if (prompted) prompts.push_back(ids);
      std::vector<float> row;
      for (size_t t = 1; t < ids.size(); ++t) row.push_back(prompted ? -1.0f : ids[t] == 'h' ? -0.5f : -2.0f);
      out.push_back(row);
    }
    return out;
  }
  int64_t context() const override { return most; }
  std::vector<std::vector<int32_t>> prompts;
  int64_t most = 0;
};

std::shared_ptr<const Template> bytes_template() {
  return make_template("",
                       Tokenizer::from_json(test::tiny_tokenizer(), test::tiny_tokenizer_config(), "tiny"));
}

struct Judged {
  std::string reason;
  Trajectory after;
  std::shared_ptr<Known> model = std::make_shared<Known>();
};
Judged judged(const Trajectory& conversation, const Json& options = nullptr, int64_t context = 0) {
  Judged out;
  out.model->most = context;
  const auto filter = make_score_filter(options, out.model, bytes_template());
  out.reason = filter->start_judging()->drop_reasons(std::span(&conversation, 1)).at(0);
  out.after = conversation;
  filter->edit(&out.after);
  return out;
}
Json scores(const Judged& judged) { return quality::user_data_of(judged.after, "scores"); }

const std::string kHard = "xhhhhhh", kEasy = "xhahbhc", kHalf = "xhhhhha";

TEST(ScoreFilter, MeasuresAreThoseOfTheFormulas) {
  const Json all = {{"scorers", Json::array({Json{{"ChrMinScorer", {{"threshold", 1}}}}, "SIFDScorer",
                                             "PerplexityScorer"})}};
  const Json got = scores(judged(talk("q", kEasy), all)).at("1");
  // From the second token on: h a h b h c, gains -0.5 1 -0.5 1 -0.5 1; of h, a, b and c all but h are helped.
  EXPECT_DOUBLE_EQ(got.at("chr_min").get<double>(), 0.75);
  EXPECT_DOUBLE_EQ(got.at("ifd").get<double>(), std::exp(-0.25));
  EXPECT_DOUBLE_EQ(got.at("s_ifd_50").get<double>(), std::exp(-1.0));    // the three of 1
  EXPECT_DOUBLE_EQ(got.at("s_ifd_75").get<double>(), std::exp(-0.625));  // and one of -0.5
  EXPECT_DOUBLE_EQ(got.at("perplexity").get<double>(), std::exp(1.0));
  // A token is helped only if it is at every place.
  EXPECT_DOUBLE_EQ(scores(judged(talk("q", kHalf), all)).at("1").at("chr_min").get<double>(), 0.5);
}

TEST(ScoreFilter, RoundsPassAndFail) {
  Trajectory two = talk("q", kEasy);
  two.messages.push_back(said("user", "r"));
  two.messages.push_back(said("assistant", kHard));
  EXPECT_EQ(judged(talk("q", kHard)).reason, "");
  EXPECT_EQ(judged(talk("q", kEasy)).reason, "score_all_rounds_failed");
  EXPECT_EQ(judged(two).reason, "score_round_failed");
  const Judged kept = judged(two, {{"drop_row_on_any_fail", false}});
  EXPECT_EQ(kept.reason, "");
  EXPECT_EQ(quality::user_data_of(kept.after, "key_rounds"), Json::array({3}));
  EXPECT_EQ(scores(kept), Json::parse(R"({"1": {"chr_min": 0.75}, "3": {"chr_min": 0.0}})"));
  // All pass: every round is trained on.
  EXPECT_EQ(quality::user_data_of(judged(talk("q", kHard)).after, "key_rounds"), nullptr);
  // Both scorers must pass.
  const auto also = [](const char* name, const Json& options) -> Json {
    return {{"scorers", Json::array({"ChrMinScorer", Json{{name, options}}})}};
  };
  EXPECT_EQ(judged(talk("q", kHard), also("SIFDScorer", {{"ifd_threshold", 1}})).reason, "");  // exp(0.5)
  EXPECT_EQ(judged(talk("q", kHard), also("SIFDScorer", {{"ifd_threshold", 2}})).reason,
            "score_all_rounds_failed");
  EXPECT_EQ(judged(talk("q", kHard), also("PerplexityScorer", {{"max_ppl", 2}})).reason,
            "score_all_rounds_failed");
}

TEST(ScoreFilter, WhichRoundsAreJudged) {
  Trajectory two = talk("q", kEasy);
  two.messages.push_back(said("user", "r"));
  two.messages.push_back(said("assistant", kHard));
  two.user_data =
      Json::array({Json::array({"key_rounds", "[3]"}), Json::array({"intents", R"({"3": "math"})"})});
  EXPECT_EQ(judged(two).reason, "");
  EXPECT_EQ(judged(two, {{"intents", {"math"}}}).reason, "");
  EXPECT_EQ(judged(two, {{"intents", {"code"}}}).reason, "score_no_context");
  EXPECT_EQ(judged(two, {{"intents", {"code"}}, {"keep_if_no_key_rounds", true}}).reason, "");
  two.user_data = Json::array({Json::array({"intents", R"({"3": 5})"})});  // a row's own
  EXPECT_EQ(judged(two, {{"intents", {"math"}}}).reason, "score_no_context");
  // What the template refuses is for encode() to report.
  Trajectory picture = talk("q", kEasy);
  picture.messages[0]["content"] = Json::array({{{"type", "image"}, {"image", "cat.png"}}});
  EXPECT_EQ(judged(picture).reason, "");
  // Answers of fewer than six tokens say nothing.
  EXPECT_EQ(judged(talk("q", "xabcd")).reason, "");
  EXPECT_EQ(judged(talk("q", "xabcde")).reason, "score_all_rounds_failed");
}

TEST(ScoreFilter, PromptsAreWhatCameBefore) {
  Trajectory long_one = talk("11111", "2222");
  long_one.messages.insert(long_one.messages.begin(), said("system", "S"));
  long_one.messages.push_back(said("user", "33333"));
  long_one.messages.push_back(said("assistant", kHard));
  const auto prompt_of = [&](int64_t most, int64_t context = 0) {
    const Judged got = judged(long_one, {{"max_prompt_tokens", most}}, context);
    return got.model->prompts.empty() ? "" : bytes_template()->decode(got.model->prompts.back(), false);
  };
  const std::string system = "<|im_start|>system\nS<|im_end|>\n",
                    first = "<|im_start|>user\n11111<|im_end|>\n",
                    second = "<|im_start|>assistant\n2222<|im_end|>\n",
                    third = "<|im_start|>user\n33333<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt_of(0), system + first + second + third + kHard);
  // 11, 13, 17 and 24 tokens: the oldest messages behind the system's are left out.
  EXPECT_EQ(prompt_of(65), system + first + second + third + kHard);
  EXPECT_EQ(prompt_of(64), system + second + third + kHard);
  EXPECT_EQ(prompt_of(35), system + third + kHard);
  // An answer beyond the model's context is judged as far as it goes, unless that is too little.
  EXPECT_EQ(prompt_of(35, 41), system + third + kHard.substr(0, 6));
  EXPECT_EQ(prompt_of(35, 40), "");
}

// Counts renderings; some templates want a question first.
class Counting : public Template {
 public:
  explicit Counting(bool question_first) : question_first_(question_first) {}
  InputFeature encode_prompt(const Trajectory& c) const override {
    ++renderings;
    const size_t first = c.messages.at(0).at("role") == "system" ? 1 : 0;
    if (question_first_ && c.messages.at(first).at("role") != "user")
      throw invalid_argument("a question first");
    return inner_->encode_prompt(c);
  }
  std::vector<InputFeature> encode(const Trajectory& c) const override { return inner_->encode(c); }
  std::string render(const Trajectory& c, bool prompt) const override { return inner_->render(c, prompt); }
  std::string decode(std::span<const int32_t> ids, bool skip) const override {
    return inner_->decode(ids, skip);
  }
  const Tokenizer& tokenizer() const override { return inner_->tokenizer(); }
  const TemplateOptions& options() const override { return inner_->options(); }
  std::vector<int32_t> stop_ids() const override { return inner_->stop_ids(); }
  mutable int renderings = 0;

 private:
  bool question_first_;
  std::shared_ptr<const Template> inner_ = bytes_template();
};

TEST(ScoreFilter, TheLongestPromptThatFitsIsFoundInFewRenderings) {
  Trajectory whole{.messages = Json::array({said("system", "S")})};
  for (int i = 0; i < 64; ++i) {
    whole.messages.push_back(said("user", std::string(static_cast<size_t>(1 + i % 5), 'q')));
    whole.messages.push_back(said("assistant", "a"));
  }
  whole.messages.push_back(said("user", "last"));
  whole.messages.push_back(said("assistant", kHard));
  for (const bool question_first : {false, true}) {
    for (const int64_t most : {24, 50, 100, 333, 700, 1500}) {
      // Message after message is left out.
      std::vector<int32_t> want;
      const Counting plain(question_first);
      for (size_t from = 1; from + 1 < whole.messages.size(); ++from) {
        Trajectory part{.messages = Json::array({whole.messages[0]})};
        for (size_t i = from; i + 1 < whole.messages.size(); ++i) part.messages.push_back(whole.messages[i]);
        if (question_first && part.messages[1].at("role") != "user") continue;
        want = plain.encode_prompt(part).input_ids;
        if (static_cast<int64_t>(want.size()) <= most) break;
      }
      if (static_cast<int64_t>(want.size()) > most) want.erase(want.begin(), want.end() - most);
      const auto tmpl = std::make_shared<Counting>(question_first);
      const auto model = std::make_shared<Known>();
      const auto filter = make_score_filter({{"max_prompt_tokens", most}}, model, tmpl);
      filter->start_judging()->drop_reasons(std::span(&whole, 1));
      // A prompt whose beginning is cut off does not begin as Known knows them.
      if (want[0] == kStart) {
        ASSERT_EQ(model->prompts.size(), 1u);
        want.insert(want.end(), kHard.begin(), kHard.end());
        EXPECT_EQ(model->prompts[0], want) << most << question_first;
      }
      EXPECT_LE(tmpl->renderings, question_first ? 16 : 9) << most;
    }
  }
}

TEST(ScoreFilter, TracesOfWhatIsJudged) {
  const test::TempDir dir;
  test::write_text(dir / "traces/mine.txt", "mine");
  test::write_text(dir / "traces/pass-1/ok-000000-1.json", "of an earlier run");
  Trajectory two = talk("q", kEasy);
  two.messages.push_back(said("user", "r"));
  two.messages.push_back(said("assistant", kHard));
  two.user_data = Json::array({Json::array({"intents", R"({"3": "math"})"})});
  const std::vector<Trajectory> all = {talk("q", "short"), two, talk("q", kHalf)};
  const Json options = {{"trace_dir", dir / "traces"},
                        {"scorers", Json::array({"ChrMinScorer", "SIFDScorer"})}};
  std::vector<std::string> told;
  const auto run = [&](const ScoreCallbacks& callbacks) {
    const auto filter = make_score_filter(options, std::make_shared<Known>(), bytes_template(), callbacks);
    const auto judge = filter->start_judging();
    judge->drop_reasons(all);
    judge->drop_reasons(std::span(all).first(2));  // the next rows of the same pass
  };
  const auto files = [&](const std::string& pass) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir / ("traces/" + pass)))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  run({});
  EXPECT_EQ(files("pass-2"),
            (std::vector<std::string>{"fail-000001-1.json", "fail-000002-1.json", "fail-000004-1.json",
                                      "ok-000001-3.json", "ok-000004-3.json"}));
  const Json trace = read_json_file(dir / "traces/pass-2/ok-000001-3.json");
  EXPECT_EQ(trace.at("conversation"), 1);
  EXPECT_EQ(trace.at("place"), 3);
  EXPECT_EQ(trace.at("intent"), "math");
  EXPECT_EQ(trace.at("messages"), two.messages);
  EXPECT_EQ(trace.at("answer_ids"), Json(std::vector<int>(kHard.begin(), kHard.end())));
  EXPECT_EQ(trace.at("prompt_ids").at(0), kStart);
  EXPECT_EQ(trace.at("conditional"), Json(std::vector<float>(6, -1.0f)));
  EXPECT_EQ(trace.at("alone"), Json(std::vector<float>(6, -0.5f)));
  EXPECT_EQ(trace.at("kept"), true);
  EXPECT_EQ(trace.at("scores").at(0),
            Json::parse(R"({"scorer": "ChrMinScorer", "passed": true, "measures": {"chr_min": 0.0}})"));
  EXPECT_EQ(trace.at("scores").at(1).at("measures").at("ifd"), std::exp(0.5));
  EXPECT_EQ(read_json_file(dir / "traces/pass-2/fail-000001-1.json").at("intent"), nullptr);
  // A program chooses which are written and what is a success.
  run({.trace_callback =
           [&](const Json& t) {
             told.push_back(std::to_string(t.at("conversation").get<int>()) + "-" +
                            std::to_string(t.at("place").get<int>()));
             return t.at("place") == 1;
           },
       .success_callback = [](const Json& t) { return t.at("conversation") == 2; }});
  EXPECT_EQ(told, (std::vector<std::string>{"1-1", "1-3", "2-1", "4-1", "4-3"}));
  EXPECT_EQ(files("pass-3"),
            (std::vector<std::string>{"fail-000001-1.json", "fail-000004-1.json", "ok-000002-1.json"}));
  // Nothing that was there is touched.
  EXPECT_EQ(read_file(dir / "traces/mine.txt"), "mine");
  EXPECT_EQ(files("pass-1"), std::vector<std::string>{"ok-000000-1.json"});
  EXPECT_EQ(read_file(dir / "traces/pass-1/ok-000000-1.json"), "of an earlier run");
  // Without a folder the program is told all the same; a folder that cannot be made is said first.
  told.clear();
  const auto only_told = make_score_filter(
      nullptr, std::make_shared<Known>(), bytes_template(),
      {.trace_callback = [&](const Json&) { return told.emplace_back("x") == "x"; }, .success_callback = {}});
  only_told->start_judging()->drop_reasons(all);
  EXPECT_EQ(told.size(), 3u);
  EXPECT_HAS(test::thrown(
                 [&] {
                   make_score_filter(
                       nullptr, nullptr, nullptr,
                       {.trace_callback = {}, .success_callback = [](const Json&) { return true; }});
                 },
                 test::kAnyKind),
             "success_callback names the files of 'trace_dir'");
  const auto nowhere = make_score_filter({{"trace_dir", dir / "traces/mine.txt/x"}},
                                         std::make_shared<Known>(), bytes_template());
  EXPECT_HAS(test::thrown([&] { nowhere->start_judging(); }, test::kAnyKind), "mine.txt");
}

TEST(ScoreFilter, JudgesADataSet) {
  std::vector<Row> rows;
  for (int i = 0; i < 150; ++i) rows.push_back({{"query", "q"}, {"response", i % 3 == 0 ? kHard : kEasy}});
  Dataset data(DatasetMeta{.data = rows});
  data.map("QueryResponseProcessor");
  const auto model = std::make_shared<Known>();
  data.quality_filter(make_score_filter(nullptr, model, bytes_template()), "ScoreFilter");
  EXPECT_EQ(data.size(), 50);
  EXPECT_EQ(data.filtered()[0].reason, "row 2: ScoreFilter: score_all_rounds_failed");
  EXPECT_EQ(quality::user_data_of(data.trajectory(7), "scores"), Json::parse(R"({"1": {"chr_min": 0.0}})"));
  EXPECT_EQ(model->prompts.size(), 150u);  // each once
}

TEST(ScoreFilter, RefusesByName) {
  EXPECT_HAS(refused("ScoreFilter", nullptr), "needs 'model_id'");
  const auto with = [](const Json& scorers) {
    return test::thrown([&] { make_score_filter({{"scorers", scorers}}, nullptr, nullptr); }, test::kAnyKind);
  };
  EXPECT_HAS(with(Json::array({"PassNScorer"})), "[PassNScorer] needs a second model as judge");
  EXPECT_HAS(with(Json::array({"ParaphraseScorer"})),
             "[ParaphraseScorer] needs answers that a model writes anew");
  EXPECT_HAS(with(Json::array({"ChrMin"})), "ChrMinScorer");
  EXPECT_HAS(with(Json::array()), "give at least one");
  EXPECT_HAS(with(Json::array({5})), "expected names");
  // A model that does not answer as it should.
  class Short : public TokenScorer {
   public:
    std::vector<std::vector<float>> score(const std::vector<std::vector<int32_t>>& sequences) override {
      return {sequences.size(), std::vector<float>(1)};
    }
  };
  const auto filter = make_score_filter(nullptr, std::make_shared<Short>(), bytes_template());
  const Trajectory conversation = talk("q", kHard);
  EXPECT_HAS(test::thrown([&] { filter->start_judging()->drop_reasons(std::span(&conversation, 1)); }),
             "the model gave 1 and 1 log-probabilities");
}

}  // namespace
}  // namespace twinkle
