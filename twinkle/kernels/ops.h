// Every operation of the engine, one declaration each. Nothing above kernels/ knows the device or the
// instruction set: a CPU tensor goes to the kernels of cpu/ (chosen at run time, see isa.h), any other tensor
// (and TWINKLE_ISA=plain) to the plain ATen version in aten/, which is also the oracle of the tests.
//
// Legend of shapes: T packed tokens (rows), S scored rows, B sequences, K input features, N output features,
// H query heads, G key/value heads, D head dim, F MLP width, V vocabulary, r LoRA rank, R row width of the
// low-rank buffer. Activations are fp32 and contiguous; `=` writes, `+=` accumulates.
//
// The law (see docs/exactness.md): a row's result has the same bits whatever the other rows are, wherever it
// stands and however many threads run. A reduction over tokens runs inside one sequence from zero, then over
// sequences in the order in which their ranges are given, each added to what the gradient already holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace twinkle::ops {

/// Rows [begin, end) of one sequence. A list of them is in reduction order, not necessarily in row order.
struct RowRange {
  int64_t begin = 0, end = 0;
};

// Matrices.

/// A weight matrix W[N, K], stored for the matrix kernels: panels of 16 output rows, [ceil(N/16)][K][16],
/// padded with zeros, in fp32, bf16 or fp16. On a device other than the CPU it is kept as a plain [N, K]
/// tensor. A handle: copies share the storage.
class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 16;

  PackedMatrix() = default;
  /// fill(row_begin, row_end, out): writes fp32 rows [row_end-row_begin, K] of W into out; called from
  /// several threads for disjoint ranges of at most kPanel rows. This is how files are dequantised straight
  /// into panels.
  using FillRows = std::function<void(int64_t row_begin, int64_t row_end, float* out)>;
  static PackedMatrix build(int64_t rows, int64_t cols, at::ScalarType dtype, at::Device device,
                            const FillRows& fill);
  static PackedMatrix pack(const at::Tensor& weight_NK, at::ScalarType dtype);
  /// Zero-filled; what gradients and moments of a trainable matrix are kept in.
  static PackedMatrix zeros_like(const PackedMatrix& other, at::ScalarType dtype = at::kFloat);

  bool defined() const { return storage_.defined(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  at::ScalarType dtype() const { return storage_.scalar_type(); }
  at::Device device() const { return storage_.device(); }
  /// Flat storage, for element-wise optimizers; padding stays zero under them.
  const at::Tensor& storage() const { return storage_; }
  /// W as a plain [N, K] tensor in `dtype`.
  at::Tensor unpack(at::ScalarType dtype = at::kFloat) const;
  /// fp32 rows [row_begin, row_end) of W into out, the inverse of FillRows; CPU only.
  void read_rows(int64_t row_begin, int64_t row_end, float* out) const;

 private:
  at::Tensor storage_;
  int64_t rows_ = 0, cols_ = 0;
};

/// fp32 to fp32, bf16 or fp16, to nearest even. Host memory.
void narrow(const float* in, int64_t count, at::ScalarType dtype, void* out);

/// One adapter's low-rank pair for one matrix: W + scale * B A. dA and dB are undefined when not trained.
struct LoraSlot {
  at::Tensor a_rK, b_Nr;  // fp32
  float scale = 1.0f;
  at::Tensor da_rK, db_Nr;  // fp32 gradients, +=
  /// The same values in panels, see pack_lora(); undefined: each forward product packs for itself.
  at::Tensor a_panels, b_panels;
};

/// Makes the panels of a pair that does not change while they are there; worth it where many passes of few
/// rows use it. Nothing happens on devices that have no use for panels.
void pack_lora(LoraSlot& slot);

/// Which adapter each run of rows uses; rows outside every span have none. Spans are disjoint and each is one
/// sequence (or a piece between sequence bounds); their order is the reduction order.
struct LoraSpan {
  int64_t begin = 0, end = 0;
  int32_t slot = 0;
};

struct LoraBatch {
  std::span<const LoraSpan> spans;
  std::span<const LoraSlot> slots;
  int64_t max_rank() const;
};

/// low_TR[t, 0..r) = scale * x[t] A^T for rows of a span (other rows and columns: 0). R = lora.max_rank().
void lora_shrink(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR);

/// y = x W^T [+ bias] [+ low B^T per span]. `lora` and `low_TR` may be null/undefined.
void linear(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N, const LoraBatch* lora,
            const at::Tensor& low_TR, at::Tensor& y_TN);

/// One of several products of the same rows.
struct LinearPart {
  const PackedMatrix* w = nullptr;
  at::Tensor bias_N;                // may be undefined
  const LoraBatch* lora = nullptr;  // may be null
  at::Tensor low_TR, y_TN;
  at::Tensor plus_TN;  // added to y at the end, as add() does; may be undefined
};
/// lora_shrink() of every part that has adapters, and then linear(): the same bits, in fewer turns of the
/// threads.
void linears(const at::Tensor& x_TK, std::span<LinearPart> parts);

/// dlow_TR[t] = scale * dy[t] B for rows of a span (other rows and columns: 0).
void lora_shrink_backward(const at::Tensor& dy_TN, const LoraBatch& lora, at::Tensor& dlow_TR);

/// dx (= or +=) dy W [+ dlow A per span].
void linear_backward_input(const at::Tensor& dy_TN, const PackedMatrix& w, const LoraBatch* lora,
                           const at::Tensor& dlow_TR, at::Tensor& dx_TK, bool accumulate);

/// dx += dlow A per span only; used where the adapter's input differs from the base's (LoRA dropout).
void lora_backward_input(const at::Tensor& dlow_TR, const LoraBatch& lora, at::Tensor& dx_TK);

/// dA += dlow^T x and dB += dy^T low, per span in order (each span's sum runs from zero, then is added).
void lora_weight_grad(const at::Tensor& x_TK, const at::Tensor& low_TR, const at::Tensor& dy_TN,
                      const at::Tensor& dlow_TR, const LoraBatch& lora);

/// dW += dy^T x, per sequence in order. grad has the layout of the weight, fp32.
void linear_weight_grad(const at::Tensor& dy_TN, const at::Tensor& x_TK, std::span<const RowRange> order,
                        PackedMatrix& grad);
/// dbias += column sums of dy, per sequence in order.
void bias_grad(const at::Tensor& dy_TN, std::span<const RowRange> order, at::Tensor& dbias_N);

// Rows.

/// y = x * rsqrt(mean(x^2) + eps) * w; rstd_T is kept for backward. Rows are any [.., K] folded to
/// [T, K].
void rms_norm(const at::Tensor& x_TK, const at::Tensor& w_K, double eps, at::Tensor& y_TK,
              at::Tensor& rstd_T);
/// dx (= or +=) the gradient of rms_norm.
void rms_norm_backward(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& w_K,
                       const at::Tensor& rstd_T, at::Tensor& dx_TK, bool accumulate);
/// dw += sum over rows of dy * x * rstd, per range in order. For norms over heads, x_TK has T*H rows and the
/// ranges are scaled by the caller.
void rms_norm_weight_grad(const at::Tensor& dy_TK, const at::Tensor& x_TK, const at::Tensor& rstd_T,
                          std::span<const RowRange> order, at::Tensor& dw_K);

/// y (=) a + b; may alias.
void add(const at::Tensor& a, const at::Tensor& b, at::Tensor& y);

/// Rotates x (q or k) in place, rotate-half form: pairs (i, i + D_rot/2) by row positions_T[t] (int32) of cos
/// and sin, [rows, D_rot/2] fp32 tables; columns past D_rot pass through. `inverse` applies the transpose
/// (backward).
void rope(at::Tensor& x_THD, const at::Tensor& positions_T, const at::Tensor& cos, const at::Tensor& sin,
          bool inverse);

/// h = silu(gate) * up; gate and up are [T, F].
void swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, at::Tensor& h_TF);
/// Overwrites gate and up with their gradients, given dh.
void swiglu_backward(const at::Tensor& dh_TF, at::Tensor& gate_TF, at::Tensor& up_TF);

