#include "twinkle/kernels/cpu/tile_product.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_plan.h"
#include "twinkle/kernels/cpu/tile_block.h"
#include "twinkle/kernels/isa.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kBlockSteps = 16;  // steps of B packed at once: 512 of the reduced index
constexpr int64_t kFewRows = 8;      // up to here one block of rows, so that B is read once
constexpr int64_t kLeastPanels = 6;  // of a task with few rows: its streams through memory begin seldom
constexpr int64_t kLowRows = 64;  // their part of a panel's chains stays in the cache with all steps at once
std::atomic<bool> emulated{false};

uint16_t* halves(float* p) { return reinterpret_cast<uint16_t*>(p); }

// What computes blocks and brings A and B into tiles.
struct Way {
  void (*block)(const TileBlock& block);
  void (*pack_a)(const float* a, int64_t a_stride, int64_t rows, int64_t reduced, uint16_t* out);
  void (*pack_pairs)(WeightType type, const void* in, int64_t k, uint16_t* out);
  void (*pack_pairs_transposed)(WeightType type, const void* in0, const void* in1, int64_t cols,
                                uint16_t* out);
  bool reads_panels;  // panels of bf16 need not be packed
};

void pack_a(const float* a, int64_t a_stride, int64_t rows, int64_t reduced, uint16_t* out) {
  const int64_t steps = ceil_div(reduced, kTileStep);
  std::memset(out, 0, static_cast<size_t>(steps * kTileElements) * sizeof(uint16_t));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t s = 0; s < steps; ++s) {
      kernels().narrow(WeightType::kBf16, a + i * a_stride + s * kTileStep,
                       std::min(kTileStep, reduced - s * kTileStep), out + s * kTileElements + i * kTileStep);
    }
  }
}

#if defined(__x86_64__)
void pack_bf16_transposed(WeightType, const void* in0, const void* in1, int64_t cols, uint16_t* out) {
  pack_pairs_transposed_avx512bf16(static_cast<const uint16_t*>(in0), static_cast<const uint16_t*>(in1), cols,
                                   out);
}
#endif

Way way_in_use() {
  const KernelTable& table = kernels();
#if defined(__x86_64__)
  if (!emulated.load(std::memory_order_relaxed)) {
    if (active_isa() == Isa::kAmx)
      return {tile_block_amx, pack_a, table.pack_pairs, table.pack_pairs_transposed, false};
    return {tile_block_avx512bf16, pack_a_avx512bf16, table.pack_pairs, pack_bf16_transposed, true};
  }
#endif
  return {tile_block_emulated, pack_a, table.pack_pairs, table.pack_pairs_transposed, false};
}

// Steps [s0, s1) of panels of B, as [panel][step][16 pairs][16][2].
void pack_b(const Way& way, const Weights& w, bool transposed, Range panels, int64_t s0, int64_t s1,
            uint16_t* out) {
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    for (int64_t s = s0; s < s1; ++s, out += kTileElements) {
      const int64_t first = s * kTileStep;
      if (!transposed) {
        way.pack_pairs(w.type, at_element(w, (p * w.cols + first) * kPanelWidth),
                       std::min(kTileStep, w.cols - first), out);
        continue;
      }
      const int64_t k0 = p * kPanelWidth;
      const bool second = first + kPanelWidth < w.rows;
      way.pack_pairs_transposed(
          w.type, at_element(w, first * w.cols + k0 * kPanelWidth),
          second ? at_element(w, (first + kPanelWidth) * w.cols + k0 * kPanelWidth) : nullptr,
          std::min(kPanelWidth, w.cols - k0), out);
    }
  }
}

}  // namespace

bool tiles_in_use(WeightType type) {
  return emulated.load(std::memory_order_relaxed) || rounds_inputs(active_isa(), type == WeightType::kBf16);
}

void emulate_tiles(bool on) { emulated.store(on); }

