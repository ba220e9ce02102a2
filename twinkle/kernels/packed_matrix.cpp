#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_kernels.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/ops.h"
#include "twinkle/kernels/packed_rows.h"
#include "twinkle/kernels/panel_memory.h"

namespace twinkle::ops {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;

int64_t num_panels(int64_t rows) { return (rows + kPanel - 1) / kPanel; }

void check_dtype(at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw invalid_argument(
        std::string("[matrix] dtype: weights are kept in float32, bfloat16 or float16, got ") +
        c10::toString(dtype));
  }
}

template <typename T>
constexpr cpu::WeightType weight_type() {
  if constexpr (std::is_same_v<T, float>) return cpu::WeightType::kFloat;
  return std::is_same_v<T, at::BFloat16> ? cpu::WeightType::kBf16 : cpu::WeightType::kHalf;
}

// rows[n, K] fp32 -> panel[K, 16]. Conversions only, so every instruction set gives the same bits.
template <typename T>
void pack_panel(const float* rows, int64_t n, int64_t cols, T* panel) {
  if (active_isa() != Isa::kPlain) {
    const cpu::KernelTable& table = cpu::kernels();
    constexpr int64_t kTile = 64;
    float tile[kTile * kPanel];
    for (int64_t k = 0; k < cols; k += kTile) {
      const int64_t part = std::min(kTile, cols - k);
      if constexpr (std::is_same_v<T, float>) {
        table.pack_rows(rows + k, cols, n, part, panel + k * kPanel);
      } else {
        table.pack_rows(rows + k, cols, n, part, tile);
        table.narrow(weight_type<T>(), tile, part * kPanel, panel + k * kPanel);
      }
    }
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    for (int64_t j = 0; j < n; ++j) panel[k * kPanel + j] = static_cast<T>(rows[j * cols + k]);
    for (int64_t j = n; j < kPanel; ++j) panel[k * kPanel + j] = static_cast<T>(0.0f);
  }
}

template <typename T>
void read_panel(const T* panel, int64_t first, int64_t last, int64_t cols, float* rows) {
  if (active_isa() != Isa::kPlain) {
    const cpu::KernelTable& table = cpu::kernels();
    float tile[kPanel * kPanel];
    for (int64_t k = 0; k < cols; k += kPanel) {
      const int64_t part = std::min(kPanel, cols - k);
      table.widen_transposed(weight_type<T>(), panel + k * kPanel, part, tile);
      for (int64_t j = first; j < last; ++j) {
        std::memcpy(rows + (j - first) * cols + k, tile + j * kPanel,
                    static_cast<size_t>(part) * sizeof(float));
      }
    }
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    for (int64_t j = first; j < last; ++j)
      rows[(j - first) * cols + k] = static_cast<float>(panel[k * kPanel + j]);
  }
}

// Rows of the panel's own type -> panel[K, 16], and back. Elements are only moved.
template <typename T>
void move_into_panel(const T* rows, int64_t n, int64_t cols, T* panel) {
  int64_t k = 0;
  if (n == kPanel && active_isa() != Isa::kPlain) {
    const cpu::KernelTable& table = cpu::kernels();
    if constexpr (std::is_same_v<T, float>) {
      return table.pack_rows(rows, cols, n, cols, panel);
    } else {
      for (; k + kPanel <= cols; k += kPanel) {
        table.transpose_bits(reinterpret_cast<const uint16_t*>(rows + k), cols,
                             reinterpret_cast<uint16_t*>(panel + k * kPanel), kPanel);
      }
    }
  }
  for (; k < cols; ++k) {
    for (int64_t j = 0; j < n; ++j) panel[k * kPanel + j] = rows[j * cols + k];
    for (int64_t j = n; j < kPanel; ++j) panel[k * kPanel + j] = static_cast<T>(0.0f);
  }
}

template <typename T>
void move_from_panel(const T* panel, int64_t first, int64_t last, int64_t cols, T* rows) {
  int64_t k = 0;
  if constexpr (!std::is_same_v<T, float>) {
    if (last - first == kPanel && active_isa() != Isa::kPlain) {
      for (; k + kPanel <= cols; k += kPanel) {
        cpu::kernels().transpose_bits(reinterpret_cast<const uint16_t*>(panel + k * kPanel), kPanel,
                                      reinterpret_cast<uint16_t*>(rows + k), cols);
      }
    }
  }
  for (; k < cols; ++k) {
    for (int64_t j = first; j < last; ++j) rows[(j - first) * cols + k] = panel[k * kPanel + j];
  }
}

template <typename Fn>
void with_type(at::ScalarType dtype, const Fn& fn) {
  if (dtype == at::kFloat) {
    fn(float{});
  } else if (dtype == at::kBFloat16) {
    fn(at::BFloat16{});
  } else {
    fn(at::Half{});
  }
}

// fn(panel, first row and last row in it, offset of the first among the elements of all the rows).
template <typename Fn>
void for_panels(const PackedMatrix& matrix, int64_t row_begin, int64_t row_end, const Fn& fn) {
  TW_CHECK(matrix.device().is_cpu(), "rows are read from matrices on the CPU");
  TW_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= matrix.rows(), "rows out of range");
  const int64_t cols = matrix.cols();
  with_type(matrix.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* base = matrix.storage().const_data_ptr<T>();
    for (int64_t row = row_begin; row < row_end;) {
      const int64_t panel = row / kPanel, last = std::min(row_end, (panel + 1) * kPanel);
      fn(base + panel * kPanel * cols, row - panel * kPanel, last - panel * kPanel, (row - row_begin) * cols);
      row = last;
    }
  });
}

}  // namespace

