// deps: kernels
// Attention beside the machine's FMA peak, and the row, embedding and optimizer kernels beside a memory copy.
//   rows_bench [part of a line's name]     e.g. rows_bench 'attention forward'; TWINKLE_ISA and
//   TWINKLE_NUM_THREADS apply
// Useful work only: attention counts the pairs of a query and a key it sees (4 D flops forward, 10 D
// backward); a row kernel counts each byte it must read or write once. A figure is the best of several short
// runs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <time.h>

#include <cstdio>
#include <functional>
#include <string>

#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/kernels/ops.h"

namespace {

namespace ops = twinkle::ops;

std::string wanted;
twinkle::MachineLimits limit;

// With one thread, its own CPU time: other programs on the machine then matter less.
double now() {
  timespec t{};
  clock_gettime(twinkle::num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double best_seconds(const std::function<void()>& fn) {
  double best = 1e9, spent = 0.0;
  for (int i = 0; i < 1000 && (i < 5 || spent < 0.25); ++i) {
    const double start = now();
    fn();
    const double t = now() - start;
    best = std::min(best, t);
    spent += t;
  }
  return best;
}

bool skip(const std::string& name) { return name.find(wanted) == std::string::npos; }

void compute_line(const std::string& name, double flops, const std::function<void()>& fn) {
  if (skip(name)) return;
  const double t = best_seconds(fn), rate = flops / t * 1e-9;
  std::printf("%-40s %10.1f us %8.1f GFLOP/s %5.1f %% of FMA\n", name.c_str(), t * 1e6, rate,
              100.0 * rate / limit.fma_gflops);
}

void memory_line(const std::string& name, double floats, const std::function<void()>& fn) {
  if (skip(name)) return;
  const double t = best_seconds(fn), rate = 4.0 * floats / t * 1e-9;
  std::printf("%-40s %10.1f us %8.1f GB/s    %5.1f %% of copy\n", name.c_str(), t * 1e6, rate,
              100.0 * rate / limit.copy_gbs);
}

void attention(int64_t H, int64_t G, int64_t D, int64_t length, int64_t batch, int64_t window) {
  const int64_t T = length * batch;
  const at::Tensor q = at::randn({T, H, D}), k = at::randn({T, G, D}), v = at::randn({T, G, D}),
                   dout = at::randn({T, H, D});
  at::Tensor o = at::empty_like(q), lse = at::empty({T, H}), dq = at::empty_like(q), dk = at::empty_like(k),
             dv = at::empty_like(v);
  std::vector<ops::AttentionSequence> sequences;
  for (int64_t b = 0; b < batch; ++b) sequences.push_back({b * length, length, b * length, length, {}});
  const double scale = 1.0 / std::sqrt(static_cast<double>(D));
  const int64_t full = window > 0 ? std::min(window, length) : length;
  const double pairs =
      static_cast<double>(batch * H) * static_cast<double>(full * (full + 1) / 2 + (length - full) * full);
  const std::string tail = std::to_string(H) + "/" + std::to_string(G) + "x" + std::to_string(D) + " " +
                           std::to_string(batch) + "x" + std::to_string(length) +
                           (window > 0 ? " w" + std::to_string(window) : "");
  compute_line("attention forward  " + tail, 4.0 * static_cast<double>(D) * pairs,
               [&] { ops::attention(q, k, v, sequences, scale, window, o, lse); });
  compute_line("attention backward " + tail, 10.0 * static_cast<double>(D) * pairs,
               [&] { ops::attention_backward(dout, q, k, v, o, lse, sequences, scale, window, dq, dk, dv); });
}

// One query row of each of `batch` sequences over a cache of `length` keys in pages.
void decode(int64_t H, int64_t G, int64_t D, int64_t length, int64_t batch) {
  const int64_t blocks = (length + ops::kAttentionBlock - 1) / ops::kAttentionBlock;
  const at::Tensor q = at::randn({batch, H, D}), k = at::randn({batch * blocks * 64, G, D}),
                   v = at::randn_like(k);
  at::Tensor o = at::empty_like(q), lse = at::empty({batch, H});
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(batch));
  std::vector<ops::AttentionSequence> sequences;
  for (int64_t b = 0; b < batch; ++b) {
    auto& table = tables[static_cast<size_t>(b)];
    for (int64_t j = 0; j < blocks; ++j) table.push_back(static_cast<int32_t>(j * batch + b));
    sequences.push_back({b, 1, 0, length, table});
  }
  memory_line("decode " + std::to_string(H) + "/" + std::to_string(G) + "x" + std::to_string(D) + " " +
                  std::to_string(batch) + "x" + std::to_string(length),
              2.0 * static_cast<double>(batch * length * G * D), [&] {
                ops::attention(q, k, v, sequences, 1.0 / std::sqrt(static_cast<double>(D)), 0, o, lse);
              });
}

void row_kernels(int64_t T, int64_t K, int64_t F) {
  const std::string tk = " " + std::to_string(T) + "x" + std::to_string(K),
                    tf = " " + std::to_string(T) + "x" + std::to_string(F);
  const double n = static_cast<double>(T * K), nf = static_cast<double>(T * F);
  const at::Tensor x = at::randn({T, K}), dy = at::randn({T, K}), w = at::randn({K});
  at::Tensor y = at::empty({T, K}), rstd = at::empty({T}), dx = at::zeros({T, K}), dw = at::zeros({K});
  std::vector<ops::RowRange> order;
  for (int64_t t = 0; t < T; t += 512) order.push_back({t, std::min(T, t + 512)});
  memory_line("rms_norm" + tk, 2 * n, [&] { ops::rms_norm(x, w, 1e-5, y, rstd); });
  memory_line("rms_norm_backward +=" + tk, 4 * n, [&] { ops::rms_norm_backward(dy, x, w, rstd, dx, true); });
  memory_line("rms_norm_weight_grad" + tk, 2 * n, [&] { ops::rms_norm_weight_grad(dy, x, rstd, order, dw); });
  memory_line("add" + tk, 3 * n, [&] { ops::add(x, dy, y); });
  const int64_t D = 64, H = K / D;
  at::Tensor heads = y.view({T, H, D});
  const at::Tensor cos = at::rand({512, D / 2}), sin = at::rand({512, D / 2});
  const at::Tensor positions = at::arange(T, at::kInt).remainder(512).to(at::kInt);
  memory_line("rope" + tk, 2 * n, [&] { ops::rope(heads, positions, cos, sin, false); });
  std::vector<uint64_t> keys(static_cast<size_t>(T), 7);
  const std::span<const int32_t> where(positions.const_data_ptr<int32_t>(), static_cast<size_t>(T));
  memory_line("dropout" + tk, 2 * n, [&] { ops::dropout(x, 0.05, 1, 2, keys, where, y); });
  at::Tensor gate = at::randn({T, F}), up = at::randn({T, F}), h = at::empty({T, F});
  const at::Tensor dh = at::randn({T, F});
  memory_line("swiglu" + tf, 3 * nf, [&] { ops::swiglu(gate, up, h); });
  memory_line("swiglu_backward" + tf, 5 * nf, [&] { ops::swiglu_backward(dh, gate, up); });
  const int64_t V = 49152;
  const ops::PackedMatrix table = ops::PackedMatrix::pack(at::randn({V, K}), at::kBFloat16);
  ops::PackedMatrix grad = ops::PackedMatrix::zeros_like(table);
  const at::Tensor tokens = (at::arange(T, at::kLong) * 7919).remainder(V).to(at::kInt);
  memory_line("embedding (bf16 panels)" + tk, n, [&] { ops::embedding(table, tokens, y); });
  memory_line("embedding_grad" + tk, 3 * n, [&] { ops::embedding_grad(dy, tokens, order, grad); });
}

void optimizer(int64_t n) {
  at::Tensor p = at::randn({n}), m = at::zeros({n}), v = at::zeros({n});
  const at::Tensor g = at::randn({n});
  memory_line("adam " + std::to_string(n), 7.0 * static_cast<double>(n),
              [&] { ops::adam_step(p, g, m, v, {}); });
  memory_line("sum_of_squares " + std::to_string(n), static_cast<double>(n), [&] { ops::sum_of_squares(g); });
}

}  // namespace

int main(int argc, char** argv) {
  wanted = argc > 1 ? argv[1] : "";
  at::set_num_threads(1);
  limit = twinkle::measure_machine();
  std::printf("isa %s, %d threads: FMA peak %.0f GFLOP/s, copy %.1f GB/s\n",
              std::string(twinkle::isa_name(twinkle::active_isa())).c_str(), twinkle::num_threads(),
              limit.fma_gflops, limit.copy_gbs);
  const bool all = wanted.empty(), pairs = wanted.starts_with("attention"),
             caches = wanted.starts_with("decode");
  if (all || pairs) {
    for (const int64_t length : {64, 128, 256, 512, 1024, 2048, 4096}) {
      attention(9, 3, 64, length, std::max<int64_t>(1, 4096 / length), 0);
    }
    attention(9, 3, 64, 64, 1, 0);
    attention(9, 3, 64, 256, 1, 0);
    attention(9, 3, 64, 512, 1, 0);
    attention(9, 3, 64, 1024, 1, 0);
    attention(9, 3, 64, 4096, 1, 512);
    attention(32, 8, 128, 1024, 1, 0);
    attention(16, 16, 72, 512, 2, 0);
  }
  if (all || caches) {
    decode(9, 3, 64, 512, 1);
    decode(9, 3, 64, 512, 32);
    decode(9, 3, 64, 4096, 8);
  }
  if (all || !(pairs || caches)) {
    row_kernels(4096, 576, 1536);
    row_kernels(256, 576, 1536);
    optimizer(20000000);
  }
  std::printf("FMA peak again: %.0f GFLOP/s\n", twinkle::measure_fma_gflops());
  return 0;
}
