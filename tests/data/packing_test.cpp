// Packing: every item once, never past the room, full bins, the same bins for the same lengths.
#include "twinkle/data/packing.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/data/packed_batch.h"

namespace twinkle {
namespace {

using Bins = std::vector<std::vector<int64_t>>;

// Lengths as chats have them: log-normal around 300.
std::vector<int64_t> chat_lengths(int64_t count, uint64_t seed, int64_t most) {
  std::vector<float> normal(static_cast<size_t>(count));
  fill_normal(normal.data(), count, seed, 1.0f);
  std::vector<int64_t> out;
  for (const float x : normal)
    out.push_back(
        std::clamp<int64_t>(static_cast<int64_t>(std::exp(5.7 + 0.9 * static_cast<double>(x))), 1, most));
  return out;
}

void expect_sound(const std::vector<int64_t>& lengths, const Bins& bins, int64_t max_length) {
  std::vector<int> seen(lengths.size(), 0);
  int64_t last_first = -1;
  for (const auto& bin : bins) {
    ASSERT_FALSE(bin.empty());
    ASSERT_GT(bin[0], last_first);
    last_first = bin[0];
    int64_t sum = 0;
    for (size_t k = 0; k < bin.size(); ++k) {
      if (k > 0) {
        ASSERT_GT(bin[k], bin[k - 1]);
      }
      sum += lengths[static_cast<size_t>(bin[k])];
      ++seen[static_cast<size_t>(bin[k])];
    }
    ASSERT_LE(sum, max_length);
  }
  for (const int count : seen) ASSERT_EQ(count, 1);
}

TEST(Packing, BestFitByHand) {
  // 7+3, 6+4, 5+5 fill bins of ten exactly.
  EXPECT_EQ(pack_best_fit(std::vector<int64_t>{3, 5, 7, 4, 5, 6}, 10), (Bins{{0, 2}, {1, 4}, {3, 5}}));
  EXPECT_EQ(pack_best_fit(std::vector<int64_t>{}, 10), Bins{});
  EXPECT_EQ(pack_best_fit(std::vector<int64_t>{10}, 10), (Bins{{0}}));
}

TEST(Packing, InOrderKeepsTheOrder) {
  EXPECT_EQ(pack_in_order(std::vector<int64_t>{3, 2, 1}, 4), (Bins{{0}, {1, 2}}));
}

TEST(Packing, RandomLengthsGoOnceEachAndFillTheBins) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const int64_t most = 64 + static_cast<int64_t>(seed) * 37;
    const auto lengths = chat_lengths(1 + static_cast<int64_t>(seed * seed), seed, most);
    expect_sound(lengths, pack_best_fit(lengths, most), most);
    expect_sound(lengths, pack_in_order(lengths, most), most);
  }
  for (const int64_t max_length : {2048, 4096, 8192}) {
    const auto lengths = chat_lengths(20000, 7, max_length);
    const Bins bins = pack_best_fit(lengths, max_length);
    expect_sound(lengths, bins, max_length);
    EXPECT_GE(packing_fill(lengths, bins, max_length), 0.985) << max_length;
    EXPECT_EQ(pack_best_fit(lengths, max_length), bins);
  }
}

TEST(Packing, RefusesWhatDoesNotFit) {
  for (const auto& lengths : {std::vector<int64_t>{4, 11}, std::vector<int64_t>{4, 0}}) {
    const std::string got = test::thrown([&] { pack_best_fit(lengths, 10); });
    EXPECT_EQ(got.find("[packing] item 1 has "), 0u) << got;
  }
}

std::vector<InputFeature> features_of(const std::vector<int64_t>& lengths) {
  std::vector<InputFeature> out;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    InputFeature f;
    for (int64_t i = 0; i < length; ++i) f.input_ids.push_back(next++);
    for (int64_t i = 0; i < length; ++i)
      f.labels.push_back(i + 1 < length ? f.input_ids[static_cast<size_t>(i) + 1] : kIgnoreIndex);
    out.push_back(std::move(f));
  }
  return out;
}

TEST(Packing, ABinIsABatchWhosePositionsBeginAnew) {
  const PackingDataset data(features_of({3, 2}), {.max_length = 8});
  ASSERT_EQ(data.size(), 1);
  const PackedBatch batch = pack(data.sample(0));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 5}));
  EXPECT_EQ(data.fill(), 5.0 / 8);
  EXPECT_EQ(data.num_tokens(), 5);
}

