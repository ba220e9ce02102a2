// How much memory a training run takes at its peak, from the model's shapes and the run's options, before
// anything is allocated. Follows what the layers take from the arena, tensor by tensor. Pure functions;
// tests/train/planner_peak_test.cpp compares with measured peaks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/data/shared_prefix.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/model/model_config.h"

namespace twinkle {

class TrainGroup;

enum class Recompute {
  kAuto,  // when a pass would not fit into memory otherwise
  kNever,
  kAlways,
};

struct PlanInput {
  ModelConfig config;
  int64_t weight_bytes = 4;            // of a frozen matrix element in memory: 4, or 2 for bf16 and fp16
  bool full = false;                   // every weight is trained (fp32)
  int64_t lora_parameters = 0;         // elements of the adapter
  int64_t lora_rank = 0;               // the largest
  int64_t lora_modules_per_layer = 0;  // adapted linears of a layer, at most 7
  bool lora_dropout = false;
  int64_t optimizer_bytes = 8;  // state bytes of a trained element
  int64_t tokens = 2048;        // of the largest pass
  int64_t scored = 2048;        // scored tokens of that pass
  int64_t spread = 0;           // tokens that its rows stand for, when sequences share rows; 0: none do
  bool share_backward = false;  // and backward runs over shared rows too
  bool recompute = false;
  int64_t data_bytes = 0;     // encoded rows and tokenizer
  int64_t process_bytes = 0;  // what the program takes before a model is loaded; 0: what this one takes now
};

struct MemoryPlan {
  struct Item {
    std::string name;
    int64_t bytes = 0;
  };
  std::vector<Item> items;  // all that is there at the peak
  int64_t peak_bytes = 0;
  int64_t arena_bytes = 0;  // the part that a pass takes from the model's arena
  Json to_json() const;
  std::string to_text() const;  // a table for people
};

MemoryPlan plan_memory(const PlanInput& input);

/// Bytes a new allocation can still get: the least of MemAvailable and what the control group has left.
int64_t available_memory_bytes();
/// Resident bytes of this process, and the most there ever were.
int64_t resident_bytes();
int64_t peak_resident_bytes();

/// How a group's passes will run.
struct PassPlan {
  bool recompute = false;
  int64_t arena_bytes = 0;
};

/// The largest pass of some calls.
struct PassSize {
  int64_t rows = 0;
  int64_t spread = 0;  // see PlanInput
  bool holds(const PassSize& other) const { return other.rows <= rows && other.spread <= spread; }
  /// The least that holds both.
  PassSize with(const PassSize& other) const {
    return {std::max(rows, other.rows), std::max(spread, other.spread)};
  }
};
/// Of a call that goes backward, in passes of up to `max_rows` rows.
PassSize largest_pass(std::span<const InputFeature> features, PrefixSharing sharing, int64_t max_rows);

/// Plans passes of up to `size.rows` rows. With `check`, `exhausted` with the whole plan when it would not
/// fit in any way the policy allows. Nothing is allocated.
PassPlan plan_passes(CausalLM& model, TrainGroup& group, const PassSize& size, Recompute policy,
                     bool check = true);
/// Likewise for passes that adapters of up to `max_rank` on every module share; the adapters themselves are
/// in memory already.
PassPlan plan_shared_passes(CausalLM& model, int64_t max_rank, const PassSize& size, PrefixSharing sharing,
                            Recompute policy, bool check = true);

}  // namespace twinkle
