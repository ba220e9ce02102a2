// What an answer's log-probabilities say of it. With d = log p(token | conversation) - log p(token | answer
// alone) for each token: how much the conversation helps to write the answer.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/data/score_filter.h"

namespace twinkle {
namespace {

std::vector<double> gains(const ScoredAnswer& answer) {
  std::vector<double> out;
  for (size_t t = 0; t < answer.ids.size(); ++t)
    out.push_back(static_cast<double>(answer.conditional[t]) - static_cast<double>(answer.alone[t]));
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The share of distinct tokens that the conversation helps at every place where they stand.
class ChrMinScorer : public RoundScorer {
 public:
  explicit ChrMinScorer(const Options& o) : threshold_(o.get_float("threshold")) {}
  Verdict judge(const ScoredAnswer& answer) const override {
    const std::vector<double> d = gains(answer);
    std::map<int32_t, double> least;
    for (size_t t = 0; t < d.size(); ++t) {
      const auto [found, fresh] = least.emplace(answer.ids[t], d[t]);
      if (!fresh) found->second = std::min(found->second, d[t]);
    }
    const auto helped = std::count_if(least.begin(), least.end(), [](const auto& x) { return x.second > 0; });
    const double share = static_cast<double>(helped) / static_cast<double>(least.size());
    return {.pass = share < threshold_, .measures = {{"chr_min", share}}};
  }

 private:
  double threshold_;
};

// IFD = exp(-mean d) (Li et al. 2023, "From Quantity to Quality"), and the same of the half and of three
// quarters of the tokens whose d is largest either way.
class SIFDScorer : public RoundScorer {
 public:
  explicit SIFDScorer(const Options& o) {
    if (o.has("ifd_threshold")) threshold_ = o.get_float("ifd_threshold");
  }
  Verdict judge(const ScoredAnswer& answer) const override {
    std::vector<double> d = gains(answer);
    Verdict out;
    const double ifd = std::exp(-mean(d));
    out.measures["ifd"] = ifd;
    std::stable_sort(d.begin(), d.end(), [](double a, double b) { return std::abs(a) > std::abs(b); });
    const auto all = static_cast<double>(d.size());
    for (const int percent : {75, 50}) {
      d.resize(static_cast<size_t>(std::max(1.0, std::nearbyint(all * percent / 100))));
      out.measures["s_ifd_" + std::to_string(percent)] = std::exp(-mean(d));
    }
    out.pass = !threshold_ || ifd >= *threshold_;
    return out;
  }

 private:
  std::optional<double> threshold_;
};

class PerplexityScorer : public RoundScorer {
 public:
  explicit PerplexityScorer(const Options& o) : min_(o.get_float("min_ppl")), max_(o.get_float("max_ppl")) {
    if (max_ < min_) throw invalid_argument("[PerplexityScorer] max_ppl is less than min_ppl");
  }
  Verdict judge(const ScoredAnswer& answer) const override {
    double sum = 0;
    for (const float x : answer.conditional) sum += static_cast<double>(x);
    const double perplexity = std::exp(-sum / static_cast<double>(answer.ids.size()));
    return {.pass = perplexity >= min_ && perplexity <= max_, .measures = {{"perplexity", perplexity}}};
  }

 private:
  double min_, max_;
};

template <class T>
Registry<RoundScorer>::Add add_scorer(std::string name, std::string help, std::vector<ParamSpec> params) {
  return {{.name = std::move(name), .help = std::move(help), .params = std::move(params)},
          [](const Options& options) { return std::make_unique<T>(options); }};
}

// A scorer that would need what this program has not; `why` says what to do instead.
Registry<RoundScorer>::Add refuse_scorer(const std::string& name, const std::string& why) {
  return {{.name = name, .help = "Refused: " + why + "."},
          [name, why](const Options&) -> std::unique_ptr<RoundScorer> {
            throw invalid_argument("[" + name + "] " + why);
          }};
}

using quality::number;

const auto kChrMin = add_scorer<ChrMinScorer>(
    "ChrMinScorer",
    "chr_min: the share of an answer's distinct tokens that the conversation before it makes likelier at "
    "every place where they stand. Passes below the threshold: such answers are hard to guess.",
    {number("threshold", 0.47, "Passes below it.")});
const auto kSifd = add_scorer<SIFDScorer>(
    "SIFDScorer",
    "ifd: exp(-mean gain) of the answer's tokens, where the gain is how much likelier the conversation makes "
    "a token; s_ifd_50 and s_ifd_75 of those with the largest gains or losses. Passes everything without a "
    "threshold.",
    {{.name = "ifd_threshold", .type = ParamType::kFloat, .help = "Passes from this ifd on.", .min = 0.0}});
const auto kPerplexity = add_scorer<PerplexityScorer>(
    "PerplexityScorer",
    "perplexity: exp(-mean log-probability) of the answer's tokens after the "
    "conversation.",
    {number("min_ppl", 0, "Passes from it on."), number("max_ppl", 1500, "Passes up to it.")});
const auto kPassN = refuse_scorer(
    "PassNScorer",
    "needs a second model as judge of sampled answers; sample them with `twinkle sample --num-samples` and "
    "filter by your own judgement with Dataset::filter");
const auto kParaphrase = refuse_scorer(
    "ParaphraseScorer",
    "needs answers that a model writes anew; write them with `twinkle sample` into rows and judge those with "
    "ChrMinScorer");

}  // namespace
}  // namespace twinkle
