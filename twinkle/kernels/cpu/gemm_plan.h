// How a product is cut into tasks, and what follows the chain of its base; shared by the vector and the tile
// products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "twinkle/kernels/cpu/gemm.h"

namespace twinkle::ops::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline size_t element_size(WeightType type) { return type == WeightType::kFloat ? 4 : 2; }
/// Address of an element of the panels.
const char* at_element(const Weights& w, int64_t element);

struct Range {
  int64_t begin, end;
};

/// A block of a matrix as stretches of memory.
struct Stretches {
  const char* first = nullptr;
  int64_t count = 0, bytes = 0, stride = 0;
};

/// Share i of n even shares of `count` units.
inline Range share(int64_t count, int64_t n, int64_t i) { return {count * i / n, count * (i + 1) / n}; }

/// Row blocks times groups of panel pairs. The last rows are cut finer, so that threads end together.
struct Plan {
  int64_t row_blocks = 1, groups = 1, units = 1, panels = 1;
  int64_t tail_rows = 0, tail_blocks = 0;  // the tail's blocks come on top of row_blocks

  int64_t num_tasks() const { return (row_blocks + tail_blocks) * groups; }
  Range rows_of(int64_t block, int64_t rows) const {
    const int64_t bulk = rows - tail_rows;
    if (block < row_blocks) return share(bulk, row_blocks, block);
    const Range tail = share(tail_rows, tail_blocks, block - row_blocks);
    return {bulk + tail.begin, bulk + tail.end};
  }

  Range panels_of(int64_t group) const {
    const Range unit = share(units, groups, group);
    return {unit.begin * 2, std::min(panels, unit.end * 2)};
  }
};

/// Most rows and panels of a task; rows of a task at the end, or 0 to cut all alike.
struct Cut {
  int64_t rows = 768, panels = 16, tail_rows = 0;
};

Plan make_plan(int64_t rows, int64_t columns, int64_t reduced, Cut cut = {});
/// All rows in one block: each panel is read once. A group has at least so many panels.
Plan plan_few_rows(int64_t rows, int64_t columns, int64_t reduced, Cut cut, int64_t least_panels);

/// Adds the low-rank steps, the bias and then what is to come on top to rows of C, for the columns of some
/// panels. One a task.
class AfterChain {
 public:
  AfterChain(const KernelTable& table, const Product& product, int64_t columns, Range panels)
      : table_(table), product_(product), columns_(columns), panels_(panels) {}

  bool empty() const {
    return product_.extras.empty() && product_.bias == nullptr && product_.plus == nullptr;
  }
  void run(int64_t begin, int64_t end);

 private:
  const KernelTable& table_;
  const Product& product_;
  int64_t columns_;
  Range panels_;
  const Extra* packed_ = nullptr;
  float* buffer_ = nullptr;
};

}  // namespace twinkle::ops::cpu
