// labels: quick bits
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/ops.h"

namespace twinkle::ops {
namespace {

class MatrixTest : public KernelTest {
 protected:
  MatrixTest() : KernelTest(7) {}
};

// Largest error against fp64, relative to the sum of |a||b| that bounds a chain's rounding.
double error_of(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& size) {
  if (got.numel() == 0) return 0.0;
  return ((got.to(at::kDouble) - exact).abs() / (size + 1e-20)).max().item<double>();
}

// Where inputs are rounded to bf16 (AMX; weights in bf16 under avx512bf16); all else computes in fp32.
double tolerance(Isa isa) { return rounds_inputs(isa, true) ? 8e-3 : 4e-6; }

struct Shape {
  int64_t t, n, k;
};
const std::vector<Shape> kShapes = {{0, 16, 16},    {1, 1, 1},      {1, 49, 7},    {2, 16, 33},
                                    {3, 130, 257},  {5, 17, 61},    {12, 64, 512}, {13, 37, 300},
                                    {31, 577, 129}, {97, 101, 103}, {1, 640, 576}, {200, 96, 1030},
                                    {401, 48, 67},  {7, 2, 577}};

PackedMatrix pack(const at::Tensor& w, at::ScalarType type) { return PackedMatrix::pack(w, type); }

at::Tensor run_linear(const at::Tensor& x, const PackedMatrix& w, const at::Tensor& bias = {},
                      const LoraBatch* lora = nullptr, const at::Tensor& low = {}) {
  at::Tensor y = at::full({x.size(0), w.rows()}, 7.0f);
  linear(x, w, bias, lora, low, y);
  return y;
}

TEST_F(MatrixTest, LinearMatchesDoubleOverOddShapesAndTypes) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const Shape& s : kShapes) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor x = at::randn({s.t, s.k}), bias = at::randn({s.n});
        const PackedMatrix w = pack(at::randn({s.n, s.k}), type);
        const at::Tensor wd = w.unpack(at::kDouble), xd = x.to(at::kDouble);
        const at::Tensor exact = xd.matmul(wd.t()) + bias.to(at::kDouble);
        const at::Tensor size = xd.abs().matmul(wd.abs().t()) + bias.abs().to(at::kDouble);
        EXPECT_LT(error_of(run_linear(x, w, bias), exact, size), tolerance(isa))
            << isa_name(isa) << " " << s.t << "x" << s.n << "x" << s.k << " " << c10::toString(type);
      }
    }
  }
}

TEST_F(MatrixTest, BackwardInputMatchesDoubleAndAccumulates) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const Shape& s : kShapes) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor dy = at::randn({s.t, s.n}), start = at::randn({s.t, s.k});
        const PackedMatrix w = pack(at::randn({s.n, s.k}), type);
        const at::Tensor wd = w.unpack(at::kDouble), dyd = dy.to(at::kDouble);
        const at::Tensor exact = dyd.matmul(wd), size = dyd.abs().matmul(wd.abs()) + start.abs();
        at::Tensor dx = at::full({s.t, s.k}, 3.0f);
        linear_backward_input(dy, w, nullptr, {}, dx, false);
        EXPECT_LT(error_of(dx, exact, size), tolerance(isa))
            << isa_name(isa) << " " << s.t << "x" << s.n << "x" << s.k;
        at::Tensor sum = start.clone();
        linear_backward_input(dy, w, nullptr, {}, sum, true);
        EXPECT_LT(error_of(sum, exact + start, size), tolerance(isa));
      }
    }
  }
}

// A row of a product, alone, at the front, in the middle and at the end of batches of other rows.
TEST_F(MatrixTest, ARowHasTheSameBitsInEveryBatch) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const PackedMatrix w = pack(at::randn({291, 613}), type);
      const at::Tensor row = at::randn({1, 613}), drow = at::randn({1, 291});
      const at::Tensor alone = run_linear(row, w);
      at::Tensor dalone = at::empty({1, 613});
      linear_backward_input(drow, w, nullptr, {}, dalone, false);
      for (const int64_t count : {2, 5, 12, 13, 25, 61, 130, 800}) {
        for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
          at::Tensor x = at::randn({count, 613}), dy = at::randn({count, 291});
          x[place].copy_(row[0]);
          dy[place].copy_(drow[0]);
          EXPECT_TRUE(same_bits(run_linear(x, w)[place], alone[0]))
              << isa_name(isa) << " " << count << " " << place;
          at::Tensor dx = at::empty({count, 613});
          linear_backward_input(dy, w, nullptr, {}, dx, false);
          EXPECT_TRUE(same_bits(dx[place], dalone[0])) << isa_name(isa) << " " << count << " " << place;
        }
      }
    }
  }
}

