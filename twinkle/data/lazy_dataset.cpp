#include "twinkle/data/lazy_dataset.h"

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/dataset_internal.h"

namespace twinkle {
namespace {

void check_template(const std::shared_ptr<const Template>& tmpl, const char* what) {
  if (tmpl == nullptr) throw invalid_argument(std::string("[dataset] ") + what + " needs a template");
}

}  // namespace

LazyDataset::LazyDataset(Dataset data, std::shared_ptr<const Template> tmpl) : template_(std::move(tmpl)) {
  check_template(template_, "LazyDataset");
  if (template_->options().truncation_strategy == "split") {
    throw invalid_argument(
        "[dataset] LazyDataset cannot split rows (truncation_strategy): how many samples there are would "
        "depend on them; use left, right, delete or raise, or an IterableDataset");
  }
  data.ensure_mapped();
  recorder_ = data.recorder();
  data.record_to(nullptr);  // rows that wait to be written hold the data set, which must not hold the writer
  rows_ = std::make_shared<const Dataset>(std::move(data));
}

std::vector<InputFeature> LazyDataset::sample(int64_t index) const {
  try {
    std::vector<InputFeature> features = rows_->encode_row(*template_, index).features;
    if (recorder_ && !features.empty()) {
      const auto row = recorded_row(recorder_, [rows = rows_, index] { return rows->saved_row(index); });
      for (InputFeature& feature : features) feature.row = row;
    }
    return features;
  } catch (const Error& e) {
    throw Error(e.kind(), dataset_internal::at_place(rows_->place(index), e.what()));
  }
}

IterableDataset::IterableDataset(const DatasetMeta& meta, std::shared_ptr<const Template> tmpl,
                                 const IterableOptions& options)
    : template_(std::move(tmpl)), options_(options) {
  check_template(template_, "IterableDataset");
  if (options_.chunk < 1)
    throw invalid_argument("[dataset] chunk must be >= 1, got " + std::to_string(options_.chunk));
  add_dataset(meta);
}

IterableDataset::IterableDataset(std::function<Generator()> make_generator,
                                 std::shared_ptr<const Template> tmpl, const IterableOptions& options)
    : make_generator_(std::move(make_generator)), template_(std::move(tmpl)), options_(options) {
  check_template(template_, "IterableDataset");
  if (options_.chunk < 1)
    throw invalid_argument("[dataset] chunk must be >= 1, got " + std::to_string(options_.chunk));
  generator_ = make_generator_();
}

void IterableDataset::add_dataset(const DatasetMeta& meta) {
  if (make_generator_) throw conflict("[dataset] a generator is the only source of its data set");
  if (meta.dataset_id.empty())
    throw invalid_argument(
        "[dataset] IterableDataset reads files or a generator; rows in memory are no stream");
  if (!meta.data.empty() || meta.generator || meta.subset_name != "default" || meta.split != "train") {
    throw invalid_argument(
        "[dataset] IterableDataset reads files: rows in memory, a generator, subset_name and split have no "
        "meaning "
        "beside a dataset_id");
  }
  if (meta.data_slice || !meta.slice.empty())
    throw invalid_argument("[dataset] IterableDataset has no data_slice: its length is not known");
  std::vector<std::string> notes;
  for (const auto& path : RowFiles::paths_of(meta.dataset_id, &notes)) files_.emplace_back(meta, path);
}

void IterableDataset::map(const std::string& preprocessor, const Json& options) {
  std::shared_ptr<Preprocessor> made = Registry<Preprocessor>::create(preprocessor, options);
  map_ = [made](const Row& row) { return made->parts(row); };
}

void IterableDataset::rename_columns(const Json& names) {
  edits_.push_back(dataset_internal::renaming(names));
}

std::string IterableDataset::content_hash() const {
  if (make_generator_) return "";
  std::string all;
  for (const auto& [meta, path] : files_)
    all += RowFiles::hash_of_file(path, {.text_split = meta.text_split, .columns = meta.columns});
  return sha256_hex(all);
}

// The file that at_ is in, mapped.
void IterableDataset::open_current() {
  if (open_file_ == at_.file) return;
  const auto& [meta, path] = files_[static_cast<size_t>(at_.file)];
  open_.reset();
  open_ =
      RowFiles::open(path, {.text_split = meta.text_split, .columns = meta.columns, .may_be_empty = true});
  open_file_ = at_.file;
}

// The next row, or its problem; false at the end.
bool IterableDataset::read(Row* row, std::string* place, std::string* problem) {
  if (make_generator_) {
    auto made = generator_();
    if (!made) return false;
    *row = std::move(*made);
    *place = "row " + std::to_string(++at_.row);
    edit(row, *place, problem);
    return true;
  }
  for (;;) {
    if (at_.file == static_cast<int64_t>(files_.size())) return false;
    open_current();
    if (at_.row < static_cast<int64_t>(open_->rows().size())) break;
    ++at_.file;
    at_.row = 0;
  }
  const RowRef& ref = open_->rows()[static_cast<size_t>(at_.row++)];
  *place = open_->place(ref);
  try {
    *row = open_->parse(ref);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) throw;
    *problem = e.what();
  }
  if (problem->empty()) edit(row, *place, problem);
  return true;
}

