// The head where a row is scored for several targets (distillation, chosen alternatives): one walk over the
// vocabulary, however many there are. Contracts as in ops.h, whose functions these are with one target a row:
// there they have the same bits.
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops {

/// Targets of the rows of a head. Of HeadOutputs logprob_S is of the targets, everything else of the rows.
struct RowTargets {
  at::Tensor ids_S;                 // int32 or int64
  std::vector<int64_t> first = {};  // [rows+1]: those of row r are [first[r], first[r+1]); empty: one a row
};

void head_logprobs_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                      HeadOutputs& out);
/// dlogprob_S is of the targets, dentropy_H of the rows.
void head_backward_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                      const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_H,
                      std::span<const RowRange> order, at::Tensor& dhidden_HK, PackedMatrix* grad_VK);
void head_forward_backward_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                              const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                              const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                              at::Tensor& dhidden_HK, PackedMatrix* grad_VK);

}  // namespace twinkle::ops
