// labels: quick bits
// The row-wise kernels: values against fp64 formulas and torch autograd, bits against neighbours, threads and
// instruction sets.
#include <torch/csrc/autograd/variable.h>

#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

using Tensors = std::vector<at::Tensor>;

const std::vector<int64_t> kRows = {0, 1, 2, 7, 53}, kWidths = {1, 3, 16, 17, 63, 64, 65, 127, 576};

at::Tensor leaf(const at::Tensor& x) { return x.to(at::kDouble).detach().clone().requires_grad_(true); }

at::Tensor norm_formula(const at::Tensor& x, const at::Tensor& w, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * w;
}

TEST(RmsNorm, MatchesTheFormulaAndAutograd) {
  for (const int64_t T : kRows) {
    for (const int64_t K : kWidths) {
      const std::string what = "T=" + std::to_string(T) + " K=" + std::to_string(K);
      const at::Tensor x = normal({T, K}, 1), w = normal({K}, 2), dy = normal({T, K}, 3),
                       old = normal({T, K}, 4);
      const std::vector<ops::RowRange> order = {{T / 2, T}, {0, T / 2}};
      const Tensors got = same_everywhere(
          [&] {
            at::Tensor y = at::empty({T, K}), rstd = at::empty({T}), dx = at::empty({T, K}),
                       sum = old.clone();
            at::Tensor dw = at::zeros({K});
            ops::rms_norm(x, w, 1e-5, y, rstd);
            ops::rms_norm_backward(dy, x, w, rstd, dx, false);
            ops::rms_norm_backward(dy, x, w, rstd, sum, true);
            ops::rms_norm_weight_grad(dy, x, rstd, order, dw);
            return Tensors{y, rstd, dx, sum, dw};
          },
          what);
      const at::Tensor xd = leaf(x), wd = leaf(w);
      const at::Tensor y = norm_formula(xd, wd, 1e-5);
      (y * dy.to(at::kDouble)).sum().backward();
      EXPECT_LT(relative_error(got[0], y.detach()), 1e-6) << what;
      EXPECT_LT(relative_error(got[1], at::rsqrt(x.to(at::kDouble).square().mean(1) + 1e-5)), 1e-6) << what;
      // K = 1: the gradient is a difference of nearly equal terms, so it is compared with their size.
      const double dx_error = (got[2].to(at::kDouble) - xd.grad()).abs().sum().item<double>();
      if (K == 1) {
        EXPECT_LT(dx_error, 1e-4 * std::max<int64_t>(T, 1)) << what;
      } else {
        EXPECT_LT(relative_error(got[2], xd.grad()), 2e-6) << what;
      }
      EXPECT_TRUE(same_bits(got[3], old + got[2])) << what;
      EXPECT_LT(relative_error(got[4], wd.grad()), 3e-6) << what;
    }
  }
}

TEST(RmsNorm, ARowAloneHasTheSameBits) {
  const int64_t T = 23, K = 131;
  const at::Tensor x = normal({T, K}, 5), w = normal({K}, 6), dy = normal({T, K}, 7);
  at::Tensor y = at::empty({T, K}), rstd = at::empty({T}), dx = at::empty({T, K});
  ops::rms_norm(x, w, 1e-6, y, rstd);
  ops::rms_norm_backward(dy, x, w, rstd, dx, false);
  for (int64_t t = 0; t < T; ++t) {
    at::Tensor y1 = at::empty({1, K}), r1 = at::empty({1}), dx1 = at::empty({1, K});
    const at::Tensor x1 = x.slice(0, t, t + 1).clone(), dy1 = dy.slice(0, t, t + 1).clone();
    ops::rms_norm(x1, w, 1e-6, y1, r1);
    ops::rms_norm_backward(dy1, x1, w, r1, dx1, false);
    EXPECT_TRUE(same_bits(y1, y.slice(0, t, t + 1)));
    EXPECT_TRUE(same_bits(r1, rstd.slice(0, t, t + 1)));
    EXPECT_TRUE(same_bits(dx1, dx.slice(0, t, t + 1)));
  }
}

