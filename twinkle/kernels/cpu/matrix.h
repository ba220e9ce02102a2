// The matrix products on the CPU's vector units, contracts as in kernels/ops.h.
#pragma once

#include "twinkle/kernels/cpu/gemm.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops::cpu {

decltype(ops::pack_lora) pack_lora;
decltype(ops::lora_shrink) lora_shrink;
decltype(ops::linear) linear;
decltype(ops::linears) linears;
decltype(ops::lora_shrink_backward) lora_shrink_backward;
decltype(ops::linear_backward_input) linear_backward_input;
decltype(ops::lora_backward_input) lora_backward_input;
decltype(ops::lora_weight_grad) lora_weight_grad;
decltype(ops::linear_weight_grad) linear_weight_grad;
decltype(ops::bias_grad) bias_grad;

/// The spans of a batch that have an adapter, ascending by row, as low-rank steps with B (forward) or A
/// (backward).
std::vector<Extra> forward_extras(const LoraBatch& lora);
std::vector<Extra> backward_extras(const LoraBatch& lora);

/// Checks that a tensor is a contiguous fp32 matrix of this many columns and returns its data.
const float* rows_of(const at::Tensor& x, int64_t columns, const char* name);
float* rows_of(at::Tensor& x, int64_t columns, const char* name);

}  // namespace twinkle::ops::cpu
