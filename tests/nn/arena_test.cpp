#include "twinkle/nn/arena.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/core/error.h"

namespace twinkle::nn {
namespace {

TEST(Arena, ReusesMemoryAfterRelease) {
  Arena arena;
  const at::Tensor first = arena.take({3, 5});
  const auto mark = arena.mark();
  const at::Tensor second = arena.take({1000});
  arena.release(mark);
  const at::Tensor third = arena.take({10});
  EXPECT_EQ(third.data_ptr(), second.data_ptr());
  EXPECT_NE(first.data_ptr(), third.data_ptr());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(third.data_ptr()) % 64, 0u);
}

TEST(Arena, PeakCountsWhatWasHeldAtOnce) {
  Arena arena;
  arena.take({16});  // 64 bytes
  const auto mark = arena.mark();
  arena.take({32});  // 128 bytes
  arena.release(mark);
  arena.take({17});  // rounded up to 128 bytes
  EXPECT_EQ(arena.peak_bytes(), 192);
}

TEST(Arena, GrowsPastAChunkAndComesBack) {
  Arena arena;
  arena.take({1 << 20});
  const auto mark = arena.mark();
  std::vector<void*> places;
  for (int i = 0; i < 6; ++i) places.push_back(arena.take({1 << 21}).data_ptr());
  const int64_t reserved = arena.reserved_bytes();
  arena.release(mark);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(arena.take({1 << 21}).data_ptr(), places[static_cast<size_t>(i)]);
  EXPECT_EQ(arena.reserved_bytes(), reserved);
  arena.release({});
  arena.trim();
  EXPECT_EQ(arena.reserved_bytes(), 0);
}

TEST(Arena, ReservedRoomIsOnePiece) {
  Arena arena;
  arena.take({16});
  EXPECT_THROW(arena.reserve(1 << 24), Error);
  arena.release({});
  arena.reserve(1 << 24);
  EXPECT_EQ(arena.reserved_bytes(), 1 << 24);
  for (int i = 0; i < 16; ++i) arena.take({1 << 18});
  EXPECT_EQ(arena.reserved_bytes(), 1 << 24);
  arena.release({});
  arena.reserve(1 << 20);  // there is more already
  EXPECT_EQ(arena.reserved_bytes(), 1 << 24);
}

TEST(Arena, EmptyTensorsAreFine) {
  Arena arena;
  EXPECT_EQ(arena.take({0, 7}).numel(), 0);
  EXPECT_EQ(arena.peak_bytes(), 0);
}

TEST(Arena, TrimNeedsAnEmptyArena) {
  Arena arena;
  arena.take({1});
  EXPECT_THROW(arena.trim(), Error);
}

}  // namespace
}  // namespace twinkle::nn
