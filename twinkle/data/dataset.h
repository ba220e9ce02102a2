// Data sets of rows and the loader over them. A dataset is read whole or by memory map; row order never depends on
// threads. Errors begin with "[dataset]" and name file, row and column.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/core/registry.h"
#include "twinkle/data/packed_batch.h"
#include "twinkle/data/template.h"
#include "twinkle/data/types.h"

namespace twinkle {

struct DatasetMeta {
  std::string dataset_id;                    // path of a file (.jsonl, .json, .txt) or a folder of them
  std::string subset_name = "default";
  std::string split = "train";
  std::optional<std::vector<int64_t>> data_slice;  // row indices; one past the end is an error
  std::vector<Row> data;                     // in-memory rows instead of dataset_id
};

/// Turns a row into a conversation. Components of kind "preprocessor".
class Preprocessor {
 public:
  static constexpr std::string_view kKind = "preprocessor";
  virtual ~Preprocessor() = default;
  /// Errors name the column, e.g. "expected a string in 'query', got null"; the caller adds file and row.
  virtual Trajectory operator()(const Row& row) const = 0;
};

/// What to do with rows that cannot be used.
enum class BadRows { kRaise, kDrop };

struct DroppedRow {
  int64_t row = 0;
  std::string reason;
};

class Dataset {
 public:
  explicit Dataset(const DatasetMeta& meta);
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  const Row& row(int64_t index) const;

  /// Turns every row into a trajectory ("" guesses from the columns: messages, query/response, instruction/output, text).
  void map(const std::string& preprocessor, const Json& options = nullptr);
  void map(const std::function<Trajectory(const Row&)>& fn);
  void filter(const std::function<bool(const Row&)>& keep);
  /// Encodes every trajectory on all cores; what the template deletes is dropped and counted.
  void encode(const Template& tmpl, BadRows bad_rows = BadRows::kRaise);

  const std::vector<Trajectory>& trajectories() const { return trajectories_; }
  const std::vector<InputFeature>& features() const { return features_; }
  const std::vector<DroppedRow>& dropped() const { return dropped_; }
  /// SHA-256 of the rows as loaded; part of a run's manifest.
  const std::string& content_hash() const { return content_hash_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_, content_hash_;
  std::vector<Row> rows_;
  std::vector<std::string> places_;  // "file row N" of each row
  std::vector<Trajectory> trajectories_;
  std::vector<InputFeature> features_;
  std::vector<DroppedRow> dropped_;
};

struct DataLoaderOptions {
  int64_t batch_size = 8;
  int64_t min_batch_size = 1;  // a smaller last batch is dropped
  bool shuffle = true;
  uint64_t seed = 42;
  int64_t rank = 0, world_size = 1;  // which slice of each batch this rank gets
};

/// Batches of features, epoch after epoch; the order of epoch e depends on (seed, e) only. The position is one number,
/// so a run resumes in mid-epoch exactly.
class DataLoader {
 public:
  DataLoader(std::vector<InputFeature> features, const DataLoaderOptions& options);
  int64_t batches_per_epoch() const;
  /// The next batch (this rank's slice).
  std::vector<InputFeature> next();
  int64_t consumed_train_samples() const { return consumed_; }
  int64_t epoch() const;
  /// Continues as if `consumed` samples had been produced.
  void resume_from_checkpoint(int64_t consumed_train_samples);

 private:
  std::vector<InputFeature> features_;
  DataLoaderOptions options_;
  int64_t consumed_ = 0;
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace twinkle
