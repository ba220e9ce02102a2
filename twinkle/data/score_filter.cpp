#include "twinkle/data/score_filter.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/data/dataset_internal.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter
using dataset_internal::dump;

// Fewer tokens than this say nothing.
constexpr size_t kFewest = 6;

struct Model {
  std::shared_ptr<TokenScorer> scorer;
  std::shared_ptr<const Template> tmpl;
};

// What was found out of a conversation, for edit().
struct Outcome {
  std::vector<int64_t> passed;  // places of answers
  Json measures = Json::object();
};

struct Rules {
  std::vector<std::pair<std::string, std::unique_ptr<RoundScorer>>> scorers;  // with their names
  std::vector<std::string> intents;
  bool keep_unscored = false, drop_on_any = true;
  int64_t max_prompt_tokens = 0;
};

// Outcomes by the conversation they are of. Safe from many threads.
class Outcomes {
 public:
  static std::string key(const Trajectory& conversation) {
    return sha256_hex(dump(conversation.messages) + dump(conversation.user_data));
  }
  void add(const Trajectory& conversation, Outcome outcome) {
    const std::lock_guard lock(mutex_);
    outcomes_[key(conversation)] = std::move(outcome);
  }
  std::optional<Outcome> find(const Trajectory& conversation) const {
    const std::lock_guard lock(mutex_);
    const auto found = outcomes_.find(key(conversation));
    if (found == outcomes_.end()) return std::nullopt;
    return found->second;
  }
  std::string digest() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const auto& [key, outcome] : outcomes_)
      all += key + dump(Json(outcome.passed)) + dump(outcome.measures);
    return sha256_hex(all);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Outcome> outcomes_;
};

// What is on record of the rounds of one pass over a data set.
class Traces {
 public:
  // A pass has a folder of its own, so that no file of another is touched.
  Traces(const std::string& dir, const ScoreCallbacks& callbacks) : callbacks_(callbacks) {
    if (dir.empty()) return;
    make_directories(dir);
    for (int64_t pass = 1; folder_.empty(); ++pass) {
      const std::string folder = dir + "/pass-" + std::to_string(pass);
      std::error_code code;
      if (std::filesystem::create_directory(folder, code)) folder_ = folder;
      if (code) throw file_error("[ScoreFilter] cannot create the folder '" + folder + "'", code.value());
    }
  }
  bool wanted() const { return !folder_.empty() || callbacks_.trace_callback; }
  void add(const Json& trace) {
    if (callbacks_.trace_callback && !callbacks_.trace_callback(trace)) return;
    if (folder_.empty()) return;
    const bool success = callbacks_.success_callback ? callbacks_.success_callback(trace)
                                                     : trace.at("kept").get_ref<const bool&>();
    char name[64];
    std::snprintf(name, sizeof(name), "/%s-%06lld-%lld.json", success ? "ok" : "fail",
                  static_cast<long long>(trace.at("conversation").get<int64_t>()),
                  static_cast<long long>(trace.at("place").get<int64_t>()));
    std::ofstream out(folder_ + name, std::ios::binary);
    out << trace.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    out.close();
    if (!out)
      throw file_error("[ScoreFilter] cannot write '" + folder_ + name + "'", errno != 0 ? errno : EIO);
  }

 private:
  const ScoreCallbacks& callbacks_;
  std::string folder_;
};

class ScoreJudge : public QualityFilter::Judge {
 public:
  ScoreJudge(const Rules& rules, Model model, Outcomes* outcomes, std::unique_ptr<Traces> traces)
      : rules_(rules), model_(std::move(model)), outcomes_(outcomes), traces_(std::move(traces)) {}

