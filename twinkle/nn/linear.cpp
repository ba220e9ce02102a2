#include "twinkle/nn/linear.h"

#include <algorithm>
#include <optional>
#include <vector>

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

void Linear::forward(Pass& pass, const at::Tensor& x_TK, std::initializer_list<Output> outputs) {
  std::vector<ops::LinearPart> parts;
  std::vector<std::optional<Pass::ModuleLora>> lora;
  lora.reserve(outputs.size());  // parts point into it
  for (const auto& [linear, low_TR, y_TN, plus_TN] : outputs) {
    const auto& own = lora.emplace_back(pass.module_lora(linear.module_));
    parts.push_back({.w = &linear.weight_->matrix,
                     .bias_N = linear.bias_ != nullptr ? linear.bias_->vector : at::Tensor(),
                     .lora = own ? &own->batch : nullptr,
                     .low_TR = low_TR,
                     .y_TN = y_TN,
                     .plus_TN = plus_TN});
  }
  const auto drops = [](const auto& own) { return own && own->dropout; };
  if (std::any_of(lora.begin(), lora.end(), drops)) {
    for (const auto& output : outputs) output.linear.forward_low(pass, x_TK, output.low_TR);
    for (ops::LinearPart& part : parts) {
      ops::linear(x_TK, *part.w, part.bias_N, part.lora, part.low_TR, part.y_TN);
      if (part.plus_TN.defined()) ops::add(part.y_TN, part.plus_TN, part.y_TN);
    }
    return;
  }
  ops::linears(x_TK, parts);
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
