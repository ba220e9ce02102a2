// The library that reads Parquet and Arrow files and writes Parquet, loaded by twinkle/data/table_file.cpp.
#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/arrow/json_table.h"
#include "twinkle/data/arrow/table_json.h"
#include "twinkle/data/table_file.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

Error bad_file(const std::string& path, const arrow::Status& status) {
  std::string reason = status.message();
  reason = reason.substr(0, reason.find('\n'));
  return invalid_argument("[dataset] '" + path + "': " + reason);
}

template <class T>
T value_of(arrow::Result<T> result, const std::string& path) {
  if (!result.ok()) throw bad_file(path, result.status());
  return std::move(result).ValueUnsafe();
}

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) throw bad_file(path, status);
}

std::shared_ptr<arrow::io::RandomAccessFile> open_file(const std::string& path) {
  return value_of(arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ), path);
}

// A row is an object: of two columns of one name only one would be seen.
void check_names(const arrow::Schema& schema, const std::string& path) {
  for (int i = 0; i < schema.num_fields(); ++i) {
    const std::string& name = schema.field(i)->name();
    if (!unicode::is_valid(name)) {
      throw invalid_argument("[dataset] '" + path + "': the name of column " + std::to_string(i + 1) +
                             " is not valid UTF-8");
    }
    if (schema.GetAllFieldIndices(name).front() == i) continue;
    throw invalid_argument("[dataset] '" + path + "': column " + std::to_string(i + 1) +
                           " has the name of another, '" + name + "'");
  }
}

// Rows in groups, each a table with one chunk a column.
class GroupedTable : public TableFile {
 public:
  int64_t num_rows() const override { return begins_.back(); }

  Row row(int64_t index) const override {
    const auto group = std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin() - 1;
    const std::shared_ptr<arrow::Table> table = group_of(static_cast<int>(group));
    const int64_t at = index - begins_[static_cast<size_t>(group)];
    Row out = Row::object();
    for (int c = 0; c < table->num_columns(); ++c) {
      const auto& column = *table->column(c);
      const std::string& name = table->schema()->field(c)->name();
      Json value;
      int64_t left = at;
      for (const auto& chunk : column.chunks()) {
        if (left < chunk->length()) {
          try {
            value = json_of(*chunk, left);
          } catch (const Error& e) {
            throw Error(e.kind(), "column '" + name + "' " + e.what());
          }
          break;
        }
        left -= chunk->length();
      }
      out[name] = std::move(value);
    }
    return out;
  }

 protected:
  virtual std::shared_ptr<arrow::Table> read_group(int group) const = 0;
  void add_group(int64_t rows) { begins_.push_back(begins_.back() + rows); }

 private:
  std::shared_ptr<arrow::Table> group_of(int group) const {
    const std::lock_guard lock(mutex_);
    for (auto it = recent_.begin(); it != recent_.end(); ++it) {
      if (it->first != group) continue;
      recent_.splice(recent_.begin(), recent_, it);
      return it->second;
    }
    recent_.emplace_front(group, read_group(group));
    if (recent_.size() > kKept) recent_.pop_back();
    return recent_.front().second;
  }

  static constexpr size_t kKept = 4;
  std::vector<int64_t> begins_ = {0};
  mutable std::mutex mutex_;
  mutable std::list<std::pair<int, std::shared_ptr<arrow::Table>>> recent_;
};

class ParquetTable final : public GroupedTable {
 public:
  explicit ParquetTable(const std::string& path) : path_(path) {
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(open_file(path)), path);
    reader_ = value_of(builder.Build(), path);
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema), path);
    check_names(*schema, path);
    for (int g = 0; g < reader_->num_row_groups(); ++g)
      add_group(reader_->parquet_reader()->metadata()->RowGroup(g)->num_rows());
  }

 private:
  std::shared_ptr<arrow::Table> read_group(int group) const override {
    try {
      auto table = value_of(reader_->ReadRowGroup(group), path_);
      check(table->Validate(), path_);
      return value_of(table->CombineChunks(), path_);
    } catch (const parquet::ParquetException& e) {
      throw invalid_argument("[dataset] '" + path_ + "': " + e.what());
    }
  }
  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
};

// Batches lie in the mapped file and are not copied.
class IpcTable final : public GroupedTable {
 public:
  explicit IpcTable(const std::string& path) : path_(path) {
    auto file = open_file(path);
    auto magic = value_of(file->ReadAt(0, 6), path);
    if (magic->ToString() == "ARROW1") {
      auto reader = value_of(arrow::ipc::RecordBatchFileReader::Open(file), path);
      check_names(*reader->schema(), path);
      for (int i = 0; i < reader->num_record_batches(); ++i) add(value_of(reader->ReadRecordBatch(i), path));
      return;
    }
    auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(file), path);
    check_names(*reader->schema(), path);
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> batch;
      check(reader->ReadNext(&batch), path);
      if (batch == nullptr) break;
      add(std::move(batch));
    }
  }

 private:
  void add(std::shared_ptr<arrow::RecordBatch> batch) {
    check(batch->ValidateFull(), path_);
    add_group(batch->num_rows());
    batches_.push_back(std::move(batch));
  }
  std::shared_ptr<arrow::Table> read_group(int group) const override {
    return value_of(arrow::Table::FromRecordBatches({batches_[static_cast<size_t>(group)]}), path_);
  }
  std::string path_;
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches_;
};

std::shared_ptr<const TableFile> open_plugin_file(const std::string& path) {
  try {
    if (path.ends_with(".parquet")) return std::make_shared<ParquetTable>(path);
    return std::make_shared<IpcTable>(path);
  } catch (const parquet::ParquetException& e) {
    throw invalid_argument("[dataset] '" + path + "': " + e.what());
  }
}

void write_plugin_parquet(const std::string& path, std::span<const Row> rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
    }
  }
  arrow::FieldVector fields;
  std::vector<std::shared_ptr<arrow::Array>> columns;
  for (const auto& name : names) {
    std::shared_ptr<arrow::Array> column;
    try {
      column = array_of(rows, name);
    } catch (const Error& e) {
      throw invalid_argument("[dataset] cannot save '" + path + "': " + e.what());
    }
    fields.push_back(arrow::field(name, column->type()));
    columns.push_back(std::move(column));
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), columns, static_cast<int64_t>(rows.size()));
  auto out = value_of(arrow::io::BufferOutputStream::Create(), path);
  const auto properties =
      parquet::WriterProperties::Builder().compression(parquet::Compression::ZSTD)->build();
  try {
    check(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, 1 << 16, properties), path);
  } catch (const parquet::ParquetException& e) {
    throw invalid_argument("[dataset] cannot save '" + path + "': " + e.what());
  }
  const auto buffer = value_of(out->Finish(), path);
  write_file_atomic(path,
                    {reinterpret_cast<const char*>(buffer->data()), static_cast<size_t>(buffer->size())});
}

}  // namespace

extern "C" {
extern const ArrowPlugin twinkle_arrow_plugin;
const ArrowPlugin twinkle_arrow_plugin = {open_plugin_file, write_plugin_parquet};
}

}  // namespace twinkle
