// A decoder language model: explicit forward and backward over packed sequences, on the operations of
// kernels/. One pass at a time per object; the weights may be read by many threads between passes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/data/packed_batch.h"
#include "twinkle/kernels/ops.h"
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
  /// fp32 gradients for every weight (full training); zeroed. Weights are converted to fp32 storage first.
  void make_trainable();
  void zero_grad();
  nn::Arena& arena();

  /// Runs the body. Returns the final hidden states after the last norm, [T, hidden], in the arena; valid
  /// until finish(). Tokens out of range are invalid_argument naming sequence and position.
  at::Tensor forward(const PackedBatch& batch, const nn::LoraBinding* lora, const ForwardOptions& options);
  /// Log-probabilities at `rows` (of hidden, ascending) for `targets`, one each; `out` says what is wanted,
  /// see ops::HeadOutputs. `known_dlogprob_S`: coefficients known beforehand, computes the head's gradient in
  /// the same walk.
  void score(const std::vector<int32_t>& rows, const std::vector<int32_t>& targets, double inv_temperature,
             ops::HeadOutputs& out, const at::Tensor& known_dlogprob_S = {});
  /// Backward of the last forward and score: d(logprob) [S] (and entropy, may be undefined) down to the
  /// gradients of adapters in the binding and of trainable weights, all `+=`. Call once after each forward
  /// for backward. Not needed to pass dlogprob_S again when it was known beforehand.
  void backward(const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S = {});
  /// Backward from d(hidden) [T, hidden] (embedding heads).
  void backward_hidden(const at::Tensor& dhidden_TK);
  /// Releases what the pass kept.
  void finish();

  /// Keys and values of sequences being generated.
  class Cache;
  std::shared_ptr<Cache> make_cache(int64_t max_tokens_per_sequence, int64_t num_sequences);
  /// Appends `tokens` to cached sequence `index` and returns hidden states of the new tokens [n, hidden]
  /// (valid until the next call). Bits equal those of forward() over the whole sequence. `exhausted` when the
  /// sequence has no room left; invalid_argument for a token out of range and, with dynamic rotary scaling,
  /// past the model's context.
  struct CachedRows {
    int64_t sequence = 0;
    std::vector<int32_t> tokens;
  };
  at::Tensor forward_cached(Cache& cache, const std::vector<CachedRows>& rows, const nn::LoraBinding* lora);
  /// Logits [S, vocab] of rows of hidden states.
  at::Tensor logits(const at::Tensor& hidden_SK, const nn::LoraBinding* lora);

 private:
  CausalLM();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle
