// Data sets of rows and the loader over them. Files are mapped, not read: a row is parsed when it is needed,
// on all cores, and what comes out never depends on the number of threads. Errors begin with "[dataset]" and
// name file, row and column. A Dataset is used from one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/registry.h"
#include "twinkle/data/loader.h"
#include "twinkle/data/packed_batch.h"
#include "twinkle/data/row_files.h"
#include "twinkle/data/row_writer.h"
#include "twinkle/data/template.h"
#include "twinkle/data/types.h"

namespace twinkle {

struct DatasetMeta {
  std::string dataset_id;                          // path of a file, a folder of them or a pattern: RowFiles
  std::string subset_name = "default";             // local files have no subsets: other names are refused
  std::string split = "train";                     // likewise
  std::optional<std::vector<int64_t>> data_slice;  // row indices; one past the end is an error
  std::vector<Row> data;                           // in-memory rows instead of dataset_id
  std::string slice;                               // the same as text, see parse_data_slice
  std::string text_split = "file";   // rows of a .txt: the whole "file", each "paragraph" or each "line"
  std::vector<std::string> columns;  // names for .csv and .tsv files whose first record is no header
  std::function<std::optional<Row>()>
      generator;  // makes the rows, until it gives none, instead of dataset_id
  /// Upstream's name of a source: path separators and dots become '_', then :subset:split.
  std::string get_id() const;
};

/// "0:100", "100:" or "::2" (start:stop:step as in Python, all >= 0) or "3,1,2" as row indices of a data set
/// of `num_rows` rows. A stop or index past the end is invalid_argument.
std::vector<int64_t> parse_data_slice(std::string_view text, int64_t num_rows);

/// One conversation of a row. Most rows hold one, without a name; rows of preferences hold "chosen" and
/// "rejected", rows for embeddings "anchor", "positive" and "negative"s, rows for KTO one that is "desirable"
/// or "undesirable".
struct Part {
  std::string name;
  Trajectory trajectory;
};

/// Turns a row into a conversation. Components of kind "preprocessor".
class Preprocessor {
 public:
  static constexpr std::string_view kKind = "preprocessor";
  virtual ~Preprocessor() = default;
  /// Errors name the column, e.g. "expected a string in 'query', got null"; the caller adds file and row.
  virtual Trajectory operator()(const Row& row) const = 0;
  /// All conversations of a row, in the order the loss wants them.
  virtual std::vector<Part> parts(const Row& row) const {
    std::vector<Part> out(1);
    out[0].trajectory = (*this)(row);
    return out;
  }
};

/// The preprocessor that fits the columns of a row, with the options it needs.
struct PreprocessorGuess {
  std::string name;
  Json options = Json::object();
  std::string why;  // "the rows have 'messages'"
};
/// invalid_argument that lists the columns when none fits.
PreprocessorGuess guess_preprocessor(const Row& row);
/// So many rows at the beginning of the data are looked at.
inline constexpr int64_t kRowsToGuessFrom = 100;
/// By the columns of the first of `rows` and by {{NAME}} or {{AUTHOR}} in any of them. `options` of the
/// caller (an object or null) are added to the guess; one that it does not know is invalid_argument.
PreprocessorGuess guess_preprocessor(std::span<const Row> rows, const Json& options);

struct DroppedRow {
  int64_t row = 0;       // index in the data set as loaded, from 0
  std::string reason;    // "FILE row N: expected a string in 'query', got null"
  bool partial = false;  // only parts of the row are left out (truncation_strategy split)
};

/// How several sources become one.
struct MixOptions {
  bool interleave = true;             // false: one after the other
  std::vector<double> probabilities;  // of each source, sum 1; empty: in turn
  uint64_t seed = 42;                 // of the draws by probabilities
  std::string stopping =
      "first_exhausted";  // or "all_exhausted": sources that end begin again until all have
};

class QualityFilter;

class Dataset {
 public:
  explicit Dataset(const DatasetMeta& meta);
  /// Another source; its number, from 1. Several sources are mixed before they are encoded.
  int add_dataset(const DatasetMeta& meta);
  /// Hugging Face's interleave_datasets or concatenate_datasets, by row indices.
  void mix_dataset(const MixOptions& options = {});

