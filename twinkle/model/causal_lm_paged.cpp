// The sampling passes of CausalLM: the same layers as in training, with keys and values in blocks of a cache.
// Legend: T new tokens of the pass, S rows whose logits are wanted, K hidden, G key/value heads, D head dim.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/huge_pages.h"
#include "twinkle/model/causal_lm_impl.h"

namespace twinkle {

int64_t CausalLM::kv_block_bytes(const ModelConfig& config) {
  return 2 * config.num_layers * ops::kAttentionBlock * config.num_kv_heads * config.head_dim *
         static_cast<int64_t>(sizeof(float));
}

CausalLM::KvStorage CausalLM::make_kv_storage(int64_t num_blocks) const {
  const ModelConfig& config = impl_->config;
  KvStorage out;
  out.block_rows = 2 * config.num_layers * ops::kAttentionBlock;
  const int64_t rows = num_blocks * out.block_rows;
  const at::Tensor all = at::empty({rows, config.num_kv_heads, config.head_dim},
                                   at::TensorOptions().dtype(at::kFloat).device(impl_->device));
  if (impl_->device.is_cpu()) prefer_huge_pages(all.data_ptr(), all.nbytes());
  for (int64_t first = 0; first < out.block_rows; first += ops::kAttentionBlock) {
    auto& keys_or_values = out.k.size() == out.v.size() ? out.k : out.v;
    keys_or_values.push_back(all.narrow(0, first, rows - first));
  }
  return out;
}

at::Tensor CausalLM::forward_paged(nn::Arena& arena, KvStorage& kv, std::span<const PagedRows> rows,
                                   const nn::LoraBinding* lora) {
  Impl& m = *impl_;
  TW_CHECK(kv.k.size() == m.layers.size(), "keys and values for every layer");
  arena.release({});
  nn::Pass pass(arena);
  pass.lora = lora;
  std::vector<int32_t> tokens, positions, cu_seqlens = {0};
  std::vector<int64_t> cache_rows, block_rows;
  for (const auto& item : rows) {
    for (const int32_t block : item.blocks) block_rows.push_back(block * kv.block_rows);
  }
  size_t first_block = 0;
  for (const auto& item : rows) {
    const auto places = std::span(block_rows).subspan(first_block, item.blocks.size());
    first_block += item.blocks.size();
    const auto n = static_cast<int64_t>(item.tokens.size());
    const int64_t length = item.first + n;
    TW_CHECK(static_cast<int64_t>(item.blocks.size()) * ops::kAttentionBlock >= length,
             "a block for every position");
    if (m.config.rope.type == "dynamic" && length > m.original_positions()) {
      throw invalid_argument("[sample] a model with dynamic rotary scaling can not be continued past " +
                             std::to_string(m.original_positions()) + " tokens");
    }
    pass.attention.push_back({.q_begin = static_cast<int64_t>(tokens.size()),
                              .q_len = n,
                              .kv_begin = 0,
                              .kv_len = length,
                              .block_rows = places});
    for (int64_t i = 0; i < n; ++i) {
      const int32_t token = item.tokens[static_cast<size_t>(i)];
      if (token < 0 || token >= m.config.vocab_size) {
        throw invalid_argument("[sample] token " + std::to_string(token) + " is not in the vocabulary of " +
                               std::to_string(m.config.vocab_size));
      }
      const int64_t position = item.first + i;
      tokens.push_back(token);
      positions.push_back(static_cast<int32_t>(position));
      cache_rows.push_back(places[static_cast<size_t>(position / ops::kAttentionBlock)] +
                           position % ops::kAttentionBlock);
    }
    cu_seqlens.push_back(static_cast<int32_t>(tokens.size()));
  }
  const RotaryRows rotary = m.rotary_rows(positions, cu_seqlens);
  pass.rope_rows_T = rotary.rows;
  pass.cos = rotary.cos;
  pass.sin = rotary.sin;
  const at::Tensor ids = index_tensor(tokens, m.device);
  const auto T = static_cast<int64_t>(tokens.size());
  at::Tensor x_TK = arena.take({T, m.config.hidden_size});
  m.embed(pass, ids, x_TK);
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const nn::LayerCache layer_cache{kv.k[l], kv.v[l], cache_rows};
    m.layers[l].forward(pass, x_TK, x_TK, nullptr, &layer_cache);
  }
  at::Tensor rstd_T = arena.take({T}), hidden_TK = arena.take(x_TK.sizes());
  ops::rms_norm(x_TK, pass.norm(*m.final_norm).vector, m.config.rms_norm_eps, hidden_TK, rstd_T);
  return hidden_TK;
}

namespace {

// The adapters of the head for rows of hidden states, and their low-rank activations in the arena.
struct HeadAdapters {
  HeadAdapters(nn::Arena& arena, const at::Tensor& hidden_SK, const nn::LoraBinding* lora, int64_t module)
      : pass(arena) {
    pass.lora = lora;
    bound = pass.module_lora(module);
    if (!bound) return;
    low_SR = arena.take({hidden_SK.size(0), bound->batch.max_rank()});
    ops::lora_shrink(hidden_SK, bound->batch, low_SR);
  }
  const ops::LoraBatch* batch() const { return bound ? &bound->batch : nullptr; }

  nn::Pass pass;
  std::optional<nn::Pass::ModuleLora> bound;
  at::Tensor low_SR;
};

}  // namespace

at::Tensor CausalLM::logits(nn::Arena& arena, const at::Tensor& hidden_SK, const nn::LoraBinding* lora) {
  Impl& m = *impl_;
  at::Tensor logits_SV = arena.take({hidden_SK.size(0), m.config.vocab_size});
  nn::Scratch scratch(arena);
  const HeadAdapters adapters(arena, hidden_SK, lora, m.head_module);
  ops::head_logits(hidden_SK, m.head_matrix(lora), adapters.batch(), adapters.low_SR, logits_SV);
  return logits_SV;
}

void CausalLM::score_hidden(nn::Arena& arena, const at::Tensor& hidden_HK, const nn::LoraBinding* lora,
                            const ops::RowTargets& targets, double inv_temperature, ops::HeadOutputs& out) {
  Impl& m = *impl_;
  nn::Scratch scratch(arena);
  const HeadAdapters adapters(arena, hidden_HK, lora, m.head_module);
  ops::head_logprobs_of(hidden_HK, m.head_matrix(lora), adapters.batch(), adapters.low_SR,
                        {targets.ids_S.to(m.device), targets.first}, inv_temperature, out);
}

}  // namespace twinkle
