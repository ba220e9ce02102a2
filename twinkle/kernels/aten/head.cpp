#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/kernels/aten/add_in_order.h"
#include "twinkle/kernels/aten/matrix.h"

namespace twinkle::ops::aten {
namespace {

// Rows are walked in pieces so that a piece's logits stay near 64 MB.
int64_t rows_at_once(int64_t vocabulary) {
  return std::max<int64_t>(1, (int64_t{16} << 20) / std::max<int64_t>(1, vocabulary));
}

// The spans that touch rows [begin, end), moved to start at 0.
std::vector<LoraSpan> spans_within(const LoraBatch* lora, int64_t begin, int64_t end) {
  std::vector<LoraSpan> out;
  if (lora == nullptr) return out;
  for (const LoraSpan& span : lora->spans) {
    const int64_t first = std::max(span.begin, begin), last = std::min(span.end, end);
    if (first < last) out.push_back({first - begin, last - begin, span.slot});
  }
  return out;
}

at::Tensor logits_of(const at::Tensor& hidden_SK, const at::Tensor& w_VK, const LoraBatch* lora,
                     const at::Tensor& low_SR, int64_t begin, int64_t end) {
  at::Tensor logits = hidden_SK.narrow(0, begin, end - begin).matmul(w_VK.t());
  if (lora != nullptr && low_SR.defined()) {
    for (const LoraSpan& span : spans_within(lora, begin, end)) {
      if (span.slot < 0 || !lora->slots[span.slot].a_rK.defined()) continue;
      const LoraSlot& slot = lora->slots[span.slot];
      const int64_t length = span.end - span.begin;
      const at::Tensor low = low_SR.narrow(0, begin + span.begin, length).narrow(1, 0, slot.a_rK.size(0));
      logits.narrow(0, span.begin, length).add_(low.matmul(slot.b_Nr.t()));
    }
  }
  return logits;
}

// The targets of some rows: where they begin, their rows counted from the first, and their columns.
struct Columns {
  int64_t begin = 0, count = 0;
  at::Tensor rows, ids;

  Columns(const RowTargets& of, int64_t first_row, int64_t end_row) {
    if (of.first.empty()) {
      begin = first_row;
      count = end_row - first_row;
      rows = at::arange(count, at::TensorOptions().dtype(at::kLong).device(of.ids_S.device()));
    } else {
      begin = of.first[static_cast<size_t>(first_row)];
      count = of.first[static_cast<size_t>(end_row)] - begin;
      std::vector<int64_t> row_of;
      for (int64_t row = first_row; row < end_row; ++row) {
        const auto at = static_cast<size_t>(row);
        row_of.insert(row_of.end(), static_cast<size_t>(of.first[at + 1] - of.first[at]), row - first_row);
      }
      rows = at::tensor(row_of, at::kLong).to(of.ids_S.device());
    }
    ids = of.ids_S.narrow(0, begin, count).to(at::kLong);
  }
};

// Rows [begin, end) of the outputs, from their logits over the temperature.
void fill_outputs(const at::Tensor& scores, const RowTargets& targets, int64_t begin, int64_t end,
                  HeadOutputs& out) {
  const int64_t n = end - begin;
  const at::Tensor lse = scores.logsumexp(1);
  const Columns columns(targets, begin, end);
  const at::Tensor cells = columns.rows * scores.size(1) + columns.ids;
  out.logprob_S.narrow(0, columns.begin, columns.count)
      .copy_(scores.flatten().index_select(0, cells).sub_(lse.index_select(0, columns.rows)));
  out.lse_S.narrow(0, begin, n).copy_(lse);
  if (out.entropy_S.defined()) {
    const at::Tensor logp = scores - lse.unsqueeze(1);
    out.entropy_S.narrow(0, begin, n).copy_(logp.exp().mul_(logp).sum(1).neg_());
  }
  if (out.argmax_S.defined()) out.argmax_S.narrow(0, begin, n).copy_(scores.argmax(1));
  if (!out.topk_id_SJ.defined()) return;
  const int64_t top = out.topk_id_SJ.size(1);
  const auto [value, id] = scores.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  out.topk_id_SJ.narrow(0, begin, n).copy_(id.narrow(1, 0, top));
  if (out.topk_logprob_SJ.defined()) {
    out.topk_logprob_SJ.narrow(0, begin, n).copy_(value.narrow(1, 0, top) - lse.unsqueeze(1));
  }
}

}  // namespace

void head_logprobs_of(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_SR, const RowTargets& targets, double inv_temperature,
                      HeadOutputs& out) {
  const at::Tensor weight = w_VK.unpack();
  const int64_t rows = hidden_SK.size(0), step = rows_at_once(w_VK.rows());
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    fill_outputs(logits_of(hidden_SK, weight, lora, low_SR, begin, end).mul_(inv_temperature), targets, begin,
                 end, out);
  }
}

