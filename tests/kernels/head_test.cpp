// labels: quick bits
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/cpu/gemm_kernels.h"
#include "twinkle/kernels/head_targets.h"

namespace twinkle::ops {
namespace {

class HeadTest : public KernelTest {
 protected:
  HeadTest() : KernelTest(3) {}
};

HeadOutputs make_outputs(int64_t rows, int64_t top) {
  const at::Tensor ints = at::zeros({rows}, at::kInt);
  return {at::empty({rows}),      at::empty({rows}),
          at::empty({rows}),      ints,
          at::empty({rows, top}), at::zeros({rows, top}, at::kInt)};
}

struct Case {
  at::Tensor hidden, targets, dlogprob, dentropy;
  PackedMatrix w;
};

Case make_case(int64_t rows, int64_t vocabulary, int64_t width, at::ScalarType type = at::kBFloat16) {
  Case c;
  c.hidden = at::randn({rows, width});
  c.w = PackedMatrix::pack(at::randn({vocabulary, width}) * 0.3, type);
  c.targets = at::randint(vocabulary, {rows}, at::kInt);
  c.dlogprob = at::randn({rows});
  c.dentropy = at::randn({rows});
  return c;
}

double largest(const at::Tensor& x) { return x.numel() == 0 ? 0.0 : x.abs().max().item<double>(); }

struct Shape {
  int64_t rows, vocabulary, width;
};
const std::vector<Shape> kShapes = {{0, 50, 8},   {1, 5, 3},      {3, 511, 17},
                                    {7, 513, 61}, {13, 1601, 40}, {101, 1031, 64}};

TEST_F(HeadTest, ForwardMatchesDouble) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const double tolerance = rounds_inputs(isa, true) ? 3e-2 : 2e-5;
    for (const Shape& s : kShapes) {
      const Case c = make_case(s.rows, s.vocabulary, s.width);
      HeadOutputs out = make_outputs(s.rows, 4);
      head_logprobs(c.hidden, c.w, nullptr, {}, c.targets, 0.7, out);
      const at::Tensor scores = c.hidden.to(at::kDouble).matmul(c.w.unpack(at::kDouble).t()) * 0.7;
      const at::Tensor logp = scores.log_softmax(1);
      const at::Tensor target = c.targets.to(at::kLong).unsqueeze(1);
      EXPECT_LT(largest(out.logprob_S - logp.gather(1, target).squeeze(1)), tolerance)
          << isa_name(isa) << s.vocabulary;
      EXPECT_LT(largest(out.lse_S - scores.logsumexp(1)), tolerance);
      EXPECT_LT(largest(out.entropy_S + (logp.exp() * logp).sum(1)), tolerance);
      if (rounds_inputs(isa, true) || s.rows == 0) continue;
      const auto [value, id] = scores.sort(true, 1, true);
      EXPECT_TRUE(at::equal(out.argmax_S.to(at::kLong), id.select(1, 0)));
      EXPECT_TRUE(at::equal(out.topk_id_SJ.to(at::kLong), id.narrow(1, 0, 4)));
      EXPECT_LT(largest(out.topk_logprob_SJ - logp.gather(1, id.narrow(1, 0, 4))), tolerance);
    }
  }
}

TEST_F(HeadTest, LogitsGiveTheBitsOfTheHead) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    for (const Shape& s : kShapes) {
      const Case c = make_case(s.rows, s.vocabulary, s.width);
      HeadOutputs want = make_outputs(s.rows, 4), got = make_outputs(s.rows, 4);
      head_logprobs(c.hidden, c.w, nullptr, {}, c.targets, 0.7, want);
      at::Tensor logits = at::empty({s.rows, s.vocabulary});
      head_logits(c.hidden, c.w, nullptr, {}, logits);
      logits_logprobs(logits, c.targets, 0.7, got);
      EXPECT_TRUE(same_bits(got.logprob_S, want.logprob_S)) << isa_name(isa) << s.vocabulary;
      EXPECT_TRUE(same_bits(got.lse_S, want.lse_S)) << isa_name(isa) << s.vocabulary;
      EXPECT_TRUE(same_bits(got.entropy_S, want.entropy_S)) << isa_name(isa) << s.vocabulary;
      EXPECT_TRUE(at::equal(got.topk_id_SJ, want.topk_id_SJ)) << isa_name(isa) << s.vocabulary;
    }
  }
}

