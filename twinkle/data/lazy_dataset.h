// Data sets that encode when a sample is asked for: LazyDataset by index, IterableDataset as a stream of
// files.
#pragma once

#include <compare>
#include <deque>

#include "twinkle/data/dataset.h"

namespace twinkle {

/// A data set whose rows are encoded when a loader asks for them: nothing is held but where rows lie. Sample
/// i is row i. Safe from many threads once made.
class LazyDataset final : public SampleSource {
 public:
  /// `data` as mapped, filtered and mixed as it shall be. truncation_strategy split is invalid_argument.
  LazyDataset(Dataset data, std::shared_ptr<const Template> tmpl);
  int64_t size() const override { return rows_->size(); }
  std::vector<InputFeature> sample(int64_t index) const override;
  bool may_fail() const override { return true; }
  const Dataset& dataset() const { return *rows_; }
  /// As those of Dataset; before a loader draws samples.
  void save_as(const std::string& path, const SaveRowsOptions& options = {});
  void flush_save();
  void record_to(std::shared_ptr<RowWriter> writer);

 private:
  std::shared_ptr<const Dataset> rows_;
  std::shared_ptr<RowWriter> recorder_;
  std::shared_ptr<const Template> template_;
};

struct IterableOptions {
  BadRows bad_rows = BadRows::kRaise;
  int64_t chunk = 64;  // rows encoded at once, on all cores
};

/// Rows one after another: files are opened when their turn comes, so only one is mapped at a time, and only
/// `chunk` rows are encoded ahead. A row that the template splits gives a sample for each of its windows.
/// Sources given by add_dataset follow one another. A generator is asked for
/// rows as they are needed; rewinding and restoring need `make_generator`, which makes a fresh one.
class IterableDataset final : public SampleStream {
 public:
  IterableDataset(const DatasetMeta& meta, std::shared_ptr<const Template> tmpl,
                  const IterableOptions& options = {});
  using Generator = std::function<std::optional<Row>()>;
  IterableDataset(std::function<Generator()> make_generator, std::shared_ptr<const Template> tmpl,
                  const IterableOptions& options = {});
  void add_dataset(const DatasetMeta& meta);
  void map(const std::string& preprocessor, const Json& options = nullptr);
  void map_parts(std::function<std::vector<Part>(const Row&)> fn) { map_ = std::move(fn); }
  /// What the first rows ask for (guess_preprocessor; of one file), wherever the stream stands; nothing when
  /// no row can be read. Without a map() this decides, for a generator its first row.
  std::optional<PreprocessorGuess> guess(const Json& options);
  void filter(std::function<bool(const Row&)> keep) { filters_.push_back(std::move(keep)); }
  /// As Dataset::rename_columns: filters and preprocessors see the new names.
  void rename_columns(const Json& names);
  /// SHA-256 over that of each file (RowFiles::hash_of_file), "" for a generator. Reads every file once.
  std::string content_hash() const;

  std::optional<std::vector<InputFeature>> next() override;
  void rewind() override;
  Json state() const override;
  void restore(const Json& state) override;
  /// The next row as it is read, after filters; not to be mixed with next().
  std::optional<Row> next_row();
  /// As those of Dataset. Mode "immediate" reads the stream from its beginning to its end, writes the rows
  /// that can be used, and goes on where it stood.
  void save_as(const std::string& path, const SaveRowsOptions& options = {});
  void flush_save();
  void record_to(std::shared_ptr<RowWriter> writer);
  /// Rows left out so far, each once, however often the stream was rewound.
  int64_t num_dropped() const { return num_dropped_; }
  /// The first hundred.
  const std::vector<std::string>& dropped() const { return dropped_; }

 private:
  struct Place {
    int64_t file = 0, row = 0;
    auto operator<=>(const Place&) const = default;
  };
  bool read(Row* row, std::string* place, std::string* problem);
  void edit(Row* row, const std::string& place, std::string* problem) const;
  void guess_by(const Row& row, const std::string& problem);
  void fill();
  void open_current();
  void drop(const std::string& reason);
  void count_dropped(const Place& after, const std::string& reason);

  std::vector<std::pair<DatasetMeta, std::string>> files_;  // with the path of one file
  std::function<Generator()> make_generator_;
  Generator generator_;
  std::shared_ptr<const Template> template_;
  IterableOptions options_;
  std::function<std::vector<Part>(const Row&)> map_;
  std::vector<std::function<bool(const Row&)>> filters_;
  std::vector<std::function<void(Row*)>> edits_;
  std::shared_ptr<const RowFiles> open_;
  int64_t open_file_ = -1;
  Place at_, chunk_begin_;
  struct Ready {
    std::vector<InputFeature> features;
    std::string problem;             // raised instead
    std::shared_ptr<const Row> row;  // as it is saved, where rows are kept
  };
  std::deque<Ready> ready_;
  std::shared_ptr<RowWriter> recorder_;
  bool keeps_rows_ = false;
  int64_t given_ = 0;   // samples of the chunk that were given out
  Place last_dropped_;  // rows up to here are not counted again
  int64_t num_dropped_ = 0;
  std::vector<std::string> dropped_;
};

}  // namespace twinkle