void IterableDataset::edit(Row* row, const std::string& place, std::string* problem) const {
  if (!row->is_object()) return;  // said in its turn
  try {
    for (const auto& edit : edits_) edit(row);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) throw;
    *problem = dataset_internal::at_place(place, e.what());
  }
}

void IterableDataset::drop(const std::string& reason) {
  if (options_.bad_rows == BadRows::kRaise) throw invalid_argument(reason);
  count_dropped(at_, reason);
}

// `after`: where the stream stood when the row was read.
void IterableDataset::count_dropped(const Place& after, const std::string& reason) {
  if (after <= last_dropped_) return;
  last_dropped_ = after;
  ++num_dropped_;
  if (dropped_.size() < 100) dropped_.push_back(reason);
}

std::optional<Row> IterableDataset::next_row() {
  for (;;) {
    Row row;
    std::string place, problem;
    if (!read(&row, &place, &problem)) return std::nullopt;
    if (!problem.empty()) {
      drop(problem);
      continue;
    }
    bool keep = true;
    for (const auto& filter : filters_) keep = keep && filter(row);
    if (keep) return row;
  }
}

// Wherever the stream stands: one that goes on reads rows as one that begins.
std::optional<PreprocessorGuess> IterableDataset::guess(const Json& options) {
  if (make_generator_) throw conflict("[dataset] a generator's rows are guessed as they come");
  std::vector<Row> rows;
  const Place before = at_;
  at_ = {};
  for (int64_t i = 0; i < kRowsToGuessFrom || rows.empty(); ++i) {
    // A file is opened when its turn comes.
    if (!rows.empty() && at_.row == static_cast<int64_t>(open_->rows().size())) break;
    Row row;
    std::string place, problem;
    if (!read(&row, &place, &problem)) break;
    if (problem.empty()) rows.push_back(std::move(row));
  }
  at_ = before;
  if (rows.empty()) return std::nullopt;
  return guess_preprocessor(rows, options);
}

// The first sound row of a generator decides; it is never asked for a row twice.
void IterableDataset::guess_by(const Row& row, const std::string& problem) {
  if (map_ || !make_generator_ || !problem.empty() || !row.is_object()) return;
  const PreprocessorGuess found = guess_preprocessor(row);
  map(found.name, found.options);
}

