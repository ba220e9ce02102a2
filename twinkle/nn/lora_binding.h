// Which adapters a pass uses: spans of rows (one a sequence, in reduction order) and, for every linear module of
// the model, the low-rank pair of each adapter. Views only; whoever owns the adapters keeps them alive.
#pragma once

#include <cstdint>
#include <vector>

#include "twinkle/kernels/ops.h"

namespace twinkle::nn {

struct LoraBinding {
  std::vector<ops::LoraSpan> spans;                     // slot: index of the adapter within this binding
  /// slots[module][adapter]; a slot with undefined a_rK means that this adapter leaves the module alone. A
  /// module whose list is empty has no adapter at all. Modules are numbered as CausalLM::linears() lists them.
  std::vector<std::vector<ops::LoraSlot>> slots;
  std::vector<double> dropout;                          // [adapter] probability, 0 outside training
  std::vector<uint64_t> dropout_seed;                   // [adapter]
};

}  // namespace twinkle::nn
