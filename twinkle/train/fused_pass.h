// One pass of the model over sequences of many adapters, and of none: base products run over all rows
// together, each adapter's products over its own rows. What a part gets back has the bits it has alone.
// One pass at a time; not thread-safe.
//
// A pass may mix parts that are only scored with parts that go backward, with losses, temperatures and
// dropout of their own. Parts that go backward lie first, so that backward runs over their rows alone.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "twinkle/data/shared_prefix.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/model/causal_lm.h"
#include "twinkle/train/micro_batch.h"

namespace twinkle {

/// Sequences of one call. Tensors are in call order, on the CPU.
struct PassPart {
  const MicroBatch* micro = nullptr;
  const Adapter* adapter = nullptr;  // null: the model alone, or trained whole
  bool training = false;             // with the adapter's dropout
  bool backward = false;             // backward() will follow for this part
  double temperature = 1.0;
  bool want_entropy = false, want_argmax = false;
  at::Tensor known_dlogprob_S;  // what flows back, when it is known before the forward

  at::Tensor logprob_S, entropy_S, argmax_S;  // filled by forward()

  at::Tensor dlogprob_S, dentropy_S;  // read by backward(); undefined: nothing flows back from this part
};

struct FusedPassOptions {
  bool recompute = false;  // keep only each layer's input for backward
  /// kGroups: parts that go backward are shared as their micro-batches say.
  PrefixSharing sharing = PrefixSharing::kExact;
};

class FusedPass {
 public:
  explicit FusedPass(CausalLM& model) : model_(model) {}

  /// Runs all parts up to their log-probabilities. Gradients of one adapter are summed in the order in which
  /// its parts are given. A part with whole copies (modules_to_save) must be alone.
  void forward(std::span<PassPart* const> parts, const FusedPassOptions& options);
  /// Back through the parts of the last forward() that asked for it; needed once. They must still be there.
  void backward();
  /// Releases what the pass kept, the adapters' tensors included.
  void finish();
  /// Rows that the last forward() ran through the layers: fewer than tokens where sequences share some.
  int64_t computed_rows() const { return computed_rows_; }

 private:
  // Rows that go through the head together, and which rows of it belong to which part.
  struct Group {
    CausalLM::ScorePart score;
    std::vector<PassPart*> parts;
    std::vector<int64_t> begins;
  };

  void lay_out(std::span<PassPart* const> parts);
  void share_prefixes(PrefixSharing sharing);
  void share_groups(std::span<CommonPrefix> prefix, std::span<const int64_t> family) const;
  void bind();
  void make_groups();

  CausalLM& model_;
  std::vector<PassPart*> parts_;    // that have something to score, in the order of their rows
  std::vector<int64_t> first_row_;  // of each
  PackedBatch batch_;
  int64_t backward_rows_ = 0, computed_rows_ = 0;
  nn::LoraBinding binding_, backward_binding_;
  std::vector<Group> groups_;
};

}  // namespace twinkle
