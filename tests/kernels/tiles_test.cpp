// labels: quick bits
// The products on matrix tiles, computed in scalar code by the definition of the instruction, so that this
// runs on any processor; where AMX is there, its tiles must give the same bits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/cpu/tile_product.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops {
namespace {

class TilesTest : public KernelTest {
 protected:
  TilesTest() : KernelTest(5) {
    if (active_isa() == Isa::kPlain) force_isa(available_isas().back());
    cpu::emulate_tiles(true);
  }
  ~TilesTest() override { cpu::emulate_tiles(false); }
};

at::Tensor rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

at::Tensor run_linear(const at::Tensor& x, const PackedMatrix& w, const LoraBatch* lora = nullptr,
                      const at::Tensor& low = {}) {
  at::Tensor y = at::full({x.size(0), w.rows()}, 7.0f);
  linear(x, w, {}, lora, low, y);
  return y;
}

at::Tensor run_backward(const at::Tensor& dy, const PackedMatrix& w) {
  at::Tensor dx = at::full({dy.size(0), w.cols()}, 7.0f);
  linear_backward_input(dy, w, nullptr, {}, dx, false);
  return dx;
}

// C += step by step: even and odd elements of 32 apart, from zero, each by fused multiply-adds.
at::Tensor by_definition(const at::Tensor& a, const at::Tensor& b_NK) {
  const int64_t m = a.size(0), n = b_NK.size(0), k = a.size(1);
  at::Tensor c = at::zeros({m, n});
  const at::Tensor x = rounded(a).contiguous(), w = rounded(b_NK).contiguous();
  const float* xp = x.const_data_ptr<float>();
  const float* wp = w.const_data_ptr<float>();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t s = 0; s < k; s += 32) {
        float half[2] = {0.0f, 0.0f};
        for (int64_t e = s; e < std::min(k, s + 32); ++e)
          half[e % 2] = std::fma(xp[i * k + e], wp[j * k + e], half[e % 2]);
        sum += half[0] + half[1];
      }
      c.mutable_data_ptr<float>()[i * n + j] = sum;
    }
  }
  return c;
}

struct Shape {
  int64_t t, n, k;
};
const std::vector<Shape> kShapes = {{0, 16, 16},   {1, 1, 1},     {2, 16, 33},   {5, 17, 61},  {16, 32, 64},
                                    {17, 37, 300}, {33, 49, 520}, {61, 131, 97}, {130, 40, 70}};

TEST_F(TilesTest, ProductsFollowTheDefinitionOverOddShapesAndTypes) {
  for (const Shape& s : kShapes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const PackedMatrix w = PackedMatrix::pack(at::randn({s.n, s.k}), type);
      const at::Tensor x = at::randn({s.t, s.k}), dy = at::randn({s.t, s.n});
      EXPECT_TRUE(same_bits(run_linear(x, w), by_definition(x, w.unpack())))
          << s.t << "x" << s.n << "x" << s.k;
      const at::Tensor expected = by_definition(dy, w.unpack().t().contiguous());
      EXPECT_TRUE(same_bits(run_backward(dy, w), expected)) << s.t << "x" << s.n << "x" << s.k;
      // fp64 on the rounded inputs.
      const at::Tensor exact = rounded(x).to(at::kDouble).matmul(rounded(w.unpack()).to(at::kDouble).t());
      const at::Tensor size = x.abs().matmul(w.unpack().abs().t()).to(at::kDouble) + 1e-20;
      if (s.t == 0) continue;
      EXPECT_LT(((run_linear(x, w) - exact).abs() / size).max().item<double>(), 2e-6);
    }
  }
}

TEST_F(TilesTest, ARowHasTheSameBitsInEveryBatchAndWithAnyThreads) {
  const PackedMatrix w = PackedMatrix::pack(at::randn({150, 613}), at::kBFloat16);
  const at::Tensor row = at::randn({1, 613}), drow = at::randn({1, 150});
  const at::Tensor alone = run_linear(row, w), dalone = run_backward(drow, w);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    for (const int64_t count : {2, 16, 17, 61, 130}) {
      for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
        at::Tensor x = at::randn({count, 613}), dy = at::randn({count, 150});
        x[place].copy_(row[0]);
        dy[place].copy_(drow[0]);
        EXPECT_TRUE(same_bits(run_linear(x, w)[place], alone[0]));
        EXPECT_TRUE(same_bits(run_backward(dy, w)[place], dalone[0]));
      }
    }
  }
}

TEST_F(TilesTest, AccumulatesAndAddsAdapters) {
  const at::Tensor dy = at::randn({21, 40}), x = at::randn({21, 70}), start = at::randn({21, 70});
  const PackedMatrix w = PackedMatrix::pack(at::randn({40, 70}), at::kBFloat16);
  const LoraSlot slot{at::randn({3, 70}), at::randn({40, 3}), 2.0f, {}, {}};
  const std::vector<LoraSlot> slots = {slot};
  const std::vector<LoraSpan> spans = {{4, 19, 0}};
  const LoraBatch lora{spans, slots};
  at::Tensor low = at::empty({21, 3}), dlow = at::empty({21, 3});
  lora_shrink(x, lora, low);
  lora_shrink_backward(dy, lora, dlow);
  at::Tensor y = run_linear(x, w), dx = start.clone();
  linear_backward_input(dy, w, &lora, dlow, dx, true);
  const at::Tensor with = run_linear(x, w, &lora, low);
  EXPECT_TRUE(same_bits(with.narrow(0, 0, 4), y.narrow(0, 0, 4)));
  y.narrow(0, 4, 15).add_(low.narrow(0, 4, 15).matmul(slot.b_Nr.t()));
  EXPECT_LT((with - y).abs().max().item<double>(), 1e-3);
  at::Tensor want = start + run_backward(dy, w);
  want.narrow(0, 4, 15).add_(dlow.narrow(0, 4, 15).matmul(slot.a_rK));
  EXPECT_LT((dx - want).abs().max().item<double>(), 1e-2);
}

