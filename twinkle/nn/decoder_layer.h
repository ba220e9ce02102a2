// One layer of a Llama-shaped decoder: norm, attention with rotary positions, norm, gated MLP, with
// residuals. Forward keeps what backward needs in the pass's arena; what is cheap to compute again is not
// kept.
#pragma once

#include "twinkle/nn/linear.h"

namespace twinkle::nn {

struct DecoderLayerConfig {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double rms_norm_eps = 1e-6;
  int64_t window = 0;  // 0: full attention
};

/// Keys and values of one layer where a cache holds them, [rows, G, D].
struct LayerCache {
  at::Tensor k, v;
  std::span<const int64_t> rows;  // cache row of each new token
};

class DecoderLayer {
 public:
  struct Parts {
    Parameter *input_norm, *post_norm;
    Parameter *q_norm = nullptr, *k_norm = nullptr;
    Linear q, k, v, o, gate, up, down;
  };
  DecoderLayer(const DecoderLayerConfig& config, Parts parts) : config_(config), parts_(std::move(parts)) {}

  /// What forward keeps. Tensors lie in the arena.
  struct Saved {
    at::Tensor x_TK, rstd1_T, q_THD, k_TGD, v_TGD, q_raw_THD, k_raw_TGD, rstd_q, rstd_k, o_THD, lse_TH,
        mid_TK, rstd2_T, gate_TF, up_TF;
    at::Tensor low_q, low_k, low_v, low_o, low_gate, low_up, low_down;

    /// Cuts everything to the first `rows` tokens.
    void keep_rows(int64_t rows);
    /// The same for the long list of rows.
    Saved expanded(Arena& arena, const RowMap& map) const;

   private:
    std::vector<at::Tensor*> all();
  };

  /// out_TK (=) the layer's output for x_TK; may be x itself when nothing is kept, and undefined when only
  /// `saved` is wanted (recomputation). With a cache the new keys and values are stored there first and the
  /// queries see all of the sequence.
  void forward(Pass& pass, const at::Tensor& x_TK, at::Tensor out_TK, Saved* saved,
               const LayerCache* cache = nullptr) const;

  /// dx_TK holds the gradient of the output and becomes that of the input; with `want_input` false the part
  /// below the first linears is left out (nothing below is trained). Consumes `saved`.
  void backward(Pass& pass, Saved& saved, at::Tensor& dx_TK, bool want_input) const;

 private:
  void norm_heads(Pass& pass, const Parameter& weight, at::Tensor& x_THD, at::Tensor* raw,
                  at::Tensor* rstd) const;
  void norm_heads_backward(Pass& pass, Parameter& weight, const at::Tensor& raw_THD, const at::Tensor& rstd,
                           at::Tensor& dx_THD) const;

  DecoderLayerConfig config_;
  Parts parts_;
};

}  // namespace twinkle::nn
