#include "twinkle/kernels/aten/matrix.h"

#include <ATen/ATen.h>

namespace twinkle::ops::aten {
namespace {

template <typename Fn>
void for_each_span(const LoraBatch& lora, const Fn& fn) {
  for (const LoraSpan& span : lora.spans) {
    if (span.end <= span.begin || span.slot < 0) continue;
    const LoraSlot& slot = lora.slots[span.slot];
    if (slot.a_rK.defined()) fn(span, slot);
  }
}

at::Tensor rows(const at::Tensor& x, int64_t begin, int64_t end) { return x.narrow(0, begin, end - begin); }

at::Tensor low_part(const at::Tensor& low_TR, const LoraSpan& span, const LoraSlot& slot) {
  return rows(low_TR, span.begin, span.end).narrow(1, 0, slot.a_rK.size(0));
}

}  // namespace

void lora_shrink(const at::Tensor& x_TK, const LoraBatch& lora, at::Tensor& low_TR) {
  low_TR.zero_();
  for_each_span(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    low_part(low_TR, span, slot)
        .copy_(rows(x_TK, span.begin, span.end).matmul(slot.a_rK.t()).mul_(static_cast<double>(slot.scale)));
  });
}

void linear(const at::Tensor& x_TK, const PackedMatrix& w, const at::Tensor& bias_N, const LoraBatch* lora,
            const at::Tensor& low_TR, at::Tensor& y_TN) {
  y_TN.copy_(x_TK.matmul(w.unpack().t()));
  if (lora != nullptr && low_TR.defined()) {
    for_each_span(*lora, [&](const LoraSpan& span, const LoraSlot& slot) {
      rows(y_TN, span.begin, span.end).add_(low_part(low_TR, span, slot).matmul(slot.b_Nr.t()));
    });
  }
  if (bias_N.defined()) y_TN.add_(bias_N);
}

void lora_shrink_backward(const at::Tensor& dy_TN, const LoraBatch& lora, at::Tensor& dlow_TR) {
  dlow_TR.zero_();
  for_each_span(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    low_part(dlow_TR, span, slot)
        .copy_(rows(dy_TN, span.begin, span.end).matmul(slot.b_Nr).mul_(static_cast<double>(slot.scale)));
  });
}

void linear_backward_input(const at::Tensor& dy_TN, const PackedMatrix& w, const LoraBatch* lora,
                           const at::Tensor& dlow_TR, at::Tensor& dx_TK, bool accumulate) {
  at::Tensor product = dy_TN.matmul(w.unpack());
  if (lora != nullptr && dlow_TR.defined()) aten::lora_backward_input(dlow_TR, *lora, product);
  if (accumulate) {
    dx_TK.add_(product);
  } else {
    dx_TK.copy_(product);
  }
}

void lora_backward_input(const at::Tensor& dlow_TR, const LoraBatch& lora, at::Tensor& dx_TK) {
  for_each_span(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    rows(dx_TK, span.begin, span.end).add_(low_part(dlow_TR, span, slot).matmul(slot.a_rK));
  });
}

void lora_weight_grad(const at::Tensor& x_TK, const at::Tensor& low_TR, const at::Tensor& dy_TN,
                      const at::Tensor& dlow_TR, const LoraBatch& lora) {
  for_each_span(lora, [&](const LoraSpan& span, const LoraSlot& slot) {
    if (slot.da_rK.defined()) {
      at::Tensor da = slot.da_rK;
      da.add_(low_part(dlow_TR, span, slot).t().matmul(rows(x_TK, span.begin, span.end)));
    }
    if (slot.db_Nr.defined()) {
      at::Tensor db = slot.db_Nr;
      db.add_(rows(dy_TN, span.begin, span.end).t().matmul(low_part(low_TR, span, slot)));
    }
  });
}

void linear_weight_grad(const at::Tensor& dy_TN, const at::Tensor& x_TK, std::span<const RowRange> order,
                        PackedMatrix& grad) {
  at::Tensor storage = grad.storage();
  for (const RowRange& range : order) {
    if (range.end <= range.begin) continue;
    const at::Tensor sum = rows(dy_TN, range.begin, range.end).t().matmul(rows(x_TK, range.begin, range.end));
    storage.add_(PackedMatrix::pack(sum, at::kFloat).storage());
  }
}

void bias_grad(const at::Tensor& dy_TN, std::span<const RowRange> order, at::Tensor& dbias_N) {
  for (const RowRange& range : order) {
    if (range.end > range.begin) dbias_N.add_(rows(dy_TN, range.begin, range.end).sum(0));
  }
}

}  // namespace twinkle::ops::aten
