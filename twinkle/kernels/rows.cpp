// Row-wise operations: threads split rows (or, for a gradient of weights, columns).
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/tensor_data.h"
#include "twinkle/kernels/dispatch.h"
#include "twinkle/kernels/dropout_mask.h"

#include <algorithm>

namespace twinkle::ops {
namespace {

using cpu::read;
using cpu::row_kernels;
using cpu::write;

constexpr int64_t kGrainElements = 32768;  // work worth handing to another thread

int64_t rows_per_grain(int64_t row_elements) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, row_elements));
}

}  // namespace

void rms_norm(const at::Tensor& x_TK, const at::Tensor& w_K, double eps, at::Tensor& y_TK,
              at::Tensor& rstd_T) {
  if (!on_cpu_kernels(x_TK)) return aten::rms_norm(x_TK, w_K, eps, y_TK, rstd_T);
  const int64_t K = w_K.numel();
  const float *x = read<float>(x_TK), *w = read<float>(w_K);
  float *y = write<float>(y_TK), *rstd = write<float>(rstd_T);
  parallel_for(x_TK.numel() / K, rows_per_grain(K), [&](int64_t begin, int64_t end) {
    row_kernels().rms_norm(x + begin * K, w, static_cast<float>(eps), K, end - begin, y + begin * K,
                           rstd + begin);
  });
}

void rms_norm_backward(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& w_K,
                       const at::Tensor& rstd_T, at::Tensor& dx_TK, bool accumulate) {
  if (!on_cpu_kernels(x_TK)) return aten::rms_norm_backward(dy_TK, x_TK, w_K, rstd_T, dx_TK, accumulate);
  const int64_t K = w_K.numel();
  const float *dy = read<float>(dy_TK), *x = read<float>(x_TK), *w = read<float>(w_K),
              *rstd = read<float>(rstd_T);
  float* dx = write<float>(dx_TK);
  parallel_for(x_TK.numel() / K, rows_per_grain(K), [&](int64_t begin, int64_t end) {
    row_kernels().rms_norm_backward(dy + begin * K, x + begin * K, w, rstd + begin, K, end - begin,
                                    dx + begin * K, accumulate);
  });
}

void rms_norm_weight_grad(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& rstd_T,
                          std::span<const RowRange> order, at::Tensor& dw_K) {
  if (!on_cpu_kernels(x_TK)) return aten::rms_norm_weight_grad(dy_TK, x_TK, rstd_T, order, dw_K);
  const int64_t K = dw_K.numel();
  const float *dy = read<float>(dy_TK), *x = read<float>(x_TK), *rstd = read<float>(rstd_T);
  float* dw = write<float>(dw_K);
  constexpr int64_t kColumns = 64;
  parallel_for((K + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (const RowRange& rows : order) {
      row_kernels().rms_norm_weight_grad(dy, x, rstd, K, rows.begin, rows.end, begin * kColumns,
                                         std::min(K, end * kColumns), dw);
    }
  });
}

void add(const at::Tensor& a, const at::Tensor& b, at::Tensor& y) {
  if (!on_cpu_kernels(a)) return aten::add(a, b, y);
  TW_CHECK(a.numel() == b.numel() && a.numel() == y.numel(), "add: sizes differ");
  const float *pa = read<float>(a), *pb = read<float>(b);
  float* py = write<float>(y);
  parallel_for(a.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
    row_kernels().add(pa + begin, pb + begin, end - begin, py + begin);
  });
}

void rope(at::Tensor& x_THD, const at::Tensor& positions_T, const at::Tensor& cos, const at::Tensor& sin,
          bool inverse) {
  if (!on_cpu_kernels(x_THD)) return aten::rope(x_THD, positions_T, cos, sin, inverse);
  const int64_t H = x_THD.size(1), D = x_THD.size(2), half = cos.size(1);
  const int32_t* positions = read<int32_t>(positions_T);
  const float *c = read<float>(cos), *s = read<float>(sin);
  float* x = write<float>(x_THD);
  parallel_for(x_THD.size(0), rows_per_grain(H * D), [&](int64_t begin, int64_t end) {
    row_kernels().rope(x + begin * H * D, positions + begin, c, s, end - begin, H, D, half, inverse);
  });
}

void swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, at::Tensor& h_TF) {
  if (!on_cpu_kernels(gate_TF)) return aten::swiglu(gate_TF, up_TF, h_TF);
  const float *gate = read<float>(gate_TF), *up = read<float>(up_TF);
  float* h = write<float>(h_TF);
  parallel_for(gate_TF.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
    row_kernels().swiglu(gate + begin, up + begin, end - begin, h + begin);
  });
}

void swiglu_backward(const at::Tensor& dh_TF, at::Tensor& gate_TF, at::Tensor& up_TF) {
  if (!on_cpu_kernels(gate_TF)) return aten::swiglu_backward(dh_TF, gate_TF, up_TF);
  const float* dh = read<float>(dh_TF);
  float *gate = write<float>(gate_TF), *up = write<float>(up_TF);
  parallel_for(gate_TF.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
    row_kernels().swiglu_backward(dh + begin, end - begin, gate + begin, up + begin);
  });
}

void dropout(const at::Tensor& x_TK, double p, uint64_t seed, uint64_t stream,
             std::span<const uint64_t> row_sequence_key, std::span<const int32_t> row_position,
             at::Tensor& y_TK) {
  if (!on_cpu_kernels(x_TK))
    return aten::dropout(x_TK, p, seed, stream, row_sequence_key, row_position, y_TK);
  const int64_t rows = static_cast<int64_t>(row_position.size());
  if (rows == 0) return;
  const int64_t K = x_TK.numel() / rows;
  const DropoutMask mask(p, seed, stream);
  const float* x = read<float>(x_TK);
  float* y = write<float>(y_TK);
  parallel_for(rows, rows_per_grain(4 * K), [&](int64_t begin, int64_t end) {
    row_kernels().dropout(x + begin * K, mask.key(), mask.threshold(), mask.scale(),
                          row_sequence_key.data() + begin, row_position.data() + begin, K, end - begin,
                          y + begin * K);
  });
}

}  // namespace twinkle::ops
