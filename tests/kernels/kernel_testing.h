// What the kernel tests share: seeded tensors, bitwise comparison, and a run of the same call under every
// vector instruction set of this processor with 1, 2 and more threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"
#include "twinkle/kernels/isa.h"

namespace twinkle {

// OpenMP's threads spin between ATen's operations and would starve the pool under test.
inline const bool one_aten_thread = (at::set_num_threads(1), true);

/// N(0, std), the same for the same key on every run.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t key, float std = 1.0f) {
  at::Tensor x = at::empty(shape, at::kFloat);
  fill_normal(x.mutable_data_ptr<float>(), x.numel(), key, std);
  return x;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Largest |got - want| over the largest |want| (in fp64); infinity when got is not finite.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0.0;
  const at::Tensor g = got.to(at::kDouble), w = want.to(at::kDouble);
  if (!at::isfinite(g).all().item<bool>()) return std::numeric_limits<double>::infinity();
  return (g - w).abs().max().item<double>() / std::max(1e-30, w.abs().max().item<double>());
}

inline std::vector<Isa> vector_isas() {
  std::vector<Isa> out;
  for (const Isa isa : available_isas()) {
    if (isa == Isa::kAvx2 || isa == Isa::kAvx512) out.push_back(isa);
  }
  return out;
}

/// All that are not plain ATen; some round inputs to bf16 (rounds_inputs()).
inline std::vector<Isa> fast_isas() {
  std::vector<Isa> out;
  for (const Isa isa : available_isas()) {
    if (isa != Isa::kPlain) out.push_back(isa);
  }
  return out;
}

/// A way in which products of the base are computed: an instruction set, and how the weights are held.
struct ProductKind {
  Isa isa;
  std::string dtype;
};

/// All vector ones of this processor. Where an instruction set rounds what meets weights in bf16, those.
inline std::vector<ProductKind> product_kinds() {
  std::vector<ProductKind> out;
  for (const Isa isa : fast_isas()) {
    if (!rounds_inputs(isa, false) && !rounds_inputs(isa, true)) out.push_back({isa, "fp32"});
    if (rounds_inputs(isa, true)) out.push_back({isa, "bf16"});
  }
  return out;
}

/// Puts the instruction set and the number of threads back at the end of a test.
struct RestoreMachine {
  Isa isa = active_isa();
  int threads = num_threads();
  ~RestoreMachine() {
    force_isa(isa);
    set_num_threads(threads);
  }
};

/// A test that may force instruction sets and threads, over ATen's random numbers from `seed`.
class KernelTest : public ::testing::Test {
 protected:
  explicit KernelTest(uint64_t seed) { at::manual_seed(seed); }

 private:
  RestoreMachine restore_;
};

/// The results of `call`, after checking that they have the same bits for every vector instruction set, for
/// 1, 2 and 5 threads, and in a second run.
inline std::vector<at::Tensor> same_everywhere(const std::function<std::vector<at::Tensor>()>& call,
                                               const std::string& what) {
  RestoreMachine restore;
  std::vector<at::Tensor> first;
  for (const Isa isa : vector_isas()) {
    force_isa(isa);
    for (const int threads : {1, 2, 5, 1}) {
      set_num_threads(threads);
      const std::vector<at::Tensor> now = call();
      if (first.empty()) first = now;
      for (size_t i = 0; i < now.size(); ++i) {
        EXPECT_TRUE(same_bits(first[i], now[i])) << what << ": output " << i << " differs under "
                                                 << isa_name(isa) << " with " << threads << " threads";
      }
    }
  }
  return first;
}

}  // namespace twinkle
