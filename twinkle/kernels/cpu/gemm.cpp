#include "twinkle/kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "twinkle/core/error.h"
#include "twinkle/core/huge_pages.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_plan.h"
#include "twinkle/kernels/cpu/tile_product.h"
#include "twinkle/kernels/isa.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kReduceBlock = 640;                // most steps of a chain between two visits of C
constexpr int64_t kLeastPanels = 4;                  // of a task with few rows
constexpr int64_t kCacheFloats = int64_t{72} << 10;  // what of A or B is to stay in the second cache

// Steps of a chain between two visits of C, in even shares.
int64_t reduce_block(int64_t reduced) {
  const int64_t blocks = std::max<int64_t>(1, ceil_div(reduced, kReduceBlock));
  return std::max(kPanelWidth, ceil_div(ceil_div(reduced, blocks), kPanelWidth) * kPanelWidth);
}

// A group of panels, unpacked to fp32 or fp32 as it stands, stays in the second cache while many rows pass
// by.
Cut cut_for_wide(int64_t block) {
  return {.rows = 768,
          .panels = std::clamp<int64_t>(kCacheFloats / (block * kPanelWidth) / 2 * 2, 4, 24),
          .tail_rows = 96};
}

// The other way round: a few rows stay, and 16-bit panels pass by, widened in registers. That takes no pass
// of unpacking and visits A once, but two more instructions a vector of B, which only cores that do not widen
// on the ports that multiply have to spare.
bool widening_is_free() {
#if defined(__x86_64__)
  static const bool amd = __builtin_cpu_is("amd") != 0;
  return amd && active_isa() != Isa::kAvx2;
#else
  return false;
#endif
}
Cut cut_for_direct(int64_t block) { return {.rows = kCacheFloats / block / 4 * 4, .panels = 12}; }

// What a source of B has to say: where the panels of a group stand for a block of the reduced index.
struct PanelBlock {
  const void* data;
  int64_t panel_stride;
  WeightType type;
};

// Runs one task: all blocks of the reduced index in order, then what comes after the chain.
template <typename Source>
void run_task(const KernelTable& table, const Product& product, int64_t columns, int64_t reduced,
              int64_t block, Range rows, Range panels, const Source& source, Range next_panels) {
  const int64_t column = panels.begin * kPanelWidth;
  const int64_t width = std::min(columns, panels.end * kPanelWidth) - column;
  AfterChain after(table, product, columns, panels);
  const int64_t blocks = std::max<int64_t>(1, ceil_div(reduced, block));
  block = ceil_div(ceil_div(reduced, blocks), kPanelWidth) * kPanelWidth;
  for (int64_t i = 0; i < blocks; ++i) {
    const bool last = i + 1 == blocks;
    const Range k = {std::min(reduced, i * block), std::min(reduced, (i + 1) * block)};
    const PanelBlock b = source.load(panels, k);
    Stretches ahead;
    if (!last) {
      ahead = source.stretches(panels, {k.end, std::min(reduced, k.end + block)});
    } else if (next_panels.end > next_panels.begin) {
      ahead = source.stretches(next_panels, {0, std::min(reduced, block)});
    }
    const auto run = [&](const float* a, int64_t a_stride, int64_t begin, int64_t end) {
      table.block[static_cast<int>(b.type)](
          {.a = a,
           .a_row = a_stride,
           .a_k = 1,
           .b = b.data,
           .b_panel = b.panel_stride,
           .b_row = kPanelWidth,
           .c = product.c + begin * product.c_stride + column,
           .c_row = product.c_stride,
           .c_panel = kPanelWidth,
           .m = end - begin,
           .n = width,
           .k = k.end - k.begin,
           .chain = i > 0 || product.accumulate ? Chain::kContinue : Chain::kZero,
           .ahead = ahead.first,
           .ahead_count = ahead.count,
           .ahead_bytes = ahead.bytes,
           .ahead_stride = ahead.stride});
      ahead = {};
    };
    const auto part = [&](int64_t begin, int64_t end) {
      const float* a = product.a + begin * product.a_stride + k.begin;
      // Few rows a multiple of 4 KB apart fall into the same sets of the first cache and stay in the second;
      // they are moved apart. Many rows come from further away, where the copy would cost more than it saves.
      if (product.a_stride % 1024 != 0 || end - begin < 4 || end - begin > 128 ||
          panels.end - panels.begin < 4) {
        run(a, product.a_stride, begin, end);
        return;
      }
      const int64_t length = k.end - k.begin, stride = length + kPanelWidth, step = 8 * table.tile_rows;
      float* copy = scratch(5, step * stride);
      for (int64_t first = begin; first < end; first += step) {
        const int64_t last = std::min(end, first + step);
        for (int64_t row = first; row < last; ++row) {
          std::memcpy(copy + (row - first) * stride, a + (row - begin) * product.a_stride,
                      static_cast<size_t>(length) * sizeof(float));
        }
        run(copy, stride, first, last);
      }
    };
    if (!last || after.empty()) {
      part(rows.begin, rows.end);
      continue;
    }
    // In small pieces, so that C is still in the first cache.
    const int64_t pieces = ceil_div(rows.end - rows.begin, 4 * table.tile_rows);
    for (int64_t j = 0; j < pieces; ++j) {
      const Range piece = share(rows.end - rows.begin, pieces, j);
      const int64_t begin = rows.begin + piece.begin, end = rows.begin + piece.end;
      part(begin, end);
      after.run(begin, end);
    }
  }
}

}  // namespace

