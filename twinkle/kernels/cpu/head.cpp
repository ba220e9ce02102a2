#include "twinkle/kernels/cpu/head.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm.h"
#include "twinkle/kernels/cpu/gemm_plan.h"
#include "twinkle/kernels/cpu/matrix.h"
#include "twinkle/kernels/cpu/tile_block.h"

namespace twinkle::ops::cpu {
namespace {

constexpr int64_t kVocabBlock = 512;      // columns of one partial sum; part of the result's bits
constexpr int64_t kGradientChain = 2048;  // columns of one chain of d(hidden); part of the result's bits
constexpr int64_t kRowsAtOnce = 384;      // rows of one tile of logits
constexpr int64_t kScratchFloats = int64_t{16} << 20;  // 64 MB of logits at most
constexpr int64_t kGradientFloats = int64_t{2} << 20;  // 8 MB of their gradients, to stay in a cache
constexpr int kTileSlot = 6, kBlockSlot = 4;

// Rows never stand a power of two apart.
int64_t padded(int64_t columns) { return ceil_div(columns, 32) * 32 + 16; }

// What is asked of the logits of some rows.
struct Question {
  int64_t rows, columns;
  float scale;
  std::vector<int64_t> targets, first;  // as RowTargets has them

  Question(int64_t rows_, int64_t columns_, const RowTargets& of, double inv_temperature)
      : rows(rows_), columns(columns_), scale(static_cast<float>(inv_temperature)), first(of.first) {
    const int64_t count = of.ids_S.numel();
    if (first.empty()) {
      TW_CHECK(count == rows, "one target a row");
      for (int64_t row = 0; row <= rows; ++row) first.push_back(row);
    }
    TW_CHECK(of.ids_S.is_contiguous() && static_cast<int64_t>(first.size()) == rows + 1 &&
                 first.front() == 0 && first.back() == count && std::is_sorted(first.begin(), first.end()),
             "the bounds of each row's targets");
    targets.resize(static_cast<size_t>(count));
    for (int64_t s = 0; s < count; ++s) {
      targets[s] = of.ids_S.scalar_type() == at::kLong ? of.ids_S.const_data_ptr<int64_t>()[s]
                                                       : of.ids_S.const_data_ptr<int32_t>()[s];
    }
  }
};

// What all passes over the vocabulary share.
struct Head : Question {
  const float* hidden;
  Weights w;
  std::vector<Extra> extras;
  const float* low;
  int64_t low_stride;

  Head(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora, const at::Tensor& low_SR,
       const RowTargets& targets, double inv_temperature)
      : Question(hidden_SK.size(0), w_VK.rows(), targets, inv_temperature),
        hidden(rows_of(hidden_SK, w_VK.cols(), "hidden")),
        w(Weights::of(w_VK)),
        low(nullptr),
        low_stride(0) {
    if (lora != nullptr && low_SR.defined()) {
      extras = forward_extras(*lora);
      low = rows_of(low_SR, low_SR.size(1), "low");
      low_stride = low_SR.size(1);
    }
  }

  // Logits of rows [r0, r1) and columns [v0, v1), v0 at a panel, before the temperature.
  void logits(int64_t r0, int64_t r1, int64_t v0, int64_t v1, float* out, int64_t stride) const {
    std::vector<Extra> here;
    for (const Extra& extra : extras) {
      const int64_t first = std::max(extra.begin, r0), last = std::min(extra.end, r1);
      if (first >= last) continue;
      here.push_back({first - r0, last - r0, extra.rank, extra.up + v0 * extra.up_n, extra.up_j, extra.up_n,
                      extra.up_panels != nullptr ? extra.up_panels + v0 * extra.rank : nullptr});
    }
    Product product;
    product.a = hidden + r0 * w.cols;
    product.rows = r1 - r0;
    product.a_stride = w.cols;
    product.w = w.slice(v0, v1);
    product.c = out;
    product.c_stride = stride;
    product.extras = here;
    product.low = low + r0 * low_stride;
    product.low_stride = low_stride;
    multiply(product);
  }
};

// Tiles of rows and vocabulary blocks; fn(r0, r1, v0, v1).
template <typename Fn>
void for_each_tile(int64_t r0, int64_t r1, int64_t v0, int64_t v1, const Fn& fn) {
  const int64_t row_tiles = ceil_div(r1 - r0, kRowsAtOnce), blocks = ceil_div(v1 - v0, kVocabBlock);
  parallel_for(row_tiles * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tile = i % row_tiles, first = v0 + i / row_tiles * kVocabBlock;
      fn(r0 + (r1 - r0) * tile / row_tiles, r0 + (r1 - r0) * (tile + 1) / row_tiles, first,
         std::min(v1, first + kVocabBlock));
    }
  });
}

