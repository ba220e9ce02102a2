#include "twinkle/kernels/cpu/gemm_plan.h"

#include <cstring>

#include "twinkle/core/parallel.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kRowsInPlace = 24;  // two register tiles: a copy would be read little more often than made

bool same(const Extra& a, const Extra& b) { return a.up == b.up && a.rank == b.rank; }

// Panels [first, last) of an extra's up matrix as [panel][rank][16].
void pack_up(const KernelTable& table, const Extra& extra, int64_t columns, Range panels, float* out) {
  const int64_t panel = extra.rank * kPanelWidth;
  if (extra.up_j == 1) {
    for (int64_t p = panels.begin; p < panels.end; ++p, out += panel) {
      const int64_t first = p * kPanelWidth, count = std::min(kPanelWidth, columns - first);
      table.pack_rows(extra.up + first * extra.up_n, extra.up_n, count, extra.rank, out);
    }
    return;
  }
  // Row by row, as it lies in memory.
  const int64_t first = panels.begin * kPanelWidth,
                width = std::min(columns, panels.end * kPanelWidth) - first;
  const int64_t whole = width / kPanelWidth, rest = width % kPanelWidth;
  for (int64_t j = 0; j < extra.rank; ++j, out += kPanelWidth) {
    const float* from = extra.up + j * extra.up_j + first;
    for (int64_t p = 0; p < whole; ++p)
      std::memcpy(out + p * panel, from + p * kPanelWidth, kPanelWidth * sizeof(float));
    for (int64_t i = 0; rest > 0 && i < kPanelWidth; ++i)
      out[whole * panel + i] = i < rest ? from[whole * kPanelWidth + i] : 0.0f;
  }
}

// Of the columns of some panels.
Stretches stretches_of(const Extra& extra, int64_t column, int64_t width) {
  if (extra.up_panels != nullptr) {
    return {reinterpret_cast<const char*>(extra.up_panels + column * extra.rank), 1,
            width * extra.rank * static_cast<int64_t>(sizeof(float)), 0};
  }
  const auto* first = reinterpret_cast<const char*>(extra.up + column * extra.up_n);
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  if (extra.up_j == 1) return {first, 1, width * extra.up_n * kSize, 0};
  return {first, extra.rank, width * kSize, extra.up_j * kSize};
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

Plan plan_few_rows(int64_t rows, int64_t columns, int64_t reduced, Cut cut, int64_t least_panels) {
  Plan plan = make_plan(rows, columns, reduced, cut);
  plan.row_blocks = 1;
  plan.groups =
      std::clamp<int64_t>(plan.panels / least_panels, 1, std::max<int64_t>(plan.groups, 8 * num_threads()));
  if (rows * columns * reduced < (int64_t{1} << 16)) plan.groups = 1;
  return plan;
}

void AfterChain::run(int64_t begin, int64_t end) {
  const auto& extras = product_.extras;
  auto it =
      std::partition_point(extras.begin(), extras.end(), [&](const Extra& e) { return e.end <= begin; });
  for (; it != extras.end() && it->begin < end; ++it) {
    const Extra& extra = *it;
    const int64_t first = std::max(begin, extra.begin), last = std::min(end, extra.end);
    const int64_t column = panels_.begin * kPanelWidth;
    const int64_t width = std::min(columns_, panels_.end * kPanelWidth) - column;
    // What stands in panels already is read in place, and what lies as in panels where few rows use it.
    const bool panels = extra.up_panels != nullptr;
    const bool direct =
        !panels && extra.up_n == 1 && width % kPanelWidth == 0 && extra.end - extra.begin <= kRowsInPlace;
    Stretches ahead;
    if (panels || direct ? first == extra.begin : packed_ == nullptr || !same(*packed_, extra)) {
      if (!panels && !direct) {
        buffer_ = scratch(1, (panels_.end - panels_.begin) * extra.rank * kPanelWidth);
        pack_up(table_, extra, columns_, panels_, buffer_);
        packed_ = &extra;
      }
      // Adapters of other rows come from further away than the cache: the next one is asked for early.
      if (it + 1 != extras.end() && !same(it[1], extra)) ahead = stretches_of(it[1], column, width);
    }
    table_.block[0]({.a = product_.low + first * product_.low_stride,
                     .a_row = product_.low_stride,
                     .a_k = 1,
                     .b = panels   ? extra.up_panels + column * extra.rank
                          : direct ? extra.up + column
                                   : buffer_,
                     .b_panel = direct ? kPanelWidth : extra.rank * kPanelWidth,
                     .b_row = direct ? extra.up_j : kPanelWidth,
                     .c = product_.c + first * product_.c_stride + column,
                     .c_row = product_.c_stride,
                     .c_panel = kPanelWidth,
                     .m = last - first,
                     .n = width,
                     .k = extra.rank,
                     .chain = Chain::kContinue,
                     .ahead = ahead.first,
                     .ahead_count = ahead.count,
                     .ahead_bytes = ahead.bytes,
                     .ahead_stride = ahead.stride});
  }
  if (product_.bias == nullptr && product_.plus == nullptr) return;
  const int64_t column = panels_.begin * kPanelWidth;
  const int64_t width = std::min(columns_, panels_.end * kPanelWidth) - column;
  for (int64_t row = begin; row < end; ++row) {
    float* c = product_.c + row * product_.c_stride + column;
    if (product_.bias != nullptr) table_.add(c, product_.bias + column, width);
    if (product_.plus != nullptr) table_.add(c, product_.plus + row * product_.c_stride + column, width);
  }
}

}  // namespace twinkle::ops::cpu