const KernelTable& kernels() {
#if defined(__x86_64__)
  return active_isa() == Isa::kAvx2 ? kernels_avx2() : kernels_avx512();
#else
  throw internal_error("[kernels] no vector kernels for this processor");
#endif
}

float* scratch(int slot, int64_t count) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  struct Buffer {
    std::unique_ptr<float, Free> data;
    int64_t size = 0;
  };
  thread_local Buffer buffers[kScratchSlots];
  Buffer& buffer = buffers[slot];
  if (buffer.size < count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    const size_t align = bytes >= kHugePageBytes / 2 ? kHugePageBytes : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(align, rounded)));
    if (buffer.data == nullptr) throw std::bad_alloc();
    prefer_huge_pages(buffer.data.get(), rounded);
    buffer.size = static_cast<int64_t>(rounded / sizeof(float));
  }
  return buffer.data.get();
}

const char* at_element(const Weights& w, int64_t element) {
  return static_cast<const char*>(w.panels) + static_cast<size_t>(element) * element_size(w.type);
}

Weights Weights::of(const PackedMatrix& w) {
  const WeightType type = w.dtype() == at::kFloat      ? WeightType::kFloat
                          : w.dtype() == at::kBFloat16 ? WeightType::kBf16
                                                       : WeightType::kHalf;
  return {w.storage().const_data_ptr(), type, w.rows(), w.cols()};
}

Weights Weights::slice(int64_t row_begin, int64_t row_end) const {
  TW_CHECK(row_begin % kPanelWidth == 0, "a slice starts at a panel");
  return {at_element(*this, row_begin * cols), type, row_end - row_begin, cols};
}

namespace {

// Panels of W as they stand: output columns are rows of W.
struct Straight {
  const KernelTable& table;
  const Weights& w;
  bool direct, ask_ahead;

  PanelBlock load(Range group, Range k) const {
    if (direct || w.type == WeightType::kFloat) {
      return {at_element(w, (group.begin * w.cols + k.begin) * kPanelWidth), w.cols * kPanelWidth, w.type};
    }
    const int64_t stride = (k.end - k.begin) * kPanelWidth;
    float* buffer = scratch(0, (group.end - group.begin) * stride);
    for (int64_t p = group.begin; p < group.end; ++p) {
      table.widen(w.type, at_element(w, (p * w.cols + k.begin) * kPanelWidth), stride,
                  buffer + (p - group.begin) * stride);
    }
    return {buffer, stride, WeightType::kFloat};
  }

  Stretches stretches(Range group, Range k) const {
    if (!ask_ahead) return {};
    const int64_t size = static_cast<int64_t>(element_size(w.type)) * kPanelWidth;
    return {at_element(w, (group.begin * w.cols + k.begin) * kPanelWidth), group.end - group.begin,
            (k.end - k.begin) * size, w.cols * size};
  }
};

// Panels of W transposed: output columns are columns of W, and 16 rows of a panel become 16 steps of the
// chain.
struct Transposed {
  const KernelTable& table;
  const Weights& w;

