// labels: quick bits
// Attention: values against a naive fp64 softmax and its autograd, bits against batching, chunking, paging,
// threads and instruction sets.
#include <torch/csrc/autograd/variable.h>

#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

using ops::AttentionSequence;
using Tensors = std::vector<at::Tensor>;

struct Shape {
  int64_t H, G, D, window;
};
const std::vector<Shape> kShapes = {{1, 1, 16, 0},  {9, 3, 64, 0},   {9, 3, 64, 40}, {4, 1, 72, 0},
                                    {4, 1, 72, 1},  {2, 2, 96, 100}, {3, 3, 80, 0},  {8, 2, 128, 0},
                                    {2, 1, 256, 7}, {14, 2, 33, 64}, {7, 1, 24, 129}};

std::vector<AttentionSequence> packed(const std::vector<int64_t>& lengths) {
  std::vector<AttentionSequence> out;
  int64_t at = 0;
  for (const int64_t n : lengths) {
    out.push_back({at, n, at, n, {}});
    at += n;
  }
  return out;
}

int64_t sum(const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t n : lengths) total += n;
  return total;
}

double scale_of(int64_t D) { return 1.0 / std::sqrt(static_cast<double>(D)); }

// softmax(scale q k^T + mask) v of whole sequences, by the definition; any dtype.
std::pair<at::Tensor, at::Tensor> naive(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const std::vector<AttentionSequence>& sequences, int64_t window) {
  const int64_t H = q.size(1), G = k.size(1), D = q.size(2);
  Tensors o, lse;
  for (const auto& s : sequences) {
    const auto rows = [&](const at::Tensor& x) {
      return x.slice(0, s.q_begin, s.q_begin + s.q_len).transpose(0, 1);
    };
    const at::Tensor kk = rows(k).repeat_interleave(H / G, 0), vv = rows(v).repeat_interleave(H / G, 0);
    const at::Tensor i = at::arange(s.q_len).unsqueeze(1), j = at::arange(s.q_len).unsqueeze(0);
    at::Tensor hidden = j > i;
    if (window > 0) hidden = hidden.logical_or(j <= i - window);
    const at::Tensor scores = (at::matmul(rows(q), kk.transpose(1, 2)) * scale_of(D))
                                  .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    lse.push_back(at::logsumexp(scores, 2).transpose(0, 1));
    o.push_back(at::matmul(at::softmax(scores, 2), vv).transpose(0, 1));
  }
  return {at::cat(o), at::cat(lse)};
}

struct Inputs {
  at::Tensor q, k, v, dout;
};
Inputs inputs(int64_t T, const Shape& s, uint64_t key) {
  return {normal({T, s.H, s.D}, key, 2.0f), normal({T, s.G, s.D}, key + 1, 2.0f),
          normal({T, s.G, s.D}, key + 2), normal({T, s.H, s.D}, key + 3)};
}

Tensors forward(const Inputs& x, const std::vector<AttentionSequence>& sequences, int64_t window) {
  at::Tensor o = at::zeros_like(x.q), lse = at::zeros({x.q.size(0), x.q.size(1)});
  ops::attention(x.q, x.k, x.v, sequences, scale_of(x.q.size(2)), window, o, lse);
  return {o, lse};
}

Tensors backward(const Inputs& x, const std::vector<AttentionSequence>& sequences, int64_t window) {
  const Tensors f = forward(x, sequences, window);
  const float junk = 1e30f;  // outputs are written, not added to
  at::Tensor dq = at::full_like(x.q, junk), dk = at::full_like(x.k, junk), dv = at::full_like(x.v, junk);
  ops::attention_backward(x.dout, x.q, x.k, x.v, f[0], f[1], sequences, scale_of(x.q.size(2)), window, dq, dk,
                          dv);
  return {f[0], f[1], dq, dk, dv};
}

at::Tensor leaf(const at::Tensor& x) { return x.to(at::kDouble).detach().clone().requires_grad_(true); }