PackedMatrix PackedMatrix::build(int64_t rows, int64_t cols, at::ScalarType dtype, at::Device device,
                                 const FillRows& fill) {
  check_dtype(dtype);
  PackedMatrix out;
  out.rows_ = rows;
  out.cols_ = cols;
  const int64_t panels = num_panels(rows);
  if (!device.is_cpu()) {
    at::Tensor plain = at::empty({rows, cols}, at::kFloat);
    float* base = plain.mutable_data_ptr<float>();
    parallel_for(panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        fill(p * kPanel, std::min(rows, (p + 1) * kPanel), base + p * kPanel * cols);
      }
    });
    out.storage_ = plain.to(at::TensorOptions().device(device).dtype(dtype)).reshape({-1});
    return out;
  }
  out.storage_ = panel_memory(panels * kPanel * cols, dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    T* base = out.storage_.mutable_data_ptr<T>();
    const StoredRows* stored = fill.target<StoredRows>();
    if (stored != nullptr && stored->dtype == dtype) {
      const T* from = static_cast<const T*>(stored->data);
      parallel_for(panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
          move_into_panel(from + p * kPanel * cols, std::min(rows - p * kPanel, kPanel), cols,
                          base + p * kPanel * cols);
        }
      });
      return;
    }
    parallel_for(panels, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(kPanel * cols);
      for (int64_t p = begin; p < end; ++p) {
        const int64_t n = std::min(rows - p * kPanel, kPanel);
        fill(p * kPanel, p * kPanel + n, buffer.data());
        pack_panel(buffer.data(), n, cols, base + p * kPanel * cols);
      }
    });
  });
  return out;
}

PackedMatrix PackedMatrix::pack(const at::Tensor& weight_NK, at::ScalarType dtype) {
  if (weight_NK.dim() != 2) {
    throw invalid_argument("[matrix] weight: expected 2 dimensions, got " + std::to_string(weight_NK.dim()));
  }
  check_dtype(dtype);
  const int64_t rows = weight_NK.size(0), cols = weight_NK.size(1);
  if (!weight_NK.device().is_cpu()) {
    PackedMatrix out;
    out.rows_ = rows;
    out.cols_ = cols;
    out.storage_ = weight_NK.to(dtype).contiguous().clone().reshape({-1});
    return out;
  }
  const at::Tensor plain = weight_NK.to(at::kFloat).contiguous();
  const float* base = plain.const_data_ptr<float>();
  return build(rows, cols, dtype, weight_NK.device(), [&](int64_t begin, int64_t end, float* out) {
    std::memcpy(out, base + begin * cols, static_cast<size_t>((end - begin) * cols) * sizeof(float));
  });
}

PackedMatrix PackedMatrix::zeros_like(const PackedMatrix& other, at::ScalarType dtype) {
  check_dtype(dtype);
  PackedMatrix out;
  out.rows_ = other.rows_;
  out.cols_ = other.cols_;
  out.storage_ = at::zeros(other.storage_.sizes(), other.storage_.options().dtype(dtype));
  return out;
}

at::Tensor PackedMatrix::unpack(at::ScalarType dtype) const {
  if (!device().is_cpu()) return storage_.reshape({rows_, cols_}).to(dtype);
  return storage_.reshape({num_panels(rows_), cols_, kPanel})
      .transpose(1, 2)
      .to(dtype)
      .reshape({num_panels(rows_) * kPanel, cols_})
      .narrow(0, 0, rows_);
}

void PackedMatrix::read_rows(int64_t row_begin, int64_t row_end, float* out) const {
  for_panels(*this, row_begin, row_end, [&](const auto* panel, int64_t first, int64_t last, int64_t offset) {
    read_panel(panel, first, last, cols_, out + offset);
  });
}

void copy_rows(const PackedMatrix& matrix, int64_t row_begin, int64_t row_end, void* out) {
  const int64_t cols = matrix.cols();
  for_panels(matrix, row_begin, row_end,
             [&]<typename T>(const T* panel, int64_t first, int64_t last, int64_t offset) {
               if constexpr (std::is_same_v<T, float>) {
                 read_panel(panel, first, last, cols, static_cast<T*>(out) + offset);
               } else {
                 move_from_panel(panel, first, last, cols, static_cast<T*>(out) + offset);
               }
             });
}

void StoredRows::operator()(int64_t row_begin, int64_t row_end, float* out) const {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = static_cast<const T*>(data) + row_begin * cols;
    for (int64_t i = 0; i < (row_end - row_begin) * cols; ++i) out[i] = static_cast<float>(from[i]);
  });
}

void narrow(const float* in, int64_t count, at::ScalarType dtype, void* out) {
  check_dtype(dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
    } else if (active_isa() != Isa::kPlain) {
      cpu::kernels().narrow(weight_type<T>(), in, count, out);
    } else {
      for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[i] = static_cast<T>(in[i]);
    }
  });
}

int64_t LoraBatch::max_rank() const {
  int64_t rank = 0;
  for (const LoraSlot& slot : slots) {
    if (slot.a_rK.defined()) rank = std::max(rank, slot.a_rK.size(0));
  }
  return rank;
}

}  // namespace twinkle::ops
