// Memory of gradients that come and go with every step. The system would give each of them out page by page
// and take it back, which for adapters of few tokens costs as much as the pass; here it is kept for the next
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace twinkle {

/// Thread-safe. What was taken may outlive it.
class GradientMemory {
 public:
  GradientMemory();

  /// Zeroed fp32 memory on the CPU, which comes back here when its last tensor goes.
  at::Tensor take(int64_t elements);
  /// Lets go of what is not in use.
  void trim();
  /// Kept and not in use. With what is in use never more than has been in use together since the last trim().
  int64_t spare_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace twinkle
