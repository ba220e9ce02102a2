// Group sequence policy optimization (Zheng et al. 2025, equations 5 to 7): the ratio of a whole sequence is
// clipped instead of each token's. With lp the log-probability of a target, q the one it was sampled with, A
// its advantage, m its "sequence_ratio_mask" (1 everywhere when there is none) and, for each sequence,
//   s = exp(sum m (lp - q) / sum m)
// the loss is the plain sum over targets of
//   -min(s A, clip(s, low, high) A)
// and its derivative goes through s: each target with m 1 gets -s / sum m times the sum of the advantages
// that are not held by a bound. In fp64 per sequence from zero; where A is 0 nothing is added, however large
// s is. Immutable, thread-safe.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/train/policy_bounds.h"

namespace twinkle {
namespace {

constexpr const char* kGspoName = "GspoLoss";

class GspoLoss final : public Loss {
 public:
  GspoLoss(double low, double high) : low_(low), high_(high) {}
  bool divides() const override { return false; }

  LossOutput operator()(const LossInput& in) const override {
    const float* lp = in.logprob_S.const_data_ptr<float>();
    const float* q = in.extra("old_logprobs", kGspoName).const_data_ptr<float>();
    const float* a = in.extra("advantages", kGspoName).const_data_ptr<float>();
    const auto found = in.extras.find("sequence_ratio_mask");
    const float* mask = found == in.extras.end() ? nullptr : found->second.const_data_ptr<float>();
    const auto counts = [&](int64_t s) { return mask == nullptr || mask[s] != 0; };
    LossOutput out;
    out.dlogprob_S = at::zeros({in.num_scored()}, at::kFloat);
    float* d = out.dlogprob_S.mutable_data_ptr<float>();
    for (size_t b = 0; b < static_cast<size_t>(in.num_sequences()); ++b) {
      const int64_t begin = in.cu_scored[b], end = in.cu_scored[b + 1];
      double sum = 0, count = 0;
      for (int64_t s = begin; s < end; ++s) {
        if (!counts(s)) continue;
        sum += static_cast<double>(lp[s]) - q[s];
        ++count;
      }
      const double ratio = count > 0 ? std::exp(sum / count) : 1.0, clipped = std::clamp(ratio, low_, high_);
      double value = 0, moving = 0;  // moving: advantages whose term follows the ratio
      for (int64_t s = begin; s < end; ++s) {
        if (a[s] == 0) continue;
        const double free = ratio * a[s], held = clipped * a[s];
        value -= std::min(free, held);
        if (free <= held) moving += a[s];
      }
      for (int64_t s = begin; s < end && moving != 0; ++s) {
        if (counts(s)) d[s] = static_cast<float>(-ratio * moving / count);
      }
      out.sum_B.push_back(value);
      out.denominator_B.push_back(static_cast<double>(end - begin));
    }
    return out;
  }

 private:
  double low_, high_;
};

const Registry<Loss>::Add gspo{
    {.name = kGspoName,
     .help = "GSPO's clipped objective, summed over tokens; bounds are on the ratio of the sequence.",
     .params = ratio_bounds(),
     .aliases = {"gspo"}},
    [](const Options& o) -> std::unique_ptr<Loss> {
      const double low = o.get_float("clip_low_threshold"), high = o.get_float("clip_high_threshold");
      check_ratio_bounds(low, high, kGspoName);
      return std::make_unique<GspoLoss>(low, high);
    }};

}  // namespace
}  // namespace twinkle