struct Candidate {
  float score;
  int32_t id;
  bool operator<(const Candidate& other) const {
    return score != other.score ? score > other.score : id < other.id;
  }
};

// Gathers what the outputs ask of rows [begin, end), tile by tile in any order, then finishes them.
class Statistics {
 public:
  Statistics(const Question& question, HeadOutputs& out, int64_t begin, int64_t end)
      : question_(question),
        out_(out),
        begin_(begin),
        rows_(end - begin),
        blocks_(ceil_div(question.columns, kVocabBlock)) {
    sums_.resize(static_cast<size_t>(rows_ * blocks_));
    target_score_.resize(static_cast<size_t>(question.first[end] - question.first[begin]),
                         std::numeric_limits<float>::quiet_NaN());
    if (out.argmax_S.defined()) place_.resize(sums_.size());
    if (out.topk_id_SJ.defined()) {
      top_ = std::min(out.topk_id_SJ.size(1), question.columns);
      candidates_.resize(sums_.size());
      floor_ = std::vector<std::atomic<float>>(static_cast<size_t>(rows_));
      for (auto& floor : floor_)
        floor.store(-std::numeric_limits<float>::infinity(), std::memory_order_relaxed);
    }
  }

  // z: logits of a tile.
  void add(int64_t r0, int64_t r1, int64_t v0, int64_t v1, const float* z, int64_t stride) {
    const KernelTable& table = kernels();
    const int64_t n = v1 - v0, block = v0 / kVocabBlock;
    for (int64_t row = r0; row < r1; ++row, z += stride) {
      const int64_t r = row - begin_, at = r * blocks_ + block;
      sums_[at] = table.row_sums(z, n, question_.scale, out_.entropy_S.defined());
      for (int64_t s = question_.first[row]; s < question_.first[row + 1]; ++s) {
        const int64_t target = question_.targets[s];
        if (target >= v0 && target < v1) score_of(s) = z[target - v0] * question_.scale;
      }
      if (!place_.empty())
        place_[at] = static_cast<int32_t>(v0 + table.find(z, n, question_.scale, sums_[at].max) % n);
      if (top_ > 0) collect(z, n, v0, floor_[r], candidates_[at]);
    }
  }

  void finish() {
    parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) finish_row(r);
    });
  }

 private:
  // Keeps the block's largest `top_`. Whatever is below the floor, some block's own last place, can not be
  // among the row's largest; the floor only saves work, so the order in which it rises does not matter.
  void collect(const float* z, int64_t n, int64_t v0, std::atomic<float>& floor,
               std::vector<Candidate>& best) const {
    float least = floor.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < n; ++i) {
      const float score = z[i] * question_.scale;
      if (!(score >= least)) continue;
      const Candidate candidate{score, static_cast<int32_t>(v0 + i)};
      if (static_cast<int64_t>(best.size()) == top_) {
        if (!(candidate < best.back())) continue;
        best.pop_back();
      }
      best.insert(std::upper_bound(best.begin(), best.end(), candidate), candidate);
      if (static_cast<int64_t>(best.size()) == top_) least = std::max(least, best.back().score);
    }
    if (static_cast<int64_t>(best.size()) < top_) return;
    float seen = floor.load(std::memory_order_relaxed);
    while (best.back().score > seen && !floor.compare_exchange_weak(seen, best.back().score)) {
    }
  }

  float& score_of(int64_t target) {
    return target_score_[static_cast<size_t>(target - question_.first[begin_])];
  }

  void finish_row(int64_t r) {
    const RowSums* sums = &sums_[static_cast<size_t>(r * blocks_)];
    int64_t top_block = 0;
    for (int64_t b = 1; b < blocks_; ++b) {
      if (sums[b].max > sums[top_block].max) top_block = b;
    }
    const double max = sums[top_block].max;
    double sum = 0.0, weighted = 0.0;
    for (int64_t b = 0; b < blocks_; ++b) {
      const double shift = sums[b].max - max, factor = std::exp(shift);
      sum += factor * sums[b].sum;
      weighted += factor * (sums[b].weighted + shift * sums[b].sum);
    }
    const int64_t row = begin_ + r;
    const double log_sum = std::log(sum), lse = max + log_sum;
    out_.lse_S.mutable_data_ptr<float>()[row] = static_cast<float>(lse);
    for (int64_t s = question_.first[row]; s < question_.first[row + 1]; ++s)
      out_.logprob_S.mutable_data_ptr<float>()[s] = static_cast<float>(score_of(s) - lse);
    if (out_.entropy_S.defined()) {
      out_.entropy_S.mutable_data_ptr<float>()[row] = static_cast<float>(log_sum - weighted / sum);
    }
    if (!place_.empty()) out_.argmax_S.mutable_data_ptr<int32_t>()[row] = place_[r * blocks_ + top_block];
    if (top_ == 0) return;
    std::vector<Candidate> all;
    for (int64_t b = 0; b < blocks_; ++b) {
      const std::vector<Candidate>& some = candidates_[r * blocks_ + b];
      all.insert(all.end(), some.begin(), some.end());
    }
    all.resize(std::max<size_t>(all.size(), top_),
               {std::numeric_limits<float>::quiet_NaN(), 0});  // a row of NaN
    std::partial_sort(all.begin(), all.begin() + top_, all.end());
    const int64_t width = out_.topk_id_SJ.size(1);
    for (int64_t j = 0; j < top_; ++j) {
      out_.topk_id_SJ.mutable_data_ptr<int32_t>()[row * width + j] = all[j].id;
      if (!out_.topk_logprob_SJ.defined()) continue;
      out_.topk_logprob_SJ.mutable_data_ptr<float>()[row * width + j] =
          static_cast<float>(all[j].score - lse);
    }
  }

  const Question& question_;
  HeadOutputs& out_;
  int64_t begin_, rows_, blocks_;
  std::vector<RowSums> sums_;
  std::vector<float> target_score_;
  std::vector<int32_t> place_;
  int64_t top_ = 0;
  std::vector<std::vector<Candidate>> candidates_;
  std::vector<std::atomic<float>> floor_;
};