/// y = x * mask / (1 - p), mask from philox(mix(seed, stream), key of the row's sequence, position, column):
/// the same call on the gradient is its backward. y may alias x.
void dropout(const at::Tensor& x_TK, double p, uint64_t seed, uint64_t stream,
             std::span<const uint64_t> row_sequence_key, std::span<const int32_t> row_position,
             at::Tensor& y_TK);

// Embedding.

/// out[t] = W[tokens[t]]. Tokens are checked by the caller.
void embedding(const PackedMatrix& w_VK, const at::Tensor& tokens_T, at::Tensor& out_TK);
/// dW[tokens[t]] += dout[t], per sequence in order.
void embedding_grad(const at::Tensor& dout_TK, const at::Tensor& tokens_T, std::span<const RowRange> order,
                    PackedMatrix& grad_VK);

// Attention.

/// One sequence's queries and keys. Queries are the last `q_len` positions of `kv_len` (causal, aligned at
/// the end), so a pass over a whole sequence has q_len == kv_len and a decoding step q_len == 1. Keys are
/// visited in blocks of kAttentionBlock positions counted from position 0; `blocks` names the block's place
/// in the key/value tensors (a paged cache), `block_rows` the row at which each begins (sequences that share
/// rows); when both are empty rows kv_begin.. hold them in order.
struct AttentionSequence {
  int64_t q_begin = 0, q_len = 0;
  int64_t kv_begin = 0, kv_len = 0;
  std::span<const int32_t> blocks = {};
  std::span<const int64_t> block_rows = {};
};
inline constexpr int64_t kAttentionBlock = 64;

