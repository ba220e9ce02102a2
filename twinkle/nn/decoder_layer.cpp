// Legend: T tokens, K hidden, H query heads, G key/value heads, D head dim, F MLP width.
#include "twinkle/nn/decoder_layer.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace twinkle::nn {
namespace {

at::Tensor rows_of(const at::Tensor& x_THD) { return x_THD.view({x_THD.size(0), -1}); }

// Row i of x goes to row rows[i] of the cache.
void store_rows(at::Tensor cache_RGD, std::span<const int64_t> rows, const at::Tensor& x_TGD) {
  if (!cache_RGD.is_cpu()) {
    const at::Tensor index = at::from_blob(const_cast<int64_t*>(rows.data()), {x_TGD.size(0)}, at::kLong);
    cache_RGD.index_copy_(0, index.to(cache_RGD.device()), x_TGD);
    return;
  }
  const int64_t width = x_TGD.size(1) * x_TGD.size(2);
  const float* from = x_TGD.const_data_ptr<float>();
  float* to = cache_RGD.mutable_data_ptr<float>();
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(from + static_cast<int64_t>(i) * width, width, to + rows[i] * width);
}

// Keys or values with the copies that the pass's attention reads in front of them.
at::Tensor with_copies(Pass& pass, const at::Tensor& x_TGD) {
  const int64_t copied = pass.copied_keys, T = x_TGD.size(0);
  at::Tensor out_RGD = pass.arena.take({copied + T, x_TGD.size(1), x_TGD.size(2)});
  out_RGD.narrow(0, copied, T).copy_(x_TGD);
  for (const auto& copy : pass.key_copies)
    out_RGD.narrow(0, copy.to, copy.count).copy_(x_TGD.narrow(0, copy.from, copy.count));
  return out_RGD;
}

void norm_weight_grad(Pass& pass, Parameter& weight, const at::Tensor& dy_TK, const at::Tensor& x_TK,
                      const at::Tensor& rstd_T) {
  if (weight.trainable) ops::rms_norm_weight_grad(dy_TK, x_TK, rstd_T, pass.order, weight.vector_grad);
}

}  // namespace

std::vector<at::Tensor*> DecoderLayer::Saved::all() {
  return {&x_TK,   &rstd1_T, &q_THD,  &k_TGD,    &v_TGD,   &q_raw_THD, &k_raw_TGD, &rstd_q,
          &rstd_k, &o_THD,   &lse_TH, &mid_TK,   &rstd2_T, &gate_TF,   &up_TF,     &low_q,
          &low_k,  &low_v,   &low_o,  &low_gate, &low_up,  &low_down};
}

void DecoderLayer::Saved::keep_rows(int64_t rows) {
  const int64_t tokens = x_TK.size(0);
  for (at::Tensor* x : all()) {
    // Norms over heads have a row for each head of a token.
    if (x->defined()) *x = x->narrow(0, 0, x->size(0) / tokens * rows);
  }
}

DecoderLayer::Saved DecoderLayer::Saved::expanded(Arena& arena, const RowMap& map) const {
  Saved out = *this;
  for (at::Tensor* x : out.all()) *x = map.expand(arena, *x);
  return out;
}

void DecoderLayer::norm_heads(Pass& pass, const Parameter& weight, at::Tensor& x_THD, at::Tensor* raw,
                              at::Tensor* rstd) const {
  const at::Tensor flat = x_THD.view({-1, config_.head_dim});
  at::Tensor rstd_rows = pass.arena.take({flat.size(0)});
  if (raw != nullptr) {
    *raw = pass.arena.take(x_THD.sizes());
    raw->copy_(x_THD);
    *rstd = rstd_rows;
  }
  at::Tensor y = flat;
  ops::rms_norm(flat, weight.vector, config_.rms_norm_eps, y, rstd_rows);
}

void DecoderLayer::norm_heads_backward(Pass& pass, Parameter& weight, const at::Tensor& raw_THD,
                                       const at::Tensor& rstd, at::Tensor& dx_THD) const {
  const int64_t heads = raw_THD.size(1);
  const at::Tensor raw = raw_THD.view({-1, config_.head_dim});
  at::Tensor dx = dx_THD.view({-1, config_.head_dim});
  Scratch scratch(pass.arena);
  at::Tensor dy = pass.arena.take(dx.sizes());
  dy.copy_(dx);
  if (weight.trainable) {
    std::vector<ops::RowRange> order;
    for (const auto& range : pass.order) order.push_back({range.begin * heads, range.end * heads});
    ops::rms_norm_weight_grad(dy, raw, rstd, order, weight.vector_grad);
  }
  ops::rms_norm_backward(dy, raw, weight.vector, rstd, dx, false);
}

