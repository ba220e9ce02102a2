// deps: kernels
// Matrix kernels beside the machine's limit and ATen's fp32 product, on the shapes of SmolLM2-135M.
//   kernels_bench [part of a line's name]     e.g. kernels_bench backward; TWINKLE_ISA and
//   TWINKLE_NUM_THREADS apply
// A figure is the best of several short runs; ours and the peer's are run in turn.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/core/parallel.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/kernels/ops.h"

namespace {

using twinkle::ops::PackedMatrix;

// With one thread its processor time is taken, so that a busy machine does not disturb the figure.
double now() {
  timespec t;
  clock_gettime(twinkle::num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds(const std::function<void()>& fn) {
  const double start = now();
  fn();
  return now() - start;
}

struct Bench {
  twinkle::MachineLimits limit;
  std::string wanted;

  // flops: useful ones. bytes: of weights, for lines that the memory bounds.
  void line(const std::string& name, double flops, double bytes, const std::function<void()>& ours,
            const std::function<void()>& peer = nullptr) const {
    if (name.find(wanted) == std::string::npos) return;
    // In bursts, with a pause, because the peer's threads spin for a while after a call.
    double best = 1e9, other = 1e9;
    const auto burst = [](const std::function<void()>& fn, double& shortest) {
      double spent = 0.0;
      for (int i = 0; i < 500 && (i < 2 || spent < 0.06); ++i) {
        const double t = seconds(fn);
        shortest = std::min(shortest, t);
        spent += t;
      }
    };
    for (int round = 0; round < 3; ++round) {
      burst(ours, best);
      if (!peer) continue;
      burst(peer, other);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::printf("%-44s %9.1f us %7.1f GFLOP/s %5.1f %%", name.c_str(), best * 1e6, flops / best * 1e-9,
                100.0 * flops / best * 1e-9 / limit.fma_gflops);
    if (bytes > 0) std::printf("  %5.1f GB/s", bytes / best * 1e-9);
    if (peer) std::printf("  ATen %7.1f", flops / other * 1e-9);
    std::printf("\n");
  }
};

std::string shape(const char* what, int64_t m, int64_t n, int64_t k) {
  return std::string(what) + " " + std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
}

void matrices(const Bench& bench, int64_t n, int64_t k, at::ScalarType type) {
  const at::Tensor w_NK = at::randn({n, k}) * 0.02;
  const PackedMatrix w = PackedMatrix::pack(w_NK, type);
  const at::Tensor w_KN = w_NK.t().contiguous();
  const char* forward = type == at::kFloat ? "linear fp32" : "linear bf16";
  const double bytes = static_cast<double>(n * k) * (type == at::kFloat ? 4 : 2);
  for (const int64_t m : {1, 4, 8, 32, 100, 512, 1024, 4096}) {
    const at::Tensor x = at::randn({m, k}), dy = at::randn({m, n});
    at::Tensor y = at::empty({m, n}), dx = at::empty({m, k});
    const double flops = 2.0 * static_cast<double>(m * n * k);
    bench.line(
        shape(forward, m, n, k), flops, m <= 8 ? bytes : 0,
        [&] { twinkle::ops::linear(x, w, {}, nullptr, {}, y); }, [&] { at::mm_out(y, x, w_KN); });
    if (m < 100 || type == at::kFloat) continue;
    bench.line(
        shape("backward input bf16", m, n, k), flops, 0,
        [&] { twinkle::ops::linear_backward_input(dy, w, nullptr, {}, dx, false); },
        [&] { at::mm_out(dx, dy, w_NK); });
  }
}

// Best rate at which all threads read memory that no cache holds.
double read_gbs() {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const std::vector<char> memory(static_cast<size_t>(kBytes), 0);
  const int64_t piece = kBytes / (8 * twinkle::num_threads());
  double best = 1e9;
  for (int round = 0; round < 8; ++round) {
    best = std::min(best, seconds([&] {
                      twinkle::parallel_for(kBytes, piece, [&](int64_t begin, int64_t end) {
                        if (std::memchr(memory.data() + begin, 1, static_cast<size_t>(end - begin)))
                          std::abort();
                      });
                    }));
  }
  return static_cast<double>(kBytes) / best * 1e-9;
}

// Decoding: a few rows through the matrices of several layers, more than any cache holds, beside the rate at
// which memory can be read.
void decode(const Bench& bench, int64_t n, int64_t k, at::ScalarType type) {
  const std::string name = type == at::kFloat ? "decode fp32" : "decode bf16";
  if ((name + " ").find(bench.wanted) == std::string::npos) return;
  const double roof = read_gbs();
  const int64_t bytes = n * k * static_cast<int64_t>(c10::elementSize(type));
  std::vector<PackedMatrix> layers;
  while (static_cast<int64_t>(layers.size()) * bytes < int64_t{256} << 20) {
    layers.push_back(PackedMatrix::pack(at::randn({n, k}) * 0.02, type));
  }
  for (const int64_t m : {1, 2, 4, 8, 16, 32}) {
    const at::Tensor x = at::randn({m, k});
    at::Tensor y = at::empty({m, n});
    double best = 1e9;
    for (int round = 0; round < 6; ++round) {
      best = std::min(best, seconds([&] {
                        for (const PackedMatrix& w : layers) twinkle::ops::linear(x, w, {}, nullptr, {}, y);
                      }));
    }
    const double rate = static_cast<double>(bytes) * static_cast<double>(layers.size()) / best * 1e-9;
    std::printf("%-44s %9.1f us %7.1f GB/s %5.1f %% of reading (%.1f)\n",
                shape(name.c_str(), m, n, k).c_str(), best * 1e6 / static_cast<double>(layers.size()), rate,
                100.0 * rate / roof, roof);
  }
}

void weight_grad(const Bench& bench, int64_t n, int64_t k) {
  PackedMatrix grad = PackedMatrix::pack(at::zeros({n, k}), at::kFloat);
  at::Tensor plain = at::zeros({n, k});
  for (const int64_t length : {100, 512, 1024}) {
    const int64_t m = length < 512 ? 800 : 1024;
    const at::Tensor x = at::randn({m, k}), dy = at::randn({m, n}), dy_t = dy.t();
    std::vector<twinkle::ops::RowRange> order;
    for (int64_t begin = 0; begin < m; begin += length) order.push_back({begin, begin + length});
    bench.line(
        shape("weight grad", m, n, k) + " by " + std::to_string(length), 2.0 * static_cast<double>(m * n * k),
        0, [&] { twinkle::ops::linear_weight_grad(dy, x, order, grad); }, [&] { plain.addmm_(dy_t, x); });
  }
}

void adapters(const Bench& bench, int64_t n, int64_t k, int64_t rank) {
  const PackedMatrix w = PackedMatrix::pack(at::randn({n, k}) * 0.02, at::kBFloat16);
  twinkle::ops::LoraSlot slot{at::randn({rank, k}), at::randn({n, rank}), 2.0f, at::zeros({rank, k}),
                              at::zeros({n, rank})};
  const std::vector<twinkle::ops::LoraSlot> slots = {slot};
  const std::string tail = " r " + std::to_string(rank);
  for (const int64_t m : {100, 1024}) {
    std::vector<twinkle::ops::LoraSpan> spans;
    for (int64_t begin = 0; begin < m; begin += 128) spans.push_back({begin, std::min(m, begin + 128), 0});
    const twinkle::ops::LoraBatch lora{spans, slots};
    const at::Tensor x = at::randn({m, k}), dy = at::randn({m, n});
    at::Tensor y = at::empty({m, n}), dx = at::empty({m, k}), low = at::empty({m, rank}),
               dlow = at::empty({m, rank});
    const double base = 2.0 * static_cast<double>(m * n * k);
    const double up = 2.0 * static_cast<double>(m * rank * n), down = 2.0 * static_cast<double>(m * rank * k);
    bench.line(shape("lora linear", m, n, k) + tail, base + up, 0,
               [&] { twinkle::ops::linear(x, w, {}, &lora, low, y); });
    bench.line(shape("lora backward input", m, n, k) + tail, base + down, 0,
               [&] { twinkle::ops::linear_backward_input(dy, w, &lora, dlow, dx, false); });
    bench.line(shape("lora shrink", m, n, k) + tail, down, 0,
               [&] { twinkle::ops::lora_shrink(x, lora, low); });
    bench.line(shape("lora shrink backward", m, n, k) + tail, up, 0,
               [&] { twinkle::ops::lora_shrink_backward(dy, lora, dlow); });
    bench.line(shape("lora weight grad", m, n, k) + tail, up + down, 0,
               [&] { twinkle::ops::lora_weight_grad(x, low, dy, dlow, lora); });
    bench.line(shape("lora all", m, n, k) + tail, 2 * base + 3 * (up + down), 0, [&] {
      twinkle::ops::lora_shrink(x, lora, low);
      twinkle::ops::linear(x, w, {}, &lora, low, y);
      twinkle::ops::lora_shrink_backward(dy, lora, dlow);
      twinkle::ops::linear_backward_input(dy, w, &lora, dlow, dx, false);
      twinkle::ops::lora_weight_grad(x, low, dy, dlow, lora);
    });
  }
}

void head(const Bench& bench, int64_t v, int64_t k) {
  const PackedMatrix w = PackedMatrix::pack(at::randn({v, k}) * 0.02, at::kBFloat16);
  for (const int64_t s : {1, 8, 100, 512, 1024}) {
    const at::Tensor hidden = at::randn({s, k}), dlogprob = at::full({s}, -1.0f);
    const at::Tensor targets = at::arange(s, at::kInt);
    twinkle::ops::HeadOutputs out{at::empty({s}), at::empty({s}), {}, {}, {}, {}};
    at::Tensor dhidden = at::empty({s, k});
    const std::vector<twinkle::ops::RowRange> order = {{0, s}};
    const double flops = 2.0 * static_cast<double>(s * v * k);
    bench.line(shape("head logprobs", s, v, k), flops, s <= 8 ? static_cast<double>(2 * v * k) : 0,
               [&] { twinkle::ops::head_logprobs(hidden, w, nullptr, {}, targets, 1.0, out); });
    if (s < 100) continue;
    bench.line(shape("head forward backward", s, v, k), 2 * flops, 0, [&] {
      twinkle::ops::head_forward_backward(hidden, w, nullptr, {}, targets, 1.0, dlogprob, order, out, dhidden,
                                          nullptr);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  bench.wanted = argc > 1 ? argv[1] : "";
  at::set_num_threads(twinkle::num_threads());
  bench.limit = twinkle::measure_machine();
  std::printf("isa %s, %d threads: FMA peak %.0f GFLOP/s, product %.0f GFLOP/s, copy %.1f GB/s\n",
              std::string(twinkle::isa_name(twinkle::active_isa())).c_str(), twinkle::num_threads(),
              bench.limit.fma_gflops, bench.limit.product_gflops, bench.limit.copy_gbs);
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {2048, 2048}}) {
    matrices(bench, n, k, at::kBFloat16);
    matrices(bench, n, k, at::kFloat);
  }
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    decode(bench, 576, 576, type);
    decode(bench, 1536, 576, type);
    decode(bench, 576, 1536, type);
    decode(bench, 4864, 896, type);
    decode(bench, 49152, 576, type);
  }
  weight_grad(bench, 1536, 576);
  weight_grad(bench, 576, 1536);
  weight_grad(bench, 192, 576);
  for (const int64_t rank : {8, 16, 64}) {
    adapters(bench, 576, 576, rank);
    adapters(bench, 1536, 576, rank);
  }
  head(bench, 49152, 576);
  std::printf("FMA peak again: %.0f GFLOP/s\n", twinkle::measure_fma_gflops());
  return 0;
}
