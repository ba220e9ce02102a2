#include "twinkle/nn/parameter.h"

#include <ATen/ops/zeros_like.h>

namespace twinkle {

std::vector<int64_t> Parameter::shape() const {
  if (is_matrix()) return {matrix.rows(), matrix.cols()};
  return vector.sizes().vec();
}

at::Tensor Parameter::flat_grad() {
  if (!is_matrix()) return vector_grad;
  if (!matrix_grad.defined()) return {};
  at::Tensor grad = matrix_grad.storage();
  if (tied_grad.defined()) {
    at::Tensor tied = tied_grad.storage();
    grad.add_(tied);
    tied.zero_();
  }
  return grad;
}

void Parameter::make_trainable() {
  trainable = true;
  if (!is_matrix()) {
    if (!vector_grad.defined()) vector_grad = at::zeros_like(vector);
    return;
  }
  if (matrix.dtype() != at::kFloat) {
    const ops::PackedMatrix& source = matrix;
    if (matrix.device().is_cpu()) {
      matrix = ops::PackedMatrix::build(
          source.rows(), source.cols(), at::kFloat, source.device(),
          [&](int64_t begin, int64_t end, float* out) { source.read_rows(begin, end, out); });
    } else {
      matrix = ops::PackedMatrix::pack(matrix.unpack(), at::kFloat);
    }
  }
  if (!matrix_grad.defined()) matrix_grad = ops::PackedMatrix::zeros_like(matrix);
}

void Parameter::zero_grad() {
  for (at::Tensor grad : {matrix_grad.storage(), tied_grad.storage(), vector_grad}) {
    if (grad.defined()) grad.zero_();
  }
}

}  // namespace twinkle
