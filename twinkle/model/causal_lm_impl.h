// What CausalLM holds; only the files that implement it include it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "twinkle/model/causal_lm.h"
#include "twinkle/model/shared_rows.h"
#include "twinkle/nn/decoder_layer.h"

namespace twinkle {

/// A copy of host indices on the device, int32.
at::Tensor index_tensor(const std::vector<int32_t>& values, at::Device device);

/// Rows of rotary tables for each token.
struct RotaryRows {
  at::Tensor rows, cos, sin;
};

struct CausalLM::Impl {
  /// Rows that went through the head together: H of them, S targets.
  struct Scored {
    at::Tensor rows, scored_HK, low_HR, dscored_HK;
    ops::RowTargets targets;
    at::Tensor row_of_S;  // place of each target's row among `rows`; undefined: one target a row
    double inv_temperature = 1.0;
    bool for_backward = true;
    ops::HeadOutputs out;
    std::vector<ops::RowRange> order;  // of each sequence's rows, as ranges of [0, H), in reduction order
    std::vector<ops::LoraSpan> spans;
    ops::LoraBatch lora;
    const ops::LoraBatch* adapters() const { return spans.empty() ? nullptr : &lora; }
  };
  /// The pass over rows that are computed once, where sequences share some.
  struct SharedPass {
    SharedPass(nn::Arena& arena, SharedRows of, at::Device device)
        : rows(std::move(of)), map(rows.row_of, rows.rows(), device), pass(arena) {}
    SharedRows rows;
    nn::RowMap map;
    nn::Pass pass;
    nn::LoraBinding lora;
    at::Tensor tokens;
  };
  /// What a pass keeps between forward, score and backward; its tensors lie in the arena. Rows of `pass`,
  /// `tokens` and the head are those of the batch; the others are the computed ones.
  struct State {
    explicit State(nn::Arena& arena) : pass(arena) {}
    nn::Pass pass;
    PackedBatch batch;  // when rows are shared
    std::unique_ptr<SharedPass> shared;
    nn::Pass& body() { return shared ? shared->pass : pass; }
    const at::Tensor& body_tokens() const { return shared ? shared->tokens : tokens; }
    ForwardOptions options;
    at::Tensor tokens;
    std::vector<at::Tensor> inputs;              // of each layer
    std::vector<nn::DecoderLayer::Saved> saved;  // empty when recomputing
    at::Tensor last_TK, rstd_T, hidden_TK;
    std::vector<Scored> scored;
  };

  ModelConfig config;
  at::Device device = at::kCPU;
  std::unique_ptr<nn::Arena> arena;
  std::vector<Parameter> parameters;
  std::vector<LinearInfo> linears;
  std::vector<nn::DecoderLayer> layers;
  Parameter *embedding = nullptr, *final_norm = nullptr, *head = nullptr;
  int64_t head_module = -1;
  std::mutex tables_mutex;  // training and sampling passes may both make the tables grow
  RopeTables tables;
  at::Tensor cos, sin;
  std::unique_ptr<State> state;

  void load_parameter(const WeightSource& source, const WeightInfo& expected, const LoadOptions& options,
                      Parameter& parameter);
  void load_parameters(const WeightSource& source, const std::vector<WeightInfo>& expected,
                       const LoadOptions& options);
  RotaryRows rotary_rows(const std::vector<int32_t>& positions, const std::vector<int32_t>& cu_seqlens);
  /// The length up to which rotary frequencies do not depend on a sequence's own length.
  int64_t original_positions() const;
  void set_tables(RopeTables fresh);
  void check_batch(const PackedBatch& batch) const;
  /// The pass over shared rows of the first `num_sequences` sequences.
  std::unique_ptr<SharedPass> shared_pass(const State& state, int64_t num_sequences) const;
  void embed(nn::Pass& pass, const at::Tensor& tokens, at::Tensor& x_TK);
  void embed_backward(nn::Pass& pass, const at::Tensor& tokens, const at::Tensor& dx_TK);
  const ops::PackedMatrix& head_matrix(const nn::LoraBinding* lora) const;
  ops::PackedMatrix* head_grad(const nn::LoraBinding* lora) const;
  void bind_head(const nn::Pass& pass, const std::vector<int32_t>& rows, Scored& scored) const;
  void backward_body(const at::Tensor& dhidden_TK);
};

}  // namespace twinkle