void IterableDataset::fill() {
  if (!map_ && !make_generator_) {
    if (const auto found = guess(nullptr)) map(found->name, found->options);
  }
  while (ready_.empty()) {
    chunk_begin_ = at_;
    given_ = 0;
    std::vector<Row> rows;
    std::vector<std::string> places, problems;
    std::vector<Place> after;
    while (static_cast<int64_t>(rows.size()) < options_.chunk) {
      Row row;
      std::string place, problem;
      if (!read(&row, &place, &problem)) break;
      guess_by(row, problem);
      rows.push_back(std::move(row));
      places.push_back(std::move(place));
      problems.push_back(std::move(problem));
      after.push_back(at_);
    }
    if (rows.empty()) return;
    std::vector<char> kept(rows.size(), 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& filter : filters_)
        kept[i] = kept[i] != 0 && problems[i].empty() && filter(rows[i]) ? 1 : 0;
      if (!problems[i].empty()) kept[i] = 1;
    }
    // One small data set for the chunk: the same road as everywhere.
    std::vector<Row> good;
    std::vector<size_t> index;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (kept[i] != 0 && problems[i].empty()) {
        if (!rows[i].is_object()) {
          problems[i] = "[dataset] " + places[i] + ": expected an object of columns";
          continue;
        }
        good.push_back(std::move(rows[i]));
        index.push_back(i);
      }
    }
    std::vector<Dataset::EncodedRow> made(rows.size());
    std::vector<char> deleted(rows.size(), 0);
    std::vector<std::shared_ptr<const Row>> saved(rows.size());
    if (!good.empty()) {
      Dataset chunk(DatasetMeta{.data = std::move(good)});
      chunk.map_parts(map_);
      const auto bad = dataset_internal::each_row(chunk.size(), BadRows::kDrop, [&](int64_t i) {
        const size_t at = index[static_cast<size_t>(i)];
        Dataset::EncodedRow row = chunk.encode_row(*template_, i);
        if (row.features.empty()) problems[at] = "[dataset] " + places[at] + ": " + row.remark;
        deleted[at] = row.deleted ? 1 : 0;
        for (auto& feature : row.features) feature.origin = places[at];
        if (keeps_rows_) saved[at] = std::make_shared<const Row>(chunk.saved_row(i));
        made[at] = std::move(row);
      });
      for (const auto& [i, reason] : bad) {
        const size_t at = index[static_cast<size_t>(i)];
        std::string_view message = reason;
        const std::string inner = "[dataset] row " + std::to_string(i + 1) + ": ";
        if (message.starts_with(inner)) message.remove_prefix(inner.size());
        problems[at] = "[dataset] " + places[at] + ": " + std::string(message);
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      if (kept[i] == 0) continue;
      if (problems[i].empty()) {
        // Windows of a row that was split are samples of their own, conversations of a row belong together.
        auto& [features, parts, remark, gone] = made[i];
        for (size_t k = 0; k < features.size(); ++k) {
          if (k == 0 || parts[k].empty()) ready_.push_back({{}, "", saved[i]});
          ready_.back().features.push_back(std::move(features[k]));
        }
      } else if (deleted[i] != 0 || options_.bad_rows == BadRows::kDrop) {
        count_dropped(after[i], problems[i]);
      } else {
        ready_.push_back({{}, problems[i], nullptr});  // raised in its turn, so that no row around it is lost
      }
    }
  }
}

std::optional<std::vector<InputFeature>> IterableDataset::next() {
  if (ready_.empty()) fill();
  if (ready_.empty()) return std::nullopt;
  Ready out = std::move(ready_.front());
  ready_.pop_front();
  ++given_;
  if (!out.problem.empty()) throw invalid_argument(out.problem);
  if (recorder_ && out.row) {
    const auto row = recorded_row(recorder_, [saved = out.row] { return *saved; });
    for (InputFeature& feature : out.features) feature.row = row;
  }
  return std::move(out.features);
}

void IterableDataset::rewind() {
  at_ = chunk_begin_ = {};
  ready_.clear();
  given_ = 0;
  if (make_generator_) generator_ = make_generator_();
}

Json IterableDataset::state() const {
  // A chunk that is used up is the beginning of the next one.
  const bool used = ready_.empty();
  const Place& place = used ? at_ : chunk_begin_;
  return {{"file", place.file}, {"row", place.row}, {"given", used ? 0 : given_}};
}

void IterableDataset::restore(const Json& state) {
  std::vector<int64_t> numbers;
  for (const char* key : {"file", "row", "given"}) {
    const bool sound = state.is_object() && state.contains(key) && state.at(key).is_number_integer() &&
                       state.at(key).get<int64_t>() >= 0;
    if (!sound)
      throw invalid_argument(std::string("[dataset] the state of the stream has no sound '") + key + "'");
    numbers.push_back(state.at(key).get<int64_t>());
  }
  rewind();
  if (make_generator_) {
    for (int64_t i = 0; i < numbers[1]; ++i) {
      Row row;
      std::string place, problem;
      if (!read(&row, &place, &problem))
        throw invalid_argument("[dataset] the generator ends before the row of the state");
      guess_by(row, problem);
    }
  } else {
    if (numbers[0] > static_cast<int64_t>(files_.size()))
      throw invalid_argument("[dataset] the state of the stream names file " + std::to_string(numbers[0]) +
                             " of " + std::to_string(files_.size()));
    at_ = {numbers[0], numbers[1]};
    int64_t rows = 0;
    if (at_.file < static_cast<int64_t>(files_.size())) {
      open_current();
      rows = static_cast<int64_t>(open_->rows().size());
    }
    if (at_.row > rows)
      throw invalid_argument("[dataset] the state of the stream names row " + std::to_string(at_.row) +
                             " of a file of " + std::to_string(rows));
  }
  chunk_begin_ = at_;
  for (int64_t i = 0; i < numbers[2]; ++i) {
    if (ready_.empty()) fill();
    if (ready_.empty()) throw invalid_argument("[dataset] the data ends before the sample of the state");
    ready_.pop_front();
    ++given_;
  }
}

}  // namespace twinkle
