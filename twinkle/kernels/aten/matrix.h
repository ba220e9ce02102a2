// The matrix products in plain ATen: the oracle of the tests, and what runs on any device but the CPU. Same
// contracts as kernels/ops.h, except that bits may depend on the shape of the batch (ATen chooses its kernels
// by it).
#pragma once

#include "twinkle/kernels/head_targets.h"

namespace twinkle::ops::aten {

decltype(ops::lora_shrink) lora_shrink;
decltype(ops::linear) linear;
decltype(ops::lora_shrink_backward) lora_shrink_backward;
decltype(ops::linear_backward_input) linear_backward_input;
decltype(ops::lora_backward_input) lora_backward_input;
decltype(ops::lora_weight_grad) lora_weight_grad;
decltype(ops::linear_weight_grad) linear_weight_grad;
decltype(ops::bias_grad) bias_grad;

decltype(ops::head_logprobs_of) head_logprobs_of;
decltype(ops::head_logits) head_logits;
decltype(ops::logits_logprobs) logits_logprobs;
decltype(ops::head_backward_of) head_backward_of;

}  // namespace twinkle::ops::aten