TEST_F(HeadTest, TiesGoToTheLowestId) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    // Every logit is 1, save for three of 2 in different blocks of the vocabulary.
    at::Tensor weight = at::ones({1300, 1});
    for (const int64_t row : {1299, 700, 530}) weight[row].fill_(2.0f);
    HeadOutputs out = make_outputs(1, 5);
    head_logprobs(at::ones({1, 1}), PackedMatrix::pack(weight, at::kFloat), nullptr, {},
                  at::zeros({1}, at::kInt), 1.0, out);
    EXPECT_EQ(out.argmax_S[0].item<int>(), 530);
    EXPECT_TRUE(at::equal(out.topk_id_SJ[0], at::tensor({530, 700, 1299, 0, 1}, at::kInt)));
    // lse = log(1297 e + 3 e^2) = 8.17805; entropy by hand from p1 = e / Z and p2 = e^2 / Z.
    const double z = 1297 * std::exp(1.0) + 3 * std::exp(2.0);
    EXPECT_NEAR(out.lse_S[0].item<double>(), std::log(z), 1e-6);
    const double p1 = std::exp(1.0) / z, p2 = std::exp(2.0) / z;
    EXPECT_NEAR(out.entropy_S[0].item<double>(), -1297 * p1 * std::log(p1) - 3 * p2 * std::log(p2), 1e-5);
  }
}

TEST_F(HeadTest, LargeLogitsStayFiniteAndNanIsSeen) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const PackedMatrix w = PackedMatrix::pack(at::linspace(-1000, 1000, 600).unsqueeze(1), at::kFloat);
    HeadOutputs out = make_outputs(2, 1);
    at::Tensor hidden = at::ones({2, 1});
    hidden[1].fill_(std::numeric_limits<float>::quiet_NaN());
    head_logprobs(hidden, w, nullptr, {}, at::tensor({599, 0}, at::kInt), 1.0, out);
    EXPECT_NEAR(out.lse_S[0].item<double>(), 1000.0 + std::log(1.0 / (1.0 - std::exp(-2000.0 / 599))), 1e-1);
    EXPECT_TRUE(std::isfinite(out.logprob_S[0].item<float>()));
    EXPECT_TRUE(std::isfinite(out.entropy_S[0].item<float>()));
    EXPECT_TRUE(std::isnan(out.logprob_S[1].item<float>()));
    EXPECT_TRUE(std::isnan(out.lse_S[1].item<float>()));
  }
}

// An adapter on the head, two sequences of different slots and rows without one.
struct HeadAdapters {
  HeadAdapters(int64_t vocabulary, int64_t width) {
    for (const int64_t r : {5, 16}) {
      slots.push_back({at::randn({r, width}) * 0.1, at::randn({vocabulary, r}) * 0.1, 1.5f,
                       at::zeros({r, width}), at::zeros({vocabulary, r})});
    }
  }
  std::vector<LoraSlot> slots;
  std::vector<LoraSpan> spans;
  LoraBatch batch() const { return {spans, slots}; }
};

TEST_F(HeadTest, BackwardMatchesAutogradInDouble) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const double tolerance = rounds_inputs(isa, true) ? 3e-2 : 2e-5;
    for (const Shape& s : kShapes) {
      const Case c = make_case(s.rows, s.vocabulary, s.width, at::kFloat);
      HeadAdapters a(s.vocabulary, s.width);
      const int64_t first = s.rows / 3, second = s.rows - s.rows / 4;
      a.spans = {{first, second, 1}, {0, first, 0}};
      const LoraBatch lora = a.batch();
      at::Tensor low = at::empty({s.rows, 16});
      lora_shrink(c.hidden, lora, low);
      HeadOutputs out = make_outputs(s.rows, 1);
      head_logprobs(c.hidden, c.w, &lora, low, c.targets, 1.3, out);
      const std::vector<RowRange> order = {{first, second}, {0, first}, {second, s.rows}};
      at::Tensor dhidden = at::full({s.rows, s.width}, 5.0f);
      PackedMatrix grad = PackedMatrix::zeros_like(c.w);
      head_backward(c.hidden, c.w, &lora, low, c.targets, 1.3, out, c.dlogprob, c.dentropy, order, dhidden,
                    &grad);
      if (s.rows == 0) continue;

      const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().requires_grad_(true); };
      const at::Tensor hidden = leaf(c.hidden), weight = leaf(c.w.unpack());
      std::vector<at::Tensor> as, bs;
      for (const LoraSlot& slot : a.slots) {
        as.push_back(leaf(slot.a_rK));
        bs.push_back(leaf(slot.b_Nr));
      }
      at::Tensor delta = at::zeros({s.rows, s.vocabulary}, at::kDouble);
      std::vector<at::Tensor> parts;
      const auto part = [&](int64_t begin, int64_t end, int slot) {
        return hidden.narrow(0, begin, end - begin).matmul(as[slot].t()).matmul(bs[slot].t()) * 1.5;
      };
      delta = at::cat({part(0, first, 0), part(first, second, 1),
                       at::zeros({s.rows - second, s.vocabulary}, at::kDouble)});
      const at::Tensor logp = ((hidden.matmul(weight.t()) + delta) * 1.3).log_softmax(1);
      const at::Tensor picked = logp.gather(1, c.targets.to(at::kLong).unsqueeze(1)).squeeze(1);
      const at::Tensor entropy = -(logp.exp() * logp).sum(1);
      EXPECT_LT(largest(out.logprob_S - picked.detach()), tolerance);
      ((picked * c.dlogprob).sum() + (entropy * c.dentropy).sum()).backward();
      const auto near = [&](const at::Tensor& got, const at::Tensor& want, const char* what) {
        if (!want.defined()) return;  // no row of the slot
        EXPECT_LT(largest(got - want), tolerance * std::max(1.0, largest(want)))
            << isa_name(isa) << " " << what << " " << s.rows << "x" << s.vocabulary;
      };
      near(dhidden, hidden.grad(), "dhidden");
      near(grad.unpack(), weight.grad(), "dW");
      for (int slot = 0; slot < 2; ++slot) {
        near(a.slots[slot].da_rK, as[slot].grad(), "dA");
        near(a.slots[slot].db_Nr, bs[slot].grad(), "dB");
      }
    }
  }
}

