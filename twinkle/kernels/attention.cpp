// Attention: threads split (sequence, key/value group, query tile), in the backward pass (sequence, group,
// blocks of keys). The split never shows in the bits.
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/tensor_data.h"
#include "twinkle/kernels/dispatch.h"

#include <algorithm>
#include <numeric>

namespace twinkle::ops {
namespace {

using cpu::read;
using cpu::row_kernels;
using cpu::thread_scratch;
using cpu::write;

struct ForwardTask {
  const AttentionSequence* sequence;
  int64_t group, groups;
  int64_t begin, end;  // query rows of the sequence
};

// Indices of the sequences, those with the most work first, so that threads end together.
std::vector<size_t> longest_first(std::span<const AttentionSequence> sequences) {
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const AttentionSequence &x = sequences[a], &y = sequences[b];
    return x.q_len * x.kv_len > y.q_len * y.kv_len;
  });
  return order;
}

struct BackwardTask {
  const AttentionSequence* sequence;
  int64_t group, begin, end;  // key blocks
  int64_t* due;
};

}  // namespace

void attention(const at::Tensor& q_THD, const at::Tensor& k_RGD, const at::Tensor& v_RGD,
               std::span<const AttentionSequence> sequences, double scale, int64_t window, at::Tensor& o_THD,
               at::Tensor& lse_TH) {
  if (!on_cpu_kernels(q_THD))
    return aten::attention(q_THD, k_RGD, v_RGD, sequences, scale, window, o_THD, lse_TH);
  const int64_t H = q_THD.size(1), D = q_THD.size(2), G = k_RGD.size(1), R = H / G;
  const float *q = read<float>(q_THD), *k = read<float>(k_RGD), *v = read<float>(v_RGD);
  float *o = write<float>(o_THD), *lse = write<float>(lse_TH);
  const int64_t tile_rows = D <= 64 ? cpu::kAttentionTileRows : cpu::kAttentionTileRows / 2;
  const int64_t step = std::max<int64_t>(1, tile_rows / R);

  // Tiles of one (sequence, group) follow each other, since they share its keys and values in the caches. A
  // few rows (decoding) take all groups together where there are sequences for every thread: a cache is read
  // once.
  std::vector<ForwardTask> tasks;
  const bool many = static_cast<int64_t>(sequences.size()) >= num_threads();
  for (const size_t index : longest_first(sequences)) {
    const AttentionSequence& s = sequences[index];
    const int64_t tiles = (s.q_len + step - 1) / step, groups = many && s.q_len * H <= tile_rows ? G : 1;
    for (int64_t g = 0; g < G; g += groups) {
      for (int64_t i = tiles - 1; i >= 0; --i) {
        tasks.push_back({&s, g, groups, i * step, std::min(s.q_len, (i + 1) * step)});
      }
    }
  }
  parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t i = task_begin; i < task_end; ++i) {
      const ForwardTask& task = tasks[static_cast<size_t>(i)];
      const AttentionSequence& s = *task.sequence;
      const int64_t row = s.q_begin + task.begin;
      const cpu::AttentionTile tile = {.q = q + (row * H + task.group * R) * D,
                                       .q_stride = H * D,
                                       .positions = task.end - task.begin,
                                       .groups = task.groups,
                                       .heads = R,
                                       .head_dim = D,
                                       .first = s.kv_len - s.q_len + task.begin,
                                       .k = k + task.group * D,
                                       .v = v + task.group * D,
                                       .kv_stride = G * D,
                                       .kv_begin = s.kv_begin,
                                       .blocks = s.blocks.empty() ? nullptr : s.blocks.data(),
                                       .block_rows = s.block_rows.empty() ? nullptr : s.block_rows.data(),
                                       .scale = static_cast<float>(scale),
                                       .window = window,
                                       .o = o + (row * H + task.group * R) * D,
                                       .lse = lse + row * H + task.group * R,
                                       .lse_stride = H};
      row_kernels().attention(
          tile, thread_scratch(row_kernels().attention_scratch(tile.groups, tile.positions * R, D)));
    }
  });
}

