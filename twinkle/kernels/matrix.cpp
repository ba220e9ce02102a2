#include <ATen/core/Tensor.h>

#include "twinkle/kernels/aten/matrix.h"
#include "twinkle/kernels/cpu/matrix.h"
#include "twinkle/kernels/dispatch.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops {

void pack_lora(LoraSlot& slot) {
  if (on_cpu_kernels(slot.a_rK)) cpu::pack_lora(slot);
}

void lora_shrink(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR) {
  if (on_cpu_kernels(x_TK)) {
    cpu::lora_shrink(x_TK, lora, low_TR);
  } else {
    aten::lora_shrink(x_TK, lora, low_TR);
  }
}

void linear(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N, const LoraBatch* lora,
            const at::Tensor& low_TR, at::Tensor& y_TN) {
  if (on_cpu_kernels(x_TK)) {
    cpu::linear(x_TK, w, bias_N, lora, low_TR, y_TN);
  } else {
    aten::linear(x_TK, w, bias_N, lora, low_TR, y_TN);
  }
}

void linears(const at::Tensor& x_TK, std::span<LinearPart> parts) {
  if (on_cpu_kernels(x_TK)) return cpu::linears(x_TK, parts);
  for (LinearPart& part : parts) {
    if (part.lora != nullptr) aten::lora_shrink(x_TK, *part.lora, part.low_TR);
    aten::linear(x_TK, *part.w, part.bias_N, part.lora, part.low_TR, part.y_TN);
    if (part.plus_TN.defined()) add(part.y_TN, part.plus_TN, part.y_TN);
  }
}

void lora_shrink_backward(const at::Tensor& dy_TN, const LoraBatch& lora, at::Tensor& dlow_TR) {
  if (on_cpu_kernels(dy_TN)) {
    cpu::lora_shrink_backward(dy_TN, lora, dlow_TR);
  } else {
    aten::lora_shrink_backward(dy_TN, lora, dlow_TR);
  }
}

void linear_backward_input(const at::Tensor& dy_TN, const PackedMatrix& w, const LoraBatch* lora,
                           const at::Tensor& dlow_TR, at::Tensor& dx_TK, bool accumulate) {
  if (on_cpu_kernels(dy_TN)) {
    cpu::linear_backward_input(dy_TN, w, lora, dlow_TR, dx_TK, accumulate);
  } else {
    aten::linear_backward_input(dy_TN, w, lora, dlow_TR, dx_TK, accumulate);
  }
}

void lora_backward_input(const at::Tensor& dlow_TR, const LoraBatch& lora, at::Tensor& dx_TK) {
  if (on_cpu_kernels(dlow_TR)) {
    cpu::lora_backward_input(dlow_TR, lora, dx_TK);
  } else {
    aten::lora_backward_input(dlow_TR, lora, dx_TK);
  }
}

void lora_weight_grad(const at::Tensor& x_TK, const at::Tensor& low_TR, const at::Tensor& dy_TN,
                      const at::Tensor& dlow_TR, const LoraBatch& lora) {
  if (on_cpu_kernels(x_TK)) {
    cpu::lora_weight_grad(x_TK, low_TR, dy_TN, dlow_TR, lora);
  } else {
    aten::lora_weight_grad(x_TK, low_TR, dy_TN, dlow_TR, lora);
  }
}

void linear_weight_grad(const at::Tensor& dy_TN, const at::Tensor& x_TK, std::span<const RowRange> order,
                        PackedMatrix& grad) {
  if (on_cpu_kernels(dy_TN)) {
    cpu::linear_weight_grad(dy_TN, x_TK, order, grad);
  } else {
    aten::linear_weight_grad(dy_TN, x_TK, order, grad);
  }
}

void bias_grad(const at::Tensor& dy_TN, std::span<const RowRange> order, at::Tensor& dbias_N) {
  if (on_cpu_kernels(dy_TN)) {
    cpu::bias_grad(dy_TN, order, dbias_N);
  } else {
    aten::bias_grad(dy_TN, order, dbias_N);
  }
}

}  // namespace twinkle::ops
