#include "twinkle/nn/pass.h"

#include <algorithm>

namespace twinkle::nn {

std::optional<Pass::ModuleLora> Pass::module_lora(int64_t module) const {
  if (lora == nullptr || module < 0 || static_cast<size_t>(module) >= lora->slots.size()) return std::nullopt;
  const auto& slots = lora->slots[static_cast<size_t>(module)];
  if (slots.empty() || lora->spans.empty()) return std::nullopt;
  ModuleLora out;
  out.batch.slots = slots;
  const auto touched = [&](const ops::LoraSpan& span) {
    return slots[static_cast<size_t>(span.slot)].a_rK.defined();
  };
  if (std::all_of(lora->spans.begin(), lora->spans.end(), touched)) {
    out.batch.spans = lora->spans;
  } else {
    std::copy_if(lora->spans.begin(), lora->spans.end(), std::back_inserter(out.own_spans), touched);
    if (out.own_spans.empty()) return std::nullopt;
    out.batch.spans = out.own_spans;  // a moved vector keeps its storage, so the view stays good
  }
  for (const auto& span : out.batch.spans) out.dropout |= drops(span.slot);
  return out;
}

Parameter& Pass::norm(Parameter& own) const {
  if (lora == nullptr || lora->replaced_norms.empty()) return own;
  const auto it = lora->replaced_norms.find(&own);
  return it == lora->replaced_norms.end() ? own : *it->second;
}

bool Pass::drops(int32_t slot) const {
  const auto i = static_cast<size_t>(slot);
  return i < lora->dropout.size() && lora->dropout[i] > 0;
}

void Pass::apply_dropout(int64_t module, std::span<const ops::LoraSpan> spans, const at::Tensor& x_TK,
                         at::Tensor& y_TK) const {
  for (const auto& span : spans) {
    const int64_t rows = span.end - span.begin;
    const at::Tensor x = x_TK.narrow(0, span.begin, rows);
    at::Tensor y = y_TK.narrow(0, span.begin, rows);
    if (!drops(span.slot)) {
      y.copy_(x);
      continue;
    }
    const auto slot = static_cast<size_t>(span.slot);
    ops::dropout(
        x, lora->dropout[slot], lora->dropout_seed[slot], static_cast<uint64_t>(module),
        std::span(row_sequence_key).subspan(static_cast<size_t>(span.begin), static_cast<size_t>(rows)),
        std::span(row_position).subspan(static_cast<size_t>(span.begin), static_cast<size_t>(rows)), y);
  }
}

}  // namespace twinkle::nn