void attention_backward(const at::Tensor& do_THD, const at::Tensor& q_THD, const at::Tensor& k_RGD,
                        const at::Tensor& v_RGD, const at::Tensor& o_THD, const at::Tensor& lse_TH,
                        std::span<const AttentionSequence> sequences, double scale, int64_t window,
                        at::Tensor& dq_THD, at::Tensor& dk_RGD, at::Tensor& dv_RGD) {
  if (!on_cpu_kernels(q_THD)) {
    return aten::attention_backward(do_THD, q_THD, k_RGD, v_RGD, o_THD, lse_TH, sequences, scale, window,
                                    dq_THD, dk_RGD, dv_RGD);
  }
  const int64_t T = q_THD.size(0), H = q_THD.size(1), D = q_THD.size(2), G = k_RGD.size(1), R = H / G;
  const float *dout = read<float>(do_THD), *q = read<float>(q_THD), *k = read<float>(k_RGD);
  const float *v = read<float>(v_RGD), *o = read<float>(o_THD), *lse = read<float>(lse_TH);
  float *dq = write<float>(dq_THD), *dk = write<float>(dk_RGD), *dv = write<float>(dv_RGD);

  std::vector<float> delta(static_cast<size_t>(T * H));
  parallel_for(T, 16, [&](int64_t begin, int64_t end) {
    row_kernels().attention_delta(dout + begin * H * D, o + begin * H * D, (end - begin) * H, D,
                                  delta.data() + begin * H);
  });

  // Blocks of all groups in turn, so that a thread rarely waits for the block before its own. Every task is
  // started after those that it waits for: parallel_for hands them out in order.
  const int64_t step = cpu::attention_grad_positions(R);
  int64_t num_tiles = 0;
  for (const AttentionSequence& s : sequences) {
    TW_CHECK(s.blocks.empty() && s.block_rows.empty(), "attention_backward: keys lie in order");
    num_tiles += G * ((s.q_len + step - 1) / step);
  }
  std::vector<int64_t> due(static_cast<size_t>(num_tiles), 0);
  char failed = 0;
  std::vector<BackwardTask> tasks;
  int64_t* next_due = due.data();
  for (const size_t index : longest_first(sequences)) {
    const AttentionSequence& s = sequences[index];
    const int64_t blocks = (s.kv_len + kAttentionBlock - 1) / kAttentionBlock;
    const int64_t tiles = (s.q_len + step - 1) / step;
    for (int64_t j = 0; j < blocks; j += cpu::kAttentionGradBlocks) {
      const int64_t end = std::min(blocks, j + cpu::kAttentionGradBlocks);
      for (int64_t g = 0; g < G; ++g) tasks.push_back({&s, g, j, end, next_due + g * tiles});
    }
    next_due += G * tiles;
  }
  parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t task_begin, int64_t task_end) {
    float* scratch = nullptr;
    try {
      scratch = thread_scratch(row_kernels().attention_grad_scratch(R, D));
    } catch (...) {
      __atomic_store_n(&failed, char{1}, __ATOMIC_RELAXED);
      throw;
    }
    for (int64_t i = task_begin; i < task_end; ++i) {
      const BackwardTask& task = tasks[static_cast<size_t>(i)];
      const int64_t q_at = (task.sequence->q_begin * H + task.group * R) * D;
      const int64_t kv_at = (task.sequence->kv_begin * G + task.group) * D;
      const int64_t row_at = task.sequence->q_begin * H + task.group * R;
      const cpu::AttentionGrad grad = {.dout = dout + q_at,
                                       .q = q + q_at,
                                       .k = k + kv_at,
                                       .v = v + kv_at,
                                       .lse = lse + row_at,
                                       .delta = delta.data() + row_at,
                                       .dq = dq + q_at,
                                       .dk = dk + kv_at,
                                       .dv = dv + kv_at,
                                       .q_stride = H * D,
                                       .kv_stride = G * D,
                                       .lse_stride = H,
                                       .first = task.sequence->kv_len - task.sequence->q_len,
                                       .length = task.sequence->kv_len,
                                       .heads = R,
                                       .head_dim = D,
                                       .scale = static_cast<float>(scale),
                                       .window = window,
                                       .turns = {task.due, &failed}};
      row_kernels().attention_grad(grad, task.begin, task.end, scratch);
    }
  });
}

}  // namespace twinkle::ops
