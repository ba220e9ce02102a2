#include "twinkle/nn/linear.h"

namespace twinkle::nn {

at::Tensor Linear::take_low(Pass& pass, int64_t rows) const {
  const auto lora = pass.module_lora(module_);
  return lora ? pass.arena.take({rows, lora->batch.max_rank()}) : at::Tensor();
}

void Linear::forward_low(Pass& pass, const at::Tensor& x_TK, at::Tensor& low_TR) const {
  const auto lora = pass.module_lora(module_);
  if (!lora) return;
  if (!lora->dropout) {
    ops::lora_shrink(x_TK, lora->batch, low_TR);
    return;
  }
  Scratch scratch(pass.arena);
  at::Tensor dropped_TK = pass.arena.take(x_TK.sizes());
  pass.apply_dropout(module_, lora->batch.spans, x_TK, dropped_TK);
  ops::lora_shrink(dropped_TK, lora->batch, low_TR);
}

void Linear::forward(Pass& pass, const at::Tensor& x_TK, at::Tensor& low_TR, at::Tensor& y_TN) const {
  const at::Tensor bias = bias_ != nullptr ? bias_->vector : at::Tensor();
  const auto lora = pass.module_lora(module_);
  forward_low(pass, x_TK, low_TR);
  ops::linear(x_TK, weight_->matrix, bias, lora ? &lora->batch : nullptr, low_TR, y_TN);
}

void Linear::backward(Pass& pass, const at::Tensor& dy_TN, const at::Tensor& x_TK, const at::Tensor& low_TR,
                      at::Tensor* dx_TK, bool accumulate) const {
  if (weight_->trainable) ops::linear_weight_grad(dy_TN, x_TK, pass.order, weight_->matrix_grad);
  if (bias_ != nullptr && bias_->trainable) ops::bias_grad(dy_TN, pass.order, bias_->vector_grad);
  const auto lora = pass.module_lora(module_);
  if (!lora) {
    if (dx_TK != nullptr) ops::linear_backward_input(dy_TN, weight_->matrix, nullptr, {}, *dx_TK, accumulate);
    return;
  }
  Scratch scratch(pass.arena);
  at::Tensor dlow_TR = pass.arena.take({dy_TN.size(0), lora->batch.max_rank()});
  ops::lora_shrink_backward(dy_TN, lora->batch, dlow_TR);
  if (!lora->dropout) {
    ops::lora_weight_grad(x_TK, low_TR, dy_TN, dlow_TR, lora->batch);
    if (dx_TK != nullptr) {
      ops::linear_backward_input(dy_TN, weight_->matrix, &lora->batch, dlow_TR, *dx_TK, accumulate);
    }
    return;
  }
  at::Tensor dropped_TK = pass.arena.take(x_TK.sizes());
  pass.apply_dropout(module_, lora->batch.spans, x_TK, dropped_TK);
  ops::lora_weight_grad(dropped_TK, low_TR, dy_TN, dlow_TR, lora->batch);
  if (dx_TK == nullptr) return;
  // An adapter without dropout gets the bits it has in a pass of its own.
  std::vector<ops::LoraSpan> plain, masked;
  for (const auto& span : lora->batch.spans) (pass.drops(span.slot) ? masked : plain).push_back(span);
  const ops::LoraBatch direct{plain, lora->batch.slots}, through_mask{masked, lora->batch.slots};
  ops::linear_backward_input(dy_TN, weight_->matrix, plain.empty() ? nullptr : &direct, dlow_TR, *dx_TK,
                             accumulate);
  // The others' own gradient passes through the same mask as their input.
  dropped_TK.zero_();
  ops::lora_backward_input(dlow_TR, through_mask, dropped_TK);
  pass.apply_dropout(module_, masked, dropped_TK, dropped_TK);
  for (const auto& span : masked) {
    at::Tensor into = dx_TK->narrow(0, span.begin, span.end - span.begin);
    ops::add(into, dropped_TK.narrow(0, span.begin, span.end - span.begin), into);
  }
}

}  // namespace twinkle::nn
