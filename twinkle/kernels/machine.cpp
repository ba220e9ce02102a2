#include "twinkle/kernels/machine.h"

#include <ATen/ATen.h>

#include <time.h>

#include <algorithm>
#include <cstring>

#include "twinkle/core/parallel.h"
#include "twinkle/kernels/cpu/gemm_kernels.h"
#include "twinkle/kernels/cpu/tile_block.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

// With one thread its processor time is taken, so that a busy machine does not disturb the figure.
double now() {
  timespec t;
  clock_gettime(num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Fn>
double seconds(const Fn& fn) {
  const double start = now();
  fn();
  return now() - start;
}

// Best rate of `work` units over runs that together take about 0.1 s, the first one not counted.
template <typename Fn>
double best_rate(double work, const Fn& fn) {
  fn();
  double best = 0.0, spent = 0.0;
  for (int run = 0; run < 200 && (run < 3 || spent < 0.1); ++run) {
    const double t = seconds(fn);
    best = std::max(best, work / t);
    spent += t;
  }
  return best;
}

// Rate of a function that works in registers only, on all threads.
double burn_rate(double (*burn)(int64_t rounds, float* sink)) {
  const int threads = num_threads();
  constexpr int64_t kRounds = 40000;
  float probe[16] = {0.999f, 1e-3f};
  const double work = burn(1, probe) * static_cast<double>(kRounds) * threads;
  return best_rate(work,
                   [&] {
                     parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) {
                         float sink[16] = {0.999f, 1e-3f};
                         burn(kRounds, sink);
                       }
                     });
                   }) *
         1e-9;
}

}  // namespace

double measure_fma_gflops() {
  if (active_isa() == Isa::kPlain) {
    const at::Tensor a = at::ones({512, 512}), b = at::ones({512, 512});
    at::Tensor c = at::empty({512, 512});
    return best_rate(2.0 * 512 * 512 * 512, [&] { at::mm_out(c, a, b); }) * 1e-9;
  }
  return burn_rate(ops::cpu::kernels().burn);
}

double measure_bf16_gflops() {
#if defined(__x86_64__)
  if (active_isa() == Isa::kAvx512Bf16) return burn_rate(ops::cpu::burn_avx512bf16);
#endif
  return measure_fma_gflops();
}

double measure_product_gflops() {
  const int64_t rows = 1024, outputs = 1536, inputs = 576;
  const at::Tensor x = at::full({rows, inputs}, 0.01f);
  const ops::PackedMatrix w = ops::PackedMatrix::pack(at::full({outputs, inputs}, 0.01f), at::kBFloat16);
  at::Tensor y = at::empty({rows, outputs});
  return best_rate(2.0 * rows * outputs * inputs, [&] { ops::linear(x, w, {}, nullptr, {}, y); }) * 1e-9;
}

double measure_copy_gbs() {
  constexpr int64_t kFloats = int64_t{24} << 20;  // 96 MB each way, past any cache we meet
  const at::Tensor from = at::zeros({kFloats});
  at::Tensor to = at::zeros({kFloats});
  const float* in = from.const_data_ptr<float>();
  float* out = to.mutable_data_ptr<float>();
  const int64_t piece = kFloats / num_threads() + 1;
  return best_rate(2.0 * kFloats * sizeof(float),
                   [&] {
                     parallel_for(kFloats, piece, [&](int64_t begin, int64_t end) {
                       std::memcpy(out + begin, in + begin, static_cast<size_t>(end - begin) * sizeof(float));
                     });
                   }) *
         1e-9;
}

MachineLimits measure_machine() {
  return {.fma_gflops = measure_fma_gflops(),
          .bf16_gflops = measure_bf16_gflops(),
          .product_gflops = measure_product_gflops(),
          .copy_gbs = measure_copy_gbs()};
}

}  // namespace twinkle
