// Optimizer steps in plain ATen, in the order of operations of torch.optim.
#include <ATen/ATen.h>

#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops::aten {

void adam_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, const AdamStep& hyper) {
  at::Tensor grad = hyper.grad_scale == 1.0 ? g : g * hyper.grad_scale;
  if (hyper.weight_decay != 0.0) {
    if (hyper.decoupled) {
      p.mul_(1.0 - hyper.lr * hyper.weight_decay);
    } else {
      grad = grad.add(p, hyper.weight_decay);
    }
  }
  m.lerp_(grad, 1.0 - hyper.beta1);
  v.mul_(hyper.beta2).addcmul_(grad, grad, 1.0 - hyper.beta2);
  const double step = static_cast<double>(hyper.step);
  const double correction1 = 1.0 - std::pow(hyper.beta1, step),
               correction2 = 1.0 - std::pow(hyper.beta2, step);
  const at::Tensor denominator = (v.sqrt() / std::sqrt(correction2)).add_(hyper.eps);
  p.addcdiv_(m, denominator, -hyper.lr / correction1);
}

double sum_of_squares(const at::Tensor& x) {
  const at::Tensor flat = x.reshape({-1});
  constexpr int64_t kBlock = 1 << 20;  // bounds the fp64 copy
  double total = 0.0;
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlock) {
    const at::Tensor block = flat.slice(0, begin, std::min(flat.numel(), begin + kBlock));
    total += block.to(at::kDouble).square().sum().item<double>();
  }
  return total;
}

}  // namespace twinkle::ops::aten
