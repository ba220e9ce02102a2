// The matrix products on the CPU's vector units, contracts as in kernels/ops.h.
#pragma once

#include "twinkle/kernels/cpu/gemm.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops::cpu {

void lora_shrink(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR);
void linear(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N, const LoraBatch* lora,
            const at::Tensor& low_TR, at::Tensor& y_TN);
void lora_shrink_backward(const at::Tensor& dy_TN, const LoraBatch& lora, at::Tensor& dlow_TR);
void linear_backward_input(const at::Tensor& dy_TN, const PackedMatrix& w, const LoraBatch* lora,
                           const at::Tensor& dlow_TR, at::Tensor& dx_TK, bool accumulate);
void lora_backward_input(const at::Tensor& dlow_TR, const LoraBatch& lora, at::Tensor& dx_TK);
void lora_weight_grad(const at::Tensor& x_TK, const at::Tensor& low_TR, const at::Tensor& dy_TN,
                      const at::Tensor& dlow_TR, const LoraBatch& lora);
void linear_weight_grad(const at::Tensor& dy_TN, const at::Tensor& x_TK, std::span<const RowRange> order,
                        PackedMatrix& grad);
void bias_grad(const at::Tensor& dy_TN, std::span<const RowRange> order, at::Tensor& dbias_N);

/// The spans of a batch that have an adapter, ascending by row, as low-rank steps with B (forward) or A
/// (backward).
std::vector<Extra> forward_extras(const LoraBatch& lora);
std::vector<Extra> backward_extras(const LoraBatch& lora);

/// Checks that a tensor is a contiguous fp32 matrix of this many columns and returns its data.
const float* rows_of(const at::Tensor& x, int64_t columns, const char* name);
float* rows_of(at::Tensor& x, int64_t columns, const char* name);

}  // namespace twinkle::ops::cpu
