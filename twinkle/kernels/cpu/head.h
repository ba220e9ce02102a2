// The vocabulary head on the CPU's vector units, contracts as in kernels/ops.h. Logits live in blocks only.
// Sums over the vocabulary run inside fixed blocks of kVocabBlock columns and then over blocks in order, in
// double precision.
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops::cpu {

decltype(ops::head_logprobs) head_logprobs;
decltype(ops::logits_logprobs) logits_logprobs;
decltype(ops::head_backward) head_backward;
decltype(ops::head_forward_backward) head_forward_backward;

}  // namespace twinkle::ops::cpu