// The chain, step by step in scalar fused multiply-adds.
TEST_F(MatrixTest, AnElementIsOneChainInAscendingOrder) {
  const at::Tensor x = at::randn({9, 700}), wt = at::randn({33, 700});
  const PackedMatrix w = pack(wt, at::kFloat);
  at::Tensor expected = at::empty({9, 33});
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t n = 0; n < 33; ++n) {
      float sum = 0.0f;
      for (int64_t k = 0; k < 700; ++k) {
        sum = std::fma(x.const_data_ptr<float>()[t * 700 + k], wt.const_data_ptr<float>()[n * 700 + k], sum);
      }
      expected.mutable_data_ptr<float>()[t * 33 + n] = sum;
    }
  }
  for (const Isa isa : fast_isas()) {
    if (rounds_inputs(isa, true)) continue;
    force_isa(isa);
    EXPECT_TRUE(same_bits(run_linear(x, w), expected)) << isa_name(isa);
  }
}

// An odd mix of adapters: gaps without one, spans not in row order, a slot without this module, ranks 1
// to 33.
struct Adapters {
  Adapters(int64_t n, int64_t k, std::vector<int64_t> ranks) {
    for (const int64_t r : ranks) {
      LoraSlot slot;
      slot.scale = 0.5f + static_cast<float>(r);
      if (r > 0) {
        slot.a_rK = at::randn({r, k});
        slot.b_Nr = at::randn({n, r});
        slot.da_rK = at::randn({r, k});
        slot.db_Nr = at::randn({n, r});
      }
      slots.push_back(slot);
    }
  }
  LoraBatch batch() const { return {spans, slots}; }

  std::vector<LoraSlot> slots;
  std::vector<LoraSpan> spans;
};

Adapters make_adapters(int64_t n, int64_t k) {
  Adapters a(n, k, {8, 0, 1, 33, 16});
  a.spans = {{50, 93, 3}, {0, 7, 0}, {7, 8, 2}, {9, 9, 4}, {20, 50, 4}, {93, 97, 1}};
  return a;
}
constexpr int64_t kAdapterRows = 101;

