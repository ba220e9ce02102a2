// Tensors as Tinker's clients send them, dense or sparse (CSR), from both wires. Free of state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/serve/engine.h"

namespace twinkle::serve::tinker {

struct Tensor {
  TensorLayout layout;  // as it came; no shape: a list
  std::vector<int64_t> ints;
  std::vector<float> floats;
  bool integral = false;  // which of the two

  size_t size() const { return integral ? ints.size() : floats.size(); }
  bool sparse() const { return !layout.crow.empty(); }
};

/// Errors are invalid_argument that begins with `where`.
Tensor tensor_from_proto(std::string_view bytes, const std::string& where);
Tensor tensor_from_json(const Json& value, const std::string& where);
/// For the reply: 32-bit values in a layout.
std::string tensor_to_proto(const TensorLayout& layout, std::string_view values, bool integral);

/// Checks that the tensor is one of `rows` rows and tells how many columns it has: 0 for a list, which has
/// one value a row. At most kMostColumns.
int64_t columns_of(const Tensor& tensor, int64_t rows, const std::string& where);
inline constexpr int64_t kMostColumns = 1024;

/// Its values row by row, `empty` where a sparse one has none.
template <class T>
std::vector<T> dense_values(const Tensor& tensor, std::vector<T> values, T empty) {
  if (!tensor.sparse()) return values;
  const TensorLayout& at = tensor.layout;
  const size_t columns = static_cast<size_t>(at.shape[1]);
  std::vector<T> out((at.crow.size() - 1) * columns, empty);
  for (size_t row = 0; row + 1 < at.crow.size(); ++row) {
    for (auto i = static_cast<size_t>(at.crow[row]); i < static_cast<size_t>(at.crow[row + 1]); ++i)
      out[row * columns + static_cast<size_t>(at.col[i])] = values[i];
  }
  return out;
}

}  // namespace twinkle::serve::tinker