  int64_t size() const;
  /// The row, parsed now. invalid_argument with its place when it is malformed.
  Row row(int64_t index) const;
  /// "FILE row N", for messages about row `index`.
  std::string place(int64_t index) const;

  /// Reads columns under other names: {"in the file": "as the preprocessor calls it"}. A row that lacks one
  /// stays as it is; one that has both is an error of that row. A column that no row has is invalid_argument
  /// with the nearest name, unless they `may_lack` it.
  void rename_columns(const Json& names, int source = -1, bool may_lack = false);
  /// The values of a column as string, int, float, bool or json (text that is parsed). Null stays null; what
  /// cannot be cast is an error of its row.
  void cast_column(const std::string& column, const std::string& type, int source = -1);

  /// Says how a row becomes a trajectory ("" guesses from the first rows, see notes()). The
  /// work is done when trajectories are asked for or encoded; a later map replaces an earlier one. `source`:
  /// of one source; -1: of the only one, or of all once they are mixed.
  void map(const std::string& preprocessor, const Json& options = nullptr, int source = -1);
  void map(std::function<Trajectory(const Row&)> fn, int source = -1);
  void map_parts(std::function<std::vector<Part>(const Row&)> fn, int source = -1);
  /// Keeps the rows that `keep` likes. `keep` runs on several threads at once. Rows that are not valid JSON
  /// stay, so that encode() reports them as it is told to. Call before encode() and before mixing.
  void filter(const std::function<bool(const Row&)>& keep, int source = -1);

  /// Applies a component of kind "filter": rows whose conversations it finds unfit are left out, and what it
  /// edits is edited whenever a row is used. notes() counts the reasons. Rows that the preprocessor refuses
  /// stay, so that encode() reports them. After map(), before encode() and before mixing.
  void quality_filter(const std::string& name, const Json& options = nullptr, int source = -1);
  /// One of the caller's own, called `name` in what is said of it.
  void quality_filter(std::shared_ptr<const QualityFilter> filter, const std::string& name, int source = -1);
  /// The rows that quality filters left out, with their reasons.
  const std::vector<DroppedRow>& filtered() const { return filtered_; }

  void set_template(std::shared_ptr<const Template> tmpl) { template_ = std::move(tmpl); }
  const std::shared_ptr<const Template>& get_template() const { return template_; }
  /// Encodes every row on all cores, in order. What the template deletes is dropped and counted, whatever
  /// `bad_rows` says. A row that cannot be used (malformed, refused by the preprocessor or template, no
  /// trained token) stops the run or is dropped, all parts of it. When nothing is left it is invalid_argument
  /// with the first reasons. Without a map() before it the preprocessor is guessed.
  /// `cache_folder`: keeps the result there and takes it from there the next time, under a key of rows,
  /// preprocessor, template and tokenizer; rows mapped by a function of the caller, or by a chat template
  /// that asks for the time, are not kept.
  /// `add_generation_prompt`: prompts to be answered, nothing labelled; an empty last answer is left out.
  void encode(const Template& tmpl, BadRows bad_rows = BadRows::kRaise, const std::string& cache_folder = "",
              bool add_generation_prompt = false);
  void encode(BadRows bad_rows = BadRows::kRaise);  // with set_template's
  /// Drops the rows that the template cannot encode, and remembers them in dropped().
  void check(const Template& tmpl);

  /// The first conversation of a row.
  Trajectory trajectory(int64_t index) const;
  std::vector<Part> parts(int64_t index) const;
  /// Every trajectory; the first bad row raises.
  std::vector<Trajectory> trajectories() const;
  /// The features of a row with the names of their parts, encoded now; errors name the row. Safe from many
  /// threads.
  struct EncodedRow {
    std::vector<InputFeature> features;
    std::vector<std::string> parts;  // names, as many
    std::string remark;              // why all of it, or a part, is left out
    bool deleted = false;            // the template leaves the row out, which is no fault of it
  };
  EncodedRow encode_row(const Template& tmpl, int64_t index, bool add_generation_prompt = false) const;

