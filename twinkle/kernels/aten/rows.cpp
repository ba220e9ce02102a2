// Row-wise operations in plain ATen. Rows are folded to [T, K].
#include "twinkle/kernels/aten/rows.h"

#include <ATen/ATen.h>

#include "twinkle/kernels/dropout_mask.h"

namespace twinkle::ops::aten {

void rms_norm(const at::Tensor& x_TK, const at::Tensor& w_K, double eps, at::Tensor& y_TK,
              at::Tensor& rstd_T) {
  const int64_t K = w_K.size(0);
  const at::Tensor x = x_TK.view({-1, K});
  const at::Tensor rstd = at::rsqrt(x.square().mean(1) + eps);
  y_TK.view({-1, K}).copy_(x * rstd.unsqueeze(1) * w_K);
  rstd_T.view({-1}).copy_(rstd);
}

void rms_norm_backward(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& w_K,
                       const at::Tensor& rstd_T, at::Tensor& dx_TK, bool accumulate) {
  const int64_t K = w_K.size(0);
  const at::Tensor x = x_TK.view({-1, K}), rstd = rstd_T.view({-1, 1});
  const at::Tensor dyw = dy_TK.view({-1, K}) * w_K;
  const at::Tensor mean = (dyw * x).mean(1, /*keepdim=*/true);
  const at::Tensor grad = rstd * (dyw - x * (rstd.square() * mean));
  at::Tensor dx = dx_TK.view({-1, K});
  accumulate ? dx.add_(grad) : dx.copy_(grad);
}

void rms_norm_weight_grad(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& rstd_T,
                          std::span<const RowRange> order, at::Tensor& dw_K) {
  const int64_t K = dw_K.size(0);
  const at::Tensor dy = dy_TK.view({-1, K}), x = x_TK.view({-1, K}), rstd = rstd_T.view({-1, 1});
  for (const RowRange& rows : order) {
    const auto cut = [&](const at::Tensor& t) { return t.slice(0, rows.begin, rows.end); };
    dw_K.add_((cut(dy) * (cut(x) * cut(rstd))).sum(0));
  }
}

void add(const at::Tensor& a, const at::Tensor& b, at::Tensor& y) { at::add_out(y, a, b); }

void rope(at::Tensor& x_THD, const at::Tensor& positions_T, const at::Tensor& cos, const at::Tensor& sin,
          bool inverse) {
  const int64_t half = cos.size(1);
  const at::Tensor at_rows = positions_T.to(at::kLong);
  const at::Tensor c = cos.index_select(0, at_rows).unsqueeze(1);
  at::Tensor s = sin.index_select(0, at_rows).unsqueeze(1);
  if (inverse) s = s.neg();
  at::Tensor first = x_THD.slice(2, 0, half), second = x_THD.slice(2, half, 2 * half);
  const at::Tensor a = first * c - second * s, b = second * c + first * s;
  first.copy_(a);
  second.copy_(b);
}

void swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, at::Tensor& h_TF) {
  h_TF.copy_(at::silu(gate_TF) * up_TF);
}

void swiglu_backward(const at::Tensor& dh_TF, at::Tensor& gate_TF, at::Tensor& up_TF) {
  const at::Tensor sigmoid = at::sigmoid(gate_TF);
  const at::Tensor dgate = dh_TF * up_TF * sigmoid * (gate_TF * (1 - sigmoid) + 1);
  up_TF.copy_(dh_TF * (gate_TF * sigmoid));
  gate_TF.copy_(dgate);
}

void dropout(const at::Tensor& x_TK, double p, uint64_t seed, uint64_t stream,
             std::span<const uint64_t> row_sequence_key, std::span<const int32_t> row_position,
             at::Tensor& y_TK) {
  const int64_t rows = static_cast<int64_t>(row_position.size());
  if (rows == 0) return;
  const int64_t K = x_TK.numel() / rows;
  at::Tensor keep = at::empty({rows, K}, at::kFloat);
  float* out = keep.data_ptr<float>();
  const DropoutMask mask(p, seed, stream);
  for (int64_t t = 0; t < rows; ++t) {
    const size_t row = static_cast<size_t>(t);
    for (int64_t k = 0; k < K; ++k)
      out[t * K + k] = mask.keep(row_sequence_key[row], row_position[row], k) ? 1.0f : 0.0f;
  }
  const at::Tensor moved = keep.to(x_TK.device()).view(x_TK.sizes());
  // where, not a product: a dropped element is 0 even when it is not finite.
  y_TK.copy_(at::where(moved > 0, x_TK * mask.scale(), at::zeros({}, x_TK.options())));
}

}  // namespace twinkle::ops::aten