TEST(RmsNorm, WeightGradientOfMicroBatchesIsThatOfTheBatch) {
  const int64_t T = 61, K = 97;
  const at::Tensor x = normal({T, K}, 8), dy = normal({T, K}, 9), rstd = normal({T}, 10).abs();
  const std::vector<ops::RowRange> order = {{0, 13}, {13, 14}, {14, 14}, {14, 40}, {40, T}};
  at::Tensor whole = normal({K}, 11), parts = whole.clone();
  ops::rms_norm_weight_grad(dy, x, rstd, order, whole);
  for (const ops::RowRange& r : order) {  // each sequence moved to row 0 of a batch of its own
    const auto cut = [&](const at::Tensor& t) { return t.slice(0, r.begin, r.end).clone(); };
    const std::vector<ops::RowRange> one = {{0, r.end - r.begin}};
    ops::rms_norm_weight_grad(cut(dy), cut(x), cut(rstd), one, parts);
  }
  EXPECT_TRUE(same_bits(whole, parts));
}

TEST(Add, IsExactAndMayAlias) {
  for (const int64_t n : {0, 1, 15, 16, 17, 1000003}) {
    const at::Tensor a = normal({n}, 12), b = normal({n}, 13);
    const Tensors got = same_everywhere(
        [&] {
          at::Tensor y = at::empty({n}), alias = a.clone();
          ops::add(a, b, y);
          ops::add(alias, b, alias);
          return Tensors{y, alias};
        },
        "add");
    EXPECT_TRUE(same_bits(got[0], a + b));
    EXPECT_TRUE(same_bits(got[1], a + b));
  }
}

TEST(Rope, RotatesPairsAndTurnsBack) {
  struct Case {
    int64_t T, H, D, half;
  };
  for (const Case& c :
       {Case{0, 2, 16, 8}, {1, 1, 2, 1}, {5, 3, 64, 32}, {7, 9, 72, 36}, {3, 2, 96, 24}, {11, 1, 256, 128}}) {
    const at::Tensor x = normal({c.T, c.H, c.D}, 14);
    const at::Tensor angle = at::arange(100, at::kDouble).unsqueeze(1) *
                             at::pow(10000.0, -at::arange(c.half, at::kDouble) / c.half).unsqueeze(0);
    const at::Tensor cos = angle.cos().to(at::kFloat), sin = angle.sin().to(at::kFloat);
    const at::Tensor positions = (at::arange(c.T, at::kInt) * 37 + 5).remainder(100).to(at::kInt);
    const Tensors got = same_everywhere(
        [&] {
          at::Tensor y = x.clone();
          ops::rope(y, positions, cos, sin, false);
          at::Tensor back = y.clone();
          ops::rope(back, positions, cos, sin, true);
          return Tensors{y, back};
        },
        "rope");
    at::Tensor want = x.to(at::kDouble);
    ops::aten::rope(want, positions, cos.to(at::kDouble), sin.to(at::kDouble), false);
    EXPECT_LT(relative_error(got[0], want), 3e-7);
    EXPECT_LT(relative_error(got[1], x), 5e-7);
    EXPECT_TRUE(same_bits(got[0].slice(2, 2 * c.half, c.D), x.slice(2, 2 * c.half, c.D)));
  }
  // One pair by hand: (1, 2) turned by an angle of sine 0.6 and cosine 0.8.
  at::Tensor x = at::tensor({1.0f, 2.0f}).view({1, 1, 2});
  ops::rope(x, at::zeros({1}, at::kInt), at::full({1, 1}, 0.8f), at::full({1, 1}, 0.6f), false);
  EXPECT_NEAR(x[0][0][0].item<float>(), -0.4f, 1e-6f);
  EXPECT_NEAR(x[0][0][1].item<float>(), 2.2f, 1e-6f);
}

TEST(SwiGlu, MatchesTheFormulaAndAutograd) {
  for (const int64_t T : kRows) {
    for (const int64_t F : {1, 31, 64, 97}) {
      const at::Tensor gate = normal({T, F}, 15, 3.0f), up = normal({T, F}, 16), dh = normal({T, F}, 17);
      const Tensors got = same_everywhere(
          [&] {
            at::Tensor h = at::empty({T, F}), dgate = gate.clone(), dup = up.clone();
            ops::swiglu(gate, up, h);
            ops::swiglu_backward(dh, dgate, dup);
            return Tensors{h, dgate, dup};
          },
          "swiglu");
      const at::Tensor g = leaf(gate), u = leaf(up);
      const at::Tensor h = at::silu(g) * u;
      (h * dh.to(at::kDouble)).sum().backward();
      EXPECT_LT(relative_error(got[0], h.detach()), 4e-7);
      EXPECT_LT(relative_error(got[1], g.grad()), 6e-7);
      EXPECT_LT(relative_error(got[2], u.grad()), 4e-7);
    }
  }
}

