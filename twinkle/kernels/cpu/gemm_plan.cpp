#include "twinkle/kernels/cpu/gemm_plan.h"

#include "twinkle/core/parallel.h"

namespace twinkle::ops::cpu {
namespace {

// Panels [first, last) of an extra's up matrix as [panel][rank][16].
void pack_up(const KernelTable& table, const Extra& extra, int64_t columns, Range panels, float* out) {
  for (int64_t p = panels.begin; p < panels.end; ++p, out += extra.rank * kPanelWidth) {
    const int64_t first = p * kPanelWidth, count = std::min(kPanelWidth, columns - first);
    if (extra.up_j == 1) {
      table.pack_rows(extra.up + first * extra.up_n, extra.up_n, count, extra.rank, out);
    } else {
      for (int64_t j = 0; j < extra.rank; ++j) {
        const float* from = extra.up + j * extra.up_j + first;
        for (int64_t i = 0; i < kPanelWidth; ++i) out[j * kPanelWidth + i] = i < count ? from[i] : 0.0f;
      }
    }
  }
}

}  // namespace

Plan make_plan(int64_t rows, int64_t columns, int64_t reduced, Cut cut) {
  const int64_t threads = num_threads();
  Plan plan;
  plan.panels = ceil_div(columns, kPanelWidth);
  plan.units = ceil_div(plan.panels, 2);
  plan.groups = ceil_div(plan.panels, cut.panels);
  plan.row_blocks = ceil_div(rows, cut.rows);
  const int64_t work = rows * columns * reduced;
  const int64_t wanted = work < (int64_t{1} << 16)   ? 1
                         : work < (int64_t{1} << 24) ? threads
                         : work < (int64_t{1} << 28) ? 4 * threads
                                                     : 8 * threads;
  if (threads > 1 && wanted > 1 && plan.groups % threads != 0) {
    plan.groups = std::min(plan.units, ceil_div(plan.groups, threads) * threads);
  }
  while (plan.groups * plan.row_blocks < wanted) {
    if (rows / plan.row_blocks > 384) {
      plan.row_blocks += 1;
    } else if (plan.units >= 2 * plan.groups) {
      plan.groups = std::min(plan.units, plan.groups + threads);
    } else if (rows / plan.row_blocks > 48) {
      plan.row_blocks += 1;
    } else {
      break;
    }
  }
  if (threads > 1 && cut.tail_rows > 0 && rows / plan.row_blocks >= 4 * cut.tail_rows) {
    plan.tail_blocks = std::max<int64_t>(1, rows / (8 * cut.tail_rows));
    plan.tail_rows = plan.tail_blocks * cut.tail_rows;
  }
  return plan;
}

Plan plan_few_rows(int64_t rows, int64_t columns, int64_t reduced, Cut cut, int64_t panels) {
  Plan plan = make_plan(rows, columns, reduced, cut);
  plan.row_blocks = 1;
  plan.groups =
      std::clamp<int64_t>(plan.panels / panels, 1, std::max<int64_t>(plan.groups, 8 * num_threads()));
  if (rows * columns * reduced < (int64_t{1} << 16)) plan.groups = 1;
  return plan;
}

void AfterChain::run(int64_t begin, int64_t end) {
  const auto& extras = product_.extras;
  auto it =
      std::partition_point(extras.begin(), extras.end(), [&](const Extra& e) { return e.end <= begin; });
  for (; it != extras.end() && it->begin < end; ++it) {
    const Extra& extra = *it;
    if (packed_ == nullptr || packed_->up != extra.up || packed_->rank != extra.rank) {
      buffer_ = scratch(1, (panels_.end - panels_.begin) * extra.rank * kPanelWidth);
      pack_up(table_, extra, columns_, panels_, buffer_);
      packed_ = &extra;
    }
    const int64_t first = std::max(begin, extra.begin), last = std::min(end, extra.end);
    const int64_t column = panels_.begin * kPanelWidth;
    table_.block[0]({.a = product_.low + first * product_.low_stride,
                     .a_row = product_.low_stride,
                     .a_k = 1,
                     .b = buffer_,
                     .b_panel = extra.rank * kPanelWidth,
                     .b_row = kPanelWidth,
                     .c = product_.c + first * product_.c_stride + column,
                     .c_row = product_.c_stride,
                     .c_panel = kPanelWidth,
                     .m = last - first,
                     .n = std::min(columns_, panels_.end * kPanelWidth) - column,
                     .k = extra.rank,
                     .chain = Chain::kContinue});
  }
  if (product_.bias == nullptr) return;
  const int64_t column = panels_.begin * kPanelWidth;
  const int64_t width = std::min(columns_, panels_.end * kPanelWidth) - column;
  for (int64_t row = begin; row < end; ++row) {
    table_.add(product_.c + row * product_.c_stride + column, product_.bias + column, width);
  }
}

}  // namespace twinkle::ops::cpu
