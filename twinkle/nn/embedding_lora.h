// Adapters on the embedding: x[t] += scale * B A[:, token[t]], with A [r, vocab] and B [hidden, r] as PEFT
// has them. A gather, then the row kernels of every other adapter, so the law of kernels/ops.h holds here
// too.
#pragma once

#include "twinkle/nn/pass.h"

namespace twinkle::nn {

/// Adds the adapters' part to rows x_TK (+=).
void embedding_lora(Pass& pass, const at::Tensor& tokens_T, at::Tensor& x_TK);
/// dA and dB += from dx_TK, per sequence in reduction order; the gradients of those slots that have them.
void embedding_lora_backward(Pass& pass, const at::Tensor& tokens_T, const at::Tensor& dx_TK);

}  // namespace twinkle::nn
