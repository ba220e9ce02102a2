// Packing: samples of different length into bins of at most max_length tokens. A bin is a list of features; a
// pass lays them end to end with positions that begin at 0 in each, so nothing of one is seen by another.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/data/loader.h"
#include "twinkle/data/types.h"

namespace twinkle {

/// Item indices of each bin. Best fit decreasing: a longer item never waits for a shorter one, and each goes
/// where it leaves the least room; linear in the items for a fixed max_length. Bins come in the order of
/// their first item, items within a bin ascend, so the result depends on the lengths alone. An item longer
/// than max_length, or without length, is invalid_argument naming its index.
std::vector<std::vector<int64_t>> pack_best_fit(std::span<const int64_t> lengths, int64_t max_length);

/// Bins in the order of the items: a bin is closed when the next item does not fit.
std::vector<std::vector<int64_t>> pack_in_order(std::span<const int64_t> lengths, int64_t max_length);

/// Tokens [begin, end) of a feature; the target of its last one lies outside and is not scored.
InputFeature cut_feature(const InputFeature& whole, int64_t begin, int64_t end);

/// Tokens over room of all bins.
double packing_fill(std::span<const int64_t> lengths, const std::vector<std::vector<int64_t>>& bins,
                    int64_t max_length);

struct PackingOptions {
  int64_t max_length = 2048;
  /// best_fit: fullest bins. in_order: rows stay in order. wrapped: rows in order, cut wherever a bin is full
  /// (every bin but the last is full; the target that lies in the next bin is not scored).
  std::string strategy = "best_fit";
};

/// Packed bins of encoded features.
class PackingDataset final : public SampleSource {
 public:
  PackingDataset(std::vector<InputFeature> features, const PackingOptions& options);
  int64_t size() const override { return static_cast<int64_t>(bins_.size()); }
  std::vector<InputFeature> sample(int64_t index) const override;
  /// Tokens over room.
  double fill() const { return fill_; }
  int64_t num_tokens() const { return num_tokens_; }
  const std::vector<std::vector<int64_t>>& bins() const { return bins_; }

 private:
  std::vector<InputFeature> features_;
  std::vector<std::vector<int64_t>> bins_;
  double fill_ = 0;
  int64_t num_tokens_ = 0;
};

/// Packs a stream in bounded memory: at most `packing_interval` samples wait. A bin begins with the one that
/// waits longest and takes the longest that still fit, so none waits for ever and all tokens come out once.
struct StreamPackingOptions {
  int64_t max_length = 2048;
  int64_t packing_interval = 1024;
  bool cyclic = false;  // begin again at the end of the stream
};
class IterablePackingDataset final : public SampleStream {
 public:
  IterablePackingDataset(std::unique_ptr<SampleStream> stream, const StreamPackingOptions& options);
  /// A bin. A sample longer than max_length is invalid_argument.
  std::optional<std::vector<InputFeature>> next() override;
  void rewind() override;
  Json state() const override;
  void restore(const Json& state) override;
  int64_t max_waiting() const { return max_waiting_; }

 private:
  struct Waiting {
    int64_t number = 0;  // of the sample within the stream
    int64_t length = 0;
    std::vector<InputFeature> features;
  };
  void refill();
  void pull(std::vector<InputFeature> sample);

  std::unique_ptr<SampleStream> stream_;
  StreamPackingOptions options_;
  std::deque<Waiting> waiting_;  // by number
  int64_t pulled_ = 0;
  bool ended_ = false;
  int64_t max_waiting_ = 0;
  std::deque<std::pair<int64_t, Json>> marks_;  // where the stream stood before sample `number`
};

}  // namespace twinkle
