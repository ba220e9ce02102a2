// Attention in plain ATen: per sequence, in chunks of query rows so that scores take O(chunk x length)
// memory.
#include <ATen/ATen.h>

#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops::aten {
namespace {

constexpr int64_t kQueryChunk = 256;

// The keys or values of a sequence in order, [G, kv_len, D].
at::Tensor gather_rows(const at::Tensor& rows_RGD, const AttentionSequence& s) {
  if (!s.block_rows.empty()) {
    std::vector<int64_t> rows;
    for (int64_t p = 0; p < s.kv_len; ++p)
      rows.push_back(s.block_rows[static_cast<size_t>(p / kAttentionBlock)] + p % kAttentionBlock);
    return rows_RGD.index_select(0, at::tensor(rows, at::kLong).to(rows_RGD.device())).transpose(0, 1);
  }
  if (s.blocks.empty()) return rows_RGD.slice(0, s.kv_begin, s.kv_begin + s.kv_len).transpose(0, 1);
  const int64_t G = rows_RGD.size(1), D = rows_RGD.size(2);
  const int64_t used = (s.kv_len + kAttentionBlock - 1) / kAttentionBlock;
  std::vector<int64_t> ids(s.blocks.begin(), s.blocks.begin() + used);
  const at::Tensor where = at::tensor(ids, at::kLong).to(rows_RGD.device());
  const at::Tensor blocks = rows_RGD.view({-1, kAttentionBlock, G, D}).index_select(0, where);
  return blocks.reshape({-1, G, D}).slice(0, 0, s.kv_len).transpose(0, 1);
}

// Rows [begin, end) of [T, H, D] as [G, R * n, D], R = H / G.
at::Tensor group_rows(const at::Tensor& x_THD, int64_t begin, int64_t end, int64_t G) {
  const int64_t n = end - begin, R = x_THD.size(1) / G, D = x_THD.size(2);
  return x_THD.slice(0, begin, end).view({n, G, R, D}).permute({1, 2, 0, 3}).reshape({G, R * n, D});
}

// [G, R * n, D] back into rows [begin, begin + n) of [T, H, D].
void put_rows(const at::Tensor& x_GMD, int64_t begin, int64_t end, at::Tensor& out_THD) {
  const int64_t n = end - begin, G = x_GMD.size(0), R = x_GMD.size(1) / n, D = x_GMD.size(2);
  out_THD.slice(0, begin, end).copy_(x_GMD.view({G, R, n, D}).permute({2, 0, 1, 3}).reshape({n, G * R, D}));
}

// True where the query at position first + i may not see key j of [0, keys).
at::Tensor hidden_mask(int64_t first, int64_t n, int64_t keys, int64_t window, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor query = at::arange(first, first + n, options).unsqueeze(1);
  const at::Tensor key = at::arange(keys, options).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (window > 0) hidden = hidden.logical_or(key <= query - window);
  return hidden;
}

at::Tensor masked_scores(const at::Tensor& q_GMD, const at::Tensor& k_GLD, double scale,
                         const at::Tensor& hidden) {
  const int64_t G = q_GMD.size(0), n = hidden.size(0), keys = hidden.size(1);
  at::Tensor s = at::matmul(q_GMD, k_GLD.transpose(1, 2)).mul_(scale);
  s.view({G, -1, n, keys}).masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return s;
}

}  // namespace

void attention(const at::Tensor& q_THD, const at::Tensor& k_RGD, const at::Tensor& v_RGD,
               std::span<const AttentionSequence> sequences, double scale, int64_t window, at::Tensor& o_THD,
               at::Tensor& lse_TH) {
  const int64_t G = k_RGD.size(1);
  for (const AttentionSequence& s : sequences) {
    if (s.q_len == 0) continue;
    const at::Tensor k = gather_rows(k_RGD, s), v = gather_rows(v_RGD, s);
    for (int64_t begin = 0; begin < s.q_len; begin += kQueryChunk) {
      const int64_t end = std::min(s.q_len, begin + kQueryChunk), n = end - begin;
      const int64_t first = s.kv_len - s.q_len + begin, keys = first + n;
      const at::Tensor hidden = hidden_mask(first, n, keys, window, q_THD.device());
      const at::Tensor q = group_rows(q_THD, s.q_begin + begin, s.q_begin + end, G);
      const at::Tensor scores = masked_scores(q, k.slice(1, 0, keys), scale, hidden);
      const at::Tensor lse = at::logsumexp(scores, 2, /*keepdim=*/true);
      const at::Tensor o = at::matmul(at::exp(scores - lse), v.slice(1, 0, keys));
      put_rows(o, s.q_begin + begin, s.q_begin + end, o_THD);
      at::Tensor lse_rows = lse_TH.unsqueeze(2);
      put_rows(lse, s.q_begin + begin, s.q_begin + end, lse_rows);
    }
  }
}

void attention_backward(const at::Tensor& do_THD, const at::Tensor& q_THD, const at::Tensor& k_RGD,
                        const at::Tensor& v_RGD, const at::Tensor& o_THD, const at::Tensor& lse_TH,
                        std::span<const AttentionSequence> sequences, double scale, int64_t window,
                        at::Tensor& dq_THD, at::Tensor& dk_RGD, at::Tensor& dv_RGD) {
  const int64_t G = k_RGD.size(1);
  for (const AttentionSequence& s : sequences) {
    if (s.q_len == 0) continue;
    const at::Tensor k = gather_rows(k_RGD, s), v = gather_rows(v_RGD, s);
    at::Tensor dk = at::zeros(k.sizes(), k.options()), dv = at::zeros(v.sizes(), v.options());
    for (int64_t begin = 0; begin < s.q_len; begin += kQueryChunk) {
      const int64_t end = std::min(s.q_len, begin + kQueryChunk), n = end - begin;
      const int64_t row = s.q_begin + begin, last = s.q_begin + end;
      const int64_t first = s.kv_len - s.q_len + begin, keys = first + n;
      const at::Tensor hidden = hidden_mask(first, n, keys, window, q_THD.device());
      const at::Tensor q = group_rows(q_THD, row, last, G), dout = group_rows(do_THD, row, last, G);
      const at::Tensor o = group_rows(o_THD, row, last, G),
                       lse = group_rows(lse_TH.unsqueeze(2), row, last, G);
      const at::Tensor k_seen = k.slice(1, 0, keys), v_seen = v.slice(1, 0, keys);
      const at::Tensor p = at::exp(masked_scores(q, k_seen, scale, hidden) - lse);
      const at::Tensor delta = (dout * o).sum(2, /*keepdim=*/true);
      const at::Tensor ds = p * (at::matmul(dout, v_seen.transpose(1, 2)) - delta) * scale;
      put_rows(at::matmul(ds, k_seen), row, last, dq_THD);
      dk.slice(1, 0, keys).add_(at::matmul(ds.transpose(1, 2), q));
      dv.slice(1, 0, keys).add_(at::matmul(p.transpose(1, 2), dout));
    }
    dk_RGD.slice(0, s.kv_begin, s.kv_begin + s.kv_len).copy_(dk.transpose(0, 1));
    dv_RGD.slice(0, s.kv_begin, s.kv_begin + s.kv_len).copy_(dv.transpose(0, 1));
  }
}

}  // namespace twinkle::ops::aten
