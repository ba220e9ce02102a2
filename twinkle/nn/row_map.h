// Rows that stand for several: a long list of rows, each of which is one of a short list. A pass computes the
// short list where sequences share their beginning; backward works on the long one, or adds it up.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "twinkle/nn/arena.h"

namespace twinkle::nn {

class RowMap {
 public:
  /// Row i of the long list is row `row_of[i]` of the short one; each of the `rows` short ones is named.
  RowMap(const std::vector<int64_t>& row_of, int64_t rows, at::Device device);

  int64_t rows() const { return rows_; }
  const at::Tensor& row_of() const { return row_of_; }  // int64 [long rows]

  /// The long list, from the arena. x may have several rows for each short one (heads); undefined stays so.
  at::Tensor expand(Arena& arena, const at::Tensor& x) const;
  /// shorter (=) for each row the sum of its rows of `longer`, one after another as they stand there.
  void fold(const at::Tensor& longer, at::Tensor& shorter) const;

 private:
  int64_t rows_;
  at::Tensor row_of_;
  std::vector<int64_t> begin_, members_;  // long rows of short row r: members_[begin_[r] .. begin_[r + 1])
};

}  // namespace twinkle::nn
