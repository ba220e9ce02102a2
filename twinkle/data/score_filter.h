// ScoreFilter: rounds judged by the log-probabilities that a model gives their answers, with what came
// before them and without. The model is any callable (TokenScorer), the judgement any RoundScorer.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/data/quality_filter.h"
#include "twinkle/data/template.h"

namespace twinkle {

/// A model that scores tokens. Components of kind "token_scorer"; "LocalModel" runs one of a folder on the
/// engine and is there where the program has one. Used from one thread.
class TokenScorer {
 public:
  static constexpr std::string_view kKind = "token_scorer";
  virtual ~TokenScorer() = default;
  /// out[i][t] = log p(sequences[i][t + 1] | sequences[i][0 .. t]): one fewer than the tokens.
  virtual std::vector<std::vector<float>> score(const std::vector<std::vector<int32_t>>& sequences) = 0;
  /// The longest sequence it takes; 0: any.
  virtual int64_t context() const { return 0; }
};

/// An answer from its second token on (nothing comes before the first when it stands alone).
struct ScoredAnswer {
  std::span<const int32_t> ids;
  std::span<const float> conditional;  // log p(token | conversation, answer before it)
  std::span<const float> alone;        // log p(token | answer before it)
};

/// Judges an answer. Components of kind "round_scorer", immutable.
class RoundScorer {
 public:
  static constexpr std::string_view kKind = "round_scorer";
  virtual ~RoundScorer() = default;
  struct Verdict {
    bool pass = true;
    Json measures = Json::object();  // {"chr_min": 0.3}
  };
  virtual Verdict judge(const ScoredAnswer& answer) const = 0;
};

/// What a program is told of each judged round, in the order of the rows, on the thread that filters. The
/// trace is {"conversation": number among those judged, from 0, "place": of the answer among its messages,
/// "intent", "messages", "prompt_ids", "answer_ids", "conditional" and "alone" as in ScoredAnswer, "scores":
/// [{"scorer", "passed", "measures"}], "kept"}.
struct ScoreCallbacks {
  std::function<bool(const Json& trace)> trace_callback;    // whether it shall be written to trace_dir
  std::function<bool(const Json& trace)> success_callback;  // whether its file is an ok-; default: "kept"
};

/// The filter over a model of the caller's own; `options` as those of ScoreFilter but for model_id. The
/// template makes prompts and has the model's tokenizer.
std::shared_ptr<const QualityFilter> make_score_filter(const Json& options,
                                                       std::shared_ptr<TokenScorer> model,
                                                       std::shared_ptr<const Template> tmpl,
                                                       ScoreCallbacks callbacks = {});

}  // namespace twinkle
