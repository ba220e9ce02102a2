// Learning-rate schedules. Components of kind "scheduler", under torch's and upstream's names.
//
// A schedule is a pure function of the base rate and the number of optimizer steps taken, so its whole state
// is one integer and a resumed run continues exactly. Values are those of torch.optim.lr_scheduler and
// transformers.optimization, with one deliberate difference: a cosine stays at its floor once it has ended,
// where theirs climbs again; `after_end: "rebound"` gives theirs.
#pragma once

#include <cstdint>
#include <string_view>

#include "twinkle/core/registry.h"

namespace twinkle {

class LRScheduler {
 public:
  static constexpr std::string_view kKind = "scheduler";
  virtual ~LRScheduler() = default;
  /// Rate used by the optimizer step that follows `step` steps (0 for the first).
  virtual double lr(double base_lr, int64_t step) const = 0;
};

}  // namespace twinkle
