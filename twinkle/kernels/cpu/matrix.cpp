#include "twinkle/kernels/cpu/matrix.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_plan.h"
#include "twinkle/kernels/panel_memory.h"

namespace twinkle::ops::cpu {
namespace {

void check(const at::Tensor& x, int64_t columns, const char* name) {
  TW_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous() && x.dim() == 2 && x.size(1) == columns,
           std::string(name) + " must be contiguous float32 [rows, " + std::to_string(columns) + "]");
}

template <typename Fn>
void for_each_adapter(const LoraBatch& lora, const Fn& fn) {
  for (const LoraSpan& span : lora.spans) {
    if (span.end <= span.begin || span.slot < 0) continue;
    const LoraSlot& slot = lora.slots[span.slot];
    if (!slot.a_rK.defined()) continue;
    TW_CHECK(slot.a_rK.is_contiguous() && slot.b_Nr.is_contiguous(), "adapter matrices are contiguous");
    fn(span, slot);
  }
}

template <typename Fn>
std::vector<Extra> extras_of(const LoraBatch& lora, const Fn& make) {
  std::vector<Extra> extras;
  for_each_adapter(lora,
                   [&](const LoraSpan& span, const LoraSlot& slot) { extras.push_back(make(span, slot)); });
  std::sort(extras.begin(), extras.end(), [](const Extra& a, const Extra& b) { return a.begin < b.begin; });
  return extras;
}

Product product_of(const at::Tensor& a, at::Tensor& c, const at::Tensor& low,
                   const std::vector<Extra>& extras) {
  Product product;
  product.a = a.const_data_ptr<float>();
  product.rows = a.size(0);
  product.a_stride = a.size(1);
  product.c = c.mutable_data_ptr<float>();
  product.c_stride = c.size(1);
  if (!extras.empty()) {
    product.extras = extras;
    product.low = low.const_data_ptr<float>();
    product.low_stride = low.size(1);
  }
  return product;
}

std::vector<Extra> extras_or_none(const LoraBatch* lora, const at::Tensor& low, bool forward) {
  if (lora == nullptr || !low.defined()) return {};
  return forward ? forward_extras(*lora) : backward_extras(*lora);
}

const float* panels_of(const at::Tensor& panels) {
  return panels.defined() ? panels.const_data_ptr<float>() : nullptr;
}

// rows [n, k] as panels [ceil(n/16)][k][16].
at::Tensor panels_from(const at::Tensor& rows_NK) {
  const int64_t rows = rows_NK.size(0), cols = rows_NK.size(1);
  const at::Tensor out = panel_memory(ceil_div(rows, kPanelWidth) * kPanelWidth * cols, at::kFloat);
  const float* from = rows_NK.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; row += kPanelWidth)
    kernels().pack_rows(from + row * cols, cols, std::min(kPanelWidth, rows - row), cols, to + row * cols);
  return out;
}

void clear(at::Tensor& x) {
  if (x.numel() > 0)
    std::memset(x.mutable_data_ptr<float>(), 0, static_cast<size_t>(x.numel()) * sizeof(float));
}

}  // namespace

const float* rows_of(const at::Tensor& x, int64_t columns, const char* name) {
  check(x, columns, name);
  return x.const_data_ptr<float>();
}

float* rows_of(at::Tensor& x, int64_t columns, const char* name) {
  check(x, columns, name);
  return x.mutable_data_ptr<float>();
}

std::vector<Extra> forward_extras(const LoraBatch& lora) {
  return extras_of(lora, [](const LoraSpan& span, const LoraSlot& slot) {
    const int64_t rank = slot.b_Nr.size(1);
    return Extra{
        span.begin, span.end, rank, slot.b_Nr.const_data_ptr<float>(), 1, rank, panels_of(slot.b_panels)};
  });
}

std::vector<Extra> backward_extras(const LoraBatch& lora) {
  return extras_of(lora, [](const LoraSpan& span, const LoraSlot& slot) {
    return Extra{span.begin,        span.end, slot.a_rK.size(0), slot.a_rK.const_data_ptr<float>(),
                 slot.a_rK.size(1), 1};
  });
}

