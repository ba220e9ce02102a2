#include "twinkle/nn/embedding_lora.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace twinkle::nn {
namespace {

struct EmbeddingLora {
  std::vector<ops::LoraSpan> spans;  // those whose adapter touches the embedding
  std::vector<ops::LoraSlot> slots;  // for a product with B^T: a_rK is B transposed, [r, hidden]
  ops::LoraBatch batch() const { return {spans, slots}; }
};

EmbeddingLora embedding_lora_of(const Pass& pass) {
  EmbeddingLora out;
  if (pass.lora == nullptr || pass.lora->embedding.empty()) return out;
  const auto& given = pass.lora->embedding;
  for (const auto& span : pass.lora->spans) {
    if (given[static_cast<size_t>(span.slot)].a_rK.defined()) out.spans.push_back(span);
  }
  if (out.spans.empty()) return out;
  for (const auto& slot : given) {
    ops::LoraSlot turned;
    if (slot.a_rK.defined()) {
      turned.a_rK = slot.b_Nr.t().contiguous();
      turned.b_Nr = slot.b_Nr;
      turned.scale = slot.scale;
      turned.db_Nr = slot.db_Nr;
    }
    out.slots.push_back(std::move(turned));
  }
  return out;
}

// low[t] = scale * A[:, token[t]], 0 elsewhere.
at::Tensor gather_low(Pass& pass, const EmbeddingLora& lora, const at::Tensor& tokens_T) {
  at::Tensor low_TR = pass.arena.take({tokens_T.size(0), lora.batch().max_rank()});
  low_TR.zero_();
  for (const auto& span : lora.spans) {
    const ops::LoraSlot& slot = pass.lora->embedding[static_cast<size_t>(span.slot)];
    const int64_t rows = span.end - span.begin;
    low_TR.narrow(0, span.begin, rows)
        .narrow(1, 0, slot.a_rK.size(0))
        .copy_(slot.a_rK.index_select(1, tokens_T.narrow(0, span.begin, rows)).t())
        .mul_(slot.scale);
  }
  return low_TR;
}

}  // namespace

void embedding_lora(Pass& pass, const at::Tensor& tokens_T, at::Tensor& x_TK) {
  const EmbeddingLora lora = embedding_lora_of(pass);
  if (lora.spans.empty()) return;
  Scratch scratch(pass.arena);
  ops::lora_backward_input(gather_low(pass, lora, tokens_T), lora.batch(), x_TK);  // x += low B^T
}

void embedding_lora_backward(Pass& pass, const at::Tensor& tokens_T, const at::Tensor& dx_TK) {
  const EmbeddingLora lora = embedding_lora_of(pass);
  if (lora.spans.empty()) return;
  Scratch scratch(pass.arena);
  const at::Tensor low_TR = gather_low(pass, lora, tokens_T);
  at::Tensor dlow_TR = pass.arena.take(low_TR.sizes());
  ops::lora_shrink_backward(dx_TK, lora.batch(), dlow_TR);
  ops::lora_weight_grad(dx_TK, low_TR, dx_TK, dlow_TR, lora.batch());  // dB alone: these slots have no dA
  for (const auto& span : lora.spans) {
    at::Tensor da_rV = pass.lora->embedding[static_cast<size_t>(span.slot)].da_rK;
    if (!da_rV.defined()) continue;
    const int64_t rows = span.end - span.begin;
    // A token's positions in the sequence are summed from zero in order, then added.
    const auto [unique, inverse, counts] =
        at::_unique2(tokens_T.narrow(0, span.begin, rows), /*sorted=*/true, /*return_inverse=*/true);
    at::Tensor sums = at::zeros({da_rV.size(0), unique.size(0)}, da_rV.options());
    sums.index_add_(1, inverse,
                    dlow_TR.narrow(0, span.begin, rows).narrow(1, 0, da_rV.size(0)).t().contiguous());
    da_rV.index_add_(1, unique, sums);
  }
}

}  // namespace twinkle::nn
