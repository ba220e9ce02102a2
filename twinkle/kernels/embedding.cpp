// Dispatch of the embedding operations of ops.h.
#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops {

void embedding(const PackedMatrix& w_VK, const at::Tensor& tokens_T, at::Tensor& out_TK) {
  aten::embedding(w_VK, tokens_T, out_TK);
}

void embedding_grad(const at::Tensor& dout_TK, const at::Tensor& tokens_T, std::span<const RowRange> order,
                    PackedMatrix& grad_VK) {
  aten::embedding_grad(dout_TK, tokens_T, order, grad_VK);
}

}  // namespace twinkle::ops
