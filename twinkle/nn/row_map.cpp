#include "twinkle/nn/row_map.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/core/parallel.h"

namespace twinkle::nn {

RowMap::RowMap(const std::vector<int64_t>& row_of, int64_t rows, at::Device device)
    : rows_(rows), row_of_(at::tensor(row_of, at::kLong).to(device)) {
  begin_.assign(static_cast<size_t>(rows) + 1, 0);
  for (const int64_t row : row_of) ++begin_[static_cast<size_t>(row) + 1];
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) begin_[r + 1] += begin_[r];
  std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
  members_.resize(row_of.size());
  for (size_t i = 0; i < row_of.size(); ++i)
    members_[static_cast<size_t>(next[static_cast<size_t>(row_of[i])]++)] = static_cast<int64_t>(i);
}

at::Tensor RowMap::expand(Arena& arena, const at::Tensor& x) const {
  if (!x.defined()) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = sizes[0] / rows_ * row_of_.size(0);
  at::Tensor out = arena.take(sizes);
  if (!x.is_cpu()) {
    at::Tensor rows = out.view({row_of_.size(0), -1});
    at::index_select_out(rows, x.view({rows_, -1}), 0, row_of_);
    return out;
  }
  const int64_t width = x.numel() / rows_;
  const int64_t* row_of = row_of_.const_data_ptr<int64_t>();
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  parallel_for(row_of_.size(0), 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(from + row_of[i] * width, width, to + i * width);
  });
  return out;
}

void RowMap::fold(const at::Tensor& longer, at::Tensor& shorter) const {
  if (!longer.is_cpu()) {
    shorter.zero_();
    shorter.view({rows_, -1}).index_add_(0, row_of_, longer.view({row_of_.size(0), -1}));
    return;
  }
  const int64_t width = shorter.numel() / std::max<int64_t>(1, rows_);
  const float* from = longer.const_data_ptr<float>();
  float* to = shorter.mutable_data_ptr<float>();
  parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t first = begin_[static_cast<size_t>(r)], last = begin_[static_cast<size_t>(r) + 1];
      float* sum = to + r * width;
      std::copy_n(from + members_[static_cast<size_t>(first)] * width, width, sum);
      for (int64_t i = first + 1; i < last; ++i) {
        const float* x = from + members_[static_cast<size_t>(i)] * width;
        for (int64_t c = 0; c < width; ++c) sum[c] += x[c];
      }
    }
  });
}

}  // namespace twinkle::nn
