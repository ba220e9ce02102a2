// The library that reads Parquet and Arrow files and writes Parquet, loaded by twinkle/data/table_file.cpp.
#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/arrow/json_table.h"
#include "twinkle/data/arrow/table_json.h"
#include "twinkle/data/file_bytes.h"
#include "twinkle/data/table_file.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

Error bad_file(const std::string& path, const arrow::Status& status) {
  std::string reason = status.message();
  reason = reason.substr(0, reason.find('\n'));
  if (status.IsOutOfMemory()) return exhausted("[dataset] '" + path + "': " + reason);
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

Row row_of(const arrow::RecordBatch& batch, int64_t at) {
  Row out = Row::object();
  for (int c = 0; c < batch.num_columns(); ++c) {
    const std::string& name = batch.schema()->field(c)->name();
    try {
      out[name] = json_of(*batch.column(c), at);
    } catch (const Error& e) {
      throw Error(e.kind(), "column '" + name + "' " + e.what());
    }
  }
  return out;
}

// Batches of rows, one after another; those that could not be read say why. Nothing changes once it is made.
class Batches {
 public:
  int64_t num_rows() const { return begins_.back(); }
  void add(std::shared_ptr<arrow::RecordBatch> batch) {
    begins_.push_back(begins_.back() + batch->num_rows());
    batches_.push_back(std::move(batch));
  }
  void add_broken(int64_t rows, std::string problem) {
    problems_[batches_.size()] = std::move(problem);
    begins_.push_back(begins_.back() + rows);
    batches_.push_back(nullptr);
  }
  Row row(int64_t index) const {
    const auto i =
        static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin() - 1);
    TW_CHECK(index >= 0 && i < batches_.size(), "a row of the table");
    if (batches_[i] == nullptr) throw invalid_argument(problems_.at(i));
    return row_of(*batches_[i], index - begins_[i]);
  }

 private:
  std::vector<int64_t> begins_ = {0};
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches_;
  std::map<size_t, std::string> problems_;
};

// What is written into a file that has no name once it is mapped. Arrow's code knows no exceptions, so a full
// disk is told of afterwards.
class UnpackedFile final : public arrow::io::OutputStream {
 public:
  explicit UnpackedFile(const std::string& source) : source_(source), file_(source) {}
  arrow::Status Write(const void* data, int64_t size) override {
    try {
      file_.write(static_cast<const char*>(data), static_cast<size_t>(size));
    } catch (...) {
      problem_ = std::current_exception();
      return arrow::Status::IOError("cannot write");
    }
    size_ += size;
    return arrow::Status::OK();
  }
  arrow::Status Close() override { return arrow::Status::OK(); }
  bool closed() const override { return false; }
  arrow::Result<int64_t> Tell() const override { return size_; }
  void check(const arrow::Status& status) const {
    if (problem_) std::rethrow_exception(problem_);
    if (status.ok()) return;
    throw unavailable("[dataset] cannot unpack '" + source_ + "': " + status.message());
  }
  const std::string& name() const { return file_.name(); }

 private:
  std::string source_;
  TemporaryFile file_;
  int64_t size_ = 0;
  std::exception_ptr problem_;
};