struct Outcome {
  HeadOutputs out;
  at::Tensor dhidden, grad, da, db;
};

std::vector<at::Tensor> tensors(const Outcome& o) {
  return {o.out.logprob_S,
          o.out.lse_S,
          o.out.entropy_S,
          o.out.argmax_S.to(at::kFloat),
          o.out.topk_logprob_SJ,
          o.dhidden,
          o.grad,
          o.da,
          o.db};
}

// Sequences one after another; `fused` takes the one-walk entry.
Outcome run(const Case& c, const std::vector<int64_t>& lengths, bool fused, const HeadAdapters* adapters,
            bool weight = true) {
  Outcome o;
  const int64_t rows = c.hidden.size(0), width = c.hidden.size(1);
  o.out = make_outputs(rows, 3);
  o.dhidden = at::empty({rows, width});
  PackedMatrix grad = PackedMatrix::zeros_like(c.w);
  std::vector<RowRange> order;
  HeadAdapters a = adapters != nullptr ? *adapters : HeadAdapters(1, 1);
  int64_t row = 0;
  for (const int64_t length : lengths) {
    order.push_back({row, row + length});
    a.spans.push_back({row, row + length, static_cast<int32_t>(order.size() % 2)});
    row += length;
  }
  for (LoraSlot& slot : a.slots) {
    slot.da_rK = at::zeros_like(slot.a_rK);
    slot.db_Nr = at::zeros_like(slot.b_Nr);
  }
  const LoraBatch batch = a.batch();
  const LoraBatch* lora = adapters != nullptr ? &batch : nullptr;
  at::Tensor low;
  if (lora != nullptr) {
    low = at::empty({rows, 16});
    lora_shrink(c.hidden, *lora, low);
  }
  PackedMatrix* target = weight ? &grad : nullptr;
  if (fused) {
    head_forward_backward(c.hidden, c.w, lora, low, c.targets, 0.9, c.dlogprob, order, o.out, o.dhidden,
                          target);
  } else {
    head_logprobs(c.hidden, c.w, lora, low, c.targets, 0.9, o.out);
    head_backward(c.hidden, c.w, lora, low, c.targets, 0.9, o.out, c.dlogprob, {}, order, o.dhidden, target);
  }
  o.grad = grad.storage();
  o.da = a.slots[0].da_rK;
  o.db = a.slots[0].db_Nr;
  return o;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  const std::vector<at::Tensor> x = tensors(a), y = tensors(b);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(same_bits(x[i], y[i])) << what << " " << i;
}

