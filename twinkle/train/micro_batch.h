// A call's features as passes of the model: which sequences go together, what of them is scored, what the
// loss is given. Rows reach the loss in call order, however a pass lays its sequences out. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "twinkle/data/packed_batch.h"
#include "twinkle/data/types.h"
#include "twinkle/train/loss.h"

namespace twinkle {

/// Values beside the features that a loss reads, by name, one list for each feature of the call. A list has
/// one value (for the whole sequence), one for each token, or one for each scored target.
using Extras = std::map<std::string, std::vector<std::vector<float>>>;

/// How the sequences of one pass are laid out; it changes no bit of any result.
enum class PackingOrder { kAsGiven, kReversed, kLongestFirst };

struct MicroBatch {
  int64_t begin = 0, end = 0;  // features of the call
  PackedBatch batch;
  std::vector<int32_t> rows, targets;  // scored rows of the packed batch, ascending; a row with several
                                       // targets stands there several times
  std::vector<int64_t> place;          // place[s]: index in `rows` of the s-th scored row in call order
  LossInput input;                     // everything but log-probabilities and entropies
};

/// Refuses what no pass may see, naming the feature and where it came from: no features, an empty one,
/// lengths that differ, tokens or labels outside the vocabulary, extras that do not fit.
void check_features(std::span<const InputFeature> features, const Extras& extras, int64_t vocab_size);

/// Features [begin, end) as one pass. `first_order` is the run's number of features[0]: it orders reductions
/// and names the sequences' random streams. `groups`: answers to one prompt stay together and share its rows
/// (see PrefixSharing::kGroups).
MicroBatch make_micro_batch(std::span<const InputFeature> features, const Extras& extras, int64_t begin,
                            int64_t end, int64_t first_order, PackingOrder packing, bool groups = false);

/// Joins the loss inputs of consecutive passes.
LossInput join_inputs(std::span<const LossInput> parts);
/// The part of a joined [S] tensor that belongs to sequences [begin, end); undefined stays undefined.
at::Tensor rows_of(const at::Tensor& joined_S, const std::vector<int64_t>& cu_scored, int64_t begin,
                   int64_t end);

/// Values in row order of the pass from values in call order, and back (int32 or fp32, on the CPU).
at::Tensor to_row_order(const MicroBatch& micro, const at::Tensor& in_call_order);
at::Tensor to_call_order(const MicroBatch& micro, const at::Tensor& in_row_order);

/// "sequence 3 (train.jsonl row 17)".
std::string sequence_place(std::span<const InputFeature> features, int64_t index);

}  // namespace twinkle
