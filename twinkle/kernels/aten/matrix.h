// The matrix products in plain ATen: the oracle of the tests, and what runs on any device but the CPU. Same
// contracts as kernels/ops.h, except that bits may depend on the shape of the batch (ATen chooses its kernels
// by it).
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops::aten {

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

void head_logprobs(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   HeadOutputs& out);
void head_logits(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                 const at::Tensor& low_SR, at::Tensor& logits_SV);
void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out);
void head_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                   std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK);

}  // namespace twinkle::ops::aten
