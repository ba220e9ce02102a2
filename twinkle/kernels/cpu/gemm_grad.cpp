// Products whose reduced index is the token, and the skinny products of adapters. A sum over tokens runs from
// zero within one range and is then added to the gradient, range after range, in every element on its own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_plan.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kTokenBlock = 192;    // tokens packed at once
constexpr int64_t kOuterColumns = 192;  // columns of x of one task
constexpr int64_t kOuterPanels = 16;

// rows [., count] with a stride -> panels [ceil(count/16)][rows][16], zeros past the last column.
void pack_columns(const float* in, int64_t stride, int64_t rows, int64_t count, float* out) {
  for (int64_t first = 0; first < count; first += kPanelWidth, out += rows * kPanelWidth) {
    const int64_t width = std::min(kPanelWidth, count - first);
    for (int64_t t = 0; t < rows; ++t) {
      const float* from = in + t * stride + first;
      float* to = out + t * kPanelWidth;
      if (width == kPanelWidth) {
        std::memcpy(to, from, kPanelWidth * sizeof(float));
      } else {
        for (int64_t i = 0; i < kPanelWidth; ++i) to[i] = i < width ? from[i] : 0.0f;
      }
    }
  }
}

// The columns of one low-rank gradient whose tokens are few enough for one chain each: straight into the
// gradient. `next`, which may be null, is asked for meanwhile.
void add_few_tokens(const KernelTable& table, const float* low, int64_t low_stride, const float* wide,
                    int64_t wide_stride, int64_t column, int64_t width, const SkinnyGrad& grad,
                    const SkinnyGrad* next) {
  const int64_t tokens = grad.end - grad.begin, whole = width / kPanelWidth * kPanelWidth;
  if (tokens <= 0) return;
  low += grad.begin * low_stride;
  wide += grad.begin * wide_stride;
  BlockArgs args{.a = low,
                 .a_row = 1,
                 .a_k = low_stride,
                 .b = wide,
                 .b_panel = kPanelWidth,
                 .b_row = wide_stride,
                 .c = grad.g + column * grad.g_n,
                 .c_row = grad.g_j,
                 .c_panel = kPanelWidth,
                 .m = grad.rank,
                 .n = whole,
                 .k = tokens,
                 .chain = Chain::kAdd};
  if (next != nullptr) {
    const bool rows = next->g_n == 1;
    args.ahead = reinterpret_cast<const char*>(next->g + column * next->g_n);
    args.ahead_count = rows ? next->rank : 1;
    args.ahead_bytes = width * (rows ? 1 : next->g_n) * static_cast<int64_t>(sizeof(float));
    args.ahead_stride = next->g_j * static_cast<int64_t>(sizeof(float));
  }
  if (grad.g_n == 1) {
    if (whole > 0) table.block[0](args);
    if (whole == width) return;
    float* tail = scratch(1, tokens * kPanelWidth);
    pack_columns(wide + whole, wide_stride, tokens, width - whole, tail);
    args.b = tail;
    args.b_row = kPanelWidth;
    args.c += whole;
    args.n = width - whole;
    args.ahead = nullptr;
    table.block[0](args);
    return;
  }
  // The gradient stands [columns, rank]: the same products with the factors exchanged.
  float* panels = scratch(0, ceil_div(grad.rank, kPanelWidth) * kPanelWidth * tokens);
  pack_columns(low, low_stride, tokens, grad.rank, panels);
  args.a = wide;
  args.a_k = wide_stride;
  args.b = panels;
  args.b_panel = tokens * kPanelWidth;
  args.b_row = kPanelWidth;
  args.c_row = grad.g_n;
  args.m = width;
  args.n = grad.rank;
  table.block[0](args);
}

}  // namespace

