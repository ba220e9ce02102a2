// deps: data
// Any bytes as comma- or tab-separated text: the first byte picks the separator. Records cut the text without
// a gap, and what a record says is what writing and reading it again says.
#include <cstdint>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/data/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  if (size == 0) return 0;
  const char separator = data[0] % 2 == 0 ? ',' : '\t';
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (size_t at = 0; at < text.size();) {
    bool closed = true;
    const size_t end = csv::record_end(text, at, separator, &closed);
    if (end <= at || end > text.size()) __builtin_trap();
    try {
      const auto fields = csv::fields(text.substr(at, end - at), separator);
      if (fields.empty()) __builtin_trap();
      const std::string again = csv::write(fields, separator);
      bool whole = true;
      if (csv::record_end(again, 0, separator, &whole) != again.size() || !whole) __builtin_trap();
      if (csv::fields(again, separator) != fields) __builtin_trap();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
    }
    at = end;
  }
  return 0;
}