// What comes back for each target, and the sum of it for each row.
struct Derivative {
  Derivative(const Question& question, const float* of_targets) : target(of_targets), row(of_targets) {
    bool one_each = true;
    for (int64_t r = 0; r <= question.rows; ++r) one_each &= question.first[r] == r;
    if (one_each) return;
    sums_.resize(static_cast<size_t>(question.rows));
    for (int64_t r = 0; r < question.rows; ++r) {
      for (int64_t s = question.first[r]; s < question.first[r + 1]; ++s) sums_[r] += of_targets[s];
    }
    row = sums_.data();
  }
  Derivative(const Derivative&) = delete;
  Derivative& operator=(const Derivative&) = delete;

  const float *target, *row;

 private:
  std::vector<float> sums_;
};

// Logits to their gradients, for a tile. The targets' columns get their shares last.
void to_gradient(const Head& head, const HeadOutputs& forward, const Derivative& d, const float* dentropy,
                 int64_t r0, int64_t r1, int64_t v0, int64_t v1, float* z, int64_t stride) {
  const KernelTable& table = kernels();
  const float* lse = forward.lse_S.const_data_ptr<float>();
  const float* entropy = dentropy != nullptr ? forward.entropy_S.const_data_ptr<float>() : nullptr;
  for (int64_t row = r0; row < r1; ++row, z += stride) {
    table.row_gradient(z, v1 - v0,
                       {.scale = head.scale,
                        .lse = lse[row],
                        .dlogprob = d.row[row],
                        .entropy = entropy != nullptr ? entropy[row] : 0.0f,
                        .dentropy = dentropy != nullptr ? dentropy[row] : 0.0f,
                        .next = z + (row + 2 < r1 ? 2 * stride : 0)});
    for (int64_t s = head.first[row]; s < head.first[row + 1]; ++s) {
      const int64_t target = head.targets[s];
      if (target >= v0 && target < v1) z[target - v0] += d.target[s] * head.scale;
    }
  }
}

// Where the gradients of the logits go, block of the vocabulary after block.
class GradientSink {
 public:
  GradientSink(const Head& head, const LoraBatch* lora, std::span<const RowRange> order, float* dhidden,
               PackedMatrix* grad_VK)
      : head_(head), lora_(head.extras.empty() ? nullptr : lora), order_(order), dhidden_(dhidden) {
    if (grad_VK != nullptr) {
      TW_CHECK(
          grad_VK->dtype() == at::kFloat && grad_VK->rows() == head.w.rows && grad_VK->cols() == head.w.cols,
          "the gradient is float32 of the head's shape");
      at::Tensor storage = grad_VK->storage();
      grad_ = storage.mutable_data_ptr<float>();
    }
    if (lora_ != nullptr) dlow_.resize(static_cast<size_t>(head.rows * head.low_stride));
  }