TEST(Attention, MatchesTheDefinitionAndAutograd) {
  uint64_t key = 100;
  for (const Shape& shape : kShapes) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1}, {0, 2, 63, 0, 64, 65}, {131, 7}, {257}}) {
      const std::string what = "H=" + std::to_string(shape.H) + " G=" + std::to_string(shape.G) +
                               " D=" + std::to_string(shape.D) + " window=" + std::to_string(shape.window) +
                               " first length=" + std::to_string(lengths[0]);
      const Inputs x = inputs(sum(lengths), shape, key += 10);
      const auto sequences = packed(lengths);
      const Tensors got = same_everywhere([&] { return backward(x, sequences, shape.window); }, what);
      const at::Tensor q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
      const auto [o, lse] = naive(q, k, v, sequences, shape.window);
      (o * x.dout.to(at::kDouble)).sum().backward();
      EXPECT_LT(relative_error(got[0], o.detach()), 3e-6) << what;
      EXPECT_LT(relative_error(got[1], lse.detach()), 2e-6) << what;
      EXPECT_LT((got[2].to(at::kDouble) - q.grad()).abs().max().item<double>(), 2e-5) << what;
      EXPECT_LT((got[3].to(at::kDouble) - k.grad()).abs().max().item<double>(), 1e-4) << what;
      EXPECT_LT(relative_error(got[4], v.grad()), 5e-6) << what;
    }
  }
}

TEST(Attention, TheAtenVersionAgrees) {
  const Shape shape = {6, 2, 40, 50};
  const Inputs x = inputs(400, shape, 1);
  const auto sequences = packed({300, 100});
  const Tensors got = backward(x, sequences, shape.window);
  at::Tensor o = at::empty_like(x.q), lse = at::empty({400, 6});
  at::Tensor dq = at::empty_like(x.q), dk = at::empty_like(x.k), dv = at::empty_like(x.v);
  ops::aten::attention(x.q, x.k, x.v, sequences, scale_of(40), 50, o, lse);
  ops::aten::attention_backward(x.dout, x.q, x.k, x.v, o, lse, sequences, scale_of(40), 50, dq, dk, dv);
  EXPECT_LT(relative_error(got[0], o), 5e-6);
  EXPECT_LT(relative_error(got[1], lse), 5e-6);
  EXPECT_LT(relative_error(got[2], dq), 1e-5);
  EXPECT_LT(relative_error(got[3], dk), 1e-5);
  EXPECT_LT(relative_error(got[4], dv), 1e-5);
}

TEST(Attention, ASequenceAloneHasTheBitsItHasInABatch) {
  for (const Shape& shape : {Shape{9, 3, 64, 0}, Shape{4, 2, 72, 33}}) {
    const std::vector<int64_t> lengths = {5, 130, 1, 64, 0, 77, 200};
    const Inputs x = inputs(sum(lengths), shape, 200);
    const auto sequences = packed(lengths);
    const Tensors whole = backward(x, sequences, shape.window);
    for (const AttentionSequence& s : sequences) {
      const auto cut = [&](const at::Tensor& t) {
        return t.slice(0, s.q_begin, s.q_begin + s.q_len).clone();
      };
      const Tensors alone =
          backward({cut(x.q), cut(x.k), cut(x.v), cut(x.dout)}, packed({s.q_len}), shape.window);
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(same_bits(alone[i], cut(whole[i]))) << s.q_len << " " << i;
    }
    std::vector<AttentionSequence> turned(sequences.rbegin(), sequences.rend());
    const Tensors again = backward(x, turned, shape.window);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(again[i], whole[i])) << i;
  }
}

// Copies rows of [T, G, D] into blocks of a cache whose every other byte is NaN.
at::Tensor paged(const at::Tensor& rows, const std::vector<int32_t>& blocks, int64_t capacity,
                 int64_t length) {
  at::Tensor cache = at::full({capacity * 64, rows.size(1), rows.size(2)}, std::nanf(""));
  for (int64_t p = 0; p < length; p += 64) {
    const int64_t n = std::min<int64_t>(64, length - p), to = blocks[static_cast<size_t>(p / 64)] * 64;
    cache.slice(0, to, to + n).copy_(rows.slice(0, p, p + n));
  }
  return cache;
}

