// What one pass over a packed batch shares between layers: where the sequences are, which adapters they use,
// where activations live. One pass at a time; built by the model, read by the layers.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "twinkle/kernels/ops.h"
#include "twinkle/nn/arena.h"
#include "twinkle/nn/lora_binding.h"
#include "twinkle/nn/row_map.h"

namespace twinkle::nn {

struct Pass {
  explicit Pass(Arena& arena) : arena(arena) {}

  Arena& arena;
  const LoraBinding* lora = nullptr;
  std::vector<ops::RowRange> order;               // rows of each sequence, in reduction order
  std::vector<ops::AttentionSequence> attention;  // in batch order
  at::Tensor rope_rows_T;                         // int32: row of the rotary tables of each token
  at::Tensor cos, sin;                            // [rows, D_rot / 2]
  std::vector<int32_t> row_position;              // for dropout
  std::vector<uint64_t> row_sequence_key;
  bool keep = false;  // keep what backward needs

  // The rest counts where sequences share rows (AttentionSequence::block_rows).
  /// Keys and values that attention reads as copies in front of the others, so that each block of 64
  /// positions of a sequence lies in one piece: `count` rows from row `from` of the pass to row `to` in
  /// front.
  struct KeyCopy {
    int64_t from = 0, to = 0, count = 0;
  };
  std::vector<KeyCopy> key_copies;
  int64_t copied_keys = 0;  // rows in front
  /// For a backward over shared rows: the keys of each sequence in order, and the attention over them.
  const RowMap* keys = nullptr;
  std::vector<ops::AttentionSequence> attention_backward;
  std::vector<ops::RowRange> unread_keys;  // those of sequences that add no row of their own: no gradient

  /// The adapters of one module, or nothing. The spans name only rows whose adapter touches the module.
  struct ModuleLora {
    ops::LoraBatch batch;
    bool dropout = false;                  // some adapter drops inputs
    std::vector<ops::LoraSpan> own_spans;  // storage when spans had to be filtered
  };
  std::optional<ModuleLora> module_lora(int64_t module) const;
  /// The norm weight to use: the model's own, or the copy that the binding puts in its place.
  Parameter& norm(Parameter& own) const;
  /// Whether an adapter drops inputs in this pass.
  bool drops(int32_t slot) const;
  /// y = x with each adapter's dropout applied to its rows (rows without adapter are left undefined).
  void apply_dropout(int64_t module, std::span<const ops::LoraSpan> spans, const at::Tensor& x_TK,
                     at::Tensor& y_TK) const;
};

/// Releases what a scope took from the arena.
class Scratch {
 public:
  explicit Scratch(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~Scratch() { arena_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace twinkle::nn