TEST_F(MatrixTest, AdaptersMatchTheirFormula) {
  const int64_t n = 83, k = 290;
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const Adapters a = make_adapters(n, k);
    const LoraBatch lora = a.batch();
    ASSERT_EQ(lora.max_rank(), 33);
    const at::Tensor x = at::randn({kAdapterRows, k}), dy = at::randn({kAdapterRows, n}),
                     wt = at::randn({n, k});
    const PackedMatrix w = pack(wt, at::kFloat);
    at::Tensor low = at::full({kAdapterRows, 33}, 9.0f), dlow = at::full({kAdapterRows, 33}, 9.0f);
    lora_shrink(x, lora, low);
    lora_shrink_backward(dy, lora, dlow);
    const at::Tensor y = run_linear(x, w, {}, &lora, low);
    at::Tensor dx = at::empty({kAdapterRows, k}), dx_only = at::zeros({kAdapterRows, k});
    linear_backward_input(dy, w, &lora, dlow, dx, false);
    lora_backward_input(dlow, lora, dx_only);
    std::vector<at::Tensor> da, db;
    for (const LoraSlot& slot : a.slots) {
      da.push_back(slot.da_rK.defined() ? slot.da_rK.to(at::kDouble) : at::Tensor());
      db.push_back(slot.db_Nr.defined() ? slot.db_Nr.to(at::kDouble) : at::Tensor());
    }
    lora_weight_grad(x, low, dy, dlow, lora);

    const at::Tensor xd = x.to(at::kDouble), dyd = dy.to(at::kDouble), wd = wt.to(at::kDouble);
    at::Tensor want_low = at::zeros({kAdapterRows, 33}, at::kDouble), want_dlow = want_low.clone();
    at::Tensor want_y = xd.matmul(wd.t()), want_dx = dyd.matmul(wd), want_dx_only = at::zeros_like(want_dx);
    for (const LoraSpan& span : a.spans) {
      const LoraSlot& slot = a.slots[span.slot];
      if (!slot.a_rK.defined() || span.end == span.begin) continue;
      const int64_t r = slot.a_rK.size(0), m = span.end - span.begin;
      const at::Tensor ad = slot.a_rK.to(at::kDouble), bd = slot.b_Nr.to(at::kDouble);
      const at::Tensor l = xd.narrow(0, span.begin, m).matmul(ad.t()) * slot.scale;
      const at::Tensor dl = dyd.narrow(0, span.begin, m).matmul(bd) * slot.scale;
      want_low.narrow(0, span.begin, m).narrow(1, 0, r).copy_(l);
      want_dlow.narrow(0, span.begin, m).narrow(1, 0, r).copy_(dl);
      want_y.narrow(0, span.begin, m).add_(l.matmul(bd.t()));
      want_dx.narrow(0, span.begin, m).add_(dl.matmul(ad));
      want_dx_only.narrow(0, span.begin, m).add_(dl.matmul(ad));
      da[span.slot].add_(dl.t().matmul(xd.narrow(0, span.begin, m)));
      db[span.slot].add_(dyd.narrow(0, span.begin, m).t().matmul(l));
    }
    const auto near = [&](const at::Tensor& got, const at::Tensor& want, const char* what) {
      const double scale = want.abs().max().item<double>();
      EXPECT_LT((got.to(at::kDouble) - want).abs().max().item<double>(),
                (rounds_inputs(isa, true) ? 2e-2 : 3e-6) * scale)
          << isa_name(isa) << " " << what;
    };
    near(low, want_low, "low");
    near(dlow, want_dlow, "dlow");
    near(y, want_y, "y");
    near(dx, want_dx, "dx");
    near(dx_only, want_dx_only, "dx of the adapters only");
    EXPECT_EQ(low.narrow(0, 8, 12).abs().max().item<float>(), 0.0f);
    for (size_t i = 0; i < a.slots.size(); ++i) {
      if (!a.slots[i].a_rK.defined()) continue;
      near(a.slots[i].da_rK, da[i], "dA");
      near(a.slots[i].db_Nr, db[i], "dB");
    }
  }
}

TEST_F(MatrixTest, RowsOfAnAdapterDoNotSeeTheOthers) {
  const int64_t n = 83, k = 290;
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const Adapters a = make_adapters(n, k);
    const at::Tensor x = at::randn({kAdapterRows, k}), dy = at::randn({kAdapterRows, n});
    const PackedMatrix w = pack(at::randn({n, k}), at::kBFloat16);
    struct Result {
      at::Tensor low, y, dlow, dx;
    };
    const auto run = [&](const at::Tensor& xs, const at::Tensor& dys, const LoraBatch& lora) {
      Result r;
      r.low = at::empty({xs.size(0), 33});
      r.dlow = at::empty({xs.size(0), 33});
      lora_shrink(xs, lora, r.low);
      r.y = run_linear(xs, w, {}, &lora, r.low);
      lora_shrink_backward(dys, lora, r.dlow);
      r.dx = at::empty({xs.size(0), k});
      linear_backward_input(dys, w, &lora, r.dlow, r.dx, false);
      return r;
    };
    const Result all = run(x, dy, a.batch());
    for (const LoraSpan& span : a.spans) {
      const int64_t m = span.end - span.begin;
      const std::vector<LoraSpan> one = {{0, m, span.slot}};
      const Result alone = run(x.narrow(0, span.begin, m).contiguous(),
                               dy.narrow(0, span.begin, m).contiguous(), {one, a.slots});
      EXPECT_TRUE(same_bits(alone.low, all.low.narrow(0, span.begin, m)));
      EXPECT_TRUE(same_bits(alone.dlow, all.dlow.narrow(0, span.begin, m)));
      EXPECT_TRUE(same_bits(alone.y, all.y.narrow(0, span.begin, m)))
          << isa_name(isa) << " slot " << span.slot;
      EXPECT_TRUE(same_bits(alone.dx, all.dx.narrow(0, span.begin, m)))
          << isa_name(isa) << " slot " << span.slot;
    }
    // Rows without an adapter have the bits of the base alone.
    EXPECT_TRUE(same_bits(all.y.narrow(0, 97, 4), run_linear(x, w).narrow(0, 97, 4)));
  }
}