TEST(Attention, PrefillChunksDecodingAndPagesGiveTheSameBits) {
  for (const Shape& shape : {Shape{9, 3, 64, 0}, Shape{9, 3, 64, 50}, Shape{4, 1, 72, 0}, Shape{2, 2, 96, 64},
                             Shape{16, 2, 128, 3}}) {
    const int64_t T = 203;
    const Inputs x = inputs(T, shape, 300);
    RestoreMachine restore;
    for (const Isa isa : vector_isas()) {
      force_isa(isa);
      const Tensors whole = forward(x, packed({T}), shape.window);
      const std::vector<int32_t> blocks = {5, 0, 7, 2};
      // Steps: whole queries of a chunk are written, then only those keys exist.
      for (const std::vector<int64_t>& steps : {std::vector<int64_t>{64, 64, 64, 11},
                                                {1, 100, 1, 1, 100},
                                                {7, 190, 6},
                                                std::vector<int64_t>(T, 1)}) {
        int64_t done = 0;
        for (const int64_t n : steps) {
          const int64_t now = done + n;
          const bool check_pages = n > 1 || now % 16 == 1 || now % 64 <= 1;
          const auto expect = [&](const Inputs& in, const AttentionSequence& s, const char* how) {
            const Tensors got = forward(in, {s}, shape.window);
            EXPECT_TRUE(same_bits(got[0], whole[0].slice(0, done, now))) << how << " " << done << "+" << n;
            EXPECT_TRUE(same_bits(got[1], whole[1].slice(0, done, now))) << how << " " << done << "+" << n;
          };
          Inputs part = {x.q.slice(0, done, now).clone(),
                         x.k.slice(0, 0, now).clone(),
                         x.v.slice(0, 0, now).clone(),
                         {}};
          expect(part, {0, n, 0, now, {}}, "rows");
          if (check_pages) {
            part.k = paged(x.k, blocks, 8, now);
            part.v = paged(x.v, blocks, 8, now);
            expect(part, {0, n, 0, now, blocks}, "pages");
          }
          done = now;
        }
      }
    }
  }
}

TEST(Attention, DecodingABatchFromOneCacheGivesTheBitsOfTraining) {
  const Shape shape = {9, 3, 64, 0};
  const std::vector<int64_t> lengths = {1, 64, 65, 130, 200};
  const Inputs x = inputs(sum(lengths), shape, 600);
  const auto sequences = packed(lengths);
  const Tensors whole = forward(x, sequences, 0);
  // Blocks of all sequences lie mixed in one cache; the batch has the last query of each.
  const int64_t capacity = 16;
  Inputs step = {at::empty({5, 9, 64}), at::full({capacity * 64, 3, 64}, std::nanf("")), {}, {}};
  step.v = step.k.clone();
  std::vector<std::vector<int32_t>> tables(lengths.size());
  std::vector<AttentionSequence> batch;
  int32_t next = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t begin = sequences[i].q_begin, n = lengths[i];
    for (int64_t p = 0; p < n; p += 64) {
      const int32_t block = next++ * 7 % static_cast<int32_t>(capacity);
      const int64_t rows = std::min<int64_t>(64, n - p);
      tables[i].push_back(block);
      step.k.slice(0, block * 64, block * 64 + rows).copy_(x.k.slice(0, begin + p, begin + p + rows));
      step.v.slice(0, block * 64, block * 64 + rows).copy_(x.v.slice(0, begin + p, begin + p + rows));
    }
    step.q[static_cast<int64_t>(i)].copy_(x.q[begin + n - 1]);
    batch.push_back({static_cast<int64_t>(i), 1, 0, n, tables[i]});
  }
  const Tensors got = same_everywhere([&] { return forward(step, batch, 0); }, "decode");
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t last = sequences[i].q_begin + lengths[i] - 1, row = static_cast<int64_t>(i);
    EXPECT_TRUE(same_bits(got[0][row], whole[0][last])) << i;
    EXPECT_TRUE(same_bits(got[1][row], whole[1][last])) << i;
  }
}

// Rows of the whole sequence in blocks that begin at any row, NaN elsewhere.
at::Tensor scattered(const at::Tensor& rows, const std::vector<int64_t>& block_rows, int64_t capacity) {
  at::Tensor out = at::full({capacity, rows.size(1), rows.size(2)}, std::nanf(""));
  for (int64_t p = 0; p < rows.size(0); p += 64) {
    const int64_t n = std::min<int64_t>(64, rows.size(0) - p), to = block_rows[static_cast<size_t>(p / 64)];
    out.slice(0, to, to + n).copy_(rows.slice(0, p, p + n));
  }
  return out;
}

TEST(Attention, BlocksThatBeginAtAnyRowGiveTheBitsOfRowsInOrder) {
  for (const Shape& shape : {Shape{9, 3, 64, 0}, Shape{4, 1, 72, 70}}) {
    const int64_t T = 210, first = 77;
    const Inputs x = inputs(T, shape, 800);
    const std::vector<int64_t> block_rows = {131, 3, 200, 67};
    const Tensors whole = forward(x, packed({T}), shape.window);
    const Inputs part = {
        x.q.slice(0, first, T).clone(), scattered(x.k, block_rows, 270), scattered(x.v, block_rows, 270), {}};
    AttentionSequence tail{0, T - first, 0, T};
    tail.block_rows = block_rows;
    const Tensors got = same_everywhere([&] { return forward(part, {tail}, shape.window); }, "block rows");
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(got[i], whole[i].slice(0, first, T))) << i;
  }
}