void DecoderLayer::forward(Pass& pass, const at::Tensor& x_TK, at::Tensor out_TK, Saved* saved,
                           const LayerCache* cache) const {
  Arena& arena = pass.arena;
  const int64_t T = x_TK.size(0), H = config_.num_heads, G = config_.num_kv_heads, D = config_.head_dim;
  const int64_t F = parts_.gate.out_features();
  Saved local;
  Saved& s = saved != nullptr ? *saved : local;
  const auto start = arena.mark();

  s.x_TK = x_TK;
  s.rstd1_T = arena.take({T});
  s.q_THD = arena.take({T, H, D});
  s.k_TGD = arena.take({T, G, D});
  s.v_TGD = arena.take({T, G, D});
  s.o_THD = arena.take({T, H, D});
  s.lse_TH = arena.take({T, H});
  s.mid_TK = arena.take(x_TK.sizes());
  s.rstd2_T = arena.take({T});
  s.gate_TF = arena.take({T, F});
  s.up_TF = arena.take({T, F});
  for (auto [low, linear] : {std::pair{&s.low_q, &parts_.q},
                             {&s.low_k, &parts_.k},
                             {&s.low_v, &parts_.v},
                             {&s.low_o, &parts_.o},
                             {&s.low_gate, &parts_.gate},
                             {&s.low_up, &parts_.up},
                             {&s.low_down, &parts_.down}}) {
    *low = linear->take_low(pass, T);
  }

  at::Tensor q_rows = rows_of(s.q_THD), k_rows = rows_of(s.k_TGD), v_rows = rows_of(s.v_TGD);
  {
    Scratch scratch(arena);
    at::Tensor normed_TK = arena.take(x_TK.sizes());
    ops::rms_norm(x_TK, pass.norm(*parts_.input_norm).vector, config_.rms_norm_eps, normed_TK, s.rstd1_T);
    Linear::forward(pass, normed_TK,
                    {{parts_.q, s.low_q, q_rows}, {parts_.k, s.low_k, k_rows}, {parts_.v, s.low_v, v_rows}});
  }
  if (parts_.q_norm != nullptr) {
    norm_heads(pass, pass.norm(*parts_.q_norm), s.q_THD, saved ? &s.q_raw_THD : nullptr,
               saved ? &s.rstd_q : nullptr);
    norm_heads(pass, pass.norm(*parts_.k_norm), s.k_TGD, saved ? &s.k_raw_TGD : nullptr,
               saved ? &s.rstd_k : nullptr);
  }
  ops::rope(s.q_THD, pass.rope_rows_T, pass.cos, pass.sin, false);
  ops::rope(s.k_TGD, pass.rope_rows_T, pass.cos, pass.sin, false);
  const double scale = 1.0 / std::sqrt(static_cast<double>(D));
  if (cache != nullptr) {
    store_rows(cache->k, cache->rows, s.k_TGD);
    store_rows(cache->v, cache->rows, s.v_TGD);
    ops::attention(s.q_THD, cache->k, cache->v, pass.attention, scale, config_.window, s.o_THD, s.lse_TH);
  } else if (pass.copied_keys > 0) {
    Scratch scratch(arena);
    const at::Tensor k_RGD = with_copies(pass, s.k_TGD), v_RGD = with_copies(pass, s.v_TGD);
    ops::attention(s.q_THD, k_RGD, v_RGD, pass.attention, scale, config_.window, s.o_THD, s.lse_TH);
  } else {
    ops::attention(s.q_THD, s.k_TGD, s.v_TGD, pass.attention, scale, config_.window, s.o_THD, s.lse_TH);
  }
  Linear::forward(pass, rows_of(s.o_THD), {{parts_.o, s.low_o, s.mid_TK, x_TK}});

  {
    Scratch scratch(arena);
    at::Tensor normed_TK = arena.take(x_TK.sizes());
    ops::rms_norm(s.mid_TK, pass.norm(*parts_.post_norm).vector, config_.rms_norm_eps, normed_TK, s.rstd2_T);
    Linear::forward(pass, normed_TK, {{parts_.gate, s.low_gate, s.gate_TF}, {parts_.up, s.low_up, s.up_TF}});
  }
  {
    Scratch scratch(arena);
    at::Tensor h_TF = saved != nullptr ? arena.take({T, F}) : s.gate_TF;
    ops::swiglu(s.gate_TF, s.up_TF, h_TF);
    if (out_TK.defined()) {
      Linear::forward(pass, h_TF, {{parts_.down, s.low_down, out_TK, s.mid_TK}});
    } else {
      parts_.down.forward_low(pass, h_TF, s.low_down);
    }
  }
  if (saved == nullptr) arena.release(start);
}

