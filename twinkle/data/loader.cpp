#include <algorithm>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/data/dataset.h"

namespace twinkle {

std::pair<int64_t, int64_t> rank_slice(int64_t count, int64_t rank, int64_t world_size) {
  const int64_t share = count / world_size, extra = count % world_size;
  return {rank * share + std::min(rank, extra), (rank + 1) * share + std::min(rank + 1, extra)};
}

DataLoader::DataLoader(std::vector<InputFeature> features, const DataLoaderOptions& options)
    : features_(std::move(features)), options_(options) {
  const auto n = static_cast<int64_t>(features_.size());
  const auto& o = options_;
  if (n == 0) throw invalid_argument("[data loader] the data set has no features; was it encoded?");
  if (o.batch_size < 1)
    throw invalid_argument("[data loader] batch_size must be >= 1, got " + std::to_string(o.batch_size));
  if (o.world_size < 1)
    throw invalid_argument("[data loader] world_size must be >= 1, got " + std::to_string(o.world_size));
  if (o.rank < 0 || o.rank >= o.world_size) {
    throw invalid_argument("[data loader] rank must be in 0.." + std::to_string(o.world_size - 1) + ", got " +
                           std::to_string(o.rank));
  }
  if (o.batch_size < o.world_size) {
    throw invalid_argument("[data loader] batch_size " + std::to_string(o.batch_size) +
                           " leaves some of the " + std::to_string(o.world_size) + " ranks without a row");
  }
  if (o.min_batch_size < 1 || o.min_batch_size > o.batch_size) {
    throw invalid_argument("[data loader] min_batch_size must be between 1 and batch_size " +
                           std::to_string(o.batch_size) + ", got " + std::to_string(o.min_batch_size));
  }
  if (n < smallest_batch()) {
    throw invalid_argument("[data loader] " + std::to_string(n) +
                           " features never fill a batch of at least " + std::to_string(smallest_batch()));
  }
}

int64_t DataLoader::smallest_batch() const { return std::max(options_.min_batch_size, options_.world_size); }

int64_t DataLoader::batches_per_epoch() const {
  const int64_t full = num_features() / options_.batch_size, rest = num_features() % options_.batch_size;
  return full + (rest >= smallest_batch() ? 1 : 0);
}

int64_t DataLoader::epoch() const { return consumed_ / num_features(); }

// Moves past a rest of the epoch that is too small for a batch.
void DataLoader::skip_short_rest() {
  const int64_t n = num_features();
  if (n - consumed_ % n < smallest_batch()) consumed_ = (consumed_ / n + 1) * n;
}

std::vector<InputFeature> DataLoader::next() {
  const int64_t n = num_features(), current = consumed_ / n, position = consumed_ % n;
  if (order_epoch_ != current) {
    if (options_.shuffle) {
      order_ = permutation(n, options_.seed, static_cast<uint64_t>(current));
    } else {
      order_.resize(static_cast<size_t>(n));
      std::iota(order_.begin(), order_.end(), int64_t{0});
    }
    order_epoch_ = current;
  }
  const int64_t count = std::min(options_.batch_size, n - position);
  const auto [begin, end] = rank_slice(count, options_.rank, options_.world_size);
  last_indices_.assign(order_.begin() + position + begin, order_.begin() + position + end);
  std::vector<InputFeature> batch;
  batch.reserve(last_indices_.size());
  for (const int64_t index : last_indices_) batch.push_back(features_[static_cast<size_t>(index)]);
  consumed_ += count;
  skip_short_rest();
  return batch;
}

void DataLoader::resume_from_checkpoint(int64_t consumed_train_samples) {
  if (consumed_train_samples < 0) {
    throw invalid_argument("[data loader] consumed_train_samples must be >= 0, got " +
                           std::to_string(consumed_train_samples));
  }
  consumed_ = consumed_train_samples;
  skip_short_rest();
}

}  // namespace twinkle