  std::vector<std::string> drop_reasons(std::span<const Trajectory> conversations) override {
    std::vector<Round> rounds;
    for (size_t i = 0; i < conversations.size(); ++i) add_rounds(conversations[i], i, &rounds);
    std::vector<std::vector<int32_t>> sequences;
    for (const Round& round : rounds) {
      sequences.push_back(round.prompt);
      sequences.back().insert(sequences.back().end(), round.answer.begin(), round.answer.end());
      sequences.push_back(round.answer);
    }
    std::vector<std::vector<float>> logprobs;
    if (!sequences.empty()) logprobs = model_.scorer->score(sequences);
    if (logprobs.size() != sequences.size()) {
      throw invalid_argument("[ScoreFilter] the model scored " + std::to_string(logprobs.size()) + " of " +
                             std::to_string(sequences.size()) + " sequences");
    }
    std::vector<Outcome> outcomes(conversations.size());
    std::vector<int64_t> judged(conversations.size(), 0), failed(conversations.size(), 0);
    for (size_t r = 0; r < rounds.size(); ++r) {
      const Round& round = rounds[r];
      const size_t n = round.answer.size() - 1;
      const auto &with = logprobs[2 * r], &alone = logprobs[2 * r + 1];
      if (with.size() != round.prompt.size() + n || alone.size() != n) {
        throw invalid_argument("[ScoreFilter] the model gave " + std::to_string(with.size()) + " and " +
                               std::to_string(alone.size()) + " log-probabilities for " +
                               std::to_string(round.prompt.size() + n) + " and " + std::to_string(n) +
                               " tokens");
      }
      const ScoredAnswer scored{
          .ids = std::span(round.answer).subspan(1), .conditional = std::span(with).last(n), .alone = alone};
      bool pass = true;
      Json measures = Json::object(), scores = Json::array();
      for (const auto& [name, scorer] : rules_.scorers) {
        const RoundScorer::Verdict verdict = scorer->judge(scored);
        pass = pass && verdict.pass;
        measures.update(verdict.measures);
        if (traces_->wanted())
          scores.push_back({{"scorer", name}, {"passed", verdict.pass}, {"measures", verdict.measures}});
      }
      if (traces_->wanted()) {
        const Trajectory& whole = conversations[round.conversation];
        traces_->add(
            {{"conversation", num_seen_ + static_cast<int64_t>(round.conversation)},
             {"place", round.place},
             {"intent", round.intent.empty() ? Json() : Json(round.intent)},
             {"messages", whole.messages},
             {"prompt_ids", round.prompt},
             {"answer_ids", round.answer},
             {"conditional", Json(std::vector<float>(scored.conditional.begin(), scored.conditional.end()))},
             {"alone", alone},
             {"scores", std::move(scores)},
             {"kept", pass}});
      }
      Outcome& outcome = outcomes[round.conversation];
      ++judged[round.conversation];
      failed[round.conversation] += pass ? 0 : 1;
      if (pass) outcome.passed.push_back(round.place);
      outcome.measures[std::to_string(round.place)] = std::move(measures);
    }
    num_seen_ += static_cast<int64_t>(conversations.size());
    std::vector<std::string> reasons(conversations.size());
    for (size_t i = 0; i < conversations.size(); ++i) {
      if (judged[i] == 0) {
        const bool wanted =
            !rules_.intents.empty() || !user_data_of(conversations[i], "key_rounds").is_null();
        if (wanted && !rules_.keep_unscored) reasons[i] = "score_no_context";
        continue;
      }
      if (failed[i] == judged[i]) {
        reasons[i] = "score_all_rounds_failed";
      } else if (failed[i] > 0 && rules_.drop_on_any) {
        reasons[i] = "score_round_failed";
      }
      if (reasons[i].empty()) outcomes_->add(conversations[i], std::move(outcomes[i]));
    }
    return reasons;
  }

 private:
  struct Round {
    size_t conversation = 0;
    int64_t place = 0;
    std::string intent;
    std::vector<int32_t> prompt, answer;
  };

