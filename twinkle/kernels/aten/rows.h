// The row-wise, attention, embedding and optimizer operations of ops.h in plain ATen: the oracle of the
// tests, and what runs for TWINKLE_ISA=plain and on every device other than the CPU. Same contracts as ops.h.
// Thread-safe: no state.
#pragma once

#include "twinkle/kernels/ops.h"

namespace twinkle::ops::aten {

void rms_norm(const at::Tensor& x_TK, const at::Tensor& w_K, double eps, at::Tensor& y_TK,
              at::Tensor& rstd_T);
void rms_norm_backward(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& w_K,
                       const at::Tensor& rstd_T, at::Tensor& dx_TK, bool accumulate);
void rms_norm_weight_grad(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& rstd_T,
                          std::span<const RowRange> order, at::Tensor& dw_K);
void add(const at::Tensor& a, const at::Tensor& b, at::Tensor& y);
void rope(at::Tensor& x_THD, const at::Tensor& positions_T, const at::Tensor& cos, const at::Tensor& sin,
          bool inverse);
void swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, at::Tensor& h_TF);
void swiglu_backward(const at::Tensor& dh_TF, at::Tensor& gate_TF, at::Tensor& up_TF);
void dropout(const at::Tensor& x_TK, double p, uint64_t seed, uint64_t stream,
             std::span<const uint64_t> row_sequence_key, std::span<const int32_t> row_position,
             at::Tensor& y_TK);

void embedding(const PackedMatrix& w_VK, const at::Tensor& tokens_T, at::Tensor& out_TK);
void embedding_grad(const at::Tensor& dout_TK, const at::Tensor& tokens_T, std::span<const RowRange> order,
                    PackedMatrix& grad_VK);

void attention(const at::Tensor& q_THD, const at::Tensor& k_RGD, const at::Tensor& v_RGD,
               std::span<const AttentionSequence> sequences, double scale, int64_t window, at::Tensor& o_THD,
               at::Tensor& lse_TH);
void attention_backward(const at::Tensor& do_THD, const at::Tensor& q_THD, const at::Tensor& k_RGD,
                        const at::Tensor& v_RGD, const at::Tensor& o_THD, const at::Tensor& lse_TH,
                        std::span<const AttentionSequence> sequences, double scale, int64_t window,
                        at::Tensor& dq_THD, at::Tensor& dk_RGD, at::Tensor& dv_RGD);

void adam_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, const AdamStep& hyper);
double sum_of_squares(const at::Tensor& x);

}  // namespace twinkle::ops::aten