void add_outer(const float* y, int64_t y_stride, int64_t num_y, const float* x, int64_t x_stride,
               int64_t num_x, std::span<const RowRange> order, float* grad) {
  if (num_y <= 0 || num_x <= 0) return;
  const KernelTable& table = kernels();
  const int64_t panels = ceil_div(num_y, kPanelWidth), threads = num_threads();
  int64_t groups = ceil_div(panels, kOuterPanels), parts = ceil_div(num_x, kOuterColumns);
  while (groups * parts < 2 * threads && panels > 2 * groups && num_y * num_x > 4096) ++groups;
  parallel_for(groups * parts, 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t group = task / parts, part = task % parts;
      const int64_t p0 = panels * group / groups, p1 = panels * (group + 1) / groups;
      const int64_t k0 = num_x * part / parts, k1 = num_x * (part + 1) / parts, width = k1 - k0;
      const int64_t column = p0 * kPanelWidth, columns = std::min(num_y, p1 * kPanelWidth) - column;
      float* rows = scratch(0, kTokenBlock * width);
      float* packed = scratch(1, (p1 - p0) * kTokenBlock * kPanelWidth);
      float* target = grad + (p0 * num_x + k0) * kPanelWidth;
      for (const RowRange& range : order) {
        const int64_t length = range.end - range.begin;
        if (length <= 0) continue;
        const int64_t blocks = ceil_div(length, kTokenBlock);
        float* partial = blocks > 1 ? scratch(2, (p1 - p0) * width * kPanelWidth) : nullptr;
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t first = range.begin + length * b / blocks;
          const int64_t tokens = range.begin + length * (b + 1) / blocks - first;
          for (int64_t t = 0; t < tokens; ++t) {
            std::memcpy(rows + t * width, x + (first + t) * x_stride + k0,
                        static_cast<size_t>(width) * sizeof(float));
          }
          pack_columns(y + first * y_stride + column, y_stride, tokens, columns, packed);
          table.block[0]({.a = rows,
                          .a_row = 1,
                          .a_k = width,
                          .b = packed,
                          .b_panel = tokens * kPanelWidth,
                          .b_row = kPanelWidth,
                          .c = partial != nullptr ? partial : target,
                          .c_row = kPanelWidth,
                          .c_panel = (partial != nullptr ? width : num_x) * kPanelWidth,
                          .m = width,
                          .n = (p1 - p0) * kPanelWidth,
                          .k = tokens,
                          .chain = partial == nullptr ? Chain::kAdd
                                   : b == 0           ? Chain::kZero
                                                      : Chain::kContinue});
        }
        if (partial == nullptr) continue;
        for (int64_t p = p0; p < p1; ++p) {
          table.add(target + (p - p0) * num_x * kPanelWidth, partial + (p - p0) * width * kPanelWidth,
                    width * kPanelWidth);
        }
      }
    }
  });
}

void add_skinny(const float* low, int64_t low_stride, const float* wide, int64_t wide_stride, int64_t columns,
                std::span<const SkinnyGrad> grads) {
  if (columns <= 0 || grads.empty()) return;
  const KernelTable& table = kernels();
  const int64_t panels = ceil_div(columns, kPanelWidth);
  const int64_t threads = num_threads();
  const int64_t groups = std::min(panels, ceil_div(ceil_div(panels, 4), threads) * threads);
  constexpr int64_t kBlock = 256;
  parallel_for(groups, 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t p0 = panels * task / groups, p1 = panels * (task + 1) / groups;
      const int64_t column = p0 * kPanelWidth, width = std::min(columns, p1 * kPanelWidth) - column;
      const int64_t whole = width / kPanelWidth * kPanelWidth, row = (p1 - p0) * kPanelWidth;
      for (const SkinnyGrad& grad : grads) {
        if (grad.end - grad.begin <= kBlock) {
          const SkinnyGrad* next = &grad + 1 < grads.data() + grads.size() ? &grad + 1 : nullptr;
          add_few_tokens(table, low, low_stride, wide + column, wide_stride, column, width, grad, next);
          continue;
        }
        float* sum = scratch(0, grad.rank * row);
        for (int64_t first = grad.begin; first < grad.end; first += kBlock) {
          const int64_t tokens = std::min(kBlock, grad.end - first);
          BlockArgs args{.a = low + first * low_stride,
                         .a_row = 1,
                         .a_k = low_stride,
                         .b = wide + first * wide_stride + column,
                         .b_panel = kPanelWidth,
                         .b_row = wide_stride,
                         .c = sum,
                         .c_row = row,
                         .c_panel = kPanelWidth,
                         .m = grad.rank,
                         .n = whole,
                         .k = tokens,
                         .chain = first == grad.begin ? Chain::kZero : Chain::kContinue};
          if (whole > 0) table.block[0](args);
          if (whole == width) continue;
          float* tail = scratch(1, kBlock * kPanelWidth);
          pack_columns(wide + first * wide_stride + column + whole, wide_stride, tokens, width - whole, tail);
          args.b = tail;
          args.b_row = kPanelWidth;
          args.c = sum + whole;
          args.n = kPanelWidth;
          table.block[0](args);
        }
        if (grad.end <= grad.begin) continue;
        for (int64_t j = 0; j < grad.rank; ++j) {
          float* g = grad.g + j * grad.g_j + column * grad.g_n;
          if (grad.g_n == 1) {
            table.add(g, sum + j * row, width);
          } else {
            for (int64_t n = 0; n < width; ++n) g[n * grad.g_n] += sum[j * row + n];
          }
        }
      }
    }
  });
}

