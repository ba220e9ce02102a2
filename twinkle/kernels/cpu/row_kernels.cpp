#include "twinkle/kernels/cpu/row_kernels.h"

#include "twinkle/kernels/isa.h"

namespace twinkle::cpu {

const RowKernels& row_kernels() { return active_isa() == Isa::kAvx2 ? kRowKernelsAvx2 : kRowKernelsAvx512; }

}  // namespace twinkle::cpu
