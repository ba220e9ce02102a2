// Losses: from per-token log-probabilities and per-sequence bounds to a value and its derivative. Components
// of kind "loss". A loss is immutable; one object may serve many threads.
//
// A loss returns a SUM and, where its reduction is a mean, what the sum is to be divided by. The division
// happens once, at the optimizer step, from the count of the whole accumulated batch; so the way a batch is
// split over passes changes no bit. For the same reason sums come back one a sequence: whoever adds them up
// does it in sequence order, wherever the passes ended.
//
// Legend: S scored rows in sequence order, B sequences. All tensors are on the CPU and contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/registry.h"

namespace twinkle {

/// What a loss sees.
struct LossInput {
  at::Tensor logprob_S;            // fp32, log-probability of each target; undefined for known_dlogprob
  at::Tensor entropy_S;            // fp32, only when needs_entropy()
  at::Tensor targets_S;            // int32
  at::Tensor weights_S;            // fp32, >= 0 unless the loss says otherwise
  std::vector<int64_t> cu_scored;  // [B+1]; rows [cu_scored[b], cu_scored[b+1]) belong to sequence b
  std::map<std::string, at::Tensor> extras;  // fp32 [S] by name: "advantages", "old_logprobs", ...

  int64_t num_sequences() const { return cu_scored.empty() ? 0 : static_cast<int64_t>(cu_scored.size()) - 1; }
  int64_t num_scored() const { return cu_scored.empty() ? 0 : cu_scored.back(); }
  /// The named extra; invalid_argument "[`loss`] needs '...'" when the caller gave none. "old_logps" and
  /// "ref_logps" may also be called "old_logprobs" and "ref_logprobs", but not both.
  const at::Tensor& extra(const std::string& name, std::string_view loss) const;
  /// The same; null when there is none.
  const at::Tensor* find_extra(const std::string& name, std::string_view loss) const;
};

struct LossOutput {
  std::vector<double> sum_B;          // each sequence's part of the sum
  std::vector<double> denominator_B;  // each sequence's part of the divisor
  at::Tensor dlogprob_S;              // derivative of the sum; undefined: known_dlogprob gives it
  at::Tensor dentropy_S;              // undefined when the loss does not use the entropy
  std::map<std::string, double> metrics;

  double sum() const;          // added up in sequence order
  double denominator() const;  // likewise
};

class Loss {
 public:
  static constexpr std::string_view kKind = "loss";
  virtual ~Loss() = default;

  virtual LossOutput operator()(const LossInput& input) const = 0;

  /// Derivative of the sum with respect to the log-probabilities, when it does not depend on them
  /// (cross-entropy): lets the head run forward and backward in one walk. Undefined when it does depend.
  virtual at::Tensor known_dlogprob(const LossInput& input) const;
  virtual bool needs_entropy() const { return false; }
  /// Whether sequences meet inside the loss (pairs, batch statistics). Such a loss always sees the whole call
  /// at once; passes over it are repeated when the call does not fit into one.
  virtual bool needs_whole_batch() const { return false; }
  /// Whether the accumulated sum is divided by the accumulated denominator (a mean).
  virtual bool divides() const = 0;
};

/// sum / denominator; the sum as it is when the denominator is not positive (nothing is scored).
double mean_or_zero(double sum, double denominator);

}  // namespace twinkle