  // The answers to judge: those of key_rounds, else all; with `intents` those that IntentClassifier found.
  void add_rounds(const Trajectory& conversation, size_t number, std::vector<Round>* out) const {
    const Json keys = user_data_of(conversation, "key_rounds"),
               intents = user_data_of(conversation, "intents");
    for (size_t i = 1; i < conversation.messages.size(); ++i) {
      const Json& message = conversation.messages[i];
      if (role_of(message) != "assistant") continue;
      const auto place = static_cast<int64_t>(i);
      if (keys.is_array() && std::find(keys.begin(), keys.end(), place) == keys.end()) continue;
      std::string intent;
      if (const auto found = intents.is_object() ? intents.find(std::to_string(place)) : intents.end();
          found != intents.end() && found->is_string())
        intent = found->get<std::string>();
      if (!rules_.intents.empty() &&
          std::find(rules_.intents.begin(), rules_.intents.end(), intent) == rules_.intents.end())
        continue;
      const std::string text = text_of(message);
      if (is_blank(text)) continue;
      Round round{.conversation = number, .place = place, .intent = std::move(intent)};
      round.answer = model_.tmpl->tokenizer().encode(text, {.parse_special = false});
      if (round.answer.size() < kFewest) continue;
      try {
        round.prompt = prompt_before(conversation, i);
      } catch (const Error& e) {  // encode() reports what the template cannot render
        if (e.kind() != ErrorKind::kInvalidArgument) throw;
        continue;
      }
      if (const int64_t context = model_.scorer->context(); context > 0) {
        const int64_t room = context - static_cast<int64_t>(round.prompt.size());
        if (room < static_cast<int64_t>(kFewest)) continue;
        round.answer.resize(std::min(round.answer.size(), static_cast<size_t>(room)));
      }
      out->push_back(std::move(round));
    }
  }

  // What came before, without its oldest messages behind the system's when it is too long; of a single
  // message that is too long the end. A start that the template refuses (an answer, for many) is passed
  // over. The fewer messages the fewer tokens, so the first start that fits is found by halving.
  std::vector<int32_t> prompt_before(const Trajectory& conversation, size_t end) const {
    const Json& messages = conversation.messages;
    const size_t fixed = role_of(messages[0]) == "system" && end > 1 ? 1 : 0;
    const auto most = static_cast<size_t>(rules_.max_prompt_tokens);
    const auto from = [&](size_t start) {
      Trajectory part{.messages = Json::array(), .tools = conversation.tools};
      for (size_t i = 0; i < end; ++i) {
        if (i < fixed || i >= start) part.messages.push_back(messages[i]);
      }
      return model_.tmpl->encode_prompt(part).input_ids;
    };
    std::vector<int32_t> too_long = from(fixed), fits;
    if (most == 0 || too_long.size() <= most) return too_long;
    size_t low = fixed, high = end;  // too_long begins at low, fits at high where there is one
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      size_t start = middle;
      std::vector<int32_t> ids;
      for (; start < high && ids.empty(); ++start) {
        try {
          ids = from(start);
        } catch (const Error& e) {
          if (e.kind() != ErrorKind::kInvalidArgument) throw;
        }
      }
      if (ids.empty() || ids.size() <= most) {
        if (!ids.empty()) fits = std::move(ids);
        high = middle;
      } else {
        too_long = std::move(ids);
        low = start - 1;
      }
    }
    if (!fits.empty()) return fits;
    too_long.erase(too_long.begin(), too_long.end() - static_cast<std::ptrdiff_t>(most));
    return too_long;
  }

  const Rules& rules_;
  Model model_;
  Outcomes* outcomes_;
  std::unique_ptr<Traces> traces_;
  int64_t num_seen_ = 0;  // conversations
};

class ScoreFilter : public QualityFilter {
 public:
  ScoreFilter(const Options& o, std::optional<Model> model, ScoreCallbacks callbacks)
      : model_(std::move(model)), callbacks_(std::move(callbacks)) {
    if (!model_) {
      if (!o.has("model_id"))
        throw invalid_argument("[ScoreFilter] needs 'model_id': the model that scores the answers");
      model_id_ = o.get_string("model_id");
      Catalog::instance().info(TokenScorer::kKind, "LocalModel");
    }
    rules_.keep_unscored = o.get_bool("keep_if_no_key_rounds");
    rules_.drop_on_any = o.get_bool("drop_row_on_any_fail");
    rules_.max_prompt_tokens = o.get_int("max_prompt_tokens");
    for (const Json& intent : o.get("intents")) rules_.intents.push_back(intent.get<std::string>());
    trace_dir_ = o.get_string("trace_dir");
    if (callbacks_.success_callback && trace_dir_.empty())
      throw invalid_argument("[ScoreFilter] success_callback names the files of 'trace_dir'; give that too");
    for (const Json& scorer : o.get("scorers")) {
      const auto add = [&](const std::string& name, const Json& options) {
        rules_.scorers.emplace_back(name, Registry<RoundScorer>::create(name, options));
      };
      if (scorer.is_string()) {
        add(scorer.get<std::string>(), nullptr);
      } else if (scorer.is_object() && scorer.size() == 1) {
        add(scorer.items().begin().key(), scorer.items().begin().value());
      } else {
        throw invalid_argument(
            "[ScoreFilter] scorers: expected names, or objects {\"ChrMinScorer\": {\"threshold\": 0.4}}, "
            "got " +
            dump(scorer));
      }
    }
    if (rules_.scorers.empty()) throw invalid_argument("[ScoreFilter] scorers: give at least one");
  }

