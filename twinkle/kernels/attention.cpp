// Dispatch of the attention operations of ops.h.
#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops {

void attention(const at::Tensor& q_THD, const at::Tensor& k_RGD, const at::Tensor& v_RGD,
               std::span<const AttentionSequence> sequences, double scale, int64_t window, at::Tensor& o_THD,
               at::Tensor& lse_TH) {
  aten::attention(q_THD, k_RGD, v_RGD, sequences, scale, window, o_THD, lse_TH);
}

void attention_backward(const at::Tensor& do_THD, const at::Tensor& q_THD, const at::Tensor& k_TGD,
                        const at::Tensor& v_TGD, const at::Tensor& o_THD, const at::Tensor& lse_TH,
                        std::span<const AttentionSequence> sequences, double scale, int64_t window,
                        at::Tensor& dq_THD, at::Tensor& dk_TGD, at::Tensor& dv_TGD) {
  aten::attention_backward(do_THD, q_THD, k_TGD, v_TGD, o_THD, lse_TH, sequences, scale, window, dq_THD,
                           dk_TGD, dv_TGD);
}

}  // namespace twinkle::ops