void pack_lora(LoraSlot& slot) {
  TW_CHECK(slot.a_rK.is_contiguous() && slot.b_Nr.is_contiguous(), "adapter matrices are contiguous");
  slot.a_panels = panels_from(slot.a_rK);
  slot.b_panels = panels_from(slot.b_Nr);
}

namespace {

// What lora_shrink() does for one module.
void add_shrinks(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR,
                 std::vector<Shrink>& spans) {
  const int64_t columns = x_TK.size(1);
  float* low = rows_of(low_TR, low_TR.size(1), "low");
  clear(low_TR);
  for_each_adapter(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    TW_CHECK(slot.a_rK.size(1) == columns, "A has the width of its input");
    spans.push_back({.begin = span.begin,
                     .end = span.end,
                     .rank = slot.a_rK.size(0),
                     .scale = slot.scale,
                     .down = slot.a_rK.const_data_ptr<float>(),
                     .down_k = 1,
                     .down_j = columns,
                     .panels = panels_of(slot.a_panels),
                     .low = low,
                     .low_stride = low_TR.size(1)});
  });
}

}  // namespace

void lora_shrink(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR) {
  std::vector<Shrink> spans;
  add_shrinks(x_TK, lora, low_TR, spans);
  shrink(rows_of(x_TK, x_TK.size(1), "x"), x_TK.size(1), x_TK.size(1), spans);
}

void lora_shrink_backward(const at::Tensor& dy_TN, const LoraBatch& lora, at::Tensor& dlow_TR) {
  const int64_t columns = dy_TN.size(1);
  float* dlow = rows_of(dlow_TR, dlow_TR.size(1), "dlow");
  clear(dlow_TR);
  std::vector<Shrink> spans;
  for_each_adapter(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    TW_CHECK(slot.b_Nr.size(0) == columns, "B has the width of its output");
    const int64_t rank = slot.b_Nr.size(1);
    spans.push_back({.begin = span.begin,
                     .end = span.end,
                     .rank = rank,
                     .scale = slot.scale,
                     .down = slot.b_Nr.const_data_ptr<float>(),
                     .down_k = rank,
                     .down_j = 1,
                     .low = dlow,
                     .low_stride = dlow_TR.size(1)});
  });
  shrink(rows_of(dy_TN, columns, "dy"), columns, columns, spans);
}

namespace {

Product linear_product(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N,
                       const at::Tensor& low_TR, at::Tensor& y_TN, const std::vector<Extra>& extras) {
  check(x_TK, w.cols(), "x");
  check(y_TN, w.rows(), "y");
  Product product = product_of(x_TK, y_TN, low_TR, extras);
  product.w = Weights::of(w);
  if (bias_N.defined()) {
    TW_CHECK(bias_N.scalar_type() == at::kFloat && bias_N.is_contiguous() && bias_N.numel() == w.rows(),
             "bias");
    product.bias = bias_N.const_data_ptr<float>();
  }
  return product;
}

}  // namespace

void linear(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N, const LoraBatch* lora,
            const at::Tensor& low_TR, at::Tensor& y_TN) {
  const std::vector<Extra> extras = extras_or_none(lora, low_TR, true);
  multiply(linear_product(x_TK, w, bias_N, low_TR, y_TN, extras));
}

void linears(const at::Tensor& x_TK, std::span<LinearPart> parts) {
  std::vector<Shrink> spans;
  for (LinearPart& part : parts) {
    if (part.lora != nullptr) add_shrinks(x_TK, *part.lora, part.low_TR, spans);
  }
  if (!spans.empty()) shrink(rows_of(x_TK, x_TK.size(1), "x"), x_TK.size(1), x_TK.size(1), spans);
  std::vector<std::vector<Extra>> extras;
  for (const LinearPart& part : parts) extras.push_back(extras_or_none(part.lora, part.low_TR, true));
  std::vector<Product> products;
  for (size_t i = 0; i < parts.size(); ++i) {
    LinearPart& part = parts[i];
    products.push_back(linear_product(x_TK, *part.w, part.bias_N, part.low_TR, part.y_TN, extras[i]));
    if (part.plus_TN.defined()) products.back().plus = rows_of(part.plus_TN, part.w->rows(), "plus");
  }
  multiply_all(products);
}