/// o = softmax(scale * q k^T + causal [+ window]) v, per sequence and head; lse_TH is log-sum-exp per query
/// row (of scaled scores), kept for backward. window 0: none; w: a query at position p sees keys p-w+1 .. p.
/// k and v are [rows, G, D] (rows = T, or cache blocks * kAttentionBlock); H % G == 0. A query row's bits
/// depend on its position, its q and the keys it sees only, so prefill, decoding and training agree.
void attention(const at::Tensor& q_THD, const at::Tensor& k_RGD, const at::Tensor& v_RGD,
               std::span<const AttentionSequence> sequences, double scale, int64_t window, at::Tensor& o_THD,
               at::Tensor& lse_TH);
/// dq, dk, dv (=) gradients. Keys lie in order (no blocks, no block_rows), each sequence's apart from the
/// others'; k and v may have other rows than q where q_len < kv_len.
void attention_backward(const at::Tensor& do_THD, const at::Tensor& q_THD, const at::Tensor& k_RGD,
                        const at::Tensor& v_RGD, const at::Tensor& o_THD, const at::Tensor& lse_TH,
                        std::span<const AttentionSequence> sequences, double scale, int64_t window,
                        at::Tensor& dq_THD, at::Tensor& dk_RGD, at::Tensor& dv_RGD);

// Head.

/// What is asked of the vocabulary; undefined tensors are not computed.
struct HeadOutputs {
  at::Tensor logprob_S;        // log softmax at the target (always)
  at::Tensor lse_S;            // log-sum-exp (always; kept for backward)
  at::Tensor entropy_S;        // entropy of the distribution
  at::Tensor argmax_S;         // int32, lowest id among equals
  at::Tensor topk_logprob_SJ;  // J largest, descending, ties by id
  at::Tensor topk_id_SJ;       // int32
};

/// Log-probabilities under softmax((hidden W^T [+ low B^T]) * inv_temperature), never holding more than a
/// block of rows x vocabulary. `lora` is an adapter on the head, usually null.
void head_logprobs(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   HeadOutputs& out);
/// Full logits of a few rows [S, V] (sampling).
void head_logits(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                 const at::Tensor& low_SR, at::Tensor& logits_SV);
/// What head_logprobs says of the rows whose head_logits these are: the same bits (CPU).
void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out);

/// Backward of head_logprobs. dlogprob_S and (optionally) dentropy_S come from the loss; dhidden (=) gradient
/// through W and the adapter; grad_VK (may be null) += per sequence in `order` (ranges of scored rows);
/// adapter gradients go into `lora` slots.
void head_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                   const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                   const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                   std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK);

/// Forward and backward in one walk over the vocabulary for a loss that is linear in the log-probabilities
/// with known coefficients (cross-entropy): dlogprob_S is given beforehand. Same bits as head_logprobs +
/// head_backward.
void head_forward_backward(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                           const at::Tensor& low_SR, const at::Tensor& targets_S, double inv_temperature,
                           const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                           at::Tensor& dhidden_SK, PackedMatrix* grad_VK);

// Optimizer.

struct AdamStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decoupled = true;    // AdamW; false: Adam (decay added to the gradient), as torch
  int64_t step = 1;         // 1 for the first
  double grad_scale = 1.0;  // multiplied into the gradient (1/num_tokens, clipping)
};
/// One fused update of fp32 p, m, v from g (Kingma & Ba 2015; Loshchilov & Hutter 2019), as torch.optim
/// computes it.
void adam_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, const AdamStep& hyper);
/// Sum of squares in fp64 over fixed blocks in order; inf/NaN propagate.
double sum_of_squares(const at::Tensor& x);

}  // namespace twinkle::ops