// Several products of the same rows in one call, with adapters as they are and in panels, against one after
// another.
TEST_F(MatrixTest, LinearsHaveTheBitsOfEachAlone) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const int64_t k : {290, 320}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const int64_t widths[] = {83, 16, 200};
        const at::Tensor x = at::randn({kAdapterRows, k}), bias = at::randn({widths[1]});
        std::vector<PackedMatrix> weights;
        std::vector<Adapters> adapters;
        for (const int64_t n : widths) {
          weights.push_back(pack(at::randn({n, k}), type));
          adapters.push_back(make_adapters(n, k));
        }
        for (const int64_t rows : {1, 7, 8, 40, 101}) {
          const at::Tensor some = x.narrow(0, 0, rows), plus = at::randn({rows, widths[2]});
          std::vector<at::Tensor> want, want_low;
          std::vector<LinearPart> parts, packed;
          std::vector<std::vector<LoraSlot>> in_panels;
          std::vector<std::vector<LoraSpan>> spans;
          std::vector<LoraBatch> batches;
          for (size_t i = 0; i < 3; ++i) {
            spans.emplace_back();
            for (LoraSpan span : adapters[i].spans) {
              span.end = std::min(span.end, rows);
              if (span.begin < span.end) spans.back().push_back(span);
            }
            in_panels.push_back(adapters[i].slots);
            for (LoraSlot& slot : in_panels.back()) {
              if (slot.a_rK.defined()) pack_lora(slot);
            }
          }
          for (size_t i = 0; i < 3; ++i) batches.push_back({spans[i], adapters[i].slots});
          for (size_t i = 0; i < 3; ++i) batches.push_back({spans[i], in_panels[i]});
          for (size_t i = 0; i < 3; ++i) {
            LinearPart part{.w = &weights[i], .y_TN = at::empty({rows, widths[i]})};
            if (i == 1) part.bias_N = bias;
            if (i == 2) part.plus_TN = plus;
            if (i != 1) {
              part.lora = &batches[i];
              part.low_TR = at::empty({rows, 33});
            }
            want_low.push_back(at::empty({rows, 33}));
            if (part.lora != nullptr) lora_shrink(some, *part.lora, want_low.back());
            want.push_back(run_linear(some, weights[i], part.bias_N, part.lora, want_low.back()));
            if (i == 2) add(want.back(), plus, want.back());
            parts.push_back(part);
            part.y_TN = at::empty({rows, widths[i]});
            if (part.lora != nullptr) {
              part.lora = &batches[3 + i];
              part.low_TR = at::empty({rows, 33});
            }
            packed.push_back(part);
          }
          linears(some, parts);
          linears(some, packed);
          for (size_t i = 0; i < 3; ++i) {
            const auto where = std::string(isa_name(isa)) + " k " + std::to_string(k) + " rows " +
                               std::to_string(rows) + " part " + std::to_string(i);
            EXPECT_TRUE(same_bits(parts[i].y_TN, want[i])) << where;
            EXPECT_TRUE(same_bits(packed[i].y_TN, want[i])) << where << " in panels";
            if (i == 1) continue;
            EXPECT_TRUE(same_bits(parts[i].low_TR, want_low[i])) << where;
            EXPECT_TRUE(same_bits(packed[i].low_TR, want_low[i])) << where << " in panels";
          }
        }
      }
    }
  }
}

