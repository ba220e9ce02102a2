// A block of a product on 16-row tiles, once on the processor's tiles and once in scalar code.
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
};

void tile_block_amx(const TileBlock& block);
void tile_block_emulated(const TileBlock& block);

}  // namespace twinkle::ops::cpu
