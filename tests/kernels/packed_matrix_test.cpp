// labels: quick bits
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/ops.h"
#include "twinkle/kernels/packed_rows.h"

namespace twinkle::ops {
namespace {

TEST(PackedMatrix, KeepsPanelsOfSixteenRowsPaddedWithZeros) {
  // W[n, k] = 100 n + k, 18 x 3: panel 0 holds rows 0..15, panel 1 rows 16, 17 and zeros.
  const auto fill = [](int64_t begin, int64_t end, float* out) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < 3; ++k) out[(n - begin) * 3 + k] = static_cast<float>(100 * n + k);
    }
  };
  const PackedMatrix w = PackedMatrix::build(18, 3, at::kFloat, at::kCPU, fill);
  ASSERT_EQ(w.storage().numel(), 2 * 3 * 16);
  const float* p = w.storage().const_data_ptr<float>();
  EXPECT_EQ(p[0], 0.0f);
  EXPECT_EQ(p[1], 100.0f);             // row 1, column 0
  EXPECT_EQ(p[16 + 15], 1501.0f);      // row 15, column 1
  EXPECT_EQ(p[48 + 32 + 1], 1702.0f);  // row 17, column 2
  EXPECT_EQ(p[48 + 32 + 2], 0.0f);
}

// Matrices share pages: they keep apart, and outlive their neighbours.
TEST(PackedMatrix, KeepsItsValuesWhileNeighboursComeAndGo) {
  const auto make = [](int64_t i) {  // from 62 KB to 5 MB
    return PackedMatrix::pack(at::full({61 + 400 * (i % 4), 250 + 100 * (i % 7)}, static_cast<double>(i)),
                              at::kFloat);
  };
  const auto holds = [](const PackedMatrix& m, int64_t i) {
    return at::equal(m.unpack(), at::full({m.rows(), m.cols()}, static_cast<double>(i)));
  };
  std::vector<PackedMatrix> all;
  for (int64_t i = 0; i < 60; ++i) all.push_back(make(i));
  for (int64_t i = 0; i < 60; i += 2) all[static_cast<size_t>(i)] = {};
  for (int64_t i = 0; i < 60; i += 4) all[static_cast<size_t>(i)] = make(i);
  for (int64_t i = 0; i < 60; ++i) {
    if (i % 4 == 2) continue;
    const PackedMatrix& m = all[static_cast<size_t>(i)];
    EXPECT_TRUE(holds(m, i)) << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m.storage().const_data_ptr()) % 64, 0u) << i;
  }
}

TEST(PackedMatrix, RoundTripsEveryShapeAndType) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {0, 1, 15, 16, 17, 61}) {
      for (const int64_t k : {1, 7, 16, 61}) {
        const at::Tensor w = at::randn({n, k}).to(dtype).to(at::kFloat);
        const PackedMatrix packed = PackedMatrix::pack(w, dtype);
        EXPECT_EQ(packed.dtype(), dtype);
        EXPECT_TRUE(at::equal(packed.unpack(), w));
        at::Tensor read = at::empty({n, k});
        packed.read_rows(0, n, read.mutable_data_ptr<float>());
        EXPECT_TRUE(at::equal(read, w));
        if (n > 3) {
          at::Tensor part = at::empty({n - 3, k});
          packed.read_rows(2, n - 1, part.mutable_data_ptr<float>());
          EXPECT_TRUE(at::equal(part, w.narrow(0, 2, n - 3)));
        }
        const PackedMatrix zero = PackedMatrix::zeros_like(packed);
        EXPECT_EQ(zero.dtype(), at::kFloat);
        EXPECT_EQ(zero.unpack().abs().sum().item<float>(), 0.0f);
      }
    }
  }
}

