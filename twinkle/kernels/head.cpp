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
  if (on_cpu_kernels(hidden_SK)) {
    cpu::head_logprobs(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, out);
  } else {
    aten::head_logprobs(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, out);
  }
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
  if (on_cpu_kernels(hidden_SK)) {
    cpu::head_backward(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, forward, dlogprob_S,
                       dentropy_S, order, dhidden_SK, grad_VK);
  } else {
    aten::head_backward(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, forward, dlogprob_S,
                        dentropy_S, order, dhidden_SK, grad_VK);
  }
}

void head_forward_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                           const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                           const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                           at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  if (on_cpu_kernels(hidden_SK)) {
    cpu::head_forward_backward(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, dlogprob_S, order,
                               out, dhidden_SK, grad_VK);
    return;
  }
  aten::head_logprobs(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, out);
  aten::head_backward(hidden_SK, w_VK, lora, low_SR, targets_S, inv_temperature, out, dlogprob_S,
                      at::Tensor(), order, dhidden_SK, grad_VK);
}

}  // namespace twinkle::ops