void DecoderLayer::backward(Pass& pass, Saved& s, at::Tensor& dx_TK, bool want_input) const {
  Arena& arena = pass.arena;
  {
    Scratch scratch(arena);
    at::Tensor dh_TF = arena.take(s.gate_TF.sizes());
    {
      Scratch inner(arena);
      at::Tensor h_TF = arena.take(s.gate_TF.sizes());
      ops::swiglu(s.gate_TF, s.up_TF, h_TF);
      parts_.down.backward(pass, dx_TK, h_TF, s.low_down, &dh_TF, false);
    }
    ops::swiglu_backward(dh_TF, s.gate_TF, s.up_TF);  // gate and up now hold their gradients
    at::Tensor normed_TK = arena.take(dx_TK.sizes()), dnormed_TK = arena.take(dx_TK.sizes());
    at::Tensor rstd = s.rstd2_T;
    ops::rms_norm(s.mid_TK, pass.norm(*parts_.post_norm).vector, config_.rms_norm_eps, normed_TK, rstd);
    parts_.gate.backward(pass, s.gate_TF, normed_TK, s.low_gate, &dnormed_TK, false);
    parts_.up.backward(pass, s.up_TF, normed_TK, s.low_up, &dnormed_TK, true);
    norm_weight_grad(pass, pass.norm(*parts_.post_norm), dnormed_TK, s.mid_TK, s.rstd2_T);
    ops::rms_norm_backward(dnormed_TK, s.mid_TK, pass.norm(*parts_.post_norm).vector, s.rstd2_T, dx_TK, true);
  }
  Scratch scratch(arena);
  at::Tensor do_THD = arena.take(s.o_THD.sizes());
  at::Tensor do_rows = rows_of(do_THD);
  parts_.o.backward(pass, dx_TK, rows_of(s.o_THD), s.low_o, &do_rows, false);
  at::Tensor dq_THD = arena.take(s.q_THD.sizes()), dk_TGD = arena.take(s.k_TGD.sizes()),
             dv_TGD = arena.take(s.v_TGD.sizes());
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  if (pass.keys == nullptr) {
    ops::attention_backward(do_THD, s.q_THD, s.k_TGD, s.v_TGD, s.o_THD, s.lse_TH, pass.attention, scale,
                            config_.window, dq_THD, dk_TGD, dv_TGD);
  } else {
    Scratch inner(arena);
    const at::Tensor k_RGD = pass.keys->expand(arena, s.k_TGD), v_RGD = pass.keys->expand(arena, s.v_TGD);
    at::Tensor dk_RGD = arena.take(k_RGD.sizes()), dv_RGD = arena.take(k_RGD.sizes());
    ops::attention_backward(do_THD, s.q_THD, k_RGD, v_RGD, s.o_THD, s.lse_TH, pass.attention_backward, scale,
                            config_.window, dq_THD, dk_RGD, dv_RGD);
    for (const ops::RowRange& rows : pass.unread_keys) {
      for (at::Tensor* x : {&dk_RGD, &dv_RGD}) x->narrow(0, rows.begin, rows.end - rows.begin).zero_();
    }
    pass.keys->fold(dk_RGD, dk_TGD);
    pass.keys->fold(dv_RGD, dv_TGD);
  }
  ops::rope(dq_THD, pass.rope_rows_T, pass.cos, pass.sin, true);
  ops::rope(dk_TGD, pass.rope_rows_T, pass.cos, pass.sin, true);
  if (parts_.q_norm != nullptr) {
    norm_heads_backward(pass, pass.norm(*parts_.q_norm), s.q_raw_THD, s.rstd_q, dq_THD);
    norm_heads_backward(pass, pass.norm(*parts_.k_norm), s.k_raw_TGD, s.rstd_k, dk_TGD);
  }
  at::Tensor normed_TK = arena.take(dx_TK.sizes()), dnormed_TK = arena.take(dx_TK.sizes());
  at::Tensor rstd = s.rstd1_T;
  ops::rms_norm(s.x_TK, pass.norm(*parts_.input_norm).vector, config_.rms_norm_eps, normed_TK, rstd);
  const bool through_norm = want_input || pass.norm(*parts_.input_norm).trainable;
  at::Tensor* below = through_norm ? &dnormed_TK : nullptr;
  parts_.q.backward(pass, rows_of(dq_THD), normed_TK, s.low_q, below, false);
  parts_.k.backward(pass, rows_of(dk_TGD), normed_TK, s.low_k, below, true);
  parts_.v.backward(pass, rows_of(dv_TGD), normed_TK, s.low_v, below, true);
  if (!through_norm) return;
  norm_weight_grad(pass, pass.norm(*parts_.input_norm), dnormed_TK, s.x_TK, s.rstd1_T);
  if (want_input)
    ops::rms_norm_backward(dnormed_TK, s.x_TK, pass.norm(*parts_.input_norm).vector, s.rstd1_T, dx_TK, true);
}

}  // namespace twinkle::nn