void linear_backward_input(const at::Tensor& dy_TN, const PackedMatrix& w, const LoraBatch* lora,
                           const at::Tensor& dlow_TR, at::Tensor& dx_TK, bool accumulate) {
  check(dy_TN, w.rows(), "dy");
  check(dx_TK, w.cols(), "dx");
  const std::vector<Extra> extras = extras_or_none(lora, dlow_TR, false);
  Product product = product_of(dy_TN, dx_TK, dlow_TR, extras);
  product.w = Weights::of(w);
  product.accumulate = accumulate;
  multiply_transposed(product);
}

void lora_backward_input(const at::Tensor& dlow_TR, const LoraBatch& lora, at::Tensor& dx_TK) {
  const std::vector<Extra> extras = backward_extras(lora);
  multiply_extras(product_of(dlow_TR, dx_TK, dlow_TR, extras), dx_TK.size(1));
}

void lora_weight_grad(const at::Tensor& x_TK, const at::Tensor& low_TR, const at::Tensor& dy_TN,
                      const at::Tensor& dlow_TR, const LoraBatch& lora) {
  std::vector<SkinnyGrad> a, b;
  for_each_adapter(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    const int64_t rank = slot.a_rK.size(0), columns = slot.a_rK.size(1);
    if (slot.da_rK.defined()) {
      a.push_back({span.begin, span.end, rank, slot.da_rK.mutable_data_ptr<float>(), columns, 1});
    }
    if (slot.db_Nr.defined()) {
      b.push_back({span.begin, span.end, rank, slot.db_Nr.mutable_data_ptr<float>(), 1, rank});
    }
  });
  if (!a.empty()) {
    add_skinny(rows_of(dlow_TR, dlow_TR.size(1), "dlow"), dlow_TR.size(1), rows_of(x_TK, x_TK.size(1), "x"),
               x_TK.size(1), x_TK.size(1), a);
  }
  if (!b.empty()) {
    add_skinny(rows_of(low_TR, low_TR.size(1), "low"), low_TR.size(1), rows_of(dy_TN, dy_TN.size(1), "dy"),
               dy_TN.size(1), dy_TN.size(1), b);
  }
}

void linear_weight_grad(const at::Tensor& dy_TN, const at::Tensor& x_TK, std::span<const RowRange> order,
                        PackedMatrix& grad) {
  TW_CHECK(grad.dtype() == at::kFloat, "gradients are float32");
  at::Tensor storage = grad.storage();
  add_outer(rows_of(dy_TN, grad.rows(), "dy"), grad.rows(), grad.rows(), rows_of(x_TK, grad.cols(), "x"),
            grad.cols(), grad.cols(), order, storage.mutable_data_ptr<float>());
}

void bias_grad(const at::Tensor& dy_TN, std::span<const RowRange> order, at::Tensor& dbias_N) {
  const int64_t columns = dy_TN.size(1);
  const float* dy = rows_of(dy_TN, columns, "dy");
  float* dbias = dbias_N.mutable_data_ptr<float>();
  parallel_for(columns, 128, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(end - begin));
    for (const RowRange& range : order) {
      if (range.end <= range.begin) continue;
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t t = range.begin; t < range.end; ++t) {
        const float* row = dy + t * columns + begin;
        for (int64_t n = 0; n < end - begin; ++n) sum[n] += row[n];
      }
      for (int64_t n = 0; n < end - begin; ++n) dbias[begin + n] += sum[n];
    }
  });
}

}  // namespace twinkle::ops::cpu
