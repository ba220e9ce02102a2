// A weight under its Hugging Face name: a packed matrix or a plain vector, with its gradient when it is
// trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "twinkle/kernels/ops.h"

namespace twinkle {

struct Parameter {
  std::string name;
  ops::PackedMatrix matrix, matrix_grad;  // for 2-D weights
  at::Tensor vector, vector_grad;         // for norms and biases
  /// Gradient of a head that shares this embedding. Kept apart while sequences are summed, so that the sum of
  /// each use runs over sequences in order however the batch is split; flat_grad() adds it in.
  ops::PackedMatrix tied_grad;
  bool trainable = false;

  bool is_matrix() const { return matrix.defined(); }
  std::vector<int64_t> shape() const;
  /// Flat storage of the value and of the gradient, same layout; element-wise optimizers run over these. Ask
  /// for the gradient when the batch is complete.
  at::Tensor flat() const { return is_matrix() ? matrix.storage() : vector; }
  at::Tensor flat_grad();
  /// fp32 storage and a zeroed gradient.
  void make_trainable();
  void zero_grad();
};

}  // namespace twinkle
