// labels: quick bits
// Adam, AdamW and the sum of squares: hand-worked values, an fp64 reference, and bits.
#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

using ops::AdamStep;
using Tensors = std::vector<at::Tensor>;

// p = 1, gradients 0.5 then -0.3, lr 0.1, betas 0.9 and 0.999. Step 1 moves by lr whatever the gradient's
// size. Step 2: m = 0.9*0.05 - 0.1*0.3 = 0.015, v = 0.999*0.00025 + 0.001*0.09 = 0.00033975; (0.015/0.19) /
// sqrt(0.00033975/0.001999) = 0.1914980, so p falls by 0.0191498.
TEST(Adam, FollowsTheTableWorkedByHand) {
  struct Row {
    double decay;
    bool decoupled;
    double grad_scale;
    float first, second;
  };
  for (const Row& row :
       {Row{0.0, true, 1.0, 0.9f, 0.8808502f},
        // Decoupled decay: p *= 1 - 0.1*0.1 before each step: 0.99 - 0.1, then 0.89*0.99 - 0.0191498.
        Row{0.1, true, 1.0, 0.89f, 0.8619502f},
        // Decay in the gradient: 0.6 at first (m 0.06, v 0.00036); then -0.3 + 0.09 = -0.21,
        // m = 0.033, v = 0.00040374: (0.033/0.19) / sqrt(0.00040374/0.001999) = 0.3864699.
        Row{0.1, false, 1.0, 0.9f, 0.8613530f},
        // Scaling the gradient by 4 changes nothing but eps' share.
        Row{0.0, true, 4.0, 0.9f, 0.8808502f}}) {
    at::Tensor p = at::ones({3}), m = at::zeros({3}), v = at::zeros({3});
    AdamStep hyper = {.lr = 0.1,
                      .weight_decay = row.decay,
                      .decoupled = row.decoupled,
                      .step = 1,
                      .grad_scale = row.grad_scale};
    ops::adam_step(p, at::full({3}, 0.5f), m, v, hyper);
    EXPECT_NEAR(p[2].item<float>(), row.first, 2e-7f);
    hyper.step = 2;
    ops::adam_step(p, at::full({3}, -0.3f), m, v, hyper);
    EXPECT_NEAR(p[2].item<float>(), row.second, 5e-7f);
  }
}

TEST(Adam, StaysWithAnFp64Reference) {
  for (const int64_t n : {0, 1, 15, 17, 1000, 70001}) {
    for (const bool decoupled : {true, false}) {
      const at::Tensor p0 = normal({n}, 1), g0 = normal({n}, 2);
      const Tensors got = same_everywhere(
          [&] {
            at::Tensor p = p0.clone(), m = at::zeros({n}), v = at::zeros({n});
            for (int64_t step = 1; step <= 5; ++step) {
              ops::adam_step(p, g0 * static_cast<float>(step), m, v,
                             {.lr = 1e-2,
                              .weight_decay = 0.05,
                              .decoupled = decoupled,
                              .step = step,
                              .grad_scale = 0.5});
            }
            return Tensors{p, m, v};
          },
          "adam");
      at::Tensor p = p0.to(at::kDouble), m = at::zeros({n}, at::kDouble), v = at::zeros({n}, at::kDouble);
      at::Tensor pf = p0.clone(), mf = at::zeros({n}), vf = at::zeros({n});
      for (int64_t step = 1; step <= 5; ++step) {
        at::Tensor g = g0.to(at::kDouble) * static_cast<double>(step) * 0.5;
        if (decoupled) {
          p = p * (1 - 1e-2 * 0.05);
        } else {
          g = g + 0.05 * p;
        }
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.999, step);
        p = p - 1e-2 * (m / c1) / ((v / c2).sqrt() + 1e-8);
        ops::aten::adam_step(
            pf, g0 * static_cast<float>(step), mf, vf,
            {.lr = 1e-2, .weight_decay = 0.05, .decoupled = decoupled, .step = step, .grad_scale = 0.5});
      }
      EXPECT_LT(relative_error(got[0], p), 5e-7) << n;
      EXPECT_LT(relative_error(got[1], m), 5e-7) << n;
      EXPECT_LT(relative_error(got[2], v), 5e-7) << n;
      EXPECT_LT(relative_error(pf, p), 5e-7) << n;
      EXPECT_LT(relative_error(got[0], pf), 5e-7) << n;
    }
  }
}

TEST(SumOfSquares, IsExactInFp64AndKeepsNonFinite) {
  for (const int64_t n : {0, 1, 31, 33, 16384, 50021}) {
    const at::Tensor x = normal({n}, 3);
    const Tensors got = same_everywhere(
        [&] { return Tensors{at::full({}, ops::sum_of_squares(x), at::kDouble)}; }, "sum_of_squares");
    const double want = x.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(got[0].item<double>(), want, 1e-12 * want) << n;
    EXPECT_NEAR(ops::aten::sum_of_squares(x), want, 1e-12 * want) << n;
  }
  EXPECT_EQ(ops::sum_of_squares(at::tensor({3.0f, 4.0f})), 25.0);
  at::Tensor bad = at::ones({40000});
  bad[39999] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(ops::sum_of_squares(bad)));
  bad[0] = std::nanf("");
  EXPECT_TRUE(std::isnan(ops::sum_of_squares(bad)));
  EXPECT_EQ(ops::sum_of_squares(at::full({2}, 3e38f)),
            2.0 * static_cast<double>(3e38f) * static_cast<double>(3e38f));
}

}  // namespace
}  // namespace twinkle
