// What this machine allows, measured: printed beside every figure of speed. Takes about half a second; uses
// the threads of core/parallel.h.
#pragma once

namespace twinkle {

struct MachineLimits {
  double fma_gflops = 0.0;   // fused multiply-adds in registers, all threads, of the active instruction set
                             // (for AMX those of AVX-512, for plain the best product of ATen)
  double bf16_gflops = 0.0;  // the same for products with weights in bf16 (fma_gflops but for avx512bf16)
  double product_gflops = 0.0;  // our own linear, 1024 x 1536 x 576 in bf16 storage
  double copy_gbs = 0.0;        // bytes read plus bytes written by a large copy, all threads
};

MachineLimits measure_machine();
/// The parts, each the best of a few short runs.
double measure_fma_gflops();
double measure_bf16_gflops();
/// The limit of products with weights held in bf16 or in any other type, GFLOP/s.
inline double measure_limit_gflops(bool bf16_weights) {
  return bf16_weights ? measure_bf16_gflops() : measure_fma_gflops();
}
double measure_product_gflops();
double measure_copy_gbs();

}  // namespace twinkle
