// deps: data
// Any bytes as a Parquet file or an Arrow file or stream: the first byte picks the kind. Opening and reading
// either give rows or throw invalid_argument.
#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/data/table_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  if (size == 0) return 0;
  const std::string path = fuzz::file_of(data + 1, size - 1, data[0] % 2 == 0 ? "a.parquet" : "a.arrow");
  try {
    const auto table = open_table_file(path);
    const int64_t rows = std::min<int64_t>(table->num_rows(), 64);
    for (int64_t i = 0; i < rows; ++i) {
      if (!table->row(i).is_object()) __builtin_trap();
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
