// Dispatch of the optimizer operations of ops.h.
#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops {

void adam_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, const AdamStep& hyper) {
  aten::adam_step(p, g, m, v, hyper);
}

double sum_of_squares(const at::Tensor& x) { return aten::sum_of_squares(x); }

}  // namespace twinkle::ops