TEST_F(TilesTest, HeadInOneWalkHasTheBitsOfTwo) {
  const PackedMatrix w = PackedMatrix::pack(at::randn({1100, 33}) * 0.3, at::kBFloat16);
  const at::Tensor hidden = at::randn({19, 33}), targets = at::randint(1100, {19}, at::kInt),
                   dlogprob = at::randn({19});
  const std::vector<RowRange> order = {{0, 7}, {7, 19}};
  const auto outputs = [] { return HeadOutputs{at::empty({19}), at::empty({19}), {}, {}, {}, {}}; };
  HeadOutputs one = outputs(), two = outputs();
  at::Tensor done = at::empty({19, 33}), dtwo = at::empty({19, 33});
  head_forward_backward(hidden, w, nullptr, {}, targets, 1.0, dlogprob, order, one, done, nullptr);
  head_logprobs(hidden, w, nullptr, {}, targets, 1.0, two);
  head_backward(hidden, w, nullptr, {}, targets, 1.0, two, dlogprob, {}, order, dtwo, nullptr);
  EXPECT_TRUE(same_bits(one.logprob_S, two.logprob_S));
  EXPECT_TRUE(same_bits(done, dtwo));
  const at::Tensor logp = rounded(hidden).to(at::kDouble).matmul(w.unpack(at::kDouble).t()).log_softmax(1);
  EXPECT_LT((one.logprob_S - logp.gather(1, targets.to(at::kLong).unsqueeze(1)).squeeze(1))
                .abs()
                .max()
                .item<double>(),
            1e-5);
}

TEST_F(TilesTest, TheProcessorsTilesAgreeWhereItHasThem) {
  const std::vector<Isa> have = available_isas();
  EXPECT_TRUE(cpu::tiles_in_use(cpu::WeightType::kFloat));
  const PackedMatrix w = PackedMatrix::pack(at::randn({150, 613}), at::kBFloat16);
  const at::Tensor x = at::randn({77, 613});
  const at::Tensor emulated = run_linear(x, w);
  cpu::emulate_tiles(false);
  force_isa(have.back());
  EXPECT_EQ(cpu::tiles_in_use(cpu::WeightType::kFloat), have.back() == Isa::kAmx);
  EXPECT_EQ(cpu::tiles_in_use(cpu::WeightType::kBf16),
            have.back() == Isa::kAmx || have.back() == Isa::kAvx512Bf16);
  if (std::find(have.begin(), have.end(), Isa::kAmx) != have.end()) {
    force_isa(Isa::kAmx);
    EXPECT_TRUE(same_bits(run_linear(x, w), emulated));
  }
}

// VDPBF16PS: of each pair the odd elements first, then the even ones, each by a fused multiply-add.
at::Tensor by_pairs(const at::Tensor& a, const at::Tensor& b_NK) {
  const at::Tensor x = rounded(a).contiguous(), w = rounded(b_NK).contiguous();
  const int64_t m = a.size(0), n = b_NK.size(0), k = a.size(1);
  at::Tensor c = at::zeros({m, n});
  for (int64_t i = 0; i < m; ++i) {
    const float* row = x.const_data_ptr<float>() + i * k;
    for (int64_t j = 0; j < n; ++j) {
      const float* column = w.const_data_ptr<float>() + j * k;
      float sum = 0.0f;
      for (int64_t e = 0; e < k; e += 2) {
        if (e + 1 < k) sum = std::fma(row[e + 1], column[e + 1], sum);
        sum = std::fma(row[e], column[e], sum);
      }
      c.mutable_data_ptr<float>()[i * n + j] = sum;
    }
  }
  return c;
}

TEST_F(TilesTest, ProductsOfPairsFollowTheirDefinitionWhereTheProcessorHasThem) {
  const std::vector<Isa> have = available_isas();
  if (std::find(have.begin(), have.end(), Isa::kAvx512Bf16) == have.end()) return;
  cpu::emulate_tiles(false);
  force_isa(Isa::kAvx512Bf16);
  // One row to many, whole steps and rests, panels as they stand and packed ones, wide and narrow.
  std::vector<Shape> shapes = kShapes;
  for (const int64_t t : {1, 2, 3, 8, 9, 40}) {
    for (const int64_t n : {16, 100, 150}) shapes.push_back({t, n, 1088});
  }
  for (const Shape& s : shapes) {
    const at::Tensor values = at::randn({s.n, s.k}), x = at::randn({s.t, s.k}), dy = at::randn({s.t, s.n});
    const PackedMatrix w = PackedMatrix::pack(values, at::kBFloat16);
    EXPECT_TRUE(same_bits(run_linear(x, w), by_pairs(x, w.unpack()))) << s.t << "x" << s.n << "x" << s.k;
    EXPECT_TRUE(same_bits(run_backward(dy, w), by_pairs(dy, w.unpack().t().contiguous())))
        << s.t << "x" << s.n << "x" << s.k;
    // Weights of other types keep products in fp32.
    for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
      const PackedMatrix other = PackedMatrix::pack(values, type);
      force_isa(Isa::kAvx512);
      const at::Tensor want = run_linear(x, other), dwant = run_backward(dy, other);
      force_isa(Isa::kAvx512Bf16);
      EXPECT_TRUE(same_bits(run_linear(x, other), want) && same_bits(run_backward(dy, other), dwant));
    }
  }
}

}  // namespace
}  // namespace twinkle::ops