TEST(PackedMatrix, MovesRowsOfItsOwnTypeBitByBit) {
  at::manual_seed(3);
  const Isa before = active_isa();
  for (const Isa isa : available_isas()) {
    force_isa(isa);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t n : {0, 1, 15, 16, 17, 61}) {
        for (const int64_t k : {1, 7, 16, 33, 64}) {
          // Every bit pattern, NaN among them, so bytes are compared.
          const int64_t size = static_cast<int64_t>(c10::elementSize(dtype));
          const at::Tensor bytes = at::randint(0, 256, {n * k * size}, at::kByte);
          const PackedMatrix w =
              PackedMatrix::build(n, k, dtype, at::kCPU, StoredRows{bytes.const_data_ptr(), k, dtype});
          const auto* stored = static_cast<const char*>(w.storage().const_data_ptr());
          const auto* given = static_cast<const char*>(bytes.const_data_ptr());
          for (int64_t j = 0; j < n; ++j) {
            for (int64_t c = 0; c < k; ++c) {
              const int64_t place = ((j / 16 * k + c) * 16 + j % 16) * size;
              ASSERT_EQ(std::memcmp(stored + place, given + (j * k + c) * size, static_cast<size_t>(size)),
                        0);
            }
          }
          at::Tensor out = at::empty({n * k * size}, at::kByte);
          copy_rows(w, 0, n, out.mutable_data_ptr());
          EXPECT_TRUE(at::equal(out, bytes));
          if (n < 4) continue;
          at::Tensor part = at::empty({(n - 3) * k * size}, at::kByte);
          copy_rows(w, 2, n - 1, part.mutable_data_ptr());
          EXPECT_TRUE(at::equal(part, bytes.narrow(0, 2 * k * size, (n - 3) * k * size)));
        }
      }
    }
  }
  force_isa(before);
}

TEST(PackedMatrix, RoundsToNearestEvenLikeTorch) {
  at::manual_seed(2);
  const at::Tensor w = at::cat({at::randn({33, 40}), at::randn({33, 40}) * 1e-6, at::randn({33, 40}) * 6e4});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(at::equal(PackedMatrix::pack(w, dtype).unpack(), w.to(dtype).to(at::kFloat)));
  }
}

TEST(PackedMatrix, EveryInstructionSetPacksTheSameBits) {
  at::manual_seed(2);
  const Isa before = active_isa();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {1, 15, 16, 37}) {
      for (const int64_t k : {1, 7, 16, 63, 64, 65, 131}) {
        // Wide enough for overflow and subnormals in fp16.
        at::Tensor w = at::randn({n, k}).mul(at::randn({n, k}).mul(9).exp2());
        w[0][0] = std::numeric_limits<float>::infinity();
        force_isa(Isa::kPlain);
        const PackedMatrix plain = PackedMatrix::pack(w, dtype);
        at::Tensor narrowed = at::empty({n, k}, dtype);
        narrow(w.const_data_ptr<float>(), w.numel(), dtype, narrowed.mutable_data_ptr());
        EXPECT_TRUE(at::equal(narrowed, w.to(dtype)));
        for (const Isa isa : available_isas()) {
          force_isa(isa);
          const PackedMatrix packed = PackedMatrix::pack(w, dtype);
          EXPECT_TRUE(at::equal(packed.storage(), plain.storage())) << isa_name(isa) << n << "x" << k;
          at::Tensor again = at::empty({n, k}, dtype);
          narrow(w.const_data_ptr<float>(), w.numel(), dtype, again.mutable_data_ptr());
          EXPECT_TRUE(at::equal(again, narrowed)) << isa_name(isa) << n << "x" << k;
          const int64_t first = n / 2;
          at::Tensor rows = at::empty({n - first, k});
          packed.read_rows(first, n, rows.mutable_data_ptr<float>());
          EXPECT_TRUE(at::equal(rows, w.to(dtype).to(at::kFloat).narrow(0, first, n - first)))
              << isa_name(isa);
        }
      }
    }
  }
  force_isa(before);
}

TEST(PackedMatrix, RefusesOtherTypes) {
  EXPECT_THROW(PackedMatrix::pack(at::zeros({2, 2}), at::kDouble), Error);
  EXPECT_THROW(PackedMatrix::pack(at::zeros({2}), at::kFloat), Error);
}

TEST(Isa, ForcedOneIsActiveAndAbsentOneIsRefused) {
  const std::vector<Isa> have = available_isas();
  ASSERT_EQ(have.front(), Isa::kPlain);
  const Isa before = active_isa();
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (std::find(have.begin(), have.end(), isa) != have.end()) {
      force_isa(isa);
      EXPECT_EQ(active_isa(), isa);
    } else {
      EXPECT_THROW(force_isa(isa), Error);
    }
  }
  force_isa(before);
  EXPECT_EQ(isa_name(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace twinkle::ops
