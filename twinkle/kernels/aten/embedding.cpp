// Embedding gather and its gradient in plain ATen. On the CPU the table lies in panels of 16 rows; elsewhere
// it is a plain [V, K] tensor.
#include <ATen/ATen.h>

#include "twinkle/kernels/aten/add_in_order.h"
#include "twinkle/kernels/aten/rows.h"

namespace twinkle::ops::aten {
namespace {

// Where the rows of a table lie: index lists for at::index, which give [n, K].
struct RowIndex {
  at::Tensor table;
  c10::List<std::optional<at::Tensor>> where;
};

RowIndex rows_of(const PackedMatrix& w, const at::Tensor& ids) {
  RowIndex out;
  if (w.device().is_cpu()) {
    constexpr int64_t kPanel = PackedMatrix::kPanel;
    out.table = w.storage().view({-1, w.cols(), kPanel});
    out.where.push_back(at::floor_divide(ids, kPanel));
    out.where.push_back(std::optional<at::Tensor>());
    out.where.push_back(at::remainder(ids, kPanel));
  } else {
    out.table = w.storage().view({w.rows(), w.cols()});
    out.where.push_back(ids);
  }
  return out;
}

}  // namespace

void embedding(const PackedMatrix& w_VK, const at::Tensor& tokens_T, at::Tensor& out_TK) {
  if (tokens_T.numel() == 0) return;
  const RowIndex rows = rows_of(w_VK, tokens_T.to(at::kLong));
  out_TK.copy_(at::index(rows.table, rows.where).view(out_TK.sizes()));
}

void embedding_grad(const at::Tensor& dout_TK, const at::Tensor& tokens_T, std::span<const RowRange> order,
                    PackedMatrix& grad_VK) {
  const int64_t K = grad_VK.cols();
  const at::Tensor dout = dout_TK.view({-1, K});
  for (const RowRange& range : order) {
    if (range.end <= range.begin) continue;
    const at::Tensor tokens = tokens_T.slice(0, range.begin, range.end).to(at::kLong);
    const auto [ids, group, counts] = at::_unique2(tokens, /*sorted=*/true, /*return_inverse=*/true);
    at::Tensor sum = at::zeros({ids.size(0), K}, dout.options());
    const at::Tensor rows = dout.slice(0, range.begin, range.end);
    add_in_order(sum, group, rows);
    RowIndex place = rows_of(grad_VK, ids);
    const at::Tensor updated = at::index(place.table, place.where) + sum;
    place.table.index_put_(place.where, updated);
  }
}

}  // namespace twinkle::ops::aten
