// Embedding gather (threads split tokens) and its gradient (threads split columns).
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/tensor_data.h"
#include "twinkle/kernels/dispatch.h"

#include <algorithm>
#include <numeric>

namespace twinkle::ops {
namespace {

using cpu::read;
using cpu::row_kernels;
using cpu::write;

constexpr int64_t kTablePanel = PackedMatrix::kPanel;

// Where row v of a table in panels begins; its columns are kPanel apart.
int64_t panel_offset(int64_t v, int64_t K) { return v / kTablePanel * K * kTablePanel + v % kTablePanel; }

// Rows of one sequence that hold the same token: rows[begin, end).
struct TokenGroup {
  int32_t token;
  int64_t begin, end;
};

}  // namespace

void embedding(const PackedMatrix& w_VK, const at::Tensor& tokens_T, at::Tensor& out_TK) {
  if (!on_cpu_kernels(out_TK)) return aten::embedding(w_VK, tokens_T, out_TK);
  const int64_t K = w_VK.cols();
  const int32_t* tokens = read<int32_t>(tokens_T);
  float* out = write<float>(out_TK);
  const bool wide = w_VK.dtype() == at::kFloat, half = w_VK.dtype() == at::kHalf;
  const float* wide_base = wide ? read<float>(w_VK.storage()) : nullptr;
  const uint16_t* base = wide ? nullptr : static_cast<const uint16_t*>(w_VK.storage().const_data_ptr());
  parallel_for(tokens_T.numel(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = panel_offset(tokens[t], K);
      if (wide) {
        row_kernels().read_panel_row_float(wide_base + at, K, out + t * K);
      } else {
        row_kernels().read_panel_row(base + at, half, K, out + t * K);
      }
    }
  });
}

void embedding_grad(const at::Tensor& dout_TK, const at::Tensor& tokens_T, std::span<const RowRange> order,
                    PackedMatrix& grad_VK) {
  if (!on_cpu_kernels(dout_TK)) return aten::embedding_grad(dout_TK, tokens_T, order, grad_VK);
  const int64_t K = grad_VK.cols();
  const int32_t* tokens = read<int32_t>(tokens_T);
  const float* dout = read<float>(dout_TK);
  at::Tensor storage = grad_VK.storage();
  float* grad = write<float>(storage);

  std::vector<int32_t> rows;
  std::vector<TokenGroup> groups;
  for (const RowRange& range : order) {
    const int64_t first = static_cast<int64_t>(rows.size());
    for (int64_t t = range.begin; t < range.end; ++t) rows.push_back(static_cast<int32_t>(t));
    std::stable_sort(rows.begin() + first, rows.end(),
                     [&](int32_t a, int32_t b) { return tokens[a] < tokens[b]; });
    for (int64_t i = first; i < static_cast<int64_t>(rows.size()); ++i) {
      const int32_t token = tokens[rows[static_cast<size_t>(i)]];
      if (i == first || groups.back().token != token) groups.push_back({token, i, i});
      groups.back().end = i + 1;
    }
  }
  constexpr int64_t kColumns = 64;
  parallel_for((K + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (const TokenGroup& group : groups) {
      row_kernels().add_to_panel_row(dout, rows.data() + group.begin, group.end - group.begin, K,
                                     begin * kColumns, std::min(K, end * kColumns),
                                     grad + panel_offset(group.token, K));
    }
  });
}

}  // namespace twinkle::ops
