// A datum of either wire, checked, as the loss needs it. Free of state.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "twinkle/serve/tinker_losses.h"
#include "twinkle/serve/tinker_tensor.h"

namespace twinkle::serve::tinker {

/// Most targets of a call, all its data together.
inline constexpr int64_t kMostTargets = int64_t{1} << 24;

/// Consecutive tokens of a datum that were a prompt or sampled.
struct ProvenanceSpan {
  bool sampled = false;
  bool named = false;  // says of which sequence
  int64_t offset = 0, length = 0;
};

struct RawDatum {
  std::vector<int32_t> tokens;
  std::map<std::string, Tensor> inputs;  // those that the loss reads
  std::vector<ProvenanceSpan> input_spans, target_spans;
};

/// Lengths, shapes, numbers that are not finite and what the spans say; errors are invalid_argument that
/// begins with `where`. Sparse tensors become dense: a cell that is not there is 0.
Datum checked_datum(RawDatum raw, const LossRule& rule, const std::string& where);

}  // namespace twinkle::serve::tinker
