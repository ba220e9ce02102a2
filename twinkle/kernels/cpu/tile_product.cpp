#include "twinkle/kernels/cpu/tile_product.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_plan.h"
#include "twinkle/kernels/cpu/tile_block.h"
#include "twinkle/kernels/isa.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kBlockSteps = 16;  // steps of B packed at once: 512 of the reduced index
std::atomic<bool> emulated{false};

void run_block(const TileBlock& block) {
#if defined(__x86_64__)
  if (!emulated.load(std::memory_order_relaxed)) return tile_block_amx(block);
#endif
  tile_block_emulated(block);
}

uint16_t* halves(float* p) { return reinterpret_cast<uint16_t*>(p); }

// A in bf16 tiles [row tile][step][16][32], zeros past the last row and column.
void pack_a(const KernelTable& table, const Product& product, int64_t reduced, int64_t steps,
            int64_t row_tile, uint16_t* out) {
  std::memset(out, 0, static_cast<size_t>(steps * kTileElements) * sizeof(uint16_t));
  for (int64_t i = 0; i < 16 && row_tile * 16 + i < product.rows; ++i) {
    const float* row = product.a + (row_tile * 16 + i) * product.a_stride;
    for (int64_t s = 0; s < steps; ++s) {
      table.narrow(WeightType::kBf16, row + s * kTileStep, std::min(kTileStep, reduced - s * kTileStep),
                   out + s * kTileElements + i * kTileStep);
    }
  }
}

// Steps [s0, s1) of panels of B, as [panel][step][16 pairs][16][2].
void pack_b(const KernelTable& table, const Weights& w, bool transposed, Range panels, int64_t s0, int64_t s1,
            uint16_t* out) {
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    for (int64_t s = s0; s < s1; ++s, out += kTileElements) {
      const int64_t first = s * kTileStep;
      if (!transposed) {
        table.pack_pairs(w.type, at_element(w, (p * w.cols + first) * kPanelWidth),
                         std::min(kTileStep, w.cols - first), out);
        continue;
      }
      const int64_t k0 = p * kPanelWidth;
      const bool second = first + kPanelWidth < w.rows;
      table.pack_pairs_transposed(
          w.type, at_element(w, first * w.cols + k0 * kPanelWidth),
          second ? at_element(w, (first + kPanelWidth) * w.cols + k0 * kPanelWidth) : nullptr,
          std::min(kPanelWidth, w.cols - k0), out);
    }
  }
}

}  // namespace

bool tiles_in_use() { return active_isa() == Isa::kAmx || emulated.load(std::memory_order_relaxed); }

void emulate_tiles(bool on) { emulated.store(on); }

void multiply_in_tiles(const Product& product, bool transposed) {
  const KernelTable& table = kernels();
  const Weights& w = product.w;
  const int64_t columns = transposed ? w.cols : w.rows, reduced = transposed ? w.rows : w.cols;
  const int64_t steps = ceil_div(reduced, kTileStep), row_tiles = ceil_div(product.rows, 16);
  uint16_t* a = halves(scratch(7, row_tiles * steps * kTileElements / 2 + 1));
  parallel_for(row_tiles, 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      pack_a(table, product, reduced, steps, t, a + t * steps * kTileElements);
  });
  const Plan plan = make_plan(product.rows, columns, reduced);
  parallel_for(plan.row_blocks * plan.groups, 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t task = task_begin; task < task_end; ++task) {
      const Range tiles = share(row_tiles, plan.row_blocks, task / plan.groups);
      const Range panels = plan.panels_of(task % plan.groups);
      const Range rows = {tiles.begin * 16, std::min(product.rows, tiles.end * 16)};
      if (rows.end <= rows.begin || panels.end <= panels.begin) continue;
      const int64_t column = panels.begin * kPanelWidth;
      float* c = product.c + rows.begin * product.c_stride + column;
      const int64_t width = std::min(columns, panels.end * kPanelWidth) - column;
      for (int64_t s = 0; s < std::max<int64_t>(1, steps); s += kBlockSteps) {
        const int64_t count = std::min(kBlockSteps, steps - s);
        uint16_t* b = halves(scratch(0, (panels.end - panels.begin) * kBlockSteps * kTileElements / 2));
        pack_b(table, w, transposed, panels, s, s + count, b);
        run_block({.a = a + (tiles.begin * steps + s) * kTileElements,
                   .a_tile = steps * kTileElements,
                   .b = b,
                   .b_panel = count * kTileElements,
                   .c = c,
                   .c_row = product.c_stride,
                   .m = rows.end - rows.begin,
                   .n = width,
                   .steps = count,
                   .from_zero = s == 0 && !product.accumulate});
      }
      AfterChain(table, product, columns, panels).run(rows.begin, rows.end);
    }
  });
}

}  // namespace twinkle::ops::cpu