TEST_F(MatrixTest, WeightGradientsMatchDouble) {
  const std::vector<RowRange> order = {{40, 47}, {0, 1}, {47, 47}, {1, 40}, {60, 461}};
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const Shape& s : std::vector<Shape>{{461, 83, 61}, {461, 1, 1}, {461, 300, 205}}) {
      const at::Tensor x = at::randn({s.t, s.k}), dy = at::randn({s.t, s.n}), start = at::randn({s.n, s.k});
      PackedMatrix grad = pack(start, at::kFloat);
      linear_weight_grad(dy, x, order, grad);
      at::Tensor exact = start.to(at::kDouble), size = start.abs().to(at::kDouble),
                 bias = at::zeros({s.n}, at::kDouble);
      for (const RowRange& r : order) {
        const at::Tensor d = dy.narrow(0, r.begin, r.end - r.begin).to(at::kDouble);
        const at::Tensor v = x.narrow(0, r.begin, r.end - r.begin).to(at::kDouble);
        exact.add_(d.t().matmul(v));
        size.add_(d.abs().t().matmul(v.abs()));
        bias.add_(d.sum(0));
      }
      EXPECT_LT(error_of(grad.unpack(), exact, size), 4e-6) << isa_name(isa) << " " << s.n << "x" << s.k;
      const PackedMatrix fresh = PackedMatrix::pack(grad.unpack(), at::kFloat);
      EXPECT_TRUE(same_bits(fresh.storage(), grad.storage())) << "padding stays zero";
      at::Tensor dbias = at::zeros({s.n});
      bias_grad(dy, order, dbias);
      EXPECT_LT((dbias.to(at::kDouble) - bias).abs().max().item<double>(), 1e-3);
    }
  }
}

// One batch of sequences against the same sequences over several passes, at other rows.
TEST_F(MatrixTest, MicroBatchesGiveTheGradientsOfOneBatch) {
  const int64_t n = 83, k = 130;
  const std::vector<int64_t> lengths = {5, 1, 300, 64, 17};
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    std::vector<at::Tensor> xs, dys;
    for (const int64_t length : lengths) {
      xs.push_back(at::randn({length, k}));
      dys.push_back(at::randn({length, n}));
    }
    const Adapters master(n, k, {8, 3});
    const std::vector<int32_t> slot_of = {0, 1, 0, 0, 1};
    struct Grads {
      at::Tensor w, bias, da0, db0, da1, db1;
    };
    // Passes of sequences; within a pass they stand in the order of `place`, and are summed in their own
    // order.
    const auto run = [&](const std::vector<std::vector<int>>& passes, bool reversed) {
      Adapters a = master;
      for (LoraSlot& slot : a.slots) {
        slot.da_rK = at::zeros_like(slot.a_rK);
        slot.db_Nr = at::zeros_like(slot.b_Nr);
      }
      PackedMatrix grad = pack(at::zeros({n, k}), at::kFloat);
      at::Tensor dbias = at::zeros({n});
      for (const std::vector<int>& pass : passes) {
        std::vector<int> place = pass;
        if (reversed) std::reverse(place.begin(), place.end());
        std::vector<at::Tensor> x, dy;
        std::vector<RowRange> at_place(lengths.size());
        int64_t row = 0;
        for (const int s : place) {
          x.push_back(xs[s]);
          dy.push_back(dys[s]);
          at_place[s] = {row, row + lengths[s]};
          row += lengths[s];
        }
        const at::Tensor x_TK = at::cat(x), dy_TN = at::cat(dy);
        std::vector<RowRange> order;
        a.spans.clear();
        for (const int s : pass) {
          order.push_back(at_place[s]);
          a.spans.push_back({at_place[s].begin, at_place[s].end, slot_of[s]});
        }
        const LoraBatch lora = a.batch();
        at::Tensor low = at::empty({row, 8}), dlow = at::empty({row, 8});
        lora_shrink(x_TK, lora, low);
        lora_shrink_backward(dy_TN, lora, dlow);
        lora_weight_grad(x_TK, low, dy_TN, dlow, lora);
        linear_weight_grad(dy_TN, x_TK, order, grad);
        bias_grad(dy_TN, order, dbias);
      }
      return Grads{grad.storage(),   dbias,           a.slots[0].da_rK, a.slots[0].db_Nr,
                   a.slots[1].da_rK, a.slots[1].db_Nr};
    };
    const Grads whole = run({{0, 1, 2, 3, 4}}, false);
    for (const auto& passes : std::vector<std::vector<std::vector<int>>>{
             {{0}, {1}, {2}, {3}, {4}}, {{0, 1}, {2, 3, 4}}, {{0, 1, 2}, {3, 4}}, {{0, 1, 2, 3, 4}}}) {
      for (const bool reversed : {false, true}) {
        const Grads split = run(passes, reversed);
        EXPECT_TRUE(same_bits(split.w, whole.w)) << isa_name(isa);
        EXPECT_TRUE(same_bits(split.bias, whole.bias));
        EXPECT_TRUE(same_bits(split.da0, whole.da0));
        EXPECT_TRUE(same_bits(split.db0, whole.db0));
        EXPECT_TRUE(same_bits(split.da1, whole.da1));
        EXPECT_TRUE(same_bits(split.db1, whole.db1));
      }
    }
  }
}

