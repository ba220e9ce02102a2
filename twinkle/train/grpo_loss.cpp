// Group relative policy optimization: the clipped surrogate of Schulman et al. 2017 (equation 7) with the
// advantages of a group, and a penalty on the divergence from a reference policy (Shao et al. 2024, equations
// 3 and 4). For each token, with d = logprob - old logprob, r = exp(d) and x = ref logprob - logprob:
//
//   -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta (exp(x) - x - 1) - entropy_coef H
//
// averaged over the tokens of each answer, then over the answers. |d| counts as at most 20.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/train/loss.h"

namespace twinkle {
namespace {

constexpr double kLargestDifference = 20.0;

struct GRPOOptions {
  double epsilon = 0.2, epsilon_high = 0.2, beta = 0.0, entropy_coef = 0.0;
};

struct GrpoTerm {
  double value = 0, slope = 0;  // d value / d logprob
};

GrpoTerm surrogate(double logprob, double old, double advantage, const GRPOOptions& o) {
  const double difference = logprob - old;
  const double ratio = std::exp(std::clamp(difference, -kLargestDifference, kLargestDifference));
  const double free = ratio * advantage,
               clipped = std::clamp(ratio, 1.0 - o.epsilon, 1.0 + o.epsilon_high) * advantage;
  const bool flat = std::abs(difference) > kLargestDifference || clipped < free;
  return {-std::min(free, clipped), flat ? 0.0 : -free};
}

class GRPOLoss final : public Loss {
 public:
  explicit GRPOLoss(const GRPOOptions& options) : options_(options) {}

  LossOutput operator()(const LossInput& in) const override;
  bool needs_entropy() const override { return options_.entropy_coef != 0; }
  bool divides() const override { return true; }

 private:
  GRPOOptions options_;
};

// Without the policy that sampled the loss is another one, so a name that was misspelt must not pass.
void check_names(const LossInput& in) {
  static const std::vector<std::string> kKnown = {"advantages", "old_logps", "old_logprobs", "ref_logps",
                                                  "ref_logprobs"};
  for (const auto& [name, value] : in.extras) {
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    throw invalid_argument("[GRPOLoss] reads 'advantages', 'old_logps' and 'ref_logps', got '" + name + "'" +
                           did_you_mean(name, kKnown));
  }
}

LossOutput GRPOLoss::operator()(const LossInput& in) const {
  const auto values = [&](const std::string& name) {
    return in.extra(name, "GRPOLoss").const_data_ptr<float>();
  };
  const float* advantage = values("advantages");
  check_names(in);
  const at::Tensor* given = in.find_extra("old_logps", "GRPOLoss");
  const float* old = given != nullptr ? given->const_data_ptr<float>() : nullptr;
  const float* ref = options_.beta != 0 ? values("ref_logps") : nullptr;
  const float* lp = in.logprob_S.const_data_ptr<float>();
  const float* w = in.weights_S.const_data_ptr<float>();
  const float* entropy = needs_entropy() ? in.entropy_S.const_data_ptr<float>() : nullptr;

  LossOutput out;
  out.dlogprob_S = at::zeros({in.num_scored()}, at::kFloat);
  float* dlogprob = out.dlogprob_S.mutable_data_ptr<float>();
  if (entropy != nullptr) out.dentropy_S = at::zeros({in.num_scored()}, at::kFloat);
  float* dentropy = entropy != nullptr ? out.dentropy_S.mutable_data_ptr<float>() : nullptr;
  for (size_t b = 0; b < static_cast<size_t>(in.num_sequences()); ++b) {
    const int64_t begin = in.cu_scored[b], end = in.cu_scored[b + 1];
    double weights = 0, sum = 0;
    for (int64_t s = begin; s < end; ++s) weights += w[s];
    for (int64_t s = begin; s < end; ++s) {
      if (w[s] == 0) continue;
      const double share = w[s] / weights, x = lp[s];
      GrpoTerm term = surrogate(x, old != nullptr ? old[s] : x, advantage[s], options_);
      if (ref != nullptr) {
        const double away = ref[s] - x, ratio = std::exp(away);
        term.value += options_.beta * (ratio - away - 1.0);
        term.slope += options_.beta * (1.0 - ratio);
      }
      if (entropy != nullptr) {
        term.value -= options_.entropy_coef * entropy[s];
        dentropy[s] = static_cast<float>(-options_.entropy_coef * share);
      }
      sum += share * term.value;
      dlogprob[s] = static_cast<float>(share * term.slope);
    }
    out.sum_B.push_back(sum);
    out.denominator_B.push_back(1.0);
  }
  return out;
}

const Registry<Loss>::Add grpo{
    {.name = "GRPOLoss",
     .help = "Clipped policy gradient with group-relative advantages. Reads 'advantages' and, when given, "
             "'old_logps' or 'old_logprobs' (of the policy that sampled; else the current one) and "
             "'ref_logps' (for "
             "beta).",
     .params =
         {{.name = "epsilon",
           .type = ParamType::kFloat,
           .default_value = 0.2,
           .help = "how far the probability ratio may fall below 1",
           .min = 0.0},
          {.name = "epsilon_high",
           .type = ParamType::kFloat,
           .default_value = nullptr,
           .help = "how far it may rise above 1; epsilon when not given",
           .min = 0.0},
          {.name = "beta",
           .type = ParamType::kFloat,
           .default_value = 0.0,
           .help = "weight of the divergence from the reference policy",
           .min = 0.0},
          {.name = "entropy_coef",
           .type = ParamType::kFloat,
           .default_value = 0.0,
           .help = "weight of the entropy, which is kept up"},
          {.name = "ignore_index", .type = ParamType::kInt, .default_value = -100, .help = "only -100"}}},
    [](const Options& o) -> std::unique_ptr<Loss> {
      GRPOOptions options{.epsilon = o.get_float("epsilon"),
                          .beta = o.get_float("beta"),
                          .entropy_coef = o.get_float("entropy_coef")};
      options.epsilon_high = o.has("epsilon_high") ? o.get_float("epsilon_high") : options.epsilon;
      if (o.get_int("ignore_index") != -100) {
        throw invalid_argument("[GRPOLoss] 'ignore_index': only -100 is supported, got " +
                               std::to_string(o.get_int("ignore_index")) + "; mask labels with -100");
      }
      return std::make_unique<GRPOLoss>(options);
    }};

}  // namespace
}  // namespace twinkle