void shrink(const float* x, int64_t x_stride, int64_t reduced, std::span<const Shrink> spans,
            bool accumulate) {
  const KernelTable& table = kernels();
  // Matrices that stand [rank, reduced] are turned into panels once a call, if they are not there yet; the
  // others are read in place.
  struct Packed {
    const float* down;
    int64_t rank, offset;
  };
  std::vector<Packed> packed;
  std::vector<int64_t> place(spans.size(), -1);
  const auto in_panels = [](const Shrink& span) { return span.panels != nullptr || span.down_k == 1; };
  int64_t total = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Shrink& span = spans[i];
    if (span.panels != nullptr || span.down_k != 1) continue;
    const auto same = [&](const Packed& p) { return p.down == span.down && p.rank == span.rank; };
    auto found = std::find_if(packed.rbegin(), packed.rend(), same);
    if (found == packed.rend()) {
      packed.push_back({span.down, span.rank, total});
      total += ceil_div(span.rank, kPanelWidth) * kPanelWidth * reduced;
      found = packed.rbegin();
    }
    place[i] = found->offset;
  }
  float* buffer = scratch(3, total + 1);
  parallel_for(static_cast<int64_t>(packed.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < packed[i].rank; j += kPanelWidth) {
        table.pack_rows(packed[i].down + j * reduced, reduced, std::min(kPanelWidth, packed[i].rank - j),
                        reduced, buffer + packed[i].offset + j * reduced);
      }
    }
  });

  struct Piece {
    size_t span;
    int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < spans.size(); ++i) {
    const int64_t rows = spans[i].end - spans[i].begin, count = ceil_div(rows, 4 * table.tile_rows);
    for (int64_t j = 0; j < count; ++j) {
      pieces.push_back({i, spans[i].begin + rows * j / count, spans[i].begin + rows * (j + 1) / count});
    }
  }
  constexpr int64_t kBlock = 1024;
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t task = task_begin; task < task_end; ++task) {
      const Piece& piece = pieces[task];
      const Shrink& span = spans[piece.span];
      BlockArgs args{.a = x + piece.begin * x_stride,
                     .a_row = x_stride,
                     .a_k = 1,
                     .b = nullptr,
                     .b_panel = 0,
                     .b_row = kPanelWidth,
                     .c = span.low + piece.begin * span.low_stride,
                     .c_row = span.low_stride,
                     .c_panel = kPanelWidth,
                     .m = piece.end - piece.begin,
                     .n = span.rank,
                     .k = 0,
                     .chain = accumulate ? Chain::kContinue : Chain::kZero};
      const auto run = [&](const float* b, int64_t first, int64_t last) {
        for (int64_t k = first; k < last; k += kBlock) {
          args.b = b + (k - first) * args.b_row;
          args.k = std::min(kBlock, last - k);
          table.block[0](args);
          args.a += args.k;
          args.chain = Chain::kContinue;
        }
      };
      if (in_panels(span)) {
        args.b_panel = reduced * kPanelWidth;
        run(span.panels != nullptr ? span.panels : buffer + place[piece.span], 0, reduced);
      } else {
        // A panel reads 16 columns of every row, so the last rows, where that would leave the matrix, are
        // copied.
        const int64_t over = ceil_div(span.rank, kPanelWidth) * kPanelWidth - span.rank;
        const int64_t main = std::max<int64_t>(0, reduced - ceil_div(over, span.rank)), rest = reduced - main;
        args.b_panel = kPanelWidth;
        args.b_row = span.down_k;
        run(span.down, 0, main);
        if (rest > 0) {
          float* tail = scratch(0, ceil_div(span.rank, kPanelWidth) * kPanelWidth * rest);
          pack_columns(span.down + main * span.down_k, span.down_k, rest, span.rank, tail);
          args.b_panel = rest * kPanelWidth;
          args.b_row = kPanelWidth;
          run(tail, main, reduced);
        }
      }
      if (span.scale == 1.0f) continue;
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        for (int64_t j = 0; j < span.rank; ++j) span.low[row * span.low_stride + j] *= span.scale;
      }
    }
  });
}

}  // namespace twinkle::ops::cpu
