// Optimizer steps and the sum of squares behind gradient norms: threads split elements, or fixed blocks of
// them.
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/tensor_data.h"
#include "twinkle/kernels/dispatch.h"

#include <algorithm>
#include <cmath>

namespace twinkle::ops {

using cpu::read;
using cpu::row_kernels;
using cpu::write;

void adam_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, const AdamStep& hyper) {
  if (!on_cpu_kernels(p)) return aten::adam_step(p, g, m, v, hyper);
  TW_CHECK(p.numel() == g.numel() && p.numel() == m.numel() && p.numel() == v.numel(),
           "adam_step: sizes differ");
  const double step = static_cast<double>(hyper.step);
  const double correction1 = 1.0 - std::pow(hyper.beta1, step),
               correction2 = 1.0 - std::pow(hyper.beta2, step);
  const double decay = hyper.weight_decay;
  const cpu::AdamConstants constants = {
      .grad_scale = static_cast<float>(hyper.grad_scale),
      .keep = hyper.decoupled ? static_cast<float>(1.0 - hyper.lr * decay) : 1.0f,
      .decay = hyper.decoupled ? 0.0f : static_cast<float>(decay),
      .weight1 = static_cast<float>(1.0 - hyper.beta1),
      .beta2 = static_cast<float>(hyper.beta2),
      .weight2 = static_cast<float>(1.0 - hyper.beta2),
      .root2 = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(hyper.eps),
      .minus_step_size = static_cast<float>(-hyper.lr / correction1)};
  const float* grad = read<float>(g);
  float *weight = write<float>(p), *first = write<float>(m), *second = write<float>(v);
  parallel_for(p.numel(), 16384, [&](int64_t begin, int64_t end) {
    row_kernels().adam(grad + begin, end - begin, constants, weight + begin, first + begin, second + begin);
  });
}

double sum_of_squares(const at::Tensor& x) {
  if (!on_cpu_kernels(x)) return aten::sum_of_squares(x);
  constexpr int64_t kBlock = 16384;
  const int64_t count = x.numel(), blocks = (count + kBlock - 1) / kBlock;
  const float* data = read<float>(x);
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[static_cast<size_t>(i)] =
          row_kernels().sum_of_squares(data + i * kBlock, std::min(kBlock, count - i * kBlock));
    }
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace twinkle::ops
