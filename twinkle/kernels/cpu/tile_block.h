// A block of a product of bf16 on 16-row tiles: on the processor's matrix tiles, by its products of pairs,
// and in scalar code.
#pragma once

#include <cstdint>

namespace twinkle::ops::cpu {

inline constexpr int64_t kTileStep = 32;                  // of the reduced index
inline constexpr int64_t kTileElements = 16 * kTileStep;  // bf16 in a tile of A or B

/// C[m, n] (+)= A B over `steps` steps of 32.
struct TileBlock {
  const uint16_t* a;  // tiles [16 rows][32], step s of row tile t at a + t * a_tile + s * kTileElements
  int64_t a_tile;
  const uint16_t*
      b;  // tiles [16 pairs][16 columns][2], step s of panel p at b + p * b_panel + s * kTileElements
  int64_t b_panel;
  float* c;  // element (m, n) is c[m * c_row + n]
  int64_t c_row;
  int64_t m, n, steps;
  bool from_zero;
  bool packed = true;  // false, for tile_block_avx512bf16: a step of B is [32][16], as panels stand
};

void tile_block_amx(const TileBlock& block);
void tile_block_avx512bf16(const TileBlock& block);
void tile_block_emulated(const TileBlock& block);

/// rows <= 16 of A to tiles, zeros past the last row and column.
void pack_a_avx512bf16(const float* a, int64_t a_stride, int64_t rows, int64_t reduced, uint16_t* out);
/// As KernelTable::pack_pairs_transposed, of bf16.
void pack_pairs_transposed_avx512bf16(const uint16_t* in0, const uint16_t* in1, int64_t cols, uint16_t* out);

/// As KernelTable::burn, by VDPBF16PS.
double burn_avx512bf16(int64_t rounds, float* sink);

}  // namespace twinkle::ops::cpu
