// Tables in Parquet files and Arrow IPC files or streams, read by a library of its own that is loaded when
// the first such file is asked for: programs that do without start without it. Immutable after open: safe
// from many threads.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "twinkle/data/types.h"

namespace twinkle {

class TableFile {
 public:
  virtual ~TableFile() = default;
  virtual int64_t num_rows() const = 0;
  /// All columns of a row, null ones too. Dates and times are ISO 8601 text, decimals text, bytes that are
  /// not UTF-8 base64 text; text that is not UTF-8 and types without such a form (durations, intervals) are
  /// invalid_argument "column 'NAME' ...". Arrow files are read where they lie. Of a Parquet file the first
  /// rows are kept; when another is asked for, the whole file is unpacked, a batch at a time, into an Arrow
  /// file without a name in TMPDIR, which is mapped: every row costs the same, whatever the order.
  virtual Row row(int64_t index) const = 0;
};

/// invalid_argument when the file is not what its name says or two columns have one name; unavailable when
/// the program was built without Arrow (scripts/setup installs it).
std::shared_ptr<const TableFile> open_table_file(const std::string& path);

/// Writes rows as a Parquet file (zstd); columns are those of all rows, typed by their values: boolean,
/// int64, double, string, and lists and objects of these; null where a row has none. Columns whose values
/// differ in kind are invalid_argument with row and column.
void write_parquet_file(const std::string& path, std::span<const Row> rows);

/// What the library exports under the name twinkle_arrow_plugin.
struct ArrowPlugin {
  std::shared_ptr<const TableFile> (*open)(const std::string& path);
  void (*write_parquet)(const std::string& path, std::span<const Row> rows);
};

}  // namespace twinkle
