// Batches out of samples. The order of an epoch, the rows of a batch and what a resumed run continues with
// depend on nothing but the options: not on threads, not on ranks. A DataLoader is used from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/data/types.h"

namespace twinkle {

/// What to do with rows that cannot be used.
enum class BadRows { kRaise, kDrop };
BadRows parse_bad_rows(std::string_view text);  // "raise" | "drop"

/// Samples by index. A sample is a feature, the parts of a row (chosen and rejected), or a packed bin. Safe
/// from many threads.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  /// invalid_argument when the row cannot be used; no feature when the template deletes it.
  virtual std::vector<InputFeature> sample(int64_t index) const = 0;
  /// Whether sample() may fail or give nothing. Without, a rank makes only its own part of a batch.
  virtual bool may_fail() const { return false; }
};

/// Features as they are, group by group: sample i is features [begins[i], begins[i + 1]).
std::shared_ptr<const SampleSource> samples_of(std::vector<InputFeature> features,
                                               std::vector<int64_t> begins = {});

/// Samples one after another, without an index. Used from one thread.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  /// The next sample that can be used; none at the end.
  virtual std::optional<std::vector<InputFeature>> next() = 0;
  virtual void rewind() = 0;
  /// Where the stream stands, small; restore() makes a fresh stream over the same data go on from there.
  virtual Json state() const = 0;
  virtual void restore(const Json& state) = 0;
};

struct DataLoaderOptions {
  int64_t batch_size = 8;      // samples over all ranks; at least world_size
  int64_t min_batch_size = 1;  // a smaller last batch is dropped; at least world_size is used
  bool shuffle = true;         // not for streams
  uint64_t seed = 42;
  int64_t rank = 0, world_size = 1;    // which slice of each batch this rank gets
  int64_t num_workers = 0;             // threads that make samples ahead; 0: made when asked for
  int64_t prefetch = 2;                // batches ahead
  BadRows bad_rows = BadRows::kRaise;  // of samples that fail when made; deleted ones are always replaced
  int64_t max_retries = 20;            // more failures than this in a row stop the run
};

/// The part [begin, end) of `count` items that `rank` gets: contiguous, the first count % world_size ranks
/// get one more.
std::pair<int64_t, int64_t> rank_slice(int64_t count, int64_t rank, int64_t world_size);

/// Batches of features, epoch after epoch; the order of epoch e depends on (seed, e) only. The position is
/// one number, so a run resumes in mid-epoch exactly, also with another batch size or number of ranks: epoch
/// e holds the positions [e * n, (e + 1) * n) of n samples. A sample that fails is replaced by the next one
/// of the epoch, so batches stay full and no row is made twice; it counts as consumed, and so does a dropped
/// last batch. A feature whose row wants to know (InputFeature::row) is told of when next() gives it out,
/// once for all features of a sample that are of the same row.
class DataLoader {
 public:
  DataLoader(std::vector<InputFeature> features, const DataLoaderOptions& options);
  DataLoader(std::shared_ptr<const SampleSource> samples, const DataLoaderOptions& options);
  /// Streams begin again at their end; consumed_train_samples counts the samples of full batches.
  DataLoader(std::unique_ptr<SampleStream> stream, const DataLoaderOptions& options);
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  /// Full epochs from their start, if no sample fails; conflict for a stream.
  int64_t batches_per_epoch() const;
  /// The next batch (this rank's slice).
  std::vector<InputFeature> next();
  /// Indices (into the samples) of what the last next() gave this rank; empty for streams.
  const std::vector<int64_t>& last_indices() const { return last_indices_; }
  /// How many features each sample of the last batch has.
  const std::vector<int64_t>& last_sizes() const { return last_sizes_; }
  /// Samples that failed so far in this process, each once, with their reasons ("sample 7: ...").
  const std::vector<std::string>& failures() const { return failures_; }
  int64_t num_features() const;  // samples of an epoch
  int64_t consumed_train_samples() const { return consumed_; }
  /// The epoch that the next batch belongs to.
  int64_t epoch() const;
  /// Continues as if `consumed` samples had been produced. A stream makes them again and drops them.
  void resume_from_checkpoint(int64_t consumed_train_samples);
  /// {"consumed_train_samples": n} and, for streams, where they stand; restore_state continues from there.
  Json get_state() const;
  void restore_state(const Json& state);

 private:
  struct Ahead;
  using Sample = std::vector<InputFeature>;

  void check_options() const;
  int64_t smallest_batch() const;
  void skip_short_rest();
  const std::vector<int64_t>& order_of(int64_t epoch);
  std::vector<InputFeature> next_of_samples();
  std::vector<InputFeature> next_of_stream();
  Sample make(int64_t index, std::string* failure) const;
  void failed(int64_t index, const std::string& reason);

  std::shared_ptr<const SampleSource> samples_;
  std::unique_ptr<SampleStream> stream_;
  DataLoaderOptions options_;
  int64_t consumed_ = 0;
  int64_t stream_epoch_ = 0;
  std::vector<Sample> pulled_;  // of a stream, for the batch under way
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
  std::vector<int64_t> last_indices_, last_sizes_;
  std::vector<std::string> failures_;
  std::set<int64_t> failed_;  // an epoch later a sample fails again
  std::unique_ptr<Ahead> ahead_;
};

}  // namespace twinkle
