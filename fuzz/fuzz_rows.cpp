// deps: data
// Any bytes as a data file: the first byte picks the kind. Opening and parsing either throw Error or give
// rows that a guessed preprocessor turns into a conversation or refuses by name.
#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/data/dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  if (size == 0) return 0;
  static const char* const kNames[] = {"a.jsonl", "a.json",     "a.txt",      "a.csv",
                                       "a.tsv",   "a.jsonl.gz", "a.jsonl.zst"};
  static const char* const kSplits[] = {"file", "paragraph", "line"};
  const std::string path = fuzz::file_of(data + 1, size - 1, kNames[data[0] % 7]);
  try {
    DatasetMeta meta{.dataset_id = path};
    if (data[0] % 7 == 2) meta.text_split = kSplits[data[0] / 7 % 3];
    Dataset rows(meta);
    try {
      rows.map("");
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
      rows.map("MessagesProcessor");
    }
    for (int64_t i = 0; i < rows.size(); ++i) {
      try {
        if (rows.trajectory(i).messages.empty()) __builtin_trap();
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
      }
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
