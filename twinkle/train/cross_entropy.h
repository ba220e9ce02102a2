// Cross-entropy of the targets with named reductions. Immutable, thread-safe.
//
// With w the weight of a target and lp its log-probability, in fp64 per sequence from zero:
//   sum            L = sum of -w lp
//   token_mean     L = sum of -w lp / sum of w, over the whole accumulated batch
//   sequence_mean  L = mean over sequences of (sum of -w lp / sum of w), sequences without a scored token
//   left out
// With `dft` each term is -w p lp, p = exp(lp) taking part in the derivative, as upstream.
#pragma once

#include "twinkle/train/loss.h"

namespace twinkle {

enum class Reduction { kSum, kTokenMean, kSequenceMean };

class CrossEntropyLoss : public Loss {
 public:
  explicit CrossEntropyLoss(Reduction reduction = Reduction::kTokenMean, bool dft = false)
      : reduction_(reduction), dft_(dft) {}

  LossOutput operator()(const LossInput& input) const override;
  at::Tensor known_dlogprob(const LossInput& input) const override;
  bool divides() const override { return reduction_ != Reduction::kSum; }

 private:
  Reduction reduction_;
  bool dft_;
};

}  // namespace twinkle