// Sequences whose first queries are another's: only the others go backward here.
TEST(Attention, BackwardOfTheLastQueriesMatchesAutograd) {
  uint64_t key = 900;
  for (const Shape& shape : kShapes) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{130, 64, 7}, {201}, {1, 70}}) {
      std::vector<AttentionSequence> tails;
      const auto whole = packed(lengths);
      int64_t rows = 0;
      std::vector<at::Tensor> kept;
      for (size_t i = 0; i < lengths.size(); ++i) {
        const int64_t first = i == 0 ? lengths[i] / 2 + 5 * (lengths[i] > 20) : lengths[i] / 3;
        tails.push_back({rows, lengths[i] - first, whole[i].kv_begin, lengths[i]});
        kept.push_back(at::arange(whole[i].q_begin + first, whole[i].q_begin + lengths[i]));
        rows += lengths[i] - first;
      }
      const at::Tensor queries = at::cat(kept);
      const Inputs all = inputs(sum(lengths), shape, key += 10);
      const Inputs x = {all.q.index_select(0, queries), all.k, all.v, all.dout.index_select(0, queries)};
      const std::string what = "H=" + std::to_string(shape.H) + " D=" + std::to_string(shape.D) +
                               " window=" + std::to_string(shape.window) +
                               " first length=" + std::to_string(lengths[0]);
      const Tensors got = same_everywhere([&] { return backward(x, tails, shape.window); }, what);
      const at::Tensor q = leaf(all.q), k = leaf(all.k), v = leaf(all.v);
      const auto o = naive(q, k, v, whole, shape.window).first;
      (o.index_select(0, queries) * x.dout.to(at::kDouble)).sum().backward();
      const auto furthest = [](const at::Tensor& a, const at::Tensor& b) {
        return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
      };
      EXPECT_LT(furthest(got[2], q.grad().index_select(0, queries)), 2e-5) << what;
      EXPECT_LT(furthest(got[3], k.grad()), 1e-4) << what;
      EXPECT_LT(relative_error(got[4], v.grad()), 5e-6) << what;
      RestoreMachine restore;
      force_isa(Isa::kPlain);
      const Tensors plain = backward(x, tails, shape.window);
      for (size_t i = 2; i < 5; ++i) EXPECT_LT(furthest(plain[i], got[i]), 1e-4) << what << " " << i;
    }
  }
}

TEST(Attention, KeysThatAreNotSeenDoNotCount) {
  for (const Shape& shape : {Shape{9, 3, 64, 0}, Shape{3, 1, 48, 20}}) {
    const int64_t T = 150;
    const Inputs x = inputs(T, shape, 400);
    const Tensors clean = forward(x, packed({T}), shape.window);
    const int64_t bad = 70;
    Inputs spoilt = {x.q, x.k.clone(), x.v.clone(), {}};
    spoilt.k[bad].fill_(std::nanf(""));
    spoilt.v[bad].fill_(std::numeric_limits<float>::infinity());
    const Tensors got = forward(spoilt, packed({T}), shape.window);
    const int64_t after = shape.window > 0 ? bad + shape.window : T;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(got[i].slice(0, 0, bad), clean[i].slice(0, 0, bad)));
      EXPECT_TRUE(same_bits(got[i].slice(0, after, T), clean[i].slice(0, after, T)));
      EXPECT_TRUE(at::isnan(got[i].slice(0, bad, after)).all().item<bool>());
    }
  }
}

TEST(Attention, LargeScoresStayFinite) {
  const Shape shape = {2, 1, 32, 0};
  Inputs x = inputs(100, shape, 500);
  x.q.mul_(100.0f), x.k.mul_(100.0f);
  const auto sequences = packed({100});
  const Tensors got = backward(x, sequences, 0);
  const auto [o, lse] = naive(x.q.to(at::kDouble), x.k.to(at::kDouble), x.v.to(at::kDouble), sequences, 0);
  EXPECT_LT(relative_error(got[1], lse), 1e-6);
  EXPECT_LT(relative_error(got[0], o), 2e-2);  // scores near 1e5 carry an error of 1e-2
  for (const at::Tensor& t : got) EXPECT_TRUE(at::isfinite(t).all().item<bool>());
}

}  // namespace
}  // namespace twinkle
