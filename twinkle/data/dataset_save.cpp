// Data sets back to files.
#include <utility>

#include "twinkle/core/error.h"
#include "twinkle/data/dataset_internal.h"
#include "twinkle/data/lazy_dataset.h"

namespace twinkle {

namespace {

Json conversation(const Trajectory& trajectory) {
  Json out = {{"messages", trajectory.messages}};
  if (!trajectory.tools.is_null()) out["tools"] = trajectory.tools;
  if (!trajectory.user_data.empty()) out["user_data"] = trajectory.user_data;
  return out;
}

// Rows of `data` go to a new writer from now on, if it can write.
template <class Data>
void record_into(Data& data, const std::string& path, const SaveRowsOptions& options) {
  const auto writer = std::make_shared<RowWriter>(path, options);
  data.record_to(writer);
  try {
    writer->start();
  } catch (...) {
    data.record_to(nullptr);
    throw;
  }
}

}  // namespace

Row Dataset::saved_row(int64_t index) const {
  const auto [source, at_row] = at(index);
  if (!source->map) return row_of(*source, at_row);
  const std::vector<Part> given = parts(index);
  if (given.size() == 1) {
    Row out = conversation(given[0].trajectory);
    // The form of MessagesProcessor's KTO rows.
    if (given[0].name == "desirable" || given[0].name == "undesirable")
      out["label"] = given[0].name == "desirable";
    return out;
  }
  Row out = Row::object();
  for (const Part& part : given) {
    const Json messages = part.trajectory.messages;
    if (part.name == "chosen" || part.name == "anchor") {
      out.update(conversation(part.trajectory));
    } else if (part.name == "rejected") {
      out["rejected_messages"] = messages;
    } else {
      out[part.name + "_messages"].push_back(messages);
    }
  }
  return out;
}

void Dataset::save_as(const std::string& path, const SaveRowsOptions& options) {
  const std::string format = row_format(path, options);
  if (options.mode == "training") return record_into(*this, path, options);
  std::vector<Row> rows(static_cast<size_t>(size()));
  const auto bad = dataset_internal::each_row(
      size(), BadRows::kRaise, [&](int64_t i) { rows[static_cast<size_t>(i)] = saved_row(i); });
  if (!bad.empty())
    throw invalid_argument(dataset_internal::at_place(place(bad.begin()->first), bad.begin()->second));
  write_rows(path, format, rows);
}

void Dataset::record_to(std::shared_ptr<RowWriter> writer) {
  for (const Source& source : sources_) {
    if (writer != nullptr && source.files != nullptr) check_writes_elsewhere(*writer, source.files->paths());
  }
  recorder_ = std::move(writer);
  attach_recorder();
}

void Dataset::flush_save() {
  if (const auto writer = std::exchange(recorder_, nullptr)) writer->finish();
}

// The rows as they are now, for a writer that outlives this object.
std::shared_ptr<const Dataset> Dataset::rows_only() const {
  std::shared_ptr<Dataset> out(new Dataset());
  out->name_ = name_;
  out->sources_ = sources_;
  out->mixed_ = mixed_;
  return out;
}

void Dataset::attach_recorder() {
  if (features_.empty()) return;
  const auto rows = recorder_ ? rows_only() : nullptr;
  std::shared_ptr<const FetchedRow> row;
  for (size_t i = 0; i < features_.size(); ++i) {
    const int64_t index = feature_rows_[i];
    if (rows && (i == 0 || index != feature_rows_[i - 1]))
      row = recorded_row(recorder_, [rows, index] { return rows->saved_row(index); });
    features_[i].row = row;
  }
}

void LazyDataset::save_as(const std::string& path, const SaveRowsOptions& options) {
  if (row_format(path, options); options.mode == "immediate") {
    Dataset rows = *rows_;
    return rows.save_as(path, options);
  }
  record_into(*this, path, options);
}

void LazyDataset::record_to(std::shared_ptr<RowWriter> writer) {
  Dataset rows = *rows_;
  rows.record_to(writer);  // which looks at its files
  recorder_ = std::move(writer);
}

// A loader's threads may be reading samples: the writer stays, and takes no more rows.
void LazyDataset::flush_save() {
  if (recorder_) recorder_->finish();
}

void IterableDataset::save_as(const std::string& path, const SaveRowsOptions& options) {
  const std::string format = row_format(path, options);
  if (options.mode == "training") return record_into(*this, path, options);
  const Json here = state();
  std::vector<Row> rows;
  std::exception_ptr error;
  keeps_rows_ = true;
  try {
    rewind();
    std::shared_ptr<const Row> last;
    for (;;) {
      if (ready_.empty()) fill();
      if (ready_.empty()) break;
      const Ready ready = std::move(ready_.front());
      ready_.pop_front();
      if (!ready.problem.empty()) throw invalid_argument(ready.problem);
      if (ready.row != last) rows.push_back(*ready.row);
      last = ready.row;
    }
  } catch (...) {
    error = std::current_exception();
  }
  keeps_rows_ = recorder_ != nullptr;
  restore(here);
  if (error) std::rethrow_exception(error);
  write_rows(path, format, rows);
}

void IterableDataset::record_to(std::shared_ptr<RowWriter> writer) {
  std::vector<std::string> paths;
  for (const auto& [meta, path] : files_) paths.push_back(path);
  if (writer != nullptr) check_writes_elsewhere(*writer, paths);
  recorder_ = std::move(writer);
  const Json here = state();  // rows that are encoded already are made again, to be kept
  keeps_rows_ = recorder_ != nullptr;
  if (!ready_.empty()) restore(here);
}

void IterableDataset::flush_save() {
  if (const auto writer = std::exchange(recorder_, nullptr)) writer->finish();
  keeps_rows_ = false;
}

}  // namespace twinkle
