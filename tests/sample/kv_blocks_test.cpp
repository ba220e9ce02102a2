// The cache's bookkeeping: counts, what a prefix finds again, what goes first when room is needed.
#include "twinkle/sample/kv_blocks.h"

#include <gtest/gtest.h>

#include <numeric>

namespace twinkle {
namespace {

std::vector<int32_t> tokens(int64_t n, int32_t first = 0) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// A sequence of whole blocks that was computed and let go.
std::vector<int32_t> leave_cached(KvBlocks& blocks, uint64_t version, const std::vector<int32_t>& ids) {
  std::vector<int32_t> mine;
  KvBlocks::Node node = 0;
  for (size_t begin = 0; begin < ids.size(); begin += KvBlocks::kTokens) {
    mine.push_back(*blocks.allocate());
    node = blocks.commit(mine.back(), version, node, std::span(ids).subspan(begin, KvBlocks::kTokens));
  }
  const auto copy = mine;
  blocks.release_all(mine);
  return copy;
}

void expect_counts(const KvBlocks& blocks, int64_t free, int64_t cached, int64_t used) {
  const auto c = blocks.counters();
  EXPECT_EQ(c.free, free);
  EXPECT_EQ(c.cached, cached);
  EXPECT_EQ(c.used, used);
}

TEST(KvBlocks, GivesLowNumbersFirstAndNothingWhenAllAreUsed) {
  KvBlocks blocks(3);
  EXPECT_EQ(*blocks.allocate(), 0);
  EXPECT_EQ(*blocks.allocate(), 1);
  EXPECT_EQ(*blocks.allocate(), 2);
  EXPECT_FALSE(blocks.allocate().has_value());
  blocks.release(1);
  blocks.release(0);
  EXPECT_EQ(*blocks.allocate(), 0);
  expect_counts(blocks, 1, 0, 2);
}

TEST(KvBlocks, FindsThePrefixOfItsVersionOnly) {
  KvBlocks blocks(8);
  const auto ids = tokens(192);
  const auto cached = leave_cached(blocks, 7, ids);
  expect_counts(blocks, 5, 3, 0);
  auto found = blocks.match(7, ids, 192);
  EXPECT_EQ(found.blocks, cached);
  expect_counts(blocks, 5, 0, 3);
  blocks.release_all(found.blocks);
  EXPECT_EQ(blocks.match(7, ids, 191).blocks.size(), 2u) << "a block is found whole or not at all";
  EXPECT_TRUE(blocks.match(8, ids, 192).blocks.empty());
  auto other = ids;
  other[100] = 5;
  EXPECT_EQ(blocks.match(7, other, 192).blocks.size(), 1u);
  // The same tokens after another beginning are another prefix.
  auto shifted = tokens(64, 1000);
  shifted.insert(shifted.end(), ids.begin() + 64, ids.end());
  EXPECT_TRUE(blocks.match(7, shifted, 192).blocks.empty());
}

TEST(KvBlocks, FindsNothingOfAnotherRoot) {
  KvBlocks blocks(8);
  const auto ids = tokens(128);
  leave_cached(blocks, 7, ids);
  const auto mine = blocks.new_root(), theirs = blocks.new_root();
  const auto none = blocks.match(7, ids, 128, mine);
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_EQ(none.node, mine);
  int32_t block = *blocks.allocate();
  const int32_t first = block;
  blocks.commit(block, 7, none.node, std::span(ids).first(64));
  EXPECT_EQ(block, first) << "an equal block of another root is not shared";
  blocks.release(block);
  EXPECT_EQ(blocks.match(7, ids, 128, mine).blocks, std::vector<int32_t>{first});
  EXPECT_TRUE(blocks.match(7, ids, 128, theirs).blocks.empty());
  EXPECT_EQ(blocks.match(7, ids, 128).blocks.size(), 2u);
}

TEST(KvBlocks, KeepsOneBlockOfEqualPrefixes) {
  KvBlocks blocks(4);
  const auto ids = tokens(64);
  int32_t a = *blocks.allocate(), b = *blocks.allocate();
  const auto first = blocks.commit(a, 1, 0, ids);
  EXPECT_EQ(blocks.commit(b, 1, 0, ids), first);
  EXPECT_EQ(a, b);
  expect_counts(blocks, 3, 0, 1);
  blocks.release(a);
  expect_counts(blocks, 3, 0, 1);
  blocks.release(b);
  expect_counts(blocks, 3, 1, 0);
}

TEST(KvBlocks, EvictsTheLeastRecentlyUsedFromItsEnd) {
  KvBlocks blocks(4);
  const auto old = tokens(128), young = tokens(128, 500);
  leave_cached(blocks, 1, old);
  leave_cached(blocks, 1, young);
  auto again = blocks.match(1, old, 128);  // now the younger one
  blocks.release_all(again.blocks);
  EXPECT_TRUE(blocks.allocate().has_value());
  EXPECT_EQ(blocks.match(1, young, 128).blocks.size(), 1u);
  EXPECT_EQ(blocks.match(1, old, 128).blocks.size(), 2u);
  EXPECT_EQ(blocks.counters().evictions, 1);
}

TEST(KvBlocks, ForgetsAVersionButNotTheBlocksInUse) {
  KvBlocks blocks(6);
  const auto ids = tokens(128);
  leave_cached(blocks, 1, ids);
  leave_cached(blocks, 2, ids);
  auto used = blocks.match(1, ids, 64);
  blocks.forget_version(1);
  expect_counts(blocks, 3, 2, 1);
  EXPECT_TRUE(blocks.match(1, ids, 128).blocks.empty());
  blocks.release_all(used.blocks);
  expect_counts(blocks, 4, 2, 0);
  blocks.forget_all();
  expect_counts(blocks, 6, 0, 0);
}

TEST(KvBlocks, ForgetsAllAlsoBelowAForgottenPrefix) {
  KvBlocks blocks(4);
  const auto ids = tokens(128);
  int32_t first = *blocks.allocate(), second = *blocks.allocate();
  const auto parent = blocks.commit(first, 1, 0, std::span(ids).first(64));
  blocks.forget_all();
  blocks.commit(second, 1, parent, std::span(ids).subspan(64));
  EXPECT_TRUE(blocks.match(1, ids, 128).blocks.empty());
  blocks.release(second);
  blocks.release(first);
  expect_counts(blocks, 3, 1, 0);
  blocks.forget_all();
  expect_counts(blocks, 4, 0, 0);
}

}  // namespace
}  // namespace twinkle