void multiply_in_tiles(std::span<const Product> products, bool transposed) {
  const Way way = way_in_use();
  const Product& any = products.front();
  const int64_t reduced = transposed ? any.w.rows : any.w.cols;
  const int64_t steps = ceil_div(reduced, kTileStep), row_tiles = ceil_div(any.rows, 16);
  uint16_t* a = halves(scratch(7, row_tiles * steps * kTileElements / 2 + 1));
  parallel_for(row_tiles, 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      way.pack_a(any.a + t * 16 * any.a_stride, any.a_stride, std::min<int64_t>(16, any.rows - t * 16),
                 reduced, a + t * steps * kTileElements);
    }
  });
  const bool as_they_stand = way.reads_panels && !transposed && reduced % kTileStep == 0;
  const bool few = as_they_stand && any.rows <= kFewRows;
  const int64_t block_steps =
      as_they_stand && any.rows <= kLowRows ? std::max<int64_t>(1, steps) : kBlockSteps;
  struct Part {
    const Product* product;
    int64_t columns;
    Plan plan;
    int64_t end;  // its tasks end here among those of all
  };
  std::vector<Part> parts;
  int64_t tasks = 0;
  for (const Product& product : products) {
    TW_CHECK(product.a == any.a && product.rows == any.rows && product.a_stride == any.a_stride &&
                 (transposed ? product.w.rows : product.w.cols) == reduced,
             "products of the same rows");
    const int64_t columns = transposed ? product.w.cols : product.w.rows;
    const Plan plan = few ? plan_few_rows(product.rows, columns, reduced, {}, kLeastPanels)
                          : make_plan(product.rows, columns, reduced);
    tasks += plan.row_blocks * plan.groups;
    parts.push_back({&product, columns, plan, tasks});
  }
  const auto run = [&](const Part& part, int64_t task) {
    const auto& [product, columns, plan, end] = part;
    const Weights& w = product->w;
    const Range tiles = share(row_tiles, plan.row_blocks, task / plan.groups);
    const Range panels = plan.panels_of(task % plan.groups);
    const Range rows = {tiles.begin * 16, std::min(product->rows, tiles.end * 16)};
    if (rows.end <= rows.begin || panels.end <= panels.begin) return;
    const int64_t column = panels.begin * kPanelWidth;
    float* c = product->c + rows.begin * product->c_stride + column;
    const int64_t width = std::min(columns, panels.end * kPanelWidth) - column;
    for (int64_t s = 0; s < std::max<int64_t>(1, steps); s += block_steps) {
      const int64_t count = std::min(block_steps, steps - s);
      TileBlock block = {.a = a + (tiles.begin * steps + s) * kTileElements,
                         .a_tile = steps * kTileElements,
                         .b = nullptr,
                         .b_panel = reduced * kPanelWidth,
                         .c = c,
                         .c_row = product->c_stride,
                         .m = rows.end - rows.begin,
                         .n = width,
                         .steps = count,
                         .from_zero = s == 0 && !product->accumulate,
                         .packed = !as_they_stand};
      if (as_they_stand) {
        block.b =
            static_cast<const uint16_t*>(w.panels) + (panels.begin * reduced + s * kTileStep) * kPanelWidth;
      } else {
        uint16_t* b = halves(scratch(0, (panels.end - panels.begin) * kBlockSteps * kTileElements / 2));
        pack_b(way, w, transposed, panels, s, s + count, b);
        block.b = b;
        block.b_panel = count * kTileElements;
      }
      way.block(block);
    }
    AfterChain(kernels(), *product, columns, panels).run(rows.begin, rows.end);
  };
  parallel_for(tasks, 1, [&](int64_t task_begin, int64_t task_end) {
    size_t part = 0;
    for (int64_t task = task_begin; task < task_end; ++task) {
      while (task >= parts[part].end) ++part;
      run(parts[part], task - (part > 0 ? parts[part - 1].end : 0));
    }
  });
}

}  // namespace twinkle::ops::cpu
