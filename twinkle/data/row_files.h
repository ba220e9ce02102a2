// The files a data set is read from, mapped into memory and cut into rows; a row is parsed only when it is
// asked for, so a data set costs some 100 bytes a row whatever its size. Immutable after open: safe from many
// threads.
//
// .jsonl   one object a line; blank lines are skipped; a byte order mark and CRLF line ends are accepted
// .json    a list of objects, or objects one after another
// .txt     rows {"text": ...}: the whole file ("file"), cut at blank lines ("paragraph"), or by line ("line")
// folder   every such file below it, by path; hidden files and files of other kinds are skipped and noted
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/files.h"
#include "twinkle/data/types.h"

namespace twinkle {

/// Where a row lies.
struct RowRef {
  int32_t file = -1;              // -1: a row given in memory
  int32_t number = 0;             // counted from 1 in its file
  int64_t begin = 0, length = 0;  // bytes
  int64_t line = 0;               // where it begins, counted from 1
};

class RowFiles {
 public:
  /// Errors begin with "[dataset]" and name the file; malformed rows are reported by parse(), not here.
  static std::shared_ptr<const RowFiles> open(const std::string& path, const std::string& text_split);

  const std::vector<RowRef>& rows() const { return rows_; }
  std::string_view bytes(const RowRef& ref) const;
  /// The row as an object; invalid_argument "[dataset] FILE row N ...: ..." when it is not one.
  Row parse(const RowRef& ref) const;
  /// "FILE row N", with the line where it differs.
  std::string place(const RowRef& ref) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct File {
    MappedFile map;
    bool text = false;
  };
  void add_folder(const std::string& path, const std::string& text_split);
  void add_file(const std::string& path, const std::string& text_split);
  void add_row(int64_t begin, int64_t end);
  void cut_lines(std::string_view text, size_t start);
  void cut_values(std::string_view text, size_t start);
  void cut_text(std::string_view text, size_t start, const std::string& text_split);

  std::vector<File> files_;
  std::vector<RowRef> rows_;
  std::vector<std::string> notes_;
};

}  // namespace twinkle
