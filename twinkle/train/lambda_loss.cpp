#include "twinkle/train/lambda_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "twinkle/core/error.h"
#include "twinkle/core/list_text.h"

namespace twinkle {
namespace {

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

}  // namespace

LossOutput LambdaLoss::operator()(const LossInput& in) const {
  const at::AutoGradMode enabled(true);
  const at::Tensor logprob = leaf(in.logprob_S);
  LossInput given = in;
  given.logprob_S = logprob;
  if (options_.needs_entropy) given.entropy_S = leaf(in.entropy_S);

  const at::Tensor value = fn_(logprob, given);
  if (!value.defined() || value.numel() != 1) {
    throw invalid_argument("[LambdaLoss] the function must return one number, got " +
                           (value.defined() ? "a tensor of shape " + shape_text(value.sizes()) : "nothing"));
  }
  LossOutput out;
  const auto num_sequences = static_cast<size_t>(in.num_sequences());
  out.sum_B.assign(num_sequences, 0.0);
  out.denominator_B.assign(num_sequences, 0.0);
  const float* w = in.weights_S.const_data_ptr<float>();
  for (size_t b = 0; b < num_sequences; ++b) {
    double weight_sum = 0;
    for (int64_t s = in.cu_scored[b]; s < in.cu_scored[b + 1]; ++s) weight_sum += w[s];
    out.denominator_B[b] =
        options_.divide_by == DivideBy::kSequences ? (weight_sum > 0 ? 1.0 : 0.0) : weight_sum;
  }
  // The value belongs to the call as a whole; it stands with the first sequence.
  if (num_sequences > 0) out.sum_B[0] = value.item<double>();
  if (in.num_scored() == 0) {
    out.dlogprob_S = at::zeros({0}, at::kFloat);
    return out;
  }
  if (!value.requires_grad()) {
    throw invalid_argument(
        "[LambdaLoss] the result does not depend on the log-probabilities, so nothing can be trained");
  }
  value.reshape({}).backward();
  const auto gradient = [](const at::Tensor& x) {
    return x.grad().defined() ? x.grad().to(at::kFloat).contiguous() : at::zeros_like(x.detach());
  };
  out.dlogprob_S = gradient(logprob);
  if (options_.needs_entropy) out.dentropy_S = gradient(given.entropy_S);
  return out;
}

}  // namespace twinkle
