#include <ATen/core/Tensor.h>

#include "twinkle/kernels/aten/matrix.h"
#include "twinkle/kernels/cpu/head.h"
#include "twinkle/kernels/cpu/matrix.h"
#include "twinkle/kernels/dispatch.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops {

void head_logprobs(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   HeadOutputs& out) {
  head_logprobs_of(hidden_SK, w_VK, lora, low_SR, {.ids_S = targets_S}, inv_temperature, out);
}

void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out) {
  if (on_cpu_kernels(logits_SV)) {
    cpu::logits_logprobs(logits_SV, targets_S, inv_temperature, out);
  } else {
    aten::logits_logprobs(logits_SV, targets_S, inv_temperature, out);
  }
}

void head_logits(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                 const at::Tensor& low_SR, at::Tensor& logits_SV) {
  if (on_cpu_kernels(hidden_SK)) {
    cpu::linear(hidden_SK, w_VK, at::Tensor(), lora, low_SR, logits_SV);
  } else {
    aten::head_logits(hidden_SK, w_VK, lora, low_SR, logits_SV);
  }
}

void head_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                   std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  head_backward_of(hidden_SK, w_VK, lora, low_SR, {.ids_S = targets_S}, inv_temperature, forward, dlogprob_S,
                   dentropy_S, order, dhidden_SK, grad_VK);
}

void head_forward_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                           const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                           const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                           at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  head_forward_backward_of(hidden_SK, w_VK, lora, low_SR, {.ids_S = targets_S}, inv_temperature, dlogprob_S,
                           order, out, dhidden_SK, grad_VK);
}

// Several targets a row.

void head_logprobs_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                      HeadOutputs& out) {
  if (on_cpu_kernels(hidden_HK)) {
    cpu::head_logprobs_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, out);
  } else {
    aten::head_logprobs_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, out);
  }
}

void head_backward_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                      const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_H,
                      std::span<const RowRange> order, at::Tensor& dhidden_HK, PackedMatrix* grad_VK) {
  if (on_cpu_kernels(hidden_HK)) {
    cpu::head_backward_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, forward, dlogprob_S,
                          dentropy_H, order, dhidden_HK, grad_VK);
  } else {
    aten::head_backward_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, forward, dlogprob_S,
                           dentropy_H, order, dhidden_HK, grad_VK);
  }
}

void head_forward_backward_of(const at::Tensor& hidden_HK, const PackedMatrix& w_VK, const LoraBatch* lora,
                              const at::Tensor& low_HR, const RowTargets& targets, double inv_temperature,
                              const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                              at::Tensor& dhidden_HK, PackedMatrix* grad_VK) {
  if (on_cpu_kernels(hidden_HK)) {
    cpu::head_forward_backward_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, dlogprob_S, order,
                                  out, dhidden_HK, grad_VK);
    return;
  }
  aten::head_logprobs_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, out);
  aten::head_backward_of(hidden_HK, w_VK, lora, low_HR, targets, inv_temperature, out, dlogprob_S,
                         at::Tensor(), order, dhidden_HK, grad_VK);
}

}  // namespace twinkle::ops
