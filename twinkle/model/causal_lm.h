// A decoder language model: explicit forward and backward over packed sequences, on the operations of
// kernels/. One training pass at a time per object, with sampling passes of other threads beside it; the
// weights may be read by many threads.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/data/packed_batch.h"
#include "twinkle/kernels/head_targets.h"
#include "twinkle/model/model_config.h"
#include "twinkle/model/weight_source.h"
#include "twinkle/nn/arena.h"
#include "twinkle/nn/lora_binding.h"
#include "twinkle/nn/parameter.h"

namespace twinkle {

/// A linear module that can carry an adapter.
struct LinearInfo {
  std::string name;  // "model.layers.0.self_attn.q_proj", "lm_head"; "model.embed_tokens" is not in this list
  int64_t in_features = 0, out_features = 0;
};

struct LoadOptions {
  std::string dtype = "auto";  // auto: as stored (quantised files: fp32); fp32 | bf16 | fp16
  at::Device device = at::kCPU;
};

/// What is kept between forward and backward. `recompute` keeps only each layer's input.
struct ForwardOptions {
  bool for_backward = false;
  bool recompute = false;
  /// Backward runs over the rows that sequences share (PackedBatch::prefix) once as well, and a sequence with
  /// all that follow it and share its rows is one sequence in the sums of gradients. Those must stand
  /// together, in the order of the sums too. Without it such rows run forward once, and everything has the
  /// bits that it has when nothing is shared.
  bool share_backward = false;
};

class CausalLM {
 public:
  /// Opens, checks and packs a model; errors name the file and tensor.
  static std::unique_ptr<CausalLM> load(const std::string& path, const LoadOptions& options = {});
  static std::unique_ptr<CausalLM> build(const ModelConfig& config, const WeightSource& source,
                                         const LoadOptions& options = {});
  ~CausalLM();

  const ModelConfig& config() const;
  at::Device device() const;
  const std::vector<LinearInfo>& linears() const;
  /// Every weight in file order; the tied head is not listed apart.
  std::vector<Parameter>& parameters();
  const std::vector<Parameter>& parameters() const;
  /// Whether any weight matrix is held in bf16.
  bool holds_bf16() const;
  /// fp32 gradients for every weight (full training); zeroed. Weights are converted to fp32 storage first.
  void make_trainable();
  void zero_grad();
  nn::Arena& arena();

  /// Sequences of at most so many tokens can share rows (PackedBatch::prefix).
  int64_t max_shared_length() const;
  /// Runs the body. Returns the final hidden states after the last norm, [T, hidden] (those rows that are
  /// computed, where sequences share some), in the arena; valid until finish(). Tokens out of range are
  /// invalid_argument naming sequence and position.
  at::Tensor forward(const PackedBatch& batch, const nn::LoraBinding* lora, const ForwardOptions& options);
  /// Rows that go through the head together.
  struct ScorePart {
    std::vector<int32_t> rows;     // of hidden, ascending; one that repeats has several targets
    std::vector<int32_t> targets;  // one each
    double inv_temperature = 1.0;  // logits are multiplied by it
    ops::HeadOutputs out;          // says what is wanted, see ops::HeadOutputs
    at::Tensor known_dlogprob_S;   // coefficients known beforehand: the head's gradient in the same walk
    bool for_backward = true;      // false: nothing flows back from these rows
  };
  /// Log-probabilities of all parts. No row is in two of them.
  void score(std::span<ScorePart> parts);
  /// One part that holds all scored rows.
  void score(const std::vector<int32_t>& rows, const std::vector<int32_t>& targets, double inv_temperature,
             ops::HeadOutputs& out, const at::Tensor& known_dlogprob_S = {});
  /// What the loss says of one part: d(logprob) [S] (and entropy, may be undefined).
  struct ScoreGradient {
    at::Tensor dlogprob_S, dentropy_S;
  };
  /// Cuts the pass to its first `rows` rows (whole sequences) before a backward that is for those alone;
  /// `lora` then binds them. Parts not for backward must lie outside, all others inside.
  void keep_rows(int64_t rows, const nn::LoraBinding* lora);
  /// Backward of the last forward and score down to the gradients of adapters in the binding and of trainable
  /// weights, all `+=`. One gradient for each part of score() (not read for a part that is not for backward
  /// or whose coefficients were known). Call once after each forward for backward.
  void backward(std::span<const ScoreGradient> gradients);
  void backward(const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S = {});
  /// Releases what the pass kept.
  void finish();

  // ---- sampling: passes that read keys and values from blocks of a cache. They touch nothing that a
  // training pass on this object keeps, so one thread may sample while another trains adapters; only the
  // weights of the model itself must stand still. Each sampling thread brings an arena and storage of its
  // own.

  /// Keys and values by layer, [rows, G, D] each, in one piece of memory: a block's of all layers lie
  /// together, so that of block b begin at row b * block_rows. Memory is touched when it is written.
  struct KvStorage {
    std::vector<at::Tensor> k, v;
    int64_t block_rows = 0;
  };
  KvStorage make_kv_storage(int64_t num_blocks) const;
  static int64_t kv_block_bytes(const ModelConfig& config);
  /// The tokens at positions first .. first + tokens.size() - 1 of one sequence. Block j of `blocks` holds
  /// its positions from j * kAttentionBlock on; keys and values before `first` are there already.
  struct PagedRows {
    std::span<const int32_t> tokens;
    int64_t first = 0;
    std::span<const int32_t> blocks;
  };
  /// Stores the keys and values of new tokens and returns their hidden states after the last norm
  /// [T, hidden], in the order of `rows`, in the arena (whose memory is released first). Bits equal those of
  /// forward() over whole sequences. invalid_argument for a token out of range and, with dynamic rotary
  /// scaling, past the length where its frequencies begin to depend on the length.
  at::Tensor forward_paged(nn::Arena& arena, KvStorage& kv, std::span<const PagedRows> rows,
                           const nn::LoraBinding* lora);
  /// Logits [S, vocab] of rows of hidden states, in the arena. The spans of `lora` are ranges of these rows.
  at::Tensor logits(nn::Arena& arena, const at::Tensor& hidden_SK, const nn::LoraBinding* lora);
  /// score() for rows of hidden states of forward_paged: the same bits.
  void score_hidden(nn::Arena& arena, const at::Tensor& hidden_HK, const nn::LoraBinding* lora,
                    const ops::RowTargets& targets, double inv_temperature, ops::HeadOutputs& out);

 private:
  CausalLM();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle
