// Sequences that begin with the same tokens: what of them a pass needs to compute only once. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "twinkle/data/packed_batch.h"
#include "twinkle/data/types.h"

namespace twinkle {

/// What passes do with sequences that begin alike and use the same adapter without dropout.
enum class PrefixSharing {
  kOff,     // each runs all of its rows
  kExact,   // what they have in common runs forward once, which changes no bit
  kGroups,  // answers to one prompt go backward through it together as well: their gradients for the prompt
            // are added up first, so they are rounded otherwise; see docs/exactness.md
};

/// The rows that each sequence takes from an earlier one: the longest beginning that they have in common, if
/// that is worth it. Only sequences of one family share (-1: shares with none), and only those of at most
/// `max_length` tokens.
std::vector<CommonPrefix> common_prefixes(const PackedBatch& batch, std::span<const int64_t> family,
                                          int64_t max_length);

/// Whether some of them have so much in common.
bool share_prefixes(std::span<const InputFeature> features);

/// Rows of a feature's prompt: its tokens up to the one that predicts the first scored target. 0 when nothing
/// is scored.
int64_t prompt_rows(const InputFeature& feature);

/// Consecutive features that stay together in a pass, and the rows that run for them.
struct FeatureRun {
  int64_t end = 0;  // the next run begins there
  int64_t rows = 0;
};
/// For kGroups and a backward: all that begin with the same prompt. For scoring (unless kOff): those that
/// have half of their tokens in common with the one before, up to `max_rows`. Otherwise each alone.
std::vector<FeatureRun> feature_runs(std::span<const InputFeature> features, PrefixSharing sharing,
                                     bool backward, int64_t max_rows);
/// Groups of whole runs of at most `max_rows` rows (a longer run stands alone): the feature at which each
/// ends.
std::vector<int64_t> split_runs(std::span<const FeatureRun> runs, int64_t max_rows);

}  // namespace twinkle