// Rows with none to four targets, some of them the same, against double; one target a row has the bits it has
// without the bounds.
TEST_F(HeadTest, SeveralTargetsOfARowMatchDouble) {
  for (const Isa isa : available_isas()) {
    force_isa(isa);
    const double tolerance = rounds_inputs(isa, true) ? 3e-2 : 2e-5;
    for (const Shape& s : kShapes) {
      const Case c = make_case(s.rows, s.vocabulary, s.width, at::kFloat);
      RowTargets targets{.first = {0}};
      std::vector<int64_t> row_of, ids;
      for (int64_t row = 0; row < s.rows; ++row) {
        for (int64_t k = 0; k < (row * 3 + 1) % 5; ++k) {
          row_of.push_back(row);
          ids.push_back((row * 7 + k / 2 * 211) % s.vocabulary);
        }
        targets.first.push_back(static_cast<int64_t>(ids.size()));
      }
      targets.ids_S = at::tensor(ids, at::kInt);
      const auto count = static_cast<int64_t>(ids.size());
      const at::Tensor dlogprob = at::randn({count});
      HeadAdapters a(s.vocabulary, s.width);
      a.spans = {{0, s.rows, 0}};
      const LoraBatch lora = a.batch();
      at::Tensor low = at::empty({s.rows, 16});
      lora_shrink(c.hidden, lora, low);
      const std::vector<RowRange> order = {{0, s.rows}};
      HeadOutputs out = make_outputs(s.rows, 1);
      out.logprob_S = at::empty({count});
      head_logprobs_of(c.hidden, c.w, &lora, low, targets, 1.3, out);
      at::Tensor dhidden = at::empty({s.rows, s.width});
      PackedMatrix grad = PackedMatrix::zeros_like(c.w);
      head_backward_of(c.hidden, c.w, &lora, low, targets, 1.3, out, dlogprob, c.dentropy, order, dhidden,
                       &grad);
      if (s.rows == 0) continue;

      const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().requires_grad_(true); };
      const at::Tensor hidden = leaf(c.hidden), weight = leaf(c.w.unpack()), down = leaf(a.slots[0].a_rK),
                       up = leaf(a.slots[0].b_Nr);
      const at::Tensor logits = hidden.matmul(weight.t()) + hidden.matmul(down.t()).matmul(up.t()) * 1.5;
      const at::Tensor logp = (logits * 1.3).log_softmax(1);
      const at::Tensor picked = logp.index({at::tensor(row_of, at::kLong), at::tensor(ids, at::kLong)});
      const at::Tensor entropy = -(logp.exp() * logp).sum(1);
      EXPECT_LT(largest(out.logprob_S - picked.detach()), tolerance) << isa_name(isa) << s.vocabulary;
      ((picked * dlogprob).sum() + (entropy * c.dentropy).sum()).backward();
      const auto near = [&](const at::Tensor& got, const at::Tensor& want, const char* what) {
        EXPECT_LT(largest(got - want), tolerance * std::max(1.0, largest(want)))
            << isa_name(isa) << " " << what << " " << s.rows << "x" << s.vocabulary;
      };
      near(dhidden, hidden.grad(), "dhidden");
      near(grad.unpack(), weight.grad(), "dW");
      near(a.slots[0].da_rK, down.grad(), "dA");
      near(a.slots[0].db_Nr, up.grad(), "dB");

      RowTargets one{.ids_S = c.targets, .first = {0}};
      for (int64_t row = 1; row <= s.rows; ++row) one.first.push_back(row);
      HeadOutputs plain = make_outputs(s.rows, 1), bounded = make_outputs(s.rows, 1);
      at::Tensor plain_back = at::empty({s.rows, s.width}), bounded_back = at::empty({s.rows, s.width});
      head_forward_backward(c.hidden, c.w, nullptr, {}, c.targets, 0.9, c.dlogprob, order, plain, plain_back,
                            nullptr);
      head_forward_backward_of(c.hidden, c.w, nullptr, {}, one, 0.9, c.dlogprob, order, bounded, bounded_back,
                               nullptr);
      EXPECT_TRUE(same_bits(plain.logprob_S, bounded.logprob_S) && same_bits(plain_back, bounded_back));
    }
  }
}

TEST_F(HeadTest, OneWalkThreadsRunsAndInstructionSetsAgree) {
  const Case c = make_case(70, 1601, 45);
  const HeadAdapters adapters(1601, 45);
  const std::vector<int64_t> lengths = {3, 40, 0, 27};
  std::vector<Outcome> first;
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    set_num_threads(1);
    const Outcome plain = run(c, lengths, false, nullptr), with = run(c, lengths, false, &adapters);
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      for (const bool fused : {false, true}) {
        expect_same(run(c, lengths, fused, nullptr), plain, "threads");
        expect_same(run(c, lengths, fused, &adapters), with, "threads, adapter");
      }
      const Outcome frozen = run(c, lengths, true, nullptr, false);
      EXPECT_TRUE(same_bits(frozen.dhidden, plain.dhidden));
    }
    if (rounds_inputs(isa, true)) continue;
    if (first.empty()) first = {plain, with};
    expect_same(plain, first[0], "isa");
    expect_same(with, first[1], "isa, adapter");
  }
}

