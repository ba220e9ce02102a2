// Memory of weights that stay: matrices lie one behind another in large pages, which most are too small to
// fill alone. Every product walks through all of them, at the speed at which memory answers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace twinkle::ops {

/// An uninitialised flat tensor on the CPU, 64-byte aligned. What lies together is given back to the system
/// together, when the last of it is let go. Safe from any thread.
at::Tensor panel_memory(int64_t elements, at::ScalarType dtype);

}  // namespace twinkle::ops
