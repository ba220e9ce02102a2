// Dispatch of the rows operations of ops.h.
#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops {

void rms_norm(const at::Tensor& x_TK, const at::Tensor& w_K, double eps, at::Tensor& y_TK,
              at::Tensor& rstd_T) {
  aten::rms_norm(x_TK, w_K, eps, y_TK, rstd_T);
}

void rms_norm_backward(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& w_K,
                       const at::Tensor& rstd_T, at::Tensor& dx_TK, bool accumulate) {
  aten::rms_norm_backward(dy_TK, x_TK, w_K, rstd_T, dx_TK, accumulate);
}

void rms_norm_weight_grad(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& rstd_T,
                          std::span<const RowRange> order, at::Tensor& dw_K) {
  aten::rms_norm_weight_grad(dy_TK, x_TK, rstd_T, order, dw_K);
}

void add(const at::Tensor& a, const at::Tensor& b, at::Tensor& y) { aten::add(a, b, y); }

void rope(at::Tensor& x_THD, const at::Tensor& positions_T, const at::Tensor& cos, const at::Tensor& sin,
          bool inverse) {
  aten::rope(x_THD, positions_T, cos, sin, inverse);
}

void swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, at::Tensor& h_TF) {
  aten::swiglu(gate_TF, up_TF, h_TF);
}

void swiglu_backward(const at::Tensor& dh_TF, at::Tensor& gate_TF, at::Tensor& up_TF) {
  aten::swiglu_backward(dh_TF, gate_TF, up_TF);
}

void dropout(const at::Tensor& x_TK, double p, uint64_t seed, uint64_t stream,
             std::span<const uint64_t> row_sequence_key, std::span<const int32_t> row_position,
             at::Tensor& y_TK) {
  aten::dropout(x_TK, p, seed, stream, row_sequence_key, row_position, y_TK);
}

}  // namespace twinkle::ops
