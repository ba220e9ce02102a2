#include "twinkle/serve/tinker_tensor.h"

#include <algorithm>
#include <bit>

#include "twinkle/core/list_text.h"
#include "twinkle/core/number_lists.h"
#include "twinkle/serve/tinker_json.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve::tinker {
namespace {

// Numbers of Tinker's DType.
enum DType { kFloat32 = 1, kInt64 = 2, kInt32 = 3, kBfloat16 = 4 };

void fill(Tensor& out, std::string_view bytes, int64_t dtype, const std::string& where) {
  switch (dtype) {
    case kFloat32:
      out.floats = unpack_array<float>(bytes, where);
      break;
    case kInt64:
      out.ints = unpack_array<int64_t>(bytes, where);
      break;
    case kInt32:
      for (const int32_t x : unpack_array<int32_t>(bytes, where)) out.ints.push_back(x);
      break;
    case kBfloat16:
      for (const uint16_t x : unpack_array<uint16_t>(bytes, where))
        out.floats.push_back(std::bit_cast<float>(uint32_t{x} << 16));
      break;
    default:
      bad(where, "its dtype is not known");
  }
  out.integral = dtype == kInt64 || dtype == kInt32;
}

std::vector<int64_t> packed_whole_numbers(const Json& list, const std::string& where) {
  auto out = packed_integers(list);
  if (!out) bad(where, "holds something that is not a whole number");
  return std::move(*out);
}

std::vector<int64_t> integers_from(const Json& body, const char* key, const std::string& where) {
  std::vector<int64_t> out;
  const Json* list = find(body, key);
  if (list == nullptr) return out;
  if (is_packed(*list)) return packed_whole_numbers(*list, where + ", " + key);
  if (!list->is_array()) bad(where, std::string("'") + key + "' must be a list");
  for (const auto& x : *list) out.push_back(whole_number(x, where + ", " + key));
  return out;
}

// Each row's columns ascend and lie inside.
void check_sparse(const Tensor& t, int64_t rows, const std::string& where) {
  const auto& [shape, crow, col] = t.layout;
  if (static_cast<int64_t>(crow.size()) != rows + 1 || crow.front() != 0 || !std::ranges::is_sorted(crow) ||
      crow.back() != static_cast<int64_t>(col.size()))
    bad(where, "its row pointers are not those of a sparse tensor of " + std::to_string(rows) + " rows");
  if (col.size() != t.size()) {
    bad(where,
        "has " + std::to_string(t.size()) + " values for " + std::to_string(col.size()) + " column indices");
  }
  for (size_t row = 0; row + 1 < crow.size(); ++row) {
    for (auto i = static_cast<size_t>(crow[row]); i < static_cast<size_t>(crow[row + 1]); ++i) {
      const bool repeats = i > static_cast<size_t>(crow[row]) && col[i] <= col[i - 1];
      if (col[i] < 0 || col[i] >= shape[1] || repeats)
        bad(where, "column index " + std::to_string(col[i]) + " of row " + std::to_string(row) +
                       " is out of range or out of order");
    }
  }
}

}  // namespace

Tensor tensor_from_proto(std::string_view bytes, const std::string& where) {
  Tensor out;
  std::string_view values;
  int64_t dtype = 0;
  for (WireReader in(bytes, where); in.next();) {
    switch (in.field()) {
      case 1:
        values = in.bytes();
        break;
      case 2:
        for (WireReader csr(in.bytes(), where); csr.next();) {
          if (csr.field() == 1) values = csr.bytes();
          if (csr.field() == 2)
            out.layout.crow = unpack_array<int64_t>(csr.bytes(), where + ", crow_indices");
          if (csr.field() == 3) out.layout.col = unpack_array<int64_t>(csr.bytes(), where + ", col_indices");
        }
        if (out.layout.crow.empty()) bad(where, "a sparse tensor without row pointers");
        break;
      case 3:
        dtype = in.integer();
        break;
      case 4:
        in.integers(out.layout.shape);
        break;
      default:
        break;
    }
  }
  fill(out, values, dtype, where);
  return out;
}

Tensor tensor_from_json(const Json& value, const std::string& where) {
  if (!value.is_object()) bad(where, "must be an object with data and dtype");
  Tensor out;
  const Json* data = find(value, "data");
  const bool packed = data != nullptr && is_packed(*data);
  if (data == nullptr || !(packed || data->is_array())) bad(where, "needs a list 'data'");
  const std::string dtype = text_or(value, "dtype", "float32");
  out.integral = dtype == "int64" || dtype == "int32";
  if (!out.integral && dtype != "float32") bad(where, "dtype must be int64 or float32");
  if (packed && out.integral) {
    out.ints = packed_whole_numbers(*data, where);
  } else if (packed) {
    out.floats = packed_floats(*data);
  } else {
    for (const auto& x : *data) {
      if (!x.is_number()) bad(where, "holds something that is not a number");
      if (out.integral) {
        out.ints.push_back(whole_number(x, where));
      } else {
        out.floats.push_back(x.get<float>());
      }
    }
  }
  out.layout.shape = integers_from(value, "shape", where);
  out.layout.crow = integers_from(value, "sparse_crow_indices", where);
  out.layout.col = integers_from(value, "sparse_col_indices", where);
  if (out.layout.crow.empty() && find(value, "sparse_col_indices") != nullptr)
    bad(where, "a sparse tensor without row pointers");
  return out;
}

std::string tensor_to_proto(const TensorLayout& layout, std::string_view values, bool integral) {
  WireWriter out;
  if (layout.crow.empty()) {
    out.bytes(1, values);
  } else {
    WireWriter csr;
    csr.bytes(1, values);
    csr.bytes(2, pack_array(layout.crow));
    csr.bytes(3, pack_array(layout.col));
    out.bytes(2, csr.str());
  }
  out.integer(3, integral ? kInt32 : kFloat32);
  for (const int64_t size : layout.shape) out.integer(4, size);
  return out.take();
}

int64_t columns_of(const Tensor& t, int64_t rows, const std::string& where) {
  const auto& shape = t.layout.shape;
  const auto count = static_cast<int64_t>(t.size());
  const bool list = !t.sparse() && (shape.empty() || (shape.size() == 1 && shape[0] == count));
  if (list) {
    if (count != rows)
      bad(where, "has " + std::to_string(count) + " values for " + std::to_string(rows) + " tokens");
    return 0;
  }
  if (shape.size() != 2 || shape[0] != rows || shape[1] < 1) {
    const std::string n = std::to_string(rows);
    bad(where, "its shape " + shape_text(shape) + " is neither [" + n + "] nor [" + n + ", K]");
  }
  if (shape[1] > kMostColumns) {
    bad(where, "has " + std::to_string(shape[1]) + " columns, at most " + std::to_string(kMostColumns) +
                   " are taken");
  }
  if (t.sparse()) {
    check_sparse(t, rows, where);
  } else if (count != rows * shape[1]) {
    bad(where, "has " + std::to_string(count) + " values for shape " + shape_text(shape));
  }
  return shape[1];
}

}  // namespace twinkle::serve::tinker