  PanelBlock load(Range group, Range n) const {
    const int64_t steps = ceil_div(n.end - n.begin, kPanelWidth) * kPanelWidth, stride = steps * kPanelWidth;
    float* buffer = scratch(0, (group.end - group.begin) * stride);
    for (int64_t n0 = n.begin; n0 < n.end; n0 += kPanelWidth) {
      for (int64_t p = group.begin; p < group.end; ++p) {
        const int64_t k0 = p * kPanelWidth;
        table.widen_transposed(w.type, at_element(w, n0 * w.cols + k0 * kPanelWidth), w.cols - k0,
                               buffer + (p - group.begin) * stride + (n0 - n.begin) * kPanelWidth);
      }
    }
    return {buffer, stride, WeightType::kFloat};
  }

  Stretches stretches(Range group, Range n) const {
    const int64_t size = static_cast<int64_t>(element_size(w.type)) * kPanelWidth;
    const int64_t first = group.begin * kPanelWidth, last = std::min(w.cols, group.end * kPanelWidth);
    return {at_element(w, n.begin * w.cols + first * kPanelWidth), ceil_div(n.end - n.begin, kPanelWidth),
            (last - first) * size, w.cols * size};
  }
};

template <typename Source>
void run_plan(const Product& product, const Plan& plan, int64_t columns, int64_t reduced, int64_t block,
              const Source& source) {
  const int64_t tasks = plan.num_tasks();
  parallel_for(tasks, 1, [&](int64_t task_begin, int64_t task_end) {
    // Tasks are handed out in order, so this thread's next one is about as many on as there are threads.
    const int64_t step = task_end - task_begin > 1 ? 1 : num_threads();
    for (int64_t task = task_begin; task < task_end; ++task) {
      const Range rows = plan.rows_of(task / plan.groups, product.rows);
      const int64_t following = task + step;
      const Range next = following < tasks ? plan.panels_of(following % plan.groups) : Range{0, 0};
      run_task(source.table, product, columns, reduced, block, rows, plan.panels_of(task % plan.groups),
               source, next);
    }
  });
}

}  // namespace

void multiply(const Product& product) {
  const Weights& w = product.w;
  if (product.rows <= 0 || w.rows <= 0) return;
  if (tiles_in_use(w.type)) return multiply_in_tiles({&product, 1}, false);
  const KernelTable& table = kernels();
  int64_t block = reduce_block(w.cols);
  const bool few = product.rows <= table.direct_rows;
  const bool direct = few || (w.type != WeightType::kFloat && widening_is_free());
  const Cut cut = direct ? cut_for_direct(block) : cut_for_wide(block);
  if (few) block = std::max<int64_t>(1, w.cols);  // straight from memory, all of k at once
  const Plan plan = few ? plan_few_rows(product.rows, w.rows, w.cols, cut, kLeastPanels)
                        : make_plan(product.rows, w.rows, w.cols, cut);
  run_plan(product, plan, w.rows, w.cols, block, Straight{table, w, direct, !direct || few});
}

void multiply_all(std::span<const Product> products) {
  const bool tiles = std::all_of(products.begin(), products.end(), [](const Product& product) {
    return product.rows > 0 && product.w.rows > 0 && tiles_in_use(product.w.type);
  });
  if (tiles && !products.empty()) return multiply_in_tiles(products, false);
  for (const Product& product : products) multiply(product);
}

void multiply_transposed(const Product& product) {
  const Weights& w = product.w;
  if (product.rows <= 0 || w.cols <= 0) return;
  if (tiles_in_use(w.type)) return multiply_in_tiles({&product, 1}, true);
  const int64_t block = reduce_block(w.rows);
  run_plan(product, make_plan(product.rows, w.cols, w.rows, cut_for_wide(block)), w.cols, w.rows, block,
           Transposed{kernels(), w});
}

void multiply_extras(const Product& product, int64_t columns) {
  if (product.rows <= 0 || columns <= 0 || product.extras.empty()) return;
  const KernelTable& table = kernels();
  const Plan plan = make_plan(product.rows, columns, 16);
  parallel_for(plan.row_blocks * plan.groups, 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t task = task_begin; task < task_end; ++task) {
      const Range rows = share(product.rows, plan.row_blocks, task / plan.groups);
      AfterChain(table, product, columns, plan.panels_of(task % plan.groups)).run(rows.begin, rows.end);
    }
  });
}

}  // namespace twinkle::ops::cpu
