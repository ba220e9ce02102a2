// Tiles of the processor. Compiled with AMX flags and called only where isa.cpp found AMX and the kernel's
// permission.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "twinkle/kernels/cpu/tile_block.h"

namespace twinkle::ops::cpu {
#if defined(__x86_64__)
namespace {

struct Tiles {
  // All eight tiles: 16 rows of 64 bytes.
  static void begin() {
    struct alignas(64) Config {
      uint8_t palette, start_row, reserved[14];
      uint16_t columns[16];
      uint8_t rows[16];
    } config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.columns[i] = 64;
      config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
  }
  static void end() { _tile_release(); }
  // The intrinsics take a tile's number as text, which a template argument is not; and they do not tell the
  // compiler that memory is read.
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load_c(const float* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride * 4), "i"(T) : "memory");
  }
  template <int T>
  static void store_c(float* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride * 4), "i"(T) : "memory");
  }
  template <int T>
  static void load(const uint16_t* p) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(int64_t{64}), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

#include "twinkle/kernels/cpu/tile_block.inc"

}  // namespace

void tile_block_amx(const TileBlock& block) { tile_block(block); }
#endif
}  // namespace twinkle::ops::cpu
