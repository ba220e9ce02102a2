// Where an operation runs: a CPU tensor with a vector instruction set goes to cpu/, all else to aten/.
#pragma once

#include <ATen/core/Tensor.h>

#include "twinkle/kernels/isa.h"

namespace twinkle::ops {

inline bool on_cpu_kernels(const at::Tensor& x) { return x.device().is_cpu() && active_isa() != Isa::kPlain; }

}  // namespace twinkle::ops
