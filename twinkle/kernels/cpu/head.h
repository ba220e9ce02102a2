// The vocabulary head on the CPU's vector units, contracts as in kernels/ops.h. Logits live in blocks only.
// Sums over the vocabulary run inside fixed blocks of kVocabBlock columns and then over blocks in order, in
// double precision.
#pragma once

#include "twinkle/kernels/head_targets.h"

namespace twinkle::ops::cpu {

decltype(ops::head_logprobs_of) head_logprobs_of;
decltype(ops::logits_logprobs) logits_logprobs;
decltype(ops::head_backward_of) head_backward_of;
decltype(ops::head_forward_backward_of) head_forward_backward_of;

}  // namespace twinkle::ops::cpu
