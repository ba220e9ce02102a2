// The files a data set is read from, mapped into memory and cut into rows; a row is parsed only when it is
// asked for, so a data set costs some 100 bytes a row whatever its size. Immutable after open: safe from many
// threads.
//
// .jsonl   one object a line; blank lines are skipped
// .json    a list of objects, or objects one after another
// .csv     columns named by the first record, or by RowFileOptions::columns; .tsv likewise with tabs.
//          Values are text whatever they look like: a column never changes its type with its content
// .txt     rows {"text": ...}: the whole file ("file"), cut at blank lines ("paragraph"), or by line ("line")
// .parquet, .arrow, .feather, .ipc  tables (Arrow files and streams)
// .gz, .zst of all but tables; a byte order mark and CRLF line ends are accepted everywhere
// folder   every such file below it, by path; hidden files and files of other kinds are skipped and noted.
// Links
//          to folders are followed; a folder that can be reached in several ways is read once
// a*.csv   a pattern of paths (*, ?, [...]; ** stands for any folders), in order
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/data/file_bytes.h"
#include "twinkle/data/table_file.h"
#include "twinkle/data/types.h"

namespace twinkle {

/// Where a row lies.
struct RowRef {
  int32_t file = -1;              // -1: a row given in memory
  int32_t number = 0;             // counted from 1 in its file
  int64_t begin = 0, length = 0;  // bytes
  int64_t line = 0;               // where it begins, counted from 1
};

struct RowFileOptions {
  std::string text_split = "file";
  std::vector<std::string> columns;  // names for .csv and .tsv without a first record of names
  bool may_be_empty = false;         // no rows at all is no error
};

class RowFiles {
 public:
  /// Errors begin with "[dataset]" and name the file; malformed rows are reported by parse(), not here.
  static std::shared_ptr<const RowFiles> open(const std::string& path, const RowFileOptions& options);
  /// One by its place in the order of open(); for data that is read file after file.
  static std::vector<std::string> paths_of(const std::string& path, std::vector<std::string>* notes);

  /// Likewise of a whole file, as it would be read.
  static std::string hash_of_file(const std::string& path, const RowFileOptions& options);

  const std::vector<RowRef>& rows() const { return rows_; }
  /// Of the files, in their order.
  std::vector<std::string> paths() const;
  /// SHA-256 that changes with the row's content: of a JSON row its bytes; of others also what makes a row of
  /// them (names of columns, separator), or the table's file and the row's number.
  std::string hash(const RowRef& ref) const;
  /// The row as an object; invalid_argument "[dataset] FILE row N ...: ..." when it is not one.
  Row parse(const RowRef& ref) const;
  /// "FILE row N", with the line where it differs.
  std::string place(const RowRef& ref) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  enum class Kind { kJson, kText, kCsv, kTable };
  struct File {
    FileBytes bytes;
    Kind kind = Kind::kJson;
    std::string path;
    std::string form;                  // part of a row's hash
    std::vector<std::string> columns;  // of kCsv
    char separator = ',';
    std::shared_ptr<const TableFile> table;
    std::string table_hash;
  };
  void add_file(const std::string& path, const RowFileOptions& options);
  void refuse_unused(const std::string& path, const RowFileOptions& options) const;
  void add_row(int64_t begin, int64_t end);
  void cut_lines(std::string_view text, size_t start, bool keep_blanks);
  void cut_values(std::string_view text, size_t start);
  void cut_records(std::string_view text, size_t start, const std::vector<std::string>& columns);
  void cut_text(std::string_view text, size_t start, const std::string& text_split);
  Row parse_csv(const File& file, const RowRef& ref) const;
  std::string_view bytes(const RowRef& ref) const;

  std::vector<File> files_;
  std::vector<RowRef> rows_;
  std::vector<std::string> notes_;
};

}  // namespace twinkle
