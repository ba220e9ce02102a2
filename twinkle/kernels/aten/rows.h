// The row-wise, attention, embedding and optimizer operations of ops.h in plain ATen: the oracle of the
// tests, and what runs for TWINKLE_ISA=plain and on every device other than the CPU. Same contracts as ops.h.
// Thread-safe: no state.
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops::aten {

decltype(ops::rms_norm) rms_norm;
decltype(ops::rms_norm_backward) rms_norm_backward;
decltype(ops::rms_norm_weight_grad) rms_norm_weight_grad;
decltype(ops::add) add;
decltype(ops::rope) rope;
decltype(ops::swiglu) swiglu;
decltype(ops::swiglu_backward) swiglu_backward;
decltype(ops::dropout) dropout;

decltype(ops::embedding) embedding;
decltype(ops::embedding_grad) embedding_grad;

decltype(ops::attention) attention;
decltype(ops::attention_backward) attention_backward;

decltype(ops::adam_step) adam_step;
decltype(ops::sum_of_squares) sum_of_squares;

}  // namespace twinkle::ops::aten