TEST(SwiGlu, EveryElementIsWithinAFewUlpOverTheWholeRange) {
  const at::Tensor gate = at::cat(
      {at::linspace(-87.0, 87.0, 40001, at::kFloat), at::tensor({0.0f, 1e-30f, -1e-30f, 500.0f, 3e38f})});
  at::Tensor h = at::empty_like(gate);
  ops::swiglu(gate, at::ones_like(gate), h);
  const at::Tensor want = at::silu(gate.to(at::kDouble));
  const at::Tensor error = (h.to(at::kDouble) - want).abs() / want.abs().clamp_min(1e-37);
  EXPECT_LT(error.max().item<double>(), 4e-7);
  at::Tensor far = at::empty({2});
  ops::swiglu(at::tensor({-200.0f, std::nanf("")}), at::ones({2}), far);
  EXPECT_EQ(far[0].item<float>(), 0.0f);
  EXPECT_TRUE(std::isnan(far[1].item<float>()));
}

TEST(Dropout, FollowsTheScalarPhilox) {
  const double p = 0.3;
  const uint64_t seed = 77, stream = hash_name("lora_dropout");
  const std::vector<uint64_t> keys = {1, 0xFFFFFFFFFFFFFFFFull, 1, 42, 5};
  const std::vector<int32_t> positions = {0, 3, 1, 2147483647, 3};
  for (const int64_t K : {1, 15, 16, 64, 65, 200, 576}) {
    const int64_t T = static_cast<int64_t>(keys.size());
    const at::Tensor x = normal({T, K}, 18) + 5.0f;
    const Tensors got = same_everywhere(
        [&] {
          at::Tensor y = at::empty({T, K}), alias = x.clone();
          ops::dropout(x, p, seed, stream, keys, positions, y);
          ops::dropout(alias, p, seed, stream, keys, positions, alias);
          return Tensors{y, alias};
        },
        "dropout");
    EXPECT_TRUE(same_bits(got[0], got[1]));
    at::Tensor oracle = at::empty({T, K});
    ops::aten::dropout(x, p, seed, stream, keys, positions, oracle);
    EXPECT_TRUE(same_bits(got[0], oracle));
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t k = 0; k < K; ++k) {
        const uint64_t low = (static_cast<uint64_t>(static_cast<uint32_t>(positions[t])) << 32) |
                             static_cast<uint64_t>(16 * (k / 64) + k % 16);
        const uint32_t word = philox4x32(mix_key(seed, stream), low, keys[t])[k / 16 % 4];
        const float want =
            uniform_float(word) >= p ? x[t][k].item<float>() * static_cast<float>(1.0 / 0.7) : 0.0f;
        ASSERT_EQ(got[0][t][k].item<float>(), want) << t << " " << k;
      }
    }
  }
}

TEST(Dropout, KeepsTheRightShareAndTheEnds) {
  const int64_t T = 100, K = 1000;
  std::vector<uint64_t> keys(T, 9);
  std::vector<int32_t> positions(T);
  for (int64_t t = 0; t < T; ++t) positions[t] = static_cast<int32_t>(t);
  const at::Tensor x = at::ones({T, K});
  at::Tensor y = at::empty({T, K});
  ops::dropout(x, 0.1, 1, 2, keys, positions, y);
  EXPECT_NEAR((y > 0).to(at::kDouble).mean().item<double>(), 0.9, 0.005);  // five standard deviations
  ops::dropout(x, 0.0, 1, 2, keys, positions, y);
  EXPECT_TRUE(same_bits(y, x));
  ops::dropout(x * std::numeric_limits<float>::infinity(), 1.0, 1, 2, keys, positions, y);
  EXPECT_EQ(y.abs().max().item<float>(), 0.0f);
}

}  // namespace
}  // namespace twinkle