  std::unique_ptr<Judge> start_judging() const override {
    auto traces = std::make_unique<Traces>(trace_dir_, callbacks_);
    if (model_) return std::make_unique<ScoreJudge>(rules_, *model_, outcomes_.get(), std::move(traces));
    Model loaded;
    loaded.scorer = Registry<TokenScorer>::create("LocalModel", {{"model_id", model_id_}});
    TemplateOptions options;
    options.max_length = std::numeric_limits<int64_t>::max();
    loaded.tmpl = make_template(template_name_for(model_id_), Tokenizer::load(model_id_), options);
    return std::make_unique<ScoreJudge>(rules_, std::move(loaded), outcomes_.get(), std::move(traces));
  }

  void edit(Trajectory* conversation) const override {
    const auto outcome = outcomes_->find(*conversation);
    if (!outcome) return;
    if (outcome->passed.size() < outcome->measures.size() ||
        !user_data_of(*conversation, "key_rounds").is_null())
      set_user_data(conversation, "key_rounds", outcome->passed);
    set_user_data(conversation, "scores", outcome->measures);
  }
  std::string edits_key() const override { return outcomes_->digest(); }

 private:
  std::optional<Model> model_;
  ScoreCallbacks callbacks_;
  std::string model_id_, trace_dir_;
  Rules rules_;
  std::shared_ptr<Outcomes> outcomes_ = std::make_shared<Outcomes>();
};

std::vector<ParamSpec> params() {
  return {
      {.name = "model_id",
       .help =
           "The model that scores: a folder or .gguf file; on the command line the run's own by default."},
      {.name = "scorers",
       .type = ParamType::kJson,
       .default_value = Json::array({"ChrMinScorer"}),
       .help = "Names of scorers (twinkle list round_scorer), or {\"name\": {options}}; a round passes when "
               "all pass it."},
      words("intents", "Judge only rounds that IntentClassifier found to be about these."),
      flag("keep_if_no_key_rounds", false, "Keep conversations that have no round to judge."),
      flag("drop_row_on_any_fail", true,
           "Drop a conversation with any round that fails; without, train on the rounds that pass."),
      count("max_prompt_tokens", 1024, "Tokens of the conversation before an answer; 0: all."),
      string_option(
          "trace_dir", "",
          "Folder that gets a file of each judged answer (tokens, log-probabilities, scores): "
          "ok-NUMBER-PLACE.json or fail-NUMBER-PLACE.json, in a new folder pass-N. Nothing in it is "
          "removed.")};
}

const Registry<QualityFilter>::Add kScore{
    {.name = "ScoreFilter",
     .help =
         "Judges answers by the log-probabilities that a model gives them, with the conversation before "
         "them and alone: score_round_failed, score_all_rounds_failed, score_no_context. Answers of fewer "
         "than 6 tokens are not judged, of those beyond the model's context the beginning is. user_data gets "
         "scores.",
     .params = params()},
    [](const Options& options) {
      return std::make_unique<ScoreFilter>(options, std::nullopt, ScoreCallbacks{});
    }};

}  // namespace

std::shared_ptr<const QualityFilter> make_score_filter(const Json& options,
                                                       std::shared_ptr<TokenScorer> model,
                                                       std::shared_ptr<const Template> tmpl,
                                                       ScoreCallbacks callbacks) {
  return std::make_shared<ScoreFilter>(check_options(params(), options, "ScoreFilter"),
                                       Model{std::move(model), std::move(tmpl)}, std::move(callbacks));
}

}  // namespace twinkle