  bool sums_over_rows() const { return grad_ != nullptr || lora_ != nullptr; }

  // dz: gradients of rows [r0, r1) and columns [v0, v1). `order` and adapters are only served by whole
  // batches or by pieces that end at the bounds of sequences.
  void add(int64_t r0, int64_t r1, int64_t v0, int64_t v1, const float* dz, int64_t stride) {
    for (int64_t begin = v0; begin < v1;) {
      const int64_t end = std::min(v1, (begin / kGradientChain + 1) * kGradientChain);
      add_to_hidden(r0, r1, begin, end, dz + (begin - v0), stride);
      begin = end;
    }
    if (grad_ != nullptr) {
      std::vector<RowRange> ranges;
      for (const RowRange& range : order_) {
        if (range.begin >= r0 && range.end <= r1) ranges.push_back({range.begin - r0, range.end - r0});
      }
      add_outer(dz, stride, v1 - v0, head_.hidden + r0 * head_.w.cols, head_.w.cols, head_.w.cols, ranges,
                grad_ + v0 * head_.w.cols);
    }
    if (lora_ == nullptr) return;
    std::vector<Shrink> shrinks;
    std::vector<SkinnyGrad> grads;
    for_each_span(r0, r1, [&](const LoraSpan& span, const LoraSlot& slot) {
      const int64_t rank = slot.b_Nr.size(1), begin = span.begin - r0, end = span.end - r0;
      shrinks.push_back({.begin = begin,
                         .end = end,
                         .rank = rank,
                         .down = slot.b_Nr.const_data_ptr<float>() + v0 * rank,
                         .down_k = rank,
                         .down_j = 1,
                         .low = dlow_.data() + r0 * head_.low_stride,
                         .low_stride = head_.low_stride});
      if (!slot.db_Nr.defined()) return;
      grads.push_back({begin, end, rank, slot.db_Nr.mutable_data_ptr<float>() + v0 * rank, 1, rank});
    });
    shrink(dz, stride, v1 - v0, shrinks, v0 > 0);
    add_skinny(head_.low + r0 * head_.low_stride, head_.low_stride, dz, stride, v1 - v0, grads);
  }

  // After the last block of the vocabulary: what goes through the adapter.
  void finish(int64_t r0, int64_t r1) {
    if (lora_ == nullptr) return;
    std::vector<SkinnyGrad> grads;
    for_each_span(r0, r1, [&](const LoraSpan& span, const LoraSlot& slot) {
      const int64_t rank = slot.a_rK.size(0);
      for (int64_t row = span.begin; row < span.end; ++row) {
        for (int64_t j = 0; j < rank; ++j) dlow_[row * head_.low_stride + j] *= slot.scale;
      }
      if (!slot.da_rK.defined()) return;
      grads.push_back({span.begin, span.end, rank, slot.da_rK.mutable_data_ptr<float>(), head_.w.cols, 1});
    });
    const std::vector<Extra> extras = backward_extras(*lora_);
    Product product;
    product.rows = r1;
    product.c = dhidden_;
    product.c_stride = head_.w.cols;
    std::vector<Extra> here;
    for (const Extra& extra : extras) {
      if (extra.begin >= r0 && extra.end <= r1) here.push_back(extra);
    }
    product.extras = here;
    product.low = dlow_.data();
    product.low_stride = head_.low_stride;
    multiply_extras(product, head_.w.cols);
    add_skinny(dlow_.data(), head_.low_stride, head_.hidden, head_.w.cols, head_.w.cols, grads);
  }

 private:
  // One chain over a whole vocabulary would lose digits that gradients need: chains of fixed columns are
  // summed apart and then added, wherever a block of the vocabulary ends.
  void add_to_hidden(int64_t r0, int64_t r1, int64_t v0, int64_t v1, const float* dz, int64_t stride) {
    const int64_t cols = head_.w.cols;
    if (partial_.empty()) partial_.resize(static_cast<size_t>(head_.rows * cols));
    Product product;
    product.a = dz;
    product.rows = r1 - r0;
    product.a_stride = stride;
    product.w = head_.w.slice(v0, v1);
    product.c = partial_.data() + r0 * cols;
    product.c_stride = cols;
    product.accumulate = v0 % kGradientChain != 0;
    multiply_transposed(product);
    if (v1 % kGradientChain != 0 && v1 != head_.w.rows) return;
    const bool first = v1 <= kGradientChain;
    parallel_for(r1 - r0, 16, [&](int64_t begin, int64_t end) {
      const float* from = partial_.data() + (r0 + begin) * cols;
      float* to = dhidden_ + (r0 + begin) * cols;
      const int64_t count = (end - begin) * cols;
      if (first) {
        std::copy(from, from + count, to);
      } else {
        kernels().add(to, from, count);
      }
    });
  }