  const std::vector<InputFeature>& features() const { return features_; }
  /// Moves the features out, for a loader.
  std::vector<InputFeature> take_features() { return std::move(features_); }
  /// Which row (index into this data set) each feature came from.
  const std::vector<int64_t>& feature_rows() const { return feature_rows_; }
  /// Name of the part that each feature is.
  const std::vector<std::string>& feature_parts() const { return feature_parts_; }
  /// Moves the features out as samples: the parts of a row stay together.
  std::shared_ptr<const SampleSource> take_samples();
  const std::vector<DroppedRow>& dropped() const { return dropped_; }
  /// Every row that was left out, one JSON object a line: {"step", "drop_reason", "place", "row"}. step is
  /// the filter, "filter" for a function, "check" or "encode"; row is as it was read, null when it cannot be;
  /// "partial": true when only parts of it are left out.
  std::string dropped_log() const;
  /// SHA-256 over that of each row as loaded (slice applied; RowFiles::hash); part of a run's manifest.
  const std::string& content_hash() const { return content_hash_; }
  const std::string& name() const { return name_; }
  /// What a person should know: which preprocessor was guessed and why, files that were skipped.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Guesses the preprocessor where none was named.
  void ensure_mapped();

  /// Writes the rows (once mapped: {messages, tools?, user_data?}, or the named parts) as "jsonl", "json",
  /// "csv" or "parquet", whole or not at all. With mode "training" rows are written later, in the order in
  /// which a DataLoader gives them out, in each epoch again and once for each window of a row that is split;
  /// rows that are left out do not come. Call it before the features are taken, and flush_save() at the end.
  /// What goes wrong while writing is thrown by DataLoader::next() or flush_save(). See RowWriter.
  void save_as(const std::string& path, const SaveRowsOptions& options = {});
  /// Ends mode "training": the file is whole. What a loader gives out later is not recorded.
  void flush_save();
  /// Mode "training" with a writer of the caller's, who finishes it. null ends it.
  void record_to(std::shared_ptr<RowWriter> writer);
  const std::shared_ptr<RowWriter>& recorder() const { return recorder_; }
  /// What save_as writes of a row.
  Row saved_row(int64_t index) const;

 private:
  Dataset() = default;
  struct Source {
    std::string name, content_hash, map_key;
    std::shared_ptr<const RowFiles> files;
    std::shared_ptr<const std::vector<Row>> memory;
    std::vector<RowRef> refs;
    std::vector<int64_t> loaded_index;  // index as loaded of each row that is left
    std::vector<std::function<void(Row*)>> edits;
    std::string edits_key;
    std::function<std::vector<Part>(const Row&)> map;
  };
  Source open_source(const DatasetMeta& meta);
  std::vector<Source*> chosen(int source, const char* what);
  std::pair<const Source*, int64_t> at(int64_t index) const;
  void check_columns(std::vector<std::string> wanted, const std::vector<Source*>& sources) const;
  Row row_of(const Source& source, int64_t row) const;
  std::string place_of(const Source& source, int64_t row) const;
  void hash_sources();
  struct LeftOut {
    std::string step, reason, place;
    std::ptrdiff_t source = 0;
    RowRef ref;
    bool partial = false;
  };
  void apply_filter(std::shared_ptr<const QualityFilter> filter, const std::string& name,
                    const std::string& key, int source);
  void note_left_out(const std::string& step, const Source& source, int64_t row, std::string reason,
                     bool partial = false);
  void keep_rows(Source* source, const std::vector<char>& kept, const std::string& what);
  void guess(Source* source, const Json& options);
  void encode_rows(const Template& tmpl, BadRows bad_rows, const std::string& cache_folder,
                   bool add_generation_prompt);
  std::shared_ptr<const Dataset> rows_only() const;
  void attach_recorder();
  std::string cache_key(const Template& tmpl, BadRows bad_rows, bool add_generation_prompt) const;

  std::string name_, content_hash_;
  std::vector<Source> sources_;
  std::vector<std::pair<int32_t, int64_t>> mixed_;  // source and row, once mixed
  std::shared_ptr<const Template> template_;
  std::shared_ptr<RowWriter> recorder_;
  std::vector<InputFeature> features_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::string> feature_parts_;
  std::vector<DroppedRow> dropped_, filtered_;
  std::vector<LeftOut> left_out_;
  std::vector<std::string> notes_;
};

}  // namespace twinkle