// Everything in one go, for comparing threads, runs and instruction sets.
std::vector<at::Tensor> everything(at::ScalarType type) {
  at::manual_seed(11);
  const int64_t n = 345, k = 517;
  const Adapters a = make_adapters(n, k);
  const LoraBatch lora = a.batch();
  const at::Tensor x = at::randn({kAdapterRows, k}), dy = at::randn({kAdapterRows, n});
  const PackedMatrix w = pack(at::randn({n, k}), type);
  at::Tensor low = at::empty({kAdapterRows, 33}), dlow = at::empty({kAdapterRows, 33});
  lora_shrink(x, lora, low);
  lora_shrink_backward(dy, lora, dlow);
  at::Tensor dx = at::empty({kAdapterRows, k}), dbias = at::zeros({n});
  linear_backward_input(dy, w, &lora, dlow, dx, false);
  lora_weight_grad(x, low, dy, dlow, lora);
  PackedMatrix grad = PackedMatrix::zeros_like(w);
  const std::vector<RowRange> order = {{0, 50}, {50, 101}};
  linear_weight_grad(dy, x, order, grad);
  bias_grad(dy, order, dbias);
  std::vector<at::Tensor> out = {low, dlow,           run_linear(x, w, at::randn({n}), &lora, low),
                                 dx,  grad.storage(), dbias};
  for (const int64_t rows : {1, 2, 7, 24}) out.push_back(run_linear(x.narrow(0, 0, rows).contiguous(), w));
  for (const LoraSlot& slot : a.slots) {
    if (!slot.a_rK.defined()) continue;
    out.push_back(slot.da_rK);
    out.push_back(slot.db_Nr);
  }
  return out;
}

TEST_F(MatrixTest, ThreadsRunsAndInstructionSetsAgree) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> first;
    for (const Isa isa : fast_isas()) {
      force_isa(isa);
      set_num_threads(1);
      const std::vector<at::Tensor> one = everything(type);
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const std::vector<at::Tensor> again = everything(type);
        for (size_t i = 0; i < one.size(); ++i)
          EXPECT_TRUE(same_bits(one[i], again[i])) << isa_name(isa) << " " << i;
      }
      if (rounds_inputs(isa, true)) continue;
      if (first.empty()) first = one;
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_TRUE(same_bits(one[i], first[i])) << isa_name(isa) << " " << i;
    }
  }
}

TEST_F(MatrixTest, PlainPathAgreesWithTheVectorOne) {
  force_isa(Isa::kPlain);
  const std::vector<at::Tensor> plain = everything(at::kFloat);
  force_isa(fast_isas().front());
  const std::vector<at::Tensor> fast = everything(at::kFloat);
  for (size_t i = 0; i < plain.size(); ++i) {
    const double scale = plain[i].abs().max().item<double>();
    EXPECT_LT((plain[i] - fast[i]).abs().max().item<double>(), 1e-5 * scale) << i;
  }
}

}  // namespace
}  // namespace twinkle::ops
