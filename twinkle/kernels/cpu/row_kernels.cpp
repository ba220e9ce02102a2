#include "twinkle/kernels/cpu/row_kernels.h"

#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "twinkle/kernels/isa.h"

namespace twinkle::ops::cpu {

const RowKernels& row_kernels() { return active_isa() == Isa::kAvx2 ? kRowKernelsAvx2 : kRowKernelsAvx512; }

void wait_for_turn(const GradTurns& turns, int64_t tile, int64_t block) {
  constexpr int kSpins = 2000;  // then the other thread may need this processor
  for (int spins = 0; __atomic_load_n(turns.due + tile, __ATOMIC_ACQUIRE) != block; ++spins) {
    if (__atomic_load_n(turns.failed, __ATOMIC_RELAXED) != 0) return;
    if (spins >= kSpins) {
      std::this_thread::yield();
      continue;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

void end_turn(const GradTurns& turns, int64_t tile, int64_t next_block) {
  __atomic_store_n(turns.due + tile, next_block, __ATOMIC_RELEASE);
}

}  // namespace twinkle::ops::cpu
