// labels: quick bits
// Embedding gather from panels and its gradient, per sequence in order.
#include "tests/kernels/kernel_testing.h"
#include "twinkle/kernels/aten/rows.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor some_tokens(int64_t T, int64_t V, uint64_t seed) {
  at::Tensor tokens = at::empty({T}, at::kInt);
  CounterRng rng(seed);
  for (int64_t t = 0; t < T; ++t) tokens.data_ptr<int32_t>()[t] = static_cast<int32_t>(rng.next_below(V));
  return tokens;
}

TEST(Embedding, GathersTheRowsOfEveryStorageType) {
  for (const auto& [V, K] : {std::pair<int64_t, int64_t>{1, 1}, {17, 33}, {100, 64}, {331, 127}}) {
    const at::Tensor w = normal({V, K}, 1);
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const ops::PackedMatrix packed = ops::PackedMatrix::pack(w, dtype);
      for (const int64_t T : {0, 1, 37}) {
        const at::Tensor tokens = some_tokens(T, V, 2);
        const Tensors got = same_everywhere(
            [&] {
              at::Tensor out = at::empty({T, K}), oracle = at::empty({T, K});
              ops::embedding(packed, tokens, out);
              ops::aten::embedding(packed, tokens, oracle);
              return Tensors{out, oracle};
            },
            "embedding");
        const at::Tensor want = w.to(dtype).to(at::kFloat).index_select(0, tokens.to(at::kLong));
        EXPECT_TRUE(same_bits(got[0], want)) << V << " " << K << " " << T;
        EXPECT_TRUE(same_bits(got[1], want)) << V << " " << K << " " << T;
      }
    }
  }
}

TEST(Embedding, GradientAddsTheSumOfEachSequence) {
  const int64_t V = 37, K = 83, T = 200;
  const at::Tensor tokens = some_tokens(T, V, 3), dout = normal({T, K}, 4), start = normal({V, K}, 5);
  const std::vector<ops::RowRange> order = {{90, 200}, {0, 1}, {1, 1}, {1, 90}};
  const Tensors got = same_everywhere(
      [&] {
        ops::PackedMatrix grad = ops::PackedMatrix::pack(start, at::kFloat),
                          oracle = ops::PackedMatrix::pack(start, at::kFloat);
        ops::embedding_grad(dout, tokens, order, grad);
        ops::aten::embedding_grad(dout, tokens, order, oracle);
        return Tensors{grad.unpack(), grad.storage().clone(), oracle.unpack()};
      },
      "embedding_grad");
  // By the definition, one addition after another.
  at::Tensor want = start.clone();
  for (const ops::RowRange& r : order) {
    at::Tensor sum = at::zeros({V, K});
    std::vector<bool> seen(static_cast<size_t>(V));
    for (int64_t t = r.begin; t < r.end; ++t) {
      sum[tokens[t].item<int32_t>()].add_(dout[t]);
      seen[static_cast<size_t>(tokens[t].item<int32_t>())] = true;
    }
    for (int64_t v = 0; v < V; ++v) {
      if (seen[static_cast<size_t>(v)]) want[v].add_(sum[v]);
    }
  }
  EXPECT_TRUE(same_bits(got[0], want));
  EXPECT_LT(relative_error(got[2], want), 1e-6);
  // The padding of the last panel stays zero.
  EXPECT_EQ(got[1].view({-1, K, 16}).select(0, 2).slice(1, V - 32, 16).abs().max().item<float>(), 0.0f);

  ops::PackedMatrix whole = ops::PackedMatrix::pack(start, at::kFloat),
                    parts = ops::PackedMatrix::pack(start, at::kFloat);
  ops::embedding_grad(dout, tokens, order, whole);
  for (const ops::RowRange& r : order) {
    const std::vector<ops::RowRange> one = {{0, r.end - r.begin}};
    ops::embedding_grad(dout.slice(0, r.begin, r.end).clone(), tokens.slice(0, r.begin, r.end).clone(), one,
                        parts);
  }
  EXPECT_TRUE(same_bits(whole.storage(), parts.storage()));
}

}  // namespace
}  // namespace twinkle
