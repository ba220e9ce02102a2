#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/data/dataset.h"

namespace twinkle {
namespace {

std::vector<InputFeature> numbered(int64_t count) {
  std::vector<InputFeature> out;
  for (int32_t i = 0; i < count; ++i) out.push_back({.input_ids = {i}, .labels = {i}});
  return out;
}

std::vector<int64_t> ids_of(const std::vector<InputFeature>& batch) {
  std::vector<int64_t> ids;
  for (const auto& f : batch) ids.push_back(f.input_ids[0]);
  return ids;
}

std::string error_of(int64_t count, const DataLoaderOptions& options) {
  return test::thrown([&] { DataLoader(numbered(count), options); });
}

TEST(DataLoader, OrderIsThePermutationOfSeedAndEpoch) {
  DataLoader loader(numbered(10), {.batch_size = 4, .seed = 7});
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const auto order = permutation(10, 7, epoch);
    for (const int64_t begin : {0, 4, 8}) {
      EXPECT_EQ(loader.epoch(), static_cast<int64_t>(epoch));
      EXPECT_EQ(
          ids_of(loader.next()),
          (std::vector<int64_t>(order.begin() + begin, order.begin() + std::min<int64_t>(begin + 4, 10))));
    }
  }
  EXPECT_EQ(loader.consumed_train_samples(), 30);
}

// Over many shapes: every row once an epoch, order by (seed, epoch) only, ranks partition each batch.
TEST(DataLoader, EveryRowOncePerEpochWhateverTheShape) {
  CounterRng rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto n = static_cast<int64_t>(1 + rng.next_below(60));
    const auto world =
        static_cast<int64_t>(1 + rng.next_below(std::min<uint64_t>(4, static_cast<uint64_t>(n))));
    const auto batch = static_cast<int64_t>(static_cast<uint64_t>(world) + rng.next_below(12));
    const uint64_t seed = rng.next_u64();
    std::vector<DataLoader> ranks;
    for (int64_t r = 0; r < world; ++r)
      ranks.emplace_back(
          numbered(n), DataLoaderOptions{.batch_size = batch, .seed = seed, .rank = r, .world_size = world});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto order = permutation(n, seed, static_cast<uint64_t>(epoch));
      std::vector<int64_t> seen;
      for (int64_t b = 0; b < ranks[0].batches_per_epoch(); ++b) {
        int64_t smallest = INT64_MAX, largest = 0;
        for (auto& rank : ranks) {
          ASSERT_EQ(rank.epoch(), epoch);
          const auto ids = ids_of(rank.next());
          ASSERT_EQ(ids, rank.last_indices());
          seen.insert(seen.end(), ids.begin(), ids.end());
          smallest = std::min(smallest, static_cast<int64_t>(ids.size()));
          largest = std::max(largest, static_cast<int64_t>(ids.size()));
        }
        ASSERT_GE(smallest, 1);
        ASSERT_LE(largest - smallest, 1);
      }
      // A last batch with fewer rows than ranks is left out; otherwise all rows come, in order.
      ASSERT_EQ(seen, (std::vector<int64_t>(order.begin(), order.begin() + static_cast<long>(seen.size()))));
      ASSERT_GE(static_cast<int64_t>(seen.size()), n - (world - 1));
      ASSERT_EQ(ranks[0].consumed_train_samples(), (epoch + 1) * n);
    }
  }
}

TEST(DataLoader, ResumeAtEveryPositionEqualsNeverStopping) {
  for (const int64_t min_batch : {1, 3, 4}) {
    const DataLoaderOptions options{.batch_size = 4, .min_batch_size = min_batch, .seed = 3};
    DataLoader whole(numbered(14), options);
    std::vector<std::vector<int64_t>> batches;
    std::vector<int64_t> positions = {0};
    for (int i = 0; i < 15; ++i) {
      batches.push_back(ids_of(whole.next()));
      positions.push_back(whole.consumed_train_samples());
    }
    for (size_t stop = 0; stop < batches.size(); ++stop) {
      DataLoader resumed(numbered(14), options);
      resumed.next();  // what came before does not matter
      resumed.resume_from_checkpoint(positions[stop]);
      for (size_t i = stop; i < batches.size(); ++i) {
        ASSERT_EQ(ids_of(resumed.next()), batches[i]) << "stopped at " << stop << ", batch " << i;
        ASSERT_EQ(resumed.consumed_train_samples(), positions[i + 1]);
      }
    }
  }
}

TEST(DataLoader, ResumesBetweenBatchesAndWithAnotherBatchSize) {
  std::vector<int64_t> stream;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    for (const int64_t id : permutation(11, 5, epoch)) stream.push_back(id);
  }
  for (int64_t start = 0; start < 22; ++start) {
    for (const int64_t batch : {1, 2, 5, 11}) {
      DataLoader loader(numbered(11), {.batch_size = batch, .seed = 5});
      loader.resume_from_checkpoint(start);
      std::vector<int64_t> got;
      while (loader.consumed_train_samples() < 33) {
        for (const int64_t id : ids_of(loader.next())) got.push_back(id);
      }
      ASSERT_EQ(got, (std::vector<int64_t>(stream.begin() + start, stream.end()))) << start << " " << batch;
    }
  }
}

TEST(DataLoader, DropsASmallLastBatchAndCountsIt) {
  DataLoader loader(numbered(10), {.batch_size = 4, .min_batch_size = 3, .shuffle = false});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(ids_of(loader.next()), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ids_of(loader.next()), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(loader.consumed_train_samples(), 10);
  EXPECT_EQ(ids_of(loader.next()), (std::vector<int64_t>{0, 1, 2, 3}));
  loader.resume_from_checkpoint(8);  // only the rest of two is left
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(DataLoader, RankSliceIsUpstreamsDivmod) {
  // get_slice(7, rank) over 3 ranks: k, m = divmod(7, 3) = 2, 1.
  EXPECT_EQ(rank_slice(7, 0, 3), (std::pair<int64_t, int64_t>{0, 3}));
  EXPECT_EQ(rank_slice(7, 1, 3), (std::pair<int64_t, int64_t>{3, 5}));
  EXPECT_EQ(rank_slice(7, 2, 3), (std::pair<int64_t, int64_t>{5, 7}));
  EXPECT_EQ(rank_slice(5, 0, 1), (std::pair<int64_t, int64_t>{0, 5}));
}

TEST(DataLoader, RefusesWhatNeverWorks) {
  EXPECT_EQ(error_of(0, {}), "[data loader] the data set has no features; was it encoded?");
  EXPECT_EQ(error_of(9, {.batch_size = 0}), "[data loader] batch_size must be >= 1, got 0");
  EXPECT_EQ(error_of(9, {.batch_size = 2, .world_size = 3}),
            "[data loader] batch_size 2 leaves some of the 3 ranks without a row");
  EXPECT_EQ(error_of(9, {.rank = 2, .world_size = 2}), "[data loader] rank must be in 0..1, got 2");
  EXPECT_EQ(error_of(9, {.world_size = 0}), "[data loader] world_size must be >= 1, got 0");
  EXPECT_EQ(error_of(9, {.batch_size = 4, .min_batch_size = 5}),
            "[data loader] min_batch_size must be between 1 and batch_size 4, got 5");
  EXPECT_EQ(error_of(2, {.batch_size = 4, .min_batch_size = 3}),
            "[data loader] 2 features never fill a batch of at least 3");
  DataLoader loader(numbered(3), {});
  EXPECT_THROW(loader.resume_from_checkpoint(-1), Error);
}

}  // namespace
}  // namespace twinkle
