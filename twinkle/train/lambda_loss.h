// A user's own loss: a C++ function over log-probabilities, differentiated by torch autograd. The function
// runs on the calling thread; it must not keep the tensors it is given.
#pragma once

#include <functional>
#include <utility>

#include "twinkle/train/loss.h"

namespace twinkle {

/// What the accumulated value is divided by at the optimizer step.
enum class DivideBy { kNothing, kTokens, kSequences };

struct LambdaLossOptions {
  DivideBy divide_by = DivideBy::kNothing;  // kTokens: the sum of the weights of all accumulated batches
  bool needs_entropy = false;               // gives entropy_S, also differentiated
};

/// fn(logprob_S, input) returns a scalar. It always sees the whole call (every sequence of a
/// forward_backward), however many passes that takes, so its value never depends on how the batch was split;
/// over accumulated calls the values are added. invalid_argument when the result is not one fp32 number
/// connected to logprob_S.
class LambdaLoss : public Loss {
 public:
  using Fn = std::function<at::Tensor(const at::Tensor& logprob_S, const LossInput& input)>;
  explicit LambdaLoss(Fn fn, LambdaLossOptions options = {}) : fn_(std::move(fn)), options_(options) {}

  LossOutput operator()(const LossInput& input) const override;
  bool needs_entropy() const override { return options_.needs_entropy; }
  bool needs_whole_batch() const override { return true; }
  bool divides() const override { return options_.divide_by != DivideBy::kNothing; }

 private:
  Fn fn_;
  LambdaLossOptions options_;
};

}  // namespace twinkle
