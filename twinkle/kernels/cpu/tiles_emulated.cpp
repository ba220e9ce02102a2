// Tiles in scalar code, by the definition of TDPBF16PS: within a step, even and odd elements are summed apart
// from zero by fused multiply-adds in ascending order, the two sums are added, and the result is added to C.
// Denormals are kept, which the processor flushes. One set of tiles a thread.
#include <cmath>
#include <cstring>

#include "twinkle/kernels/cpu/tile_block.h"

namespace twinkle::ops::cpu {
namespace {

struct Registers {
  float c[4][256];
  uint16_t in[4][kTileElements];
};
thread_local Registers registers;

float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof(out));
  return out;
}

struct Tiles {
  static void begin() {}
  static void end() {}
  template <int T>
  static void zero() {
    std::memset(registers.c[T], 0, sizeof(registers.c[T]));
  }
  template <int T>
  static void load_c(const float* p, int64_t stride) {
    for (int m = 0; m < 16; ++m) std::memcpy(registers.c[T] + m * 16, p + m * stride, 64);
  }
  template <int T>
  static void store_c(float* p, int64_t stride) {
    for (int m = 0; m < 16; ++m) std::memcpy(p + m * stride, registers.c[T] + m * 16, 64);
  }
  template <int T>
  static void load(const uint16_t* p) {
    std::memcpy(registers.in[T - 4], p, sizeof(registers.in[T - 4]));
  }
  template <int C, int A, int B>
  static void dot() {
    for (int m = 0; m < 16; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < 16; ++k) {
        const float a0 = widen(registers.in[A - 4][m * 32 + 2 * k]),
                    a1 = widen(registers.in[A - 4][m * 32 + 2 * k + 1]);
        const uint16_t* b = registers.in[B - 4] + k * 32;
        for (int n = 0; n < 16; ++n) {
          even[n] = std::fma(a0, widen(b[2 * n]), even[n]);
          odd[n] = std::fma(a1, widen(b[2 * n + 1]), odd[n]);
        }
      }
      for (int n = 0; n < 16; ++n) registers.c[C][m * 16 + n] += even[n] + odd[n];
    }
  }
};

#include "twinkle/kernels/cpu/tile_block.inc"

}  // namespace

void tile_block_emulated(const TileBlock& block) { tile_block(block); }

}  // namespace twinkle::ops::cpu
