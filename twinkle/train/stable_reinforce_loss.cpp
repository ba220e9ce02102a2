// Importance-weighted REINFORCE that is held near the policy that sampled. Tinker's loss of this name has no
// published formula; this is ours. With lp the log-probability of a target, q the one it was sampled with and
// A its advantage, the plain sum over targets of
//   -r A + kl_coeff (exp(x) - x - 1),   r = exp(lp - q), x = q - lp
// The second part is the k3 estimate of the divergence (Schulman 2020, "Approximating KL divergence"), taken
// at targets that were sampled: those where the extra "sampled" is not 0 or, without it, where q and A are
// not both 0, as they are over a prompt. In fp64 per sequence from zero; where A is 0 the first part adds
// nothing, however large r is. Immutable, thread-safe.
#include <ATen/ATen.h>

#include <cmath>

#include "twinkle/train/loss.h"

namespace twinkle {
namespace {

constexpr const char* kStableReinforceName = "StableReinforceLoss";

class StableReinforceLoss final : public Loss {
 public:
  explicit StableReinforceLoss(double kl_coeff) : kl_coeff_(kl_coeff) {}
  bool divides() const override { return false; }

  LossOutput operator()(const LossInput& in) const override {
    const float* lp = in.logprob_S.const_data_ptr<float>();
    const float* q = in.extra("old_logprobs", kStableReinforceName).const_data_ptr<float>();
    const float* a = in.extra("advantages", kStableReinforceName).const_data_ptr<float>();
    const auto found = in.extras.find("sampled");
    const float* sampled = found == in.extras.end() ? nullptr : found->second.const_data_ptr<float>();
    LossOutput out;
    out.dlogprob_S = at::zeros({in.num_scored()}, at::kFloat);
    float* d = out.dlogprob_S.mutable_data_ptr<float>();
    for (size_t b = 0; b < static_cast<size_t>(in.num_sequences()); ++b) {
      double sum = 0;
      for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s) {
        double derivative = 0;
        if (a[s] != 0) {
          derivative = -std::exp(static_cast<double>(lp[s]) - q[s]) * a[s];
          sum += derivative;
        }
        if (kl_coeff_ != 0 && (sampled != nullptr ? sampled[s] != 0 : a[s] != 0 || q[s] != 0)) {
          const double x = static_cast<double>(q[s]) - lp[s];
          sum += kl_coeff_ * (std::expm1(x) - x);
          derivative -= kl_coeff_ * std::expm1(x);
        }
        d[s] = static_cast<float>(derivative);
      }
      out.sum_B.push_back(sum);
      out.denominator_B.push_back(static_cast<double>(in.cu_scored[b + 1] - in.cu_scored[b]));
    }
    return out;
  }

 private:
  double kl_coeff_;
};

const Registry<Loss>::Add stable_reinforce{
    {.name = kStableReinforceName,
     .help = "REINFORCE weighted by the ratio of probabilities, with a pull to the sampling policy (k3 "
             "divergence), summed over tokens.",
     .params = {{.name = "kl_coeff",
                 .type = ParamType::kFloat,
                 .default_value = 0.01,
                 .help = "strength of the pull",
                 .min = 0}},
     .aliases = {"stable_reinforce"}},
    [](const Options& o) -> std::unique_ptr<Loss> {
      return std::make_unique<StableReinforceLoss>(o.get_float("kl_coeff"));
    }};

}  // namespace
}  // namespace twinkle