TEST(Packing, WrappedFillsEveryBinButTheLast) {
  const PackingDataset data(features_of({5, 7, 4}), {.max_length = 6, .strategy = "wrapped"});
  ASSERT_EQ(data.size(), 3);
  std::vector<int32_t> all;
  for (int64_t i = 0; i < data.size(); ++i) {
    int64_t tokens = 0;
    for (const auto& f : data.sample(i)) {
      tokens += static_cast<int64_t>(f.input_ids.size());
      all.insert(all.end(), f.input_ids.begin(), f.input_ids.end());
      EXPECT_EQ(f.labels.back(), kIgnoreIndex);
    }
    EXPECT_EQ(tokens, i < 2 ? 6 : 4);
  }
  std::vector<int32_t> want(16);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(all, want);
}

// Samples made of their number, so that what comes out names what went in.
class NumberStream : public SampleStream {
 public:
  explicit NumberStream(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  std::optional<std::vector<InputFeature>> next() override {
    if (at_ == lengths_.size()) return std::nullopt;
    InputFeature f;
    f.input_ids.assign(static_cast<size_t>(lengths_[at_]), static_cast<int32_t>(at_));
    f.labels.assign(f.input_ids.size(), kIgnoreIndex);
    ++at_;
    return std::vector<InputFeature>{std::move(f)};
  }
  void rewind() override { at_ = 0; }
  Json state() const override { return at_; }
  void restore(const Json& state) override { at_ = state.get<size_t>(); }

 private:
  std::vector<int64_t> lengths_;
  size_t at_ = 0;
};

TEST(StreamPacking, EveryTokenOnceInBoundedMemoryWithFullBins) {
  const auto lengths = chat_lengths(20000, 3, 4096);
  IterablePackingDataset stream(std::make_unique<NumberStream>(lengths),
                                {.max_length = 4096, .packing_interval = 512});
  std::vector<int> seen(lengths.size(), 0);
  int64_t tokens = 0, bins = 0;
  while (auto bin = stream.next()) {
    int64_t size = 0;
    for (const auto& f : *bin) {
      ++seen[static_cast<size_t>(f.input_ids[0])];
      size += static_cast<int64_t>(f.input_ids.size());
    }
    ASSERT_LE(size, 4096);
    tokens += size;
    ++bins;
  }
  for (const int count : seen) ASSERT_EQ(count, 1);
  EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  EXPECT_LE(stream.max_waiting(), 512);
  EXPECT_GE(static_cast<double>(tokens) / (4096.0 * static_cast<double>(bins)), 0.985);
}

TEST(StreamPacking, ResumesAtEveryBin) {
  const auto lengths = chat_lengths(300, 5, 1024);
  const auto fresh = [&] {
    return IterablePackingDataset(std::make_unique<NumberStream>(lengths),
                                  {.max_length = 1024, .packing_interval = 32});
  };
  std::vector<std::vector<int32_t>> whole;
  std::vector<Json> states;
  auto stream = fresh();
  const auto names = [](const std::vector<InputFeature>& bin) {
    std::vector<int32_t> out;
    for (const auto& f : bin) out.push_back(f.input_ids[0]);
    return out;
  };
  for (;;) {
    states.push_back(Json::parse(stream.state().dump()));
    auto bin = stream.next();
    if (!bin) break;
    whole.push_back(names(*bin));
  }
  for (size_t k = 0; k < states.size(); k += 7) {
    auto resumed = fresh();
    resumed.restore(states[k]);
    for (size_t i = k; i < whole.size(); ++i) ASSERT_EQ(names(*resumed.next()), whole[i]) << k << " " << i;
    EXPECT_FALSE(resumed.next().has_value());
  }
  auto broken = fresh();
  EXPECT_THROW(broken.restore(Json::object()), Error);
}

TEST(StreamPacking, CyclicNeverEnds) {
  IterablePackingDataset stream(std::make_unique<NumberStream>(std::vector<int64_t>{3, 4, 5}),
                                {.max_length = 7, .packing_interval = 2, .cyclic = true});
  std::vector<int> seen(3, 0);
  for (int i = 0; i < 30; ++i) {
    const auto bin = stream.next();
    for (const auto& f : *bin) ++seen[static_cast<size_t>(f.input_ids[0])];
  }
  EXPECT_LE(*std::max_element(seen.begin(), seen.end()) - *std::min_element(seen.begin(), seen.end()), 2);
}

}  // namespace
}  // namespace twinkle
