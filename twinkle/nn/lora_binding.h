// Which adapters a pass uses: spans of rows (one a sequence, in reduction order) and, for every linear module
// of the model, the low-rank pair of each adapter. Views only; whoever owns the adapters keeps them alive.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "twinkle/kernels/ops.h"
#include "twinkle/nn/parameter.h"

namespace twinkle::nn {

struct LoraBinding {
  std::vector<ops::LoraSpan> spans;  // slot: index of the adapter within this binding
  /// slots[module][adapter]; a slot with undefined a_rK means that this adapter leaves the module alone. A
  /// module whose list is empty has no adapter at all. Modules are numbered as CausalLM::linears() lists
  /// them.
  std::vector<std::vector<ops::LoraSlot>> slots;
  /// Adapters on the embedding, one a slot as above (a_rK is [r, vocab], b_Nr [hidden, r]); empty: none.
  std::vector<ops::LoraSlot> embedding;
  /// Whole copies that replace the model's own weights in this pass (PEFT's modules_to_save); null: the
  /// model's. Only for a pass whose sequences all use one adapter. Their gradients are taken when they are
  /// trainable.
  Parameter* replaced_embedding = nullptr;
  Parameter* replaced_head = nullptr;
  std::map<const Parameter*, Parameter*> replaced_norms;  // the model's norm weight -> the copy used instead
  std::vector<double> dropout;                            // [adapter] probability, 0 outside training
  std::vector<uint64_t> dropout_seed;                     // [adapter]
};

}  // namespace twinkle::nn
