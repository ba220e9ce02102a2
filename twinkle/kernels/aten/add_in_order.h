// Adding up by index on any device, with the same bits each time.
#pragma once

#include <ATen/ATen.h>

namespace twinkle::ops::aten {

/// to[index[i]] += values[i]; indices may repeat.
inline void add_in_order(at::Tensor& to, const at::Tensor& index, const at::Tensor& values) {
  if (to.device().is_cpu()) {
    to.index_add_(0, index, values);
    return;
  }
  // Sorted by index on a GPU, so in a fixed order; index_add_ would use atomics.
  c10::List<std::optional<at::Tensor>> where;
  where.push_back(index);
  to.index_put_(where, values, /*accumulate=*/true);
}

}  // namespace twinkle::ops::aten