// A vocabulary so large that only a few rows' logits are held at once; a sequence longer than that takes two
// walks.
TEST_F(HeadTest, OneWalkInPiecesHasTheSameBits) {
  const Case c = make_case(120, 151937, 3, at::kFloat);
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{50, 40, 30}, {5, 115}}) {
    expect_same(run(c, lengths, true, nullptr), run(c, lengths, false, nullptr), "pieces");
  }
  EXPECT_TRUE(
      same_bits(run(c, {120}, true, nullptr, false).dhidden, run(c, {120}, false, nullptr, false).dhidden));
}

TEST_F(HeadTest, ARowDoesNotSeeTheOthersAndSequencesAddUp) {
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const Case c = make_case(61, 1031, 33);
    const std::vector<int64_t> lengths = {1, 17, 43};
    const Outcome whole = run(c, lengths, true, nullptr);
    PackedMatrix sum = PackedMatrix::zeros_like(c.w);
    int64_t row = 0;
    for (const int64_t length : lengths) {
      const auto cut = [&](const at::Tensor& x) { return x.narrow(0, row, length).contiguous(); };
      const Case part{cut(c.hidden), cut(c.targets), cut(c.dlogprob), cut(c.dentropy), c.w};
      HeadOutputs out = make_outputs(length, 3);
      at::Tensor dhidden = at::empty({length, 33});
      const std::vector<RowRange> order = {{0, length}};
      head_forward_backward(part.hidden, part.w, nullptr, {}, part.targets, 0.9, part.dlogprob, order, out,
                            dhidden, &sum);
      EXPECT_TRUE(same_bits(out.logprob_S, cut(whole.out.logprob_S)));
      EXPECT_TRUE(same_bits(out.entropy_S, cut(whole.out.entropy_S)));
      EXPECT_TRUE(same_bits(out.topk_logprob_SJ, cut(whole.out.topk_logprob_SJ)));
      EXPECT_TRUE(same_bits(dhidden, cut(whole.dhidden))) << isa_name(isa);
      row += length;
    }
    EXPECT_TRUE(same_bits(sum.storage(), whole.grad)) << isa_name(isa);
    // Logits of a few rows are what the log-probabilities came from.
    at::Tensor logits = at::empty({61, 1031});
    head_logits(c.hidden, c.w, nullptr, {}, logits);
    EXPECT_LT(largest((logits * 0.9).logsumexp(1) - whole.out.lse_S), 1e-5);
  }
}

TEST_F(HeadTest, ExpIsWithinOneUlpAndTheSameInEveryLane) {
  std::vector<float> in;
  for (double x = -95.0; x <= 88.3; x += 0.00137) in.push_back(static_cast<float>(x));
  for (const float x : {0.0f, -0.0f, -1e-30f, 1e-8f, -87.3365f, -87.4f, -INFINITY}) in.push_back(x);
  std::vector<float> first;
  for (const Isa isa : fast_isas()) {
    force_isa(isa);
    const cpu::KernelTable& table = cpu::kernels();
    std::vector<float> out(in.size()), tail(in.size());
    table.exp(in.data(), static_cast<int64_t>(in.size()), out.data());
    for (size_t i = 0; i < in.size(); ++i) {
      const double exact = std::exp(static_cast<double>(in[i]));
      if (in[i] < -87.33654f) {
        EXPECT_EQ(out[i], 0.0f) << in[i];
        continue;
      }
      const float rounded = static_cast<float>(exact);
      const double ulp = std::nextafter(rounded, INFINITY) - rounded;
      ASSERT_LE(std::abs(out[i] - exact), 1.01 * ulp) << in[i];
    }
    for (size_t i = 0; i < 5000; i += 7) {  // as the last lanes of a short row
      table.exp(in.data() + i, 3, tail.data());
      for (size_t j = 0; j < 3; ++j) ASSERT_EQ(tail[j], out[i + j]);
    }
    const float nan = NAN;
    table.exp(&nan, 1, tail.data());
    EXPECT_TRUE(std::isnan(tail[0]));
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << isa_name(isa);
  }
}

TEST_F(HeadTest, PlainPathAgrees) {
  const Case c = make_case(30, 700, 20);
  const HeadAdapters adapters(700, 20);
  force_isa(Isa::kPlain);
  const Outcome plain = run(c, {10, 20}, true, &adapters);
  force_isa(fast_isas().front());
  const Outcome fast = run(c, {10, 20}, true, &adapters);
  const std::vector<at::Tensor> x = tensors(plain), y = tensors(fast);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_LT(largest(x[i] - y[i]), 1e-5 * std::max(1.0, largest(x[i]))) << i;
}

}  // namespace
}  // namespace twinkle::ops
