// Data sets of rows and the loader over them. Files are mapped, not read: a row is parsed when it is needed,
// on all cores, and what comes out never depends on the number of threads. Errors begin with "[dataset]" and
// name file, row and column. A Dataset is used from one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/registry.h"
#include "twinkle/data/packed_batch.h"
#include "twinkle/data/row_files.h"
#include "twinkle/data/template.h"
#include "twinkle/data/types.h"

namespace twinkle {

struct DatasetMeta {
  std::string dataset_id;                          // path of a file (.jsonl, .json, .txt) or a folder of them
  std::string subset_name = "default";             // local files have no subsets: other names are refused
  std::string split = "train";                     // likewise
  std::optional<std::vector<int64_t>> data_slice;  // row indices; one past the end is an error
  std::vector<Row> data;                           // in-memory rows instead of dataset_id
  std::string slice;                               // the same as text, see parse_data_slice
  std::string text_split = "file";  // rows of a .txt: the whole "file", each "paragraph" or each "line"
};

/// "0:100", "100:" or "::2" (start:stop:step as in Python, all >= 0) or "3,1,2" as row indices of a data set
/// of `num_rows` rows. A stop or index past the end is invalid_argument.
std::vector<int64_t> parse_data_slice(std::string_view text, int64_t num_rows);

/// Turns a row into a conversation. Components of kind "preprocessor".
class Preprocessor {
 public:
  static constexpr std::string_view kKind = "preprocessor";
  virtual ~Preprocessor() = default;
  /// Errors name the column, e.g. "expected a string in 'query', got null"; the caller adds file and row.
  virtual Trajectory operator()(const Row& row) const = 0;
};

/// The preprocessor that fits the columns of a row, with the options it needs.
struct PreprocessorGuess {
  std::string name;
  Json options = Json::object();
  std::string why;  // "the rows have 'messages'"
};
/// invalid_argument that lists the columns when none fits.
PreprocessorGuess guess_preprocessor(const Row& row);

/// What to do with rows that cannot be used.
enum class BadRows { kRaise, kDrop };
BadRows parse_bad_rows(std::string_view text);  // "raise" | "drop"

struct DroppedRow {
  int64_t row = 0;       // index in the data set as loaded, from 0
  std::string reason;    // "FILE row N: expected a string in 'query', got null"
  bool partial = false;  // only parts of the row are left out (truncation_strategy split)
};

class Dataset {
 public:
  explicit Dataset(const DatasetMeta& meta);
  int64_t size() const { return static_cast<int64_t>(refs_.size()); }
  /// The row, parsed now. invalid_argument with its place when it is malformed.
  Row row(int64_t index) const;
  /// "FILE row N", for messages about row `index`.
  std::string place(int64_t index) const;

  /// Says how a row becomes a trajectory ("" guesses from the columns of the first row, see notes()). The
  /// work is done when trajectories are asked for or encoded; a later map replaces an earlier one.
  void map(const std::string& preprocessor, const Json& options = nullptr);
  void map(std::function<Trajectory(const Row&)> fn);
  /// Keeps the rows that `keep` likes. `keep` runs on several threads at once. Rows that are not valid JSON
  /// stay, so that encode() reports them as it is told to. Call before encode().
  void filter(const std::function<bool(const Row&)>& keep);
  /// Encodes every row on all cores, in order. What the template deletes is dropped and counted, whatever
  /// `bad_rows` says. A row that cannot be used (malformed, refused by the preprocessor or template, no
  /// trained token) stops the run or is dropped. When nothing is left it is invalid_argument with the first
  /// reasons. Without a map() before it the preprocessor is guessed.
  void encode(const Template& tmpl, BadRows bad_rows = BadRows::kRaise);

  Trajectory trajectory(int64_t index) const;
  /// Every trajectory; the first bad row raises.
  std::vector<Trajectory> trajectories() const;
  const std::vector<InputFeature>& features() const { return features_; }
  /// Moves the features out, for a loader.
  std::vector<InputFeature> take_features() { return std::move(features_); }
  /// Which row (index into this data set) each feature came from.
  const std::vector<int64_t>& feature_rows() const { return feature_rows_; }
  const std::vector<DroppedRow>& dropped() const { return dropped_; }
  /// SHA-256 over the SHA-256 of each row's bytes as loaded (slice applied); part of a run's manifest.
  const std::string& content_hash() const { return content_hash_; }
  const std::string& name() const { return name_; }
  /// What a person should know: which preprocessor was guessed and why, files that were skipped.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void ensure_mapped();

  std::string name_, content_hash_;
  std::shared_ptr<const RowFiles> files_;
  std::vector<Row> memory_;
  std::vector<RowRef> refs_;
  std::vector<int64_t> loaded_index_;  // index as loaded of each row that is left
  std::function<Trajectory(const Row&)> map_;
  std::vector<InputFeature> features_;
  std::vector<int64_t> feature_rows_;
  std::vector<DroppedRow> dropped_;
  std::vector<std::string> notes_;
};

struct DataLoaderOptions {
  int64_t batch_size = 8;      // over all ranks; at least world_size
  int64_t min_batch_size = 1;  // a smaller last batch is dropped; at least world_size is used
  bool shuffle = true;
  uint64_t seed = 42;
  int64_t rank = 0, world_size = 1;  // which slice of each batch this rank gets
};

/// The part [begin, end) of `count` items that `rank` gets: contiguous, the first count % world_size ranks
/// get one more.
std::pair<int64_t, int64_t> rank_slice(int64_t count, int64_t rank, int64_t world_size);

/// Batches of features, epoch after epoch; the order of epoch e depends on (seed, e) only. The position is
/// one number, so a run resumes in mid-epoch exactly, also with another batch size or number of ranks: epoch
/// e holds the positions [e * n, (e + 1) * n) of n features. A dropped last batch counts as consumed.
class DataLoader {
 public:
  DataLoader(std::vector<InputFeature> features, const DataLoaderOptions& options);
  /// Full epochs from their start.
  int64_t batches_per_epoch() const;
  /// The next batch (this rank's slice).
  std::vector<InputFeature> next();
  /// Indices (into the features) of the rows that the last next() gave this rank.
  const std::vector<int64_t>& last_indices() const { return last_indices_; }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t consumed_train_samples() const { return consumed_; }
  /// The epoch that the next batch belongs to.
  int64_t epoch() const;
  /// Continues as if `consumed` samples had been produced.
  void resume_from_checkpoint(int64_t consumed_train_samples);

 private:
  int64_t smallest_batch() const;
  void skip_short_rest();

  std::vector<InputFeature> features_;
  DataLoaderOptions options_;
  int64_t consumed_ = 0;
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
  std::vector<int64_t> last_indices_;
};

}  // namespace twinkle