// The first rows are kept; when another is asked for, the whole file is unpacked.
class ParquetTable final : public TableFile {
 public:
  explicit ParquetTable(const std::string& path) : path_(path) {
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(kBatchRows);
    properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(open_file(path)), path);
    builder.properties(properties);
    reader_ = value_of(builder.Build(), path);
    check(reader_->GetSchema(&schema_), path);
    check_names(*schema_, path);
    num_rows_ = reader_->parquet_reader()->metadata()->num_rows();
    int64_t of_groups = 0;
    for (int g = 0; g < reader_->num_row_groups(); ++g) {
      if (rows_in(g) < 0 || __builtin_add_overflow(of_groups, rows_in(g), &of_groups)) of_groups = -1;
      if (of_groups < 0) break;
    }
    if (of_groups != num_rows_) {
      throw invalid_argument("[dataset] '" + path + "': it says that it has " + std::to_string(num_rows_) +
                             " rows, which its groups of rows do not have");
    }
  }
  int64_t num_rows() const override { return num_rows_; }

  Row row(int64_t index) const override {
    std::call_once(head_once_, [&] { read_head(); });
    if (index < head_.num_rows()) return head_.row(index);
    std::call_once(unpacked_once_, [&] {
      try {
        unpack();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
    if (failure_) std::rethrow_exception(failure_);
    return unpacked_.row(index);
  }

 private:
  static constexpr int64_t kBatchRows = 1024;

  // Batches of a group, each checked; the reason where they end too early.
  template <class Take>
  std::string each_batch(int group, const Take& take) const {
    try {
      auto batches = value_of(reader_->GetRecordBatchReader({group}), path_);
      for (std::shared_ptr<arrow::RecordBatch> batch;;) {
        check(batches->ReadNext(&batch), path_);
        if (batch == nullptr) return "";
        check(batch->Validate(), path_);
        if (!take(std::move(batch))) return "";
      }
    } catch (const parquet::ParquetException& e) {
      return "[dataset] '" + path_ + "': " + e.what();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
      return e.what();
    }
  }

  void read_head() const {
    for (int g = 0; g < reader_->num_row_groups() && head_.num_rows() == 0; ++g) {
      each_batch(g, [&](std::shared_ptr<arrow::RecordBatch> batch) {
        head_.add(batch->Slice(0, rows_in(g)));
        return false;
      });
      if (rows_in(g) > 0) return;
    }
  }

  void unpack() const {
    UnpackedFile out(path_);
    const auto writer = value_of(arrow::ipc::MakeStreamWriter(&out, schema_), path_);
    struct Part {
      int64_t rows;
      std::string problem;
    };
    std::vector<Part> parts;
    for (int g = 0; g < reader_->num_row_groups(); ++g) {
      int64_t left = rows_in(g);
      std::string problem = each_batch(g, [&](const std::shared_ptr<arrow::RecordBatch>& batch) {
        if (batch->num_rows() > left) return false;
        out.check(writer->WriteRecordBatch(*batch));
        parts.push_back({batch->num_rows(), ""});
        left -= batch->num_rows();
        return true;
      });
      if (left > 0 && problem.empty())
        problem = "[dataset] '" + path_ + "': a group of rows has another number of rows than it says";
      if (left > 0) parts.push_back({left, std::move(problem)});
    }
    out.check(writer->Close());
    const auto read = value_of(arrow::ipc::RecordBatchStreamReader::Open(open_file(out.name())), path_);
    for (Part& part : parts) {
      if (!part.problem.empty()) {
        unpacked_.add_broken(part.rows, std::move(part.problem));
        continue;
      }
      std::shared_ptr<arrow::RecordBatch> batch;
      check(read->ReadNext(&batch), path_);
      unpacked_.add(std::move(batch));
    }
  }

  int64_t rows_in(int group) const {
    return reader_->parquet_reader()->metadata()->RowGroup(group)->num_rows();
  }

  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
  int64_t num_rows_ = 0;
  mutable std::once_flag head_once_, unpacked_once_;
  mutable Batches head_, unpacked_;
  mutable std::exception_ptr failure_;
};

// Batches lie in the mapped file and are not copied.
class IpcTable final : public TableFile {
 public:
  explicit IpcTable(const std::string& path) {
    auto file = open_file(path);
    auto magic = value_of(file->ReadAt(0, 6), path);
    const auto add = [&](std::shared_ptr<arrow::RecordBatch> batch) {
      check(batch->ValidateFull(), path);
      batches_.add(std::move(batch));
    };
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
  int64_t num_rows() const override { return batches_.num_rows(); }
  Row row(int64_t index) const override { return batches_.row(index); }

 private:
  Batches batches_;
};

bool is_parquet(const std::string& path) {
  constexpr std::string_view kEnd = ".parquet";
  return path.size() >= kEnd.size() &&
         std::equal(kEnd.begin(), kEnd.end(), path.end() - static_cast<std::ptrdiff_t>(kEnd.size()),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

std::shared_ptr<const TableFile> open_plugin_file(const std::string& path) {
  try {
    if (is_parquet(path)) return std::make_shared<ParquetTable>(path);
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
