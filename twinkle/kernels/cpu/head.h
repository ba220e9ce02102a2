// The vocabulary head on the CPU's vector units, contracts as in kernels/ops.h. Logits live in blocks only.
// Sums over the vocabulary run inside fixed blocks of kVocabBlock columns and then over blocks in order, in
// double precision.
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops::cpu {

void head_logprobs(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   HeadOutputs& out);
void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out);
void head_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                   std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK);
void head_forward_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                           const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                           const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                           at::Tensor& dhidden_SK, PackedMatrix* grad_VK);

}  // namespace twinkle::ops::cpu