void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out) {
  fill_outputs(logits_SV.mul(inv_temperature), {.ids_S = targets_S}, 0, logits_SV.size(0), out);
}

void head_logits(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                 const at::Tensor& low_SR, at::Tensor& logits_SV) {
  aten::linear(hidden_SK, w_VK, at::Tensor(), lora, low_SR, logits_SV);
}

void head_backward_of(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_SR, const RowTargets& targets, double inv_temperature,
                      const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                      std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  TW_CHECK(!dentropy_S.defined() || forward.entropy_S.defined(),
           "the entropy's gradient needs its forward value");
  const at::Tensor weight = w_VK.unpack();
  at::Tensor storage = grad_VK != nullptr ? grad_VK->storage() : at::Tensor();
  const int64_t step = rows_at_once(w_VK.rows());
  const auto dlogits_of = [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const at::Tensor scores = logits_of(hidden_SK, weight, lora, low_SR, begin, end).mul_(inv_temperature);
    const at::Tensor logp = scores - forward.lse_S.narrow(0, begin, n).unsqueeze(1);
    const at::Tensor p = logp.exp();
    const Columns columns(targets, begin, end);
    const at::Tensor dlogprob = dlogprob_S.narrow(0, columns.begin, columns.count);
    at::Tensor of_row = dlogprob;
    if (!targets.first.empty()) {
      of_row = at::zeros({n}, dlogprob.options());
      add_in_order(of_row, columns.rows, dlogprob);
    }
    at::Tensor grad = p.mul(of_row.unsqueeze(1)).neg_();
    if (dentropy_S.defined()) {
      const at::Tensor entropy = forward.entropy_S.narrow(0, begin, n).unsqueeze(1);
      grad.sub_(logp.add(entropy).mul_(p).mul_(dentropy_S.narrow(0, begin, n).unsqueeze(1)));
    }
    at::Tensor cells = grad.flatten();
    add_in_order(cells, columns.rows * grad.size(1) + columns.ids, dlogprob);
    return grad.mul_(inv_temperature);
  };
  for (int64_t begin = 0; begin < hidden_SK.size(0); begin += step) {
    const int64_t end = std::min(hidden_SK.size(0), begin + step);
    const at::Tensor dlogits = dlogits_of(begin, end);
    dhidden_SK.narrow(0, begin, end - begin).copy_(dlogits.matmul(weight));
  }
  // One sum a sequence, from zero, in order, for the matrix and for the adapters.
  if (grad_VK != nullptr) {
    for (const RowRange& range : order) {
      if (range.end <= range.begin) continue;
      at::Tensor sum = at::zeros_like(weight);
      for (int64_t begin = range.begin; begin < range.end; begin += step) {
        const int64_t end = std::min(range.end, begin + step);
        sum.addmm_(dlogits_of(begin, end).t(), hidden_SK.narrow(0, begin, end - begin));
      }
      storage.add_(PackedMatrix::pack(sum, at::kFloat).storage());
    }
  }
  if (lora == nullptr || !low_SR.defined()) return;
  for (const LoraSpan& span : lora->spans) {
    if (span.end <= span.begin || span.slot < 0 || !lora->slots[span.slot].a_rK.defined()) continue;
    const LoraSlot& slot = lora->slots[span.slot];
    const int64_t rank = slot.a_rK.size(0);
    at::Tensor da = at::zeros_like(slot.a_rK), db = at::zeros_like(slot.b_Nr);
    for (int64_t begin = span.begin; begin < span.end; begin += step) {
      const int64_t n = std::min(span.end, begin + step) - begin;
      const at::Tensor dlogits = dlogits_of(begin, begin + n), hidden = hidden_SK.narrow(0, begin, n);
      const at::Tensor dlow = dlogits.matmul(slot.b_Nr).mul_(static_cast<double>(slot.scale));
      dhidden_SK.narrow(0, begin, n).addmm_(dlow, slot.a_rK);
      da.addmm_(dlow.t(), hidden);
      db.addmm_(dlogits.t(), low_SR.narrow(0, begin, n).narrow(1, 0, rank));
    }
    at::Tensor da_total = slot.da_rK, db_total = slot.db_Nr;
    if (da_total.defined()) da_total.add_(da);
    if (db_total.defined()) db_total.add_(db);
  }
}

}  // namespace twinkle::ops::aten
