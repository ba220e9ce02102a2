// Losses of policy gradients as the Tinker API defines them: plain sums over tokens, no mean anywhere. With
// lp the log-probability of a target, q the one it was sampled with ("old_logprobs"), A its advantage, r =
// exp(lp-q):
//   importance_sampling  -sum r A
//   ppo                  -sum min(r A, clip(r, low, high) A)   (Schulman et al. 2017; bounds on r itself)
//   cispo                -sum clip(r, low, high) lp A          (the ratio is constant in the derivative)
//   dro                  -sum (lp A - beta/2 (lp - q)^2)
//
// In fp64 per sequence from zero. Where A is 0 the first three add nothing, however large r is. Bounds may
// also come for each target, as extras of their names. Immutable, thread-safe.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/train/policy_bounds.h"

namespace twinkle {
namespace {

/// Value and derivative of one token's part.
struct PolicyTerm {
  double value = 0, derivative = 0;
};

struct ImportanceSampling {
  static constexpr const char* kName = "ImportanceSamplingLoss";
  PolicyTerm operator()(double lp, double q, double a) const {
    if (a == 0) return {};
    const double weighted = std::exp(lp - q) * a;
    return {-weighted, -weighted};
  }
};

struct ClippedRatio {
  static constexpr const char* kName = "ClippedRatioLoss";
  double low = 0, high = 0;
  PolicyTerm operator()(double lp, double q, double a) const {
    if (a == 0) return {};
    const double r = std::exp(lp - q), free = r * a, clipped = std::clamp(r, low, high) * a;
    if (free <= clipped) return {-free, -free};
    return {-clipped, 0.0};
  }
};

struct Cispo {
  static constexpr const char* kName = "CispoLoss";
  double low = 0, high = 0;
  PolicyTerm operator()(double lp, double q, double a) const {
    if (a == 0) return {};
    const double weight = std::clamp(std::exp(lp - q), low, high) * a;
    return {-weight * lp, -weight};
  }
};

struct Dro {
  static constexpr const char* kName = "DroLoss";
  double beta = 0;
  PolicyTerm operator()(double lp, double q, double a) const {
    const double d = lp - q;
    return {-(lp * a - 0.5 * beta * d * d), -(a - beta * d)};
  }
};

template <class Rule>
class PolicyLoss : public Loss {
 public:
  explicit PolicyLoss(Rule rule) : rule_(rule) {}
  bool divides() const override { return false; }

  LossOutput operator()(const LossInput& in) const override {
    const float* lp = in.logprob_S.const_data_ptr<float>();
    const float* q = in.extra("old_logprobs", Rule::kName).template const_data_ptr<float>();
    const float* a = in.extra("advantages", Rule::kName).template const_data_ptr<float>();
    const auto sequences = static_cast<size_t>(in.num_sequences());
    LossOutput out{.sum_B = std::vector<double>(sequences), .denominator_B = std::vector<double>(sequences)};
    out.dlogprob_S = at::empty({in.num_scored()}, at::kFloat);
    float* d = out.dlogprob_S.mutable_data_ptr<float>();
    const auto bound = [&](const char* name) {
      return in.extras.contains(name) ? in.extras.at(name).template const_data_ptr<float>() : nullptr;
    };
    const float *low = bound("clip_low_threshold"), *high = bound("clip_high_threshold");
    Rule rule = rule_;
    for (size_t b = 0; b < sequences; ++b) {
      for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s) {
        if constexpr (requires { rule.low; }) {
          if (low != nullptr) rule.low = low[s];
          if (high != nullptr) rule.high = high[s];
          check_ratio_bounds(rule.low, rule.high, Rule::kName);
        }
        const PolicyTerm term = rule(lp[s], q[s], a[s]);
        out.sum_B[b] += term.value;
        d[s] = static_cast<float>(term.derivative);
      }
      out.denominator_B[b] = static_cast<double>(in.cu_scored[b + 1] - in.cu_scored[b]);
    }
    return out;
  }

 private:
  Rule rule_;
};

template <class Rule>
std::unique_ptr<Loss> with_bounds(const Options& o) {
  const double low = o.get_float("clip_low_threshold"), high = o.get_float("clip_high_threshold");
  check_ratio_bounds(low, high, Rule::kName);
  return std::make_unique<PolicyLoss<Rule>>(Rule{low, high});
}

const Registry<Loss>::Add importance_sampling{
    {.name = ImportanceSampling::kName,
     .help = "Policy gradient by importance sampling: the sum of -exp(logprob - old_logprob) * advantage.",
     .aliases = {"importance_sampling"}},
    [](const Options&) -> std::unique_ptr<Loss> {
      return std::make_unique<PolicyLoss<ImportanceSampling>>(ImportanceSampling{});
    }};
const Registry<Loss>::Add ppo{
    {.name = ClippedRatio::kName,
     .help = "PPO's clipped objective, summed over tokens; bounds are on the ratio.",
     .params = ratio_bounds(),
     .aliases = {"ppo"}},
    with_bounds<ClippedRatio>};
const Registry<Loss>::Add cispo{{.name = Cispo::kName,
                                 .help = "REINFORCE weighted by the clipped ratio, summed over tokens.",
                                 .params = ratio_bounds(),
                                 .aliases = {"cispo"}},
                                with_bounds<Cispo>};
const Registry<Loss>::Add dro{{.name = Dro::kName,
                               .help = "Advantage-weighted likelihood with a quadratic pull to the sampling "
                                       "policy, summed over tokens.",
                               .params = {{.name = "beta",
                                           .type = ParamType::kFloat,
                                           .default_value = 0.05,
                                           .help = "strength of the pull",
                                           .min = 0}},
                               .aliases = {"dro"}},
                              [](const Options& o) -> std::unique_ptr<Loss> {
                                return std::make_unique<PolicyLoss<Dro>>(Dro{o.get_float("beta")});
                              }};

}  // namespace
}  // namespace twinkle