  template <typename Fn>
  void for_each_span(int64_t r0, int64_t r1, const Fn& fn) const {
    for (const LoraSpan& span : lora_->spans) {
      if (span.end <= span.begin || span.slot < 0 || span.begin < r0 || span.end > r1) continue;
      if (lora_->slots[span.slot].a_rK.defined()) fn(span, lora_->slots[span.slot]);
    }
  }

  const Head& head_;
  const LoraBatch* lora_;
  std::span<const RowRange> order_;
  float* dhidden_;
  float* grad_ = nullptr;
  std::vector<float> dlow_, partial_;
};

void forward(const Head& head, HeadOutputs& out) {
  // Pieces of rows keep the partial sums of a long batch small.
  const int64_t step =
      std::max<int64_t>(kRowsAtOnce, (int64_t{1} << 20) / ceil_div(head.w.rows, kVocabBlock));
  for (int64_t begin = 0; begin < head.rows; begin += step) {
    const int64_t end = std::min(head.rows, begin + step);
    Statistics statistics(head, out, begin, end);
    for_each_tile(begin, end, 0, head.w.rows, [&](int64_t r0, int64_t r1, int64_t v0, int64_t v1) {
      const int64_t stride = padded(kVocabBlock);
      float* z = scratch(kTileSlot, kRowsAtOnce * stride);
      head.logits(r0, r1, v0, v1, z, stride);
      statistics.add(r0, r1, v0, v1, z, stride);
    });
    statistics.finish();
  }
}

// All rows at once, so that no sequence is cut; columns so that a block of gradients stays small.
void backward(const Head& head, const HeadOutputs& out, const Derivative& d, const float* dentropy,
              GradientSink& sink) {
  int64_t step = std::max<int64_t>(1, kGradientFloats / head.rows / kVocabBlock) * kVocabBlock;
  if (step * head.rows > kScratchFloats) {
    step = std::max<int64_t>(1, kScratchFloats / head.rows / kTileStep) * kTileStep;
  }
  step = std::min(step, ceil_div(head.w.rows, kTileStep) * kTileStep);
  const int64_t stride = padded(step);
  float* z = scratch(kBlockSlot, head.rows * stride);
  for (int64_t first = 0; first < head.w.rows; first += step) {
    const int64_t last = std::min(head.w.rows, first + step);
    for_each_tile(0, head.rows, first, last, [&](int64_t r0, int64_t r1, int64_t v0, int64_t v1) {
      float* tile = z + r0 * stride + (v0 - first);
      head.logits(r0, r1, v0, v1, tile, stride);
      to_gradient(head, out, d, dentropy, r0, r1, v0, v1, tile, stride);
    });
    sink.add(0, head.rows, first, last, z, stride);
  }
  sink.finish(0, head.rows);
}

// Ends of the pieces of rows that may be held with all their logits; empty when a sequence is longer than
// that.
std::vector<int64_t> pieces_of(const Head& head, const GradientSink& sink, const LoraBatch* lora,
                               std::span<const RowRange> order) {
  const int64_t most = std::max<int64_t>(1, kScratchFloats / padded(head.w.rows));
  std::vector<int64_t> ends;
  if (!sink.sums_over_rows()) {
    const int64_t count = ceil_div(head.rows, most);
    for (int64_t i = 1; i <= count; ++i) ends.push_back(head.rows * i / count);
    return ends;
  }
  // Sums run over sequences in the given order, so pieces follow it only if it is the order of the rows.
  std::vector<RowRange> ranges(order.begin(), order.end());
  if (!head.extras.empty()) {
    for (const LoraSpan& span : lora->spans) ranges.push_back({span.begin, span.end});
  }
  std::vector<char> inside(static_cast<size_t>(head.rows + 1), 0);
  int64_t previous = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i == order.size()) previous = 0;
    if (ranges[i].end <= ranges[i].begin) continue;
    if (ranges[i].begin < previous) return {};
    previous = ranges[i].end;
    for (int64_t row = ranges[i].begin + 1; row < ranges[i].end; ++row) inside[row] = 1;
  }
  int64_t begin = 0;
  while (begin < head.rows) {
    int64_t end = std::min(head.rows, begin + most);
    while (end > begin && end < head.rows && inside[end] != 0) --end;
    if (end == begin) return {};
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

const float* vector_of(const at::Tensor& x, int64_t rows, const char* name) {
  if (!x.defined()) return nullptr;
  TW_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() == rows, name);
  return x.const_data_ptr<float>();
}

}  // namespace

void head_logprobs_of(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_SR, const RowTargets& targets, double inv_temperature,
                      HeadOutputs& out) {
  forward(Head(hidden_SK, w_VK, lora, low_SR, targets, inv_temperature), out);
}

void logits_logprobs(const at::Tensor& logits_SV, const at::Tensor& targets_S, double inv_temperature,
                     HeadOutputs& out) {
  const int64_t vocabulary = logits_SV.size(1);
  const Question question(logits_SV.size(0), vocabulary, {.ids_S = targets_S}, inv_temperature);
  const float* logits = rows_of(logits_SV, vocabulary, "logits");
  Statistics statistics(question, out, 0, question.rows);
  for_each_tile(0, question.rows, 0, vocabulary, [&](int64_t r0, int64_t r1, int64_t v0, int64_t v1) {
    statistics.add(r0, r1, v0, v1, logits + r0 * vocabulary + v0, vocabulary);
  });
  statistics.finish();
}

void head_backward_of(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                      const at::Tensor& low_SR, const RowTargets& targets, double inv_temperature,
                      const HeadOutputs& forward, const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S,
                      std::span<const RowRange> order, at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  TW_CHECK(!dentropy_S.defined() || forward.entropy_S.defined(),
           "the entropy's gradient needs its forward value");
  const Head head(hidden_SK, w_VK, lora, low_SR, targets, inv_temperature);
  if (head.rows == 0) return;
  GradientSink sink(head, lora, order, rows_of(dhidden_SK, head.w.cols, "dhidden"), grad_VK);
  backward(head, forward, {head, vector_of(dlogprob_S, std::ssize(head.targets), "dlogprob")},
           vector_of(dentropy_S, head.rows, "dentropy"), sink);
}

void head_forward_backward_of(const at::Tensor& hidden_SK, const PackedMatrix& w_VK, const LoraBatch* lora,
                              const at::Tensor& low_SR, const RowTargets& targets, double inv_temperature,
                              const at::Tensor& dlogprob_S, std::span<const RowRange> order, HeadOutputs& out,
                              at::Tensor& dhidden_SK, PackedMatrix* grad_VK) {
  const Head head(hidden_SK, w_VK, lora, low_SR, targets, inv_temperature);
  if (head.rows == 0) return;
  GradientSink sink(head, lora, order, rows_of(dhidden_SK, head.w.cols, "dhidden"), grad_VK);
  const Derivative d(head, vector_of(dlogprob_S, std::ssize(head.targets), "dlogprob"));
  const std::vector<int64_t> ends = pieces_of(head, sink, lora, order);
  if (ends.empty()) {
    forward(head, out);
    backward(head, out, d, nullptr, sink);
    return;
  }
  const int64_t vocabulary = head.w.rows, stride = padded(vocabulary);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    float* z = scratch(kBlockSlot, (end - begin) * stride);
    Statistics statistics(head, out, begin, end);
    for_each_tile(begin, end, 0, vocabulary, [&](int64_t r0, int64_t r1, int64_t v0, int64_t v1) {
      float* tile = z + (r0 - begin) * stride + v0;
      head.logits(r0, r1, v0, v1, tile, stride);
      statistics.add(r0, r1, v0, v1, tile, stride);
    });
    statistics.finish();
    const int64_t step = std::max<int64_t>(1, kGradientFloats / (end - begin) / kVocabBlock) * kVocabBlock;
    for (int64_t first = 0; first < vocabulary; first += step) {
      const int64_t last = std::min(vocabulary, first + step);
      for_each_tile(begin, end, first, last, [&](int64_t r0, int64_t r1, int64_t v0, int64_t v1) {
        to_gradient(head, out, d, nullptr, r0, r1, v0, v1, z + (r0 - begin) * stride + v0, stride);
      });
      sink.add(begin, end, first, last, z + first, stride);
    }
    sink.finish(begin, end);
    begin = end;
  }
}

}  // namespace twinkle::ops::cpu
