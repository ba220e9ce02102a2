// deps: serve
// Logs that are damaged. An odd first byte: the rest is the file. An even one: the rest is records and what
// happens to the file that was made of them. The log does not open, and its file stays as it is; or it gives
// the first of its records, none in between is missing, it takes others, and it opens again, also when it was
// written anew.
#include <vector>

#include "fuzz/serve_fuzzing.h"
#include "twinkle/core/files.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

using Records = std::vector<std::string>;
constexpr size_t kHead = 32;  // of a record

void append(Log& log, const Records& records) {
  for (const auto& record : records) {
    log.append(record, [](std::exception_ptr error) { require(!error); });
    log.flush();
  }
}

// Whether the log opens; `records`: what it gave.
bool read(const std::string& folder, Records& records, const Records& more = {}) {
  records.clear();
  return fuzz::is_taken(
      [&] {
        Log log(
            folder, [&](std::string_view record) { records.emplace_back(record); }, fuzz::disk_in_memory());
        append(log, more);
      },
      {ErrorKind::kUnavailable});
}

// Whether it opened.
bool check(const std::string& folder, Records& records) {
  const std::string path = folder + "/log-00000001", before = read_file(path);
  const Records more = {"more", "of it"};
  Records again;
  if (!read(folder, records, more)) {
    require(read_file(path) == before);
    return false;
  }
  require(read(folder, again));
  Records all = records;
  all.insert(all.end(), more.begin(), more.end());
  require(again == all);
  // Without those of an odd size.
  const auto is_kept = [](std::string_view record) { return record.size() % 2 == 0; };
  {
    Log log(folder, [](std::string_view) {}, fuzz::disk_in_memory());
    log.rewrite(
        [&](std::string_view record) {
          return is_kept(record) ? std::optional(std::string(record)) : std::nullopt;
        },
        [] { return std::string("closing"); });
    append(log, more);
  }
  std::erase_if(all, [&](const std::string& record) { return !is_kept(record); });
  all.emplace_back("closing");
  all.insert(all.end(), more.begin(), more.end());
  require(read(folder, again) && again == all);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Pieces input(data, size);
  const uint8_t kind = input.byte();
  const std::string folder = fuzz::empty_folder("log"), path = folder + "/log-00000001";
  Records records, got;
  if (kind % 2 == 1) {
    fuzz::write_bytes(path, input.rest());
    check(folder, got);
    return 0;
  }
  const int damages = kind >> 1 & 3, kills = kind >> 3 & 1;
  struct Damage {
    size_t where;
    uint8_t what;
  };
  std::vector<Damage> list;
  for (int i = 0; i < damages; ++i) {
    const size_t low = input.byte(), high = input.byte();
    list.push_back({high << 8 | low, input.byte()});
  }
  while (!input.empty()) {
    const size_t length = 1 + input.byte();
    if (const std::string_view record = input.text(length); !record.empty()) records.emplace_back(record);
  }
  require(read(folder, got, records) && got.empty());
  std::string file = read_file(path);
  if (kills != 0) file.resize(file.size() - kHead);  // without the record that vouches for all
  const std::string whole = file;
  bool cut = false;
  for (const auto& [where, what] : list) {
    if (file.empty()) break;
    if (what == 0) {
      file.resize(where % file.size());
      cut = true;
    } else {
      file[where % file.size()] = static_cast<char>(file[where % file.size()] ^ what);
    }
  }
  fuzz::write_bytes(path, file);
  const bool opened = check(folder, got);
  require(got.size() <= records.size() && std::equal(got.begin(), got.end(), records.begin()));
  if (file == whole) require(got == records);
  // The last record was there and is as it was: whatever lies before it was acknowledged.
  const bool vouched =
      !cut && kills == 0 && file.substr(file.size() - kHead) == whole.substr(whole.size() - kHead);
  // A header of the version before is one too: the records are read as they are.
  constexpr std::string_view kEarlier = "TWKLLOG2";
  std::string told = file;
  if (told.starts_with(kEarlier)) told.replace(0, kEarlier.size(), whole, 0, kEarlier.size());
  const bool same_before = told.substr(0, told.size() - std::min(told.size(), kHead)) ==
                           whole.substr(0, whole.size() - std::min(whole.size(), kHead));
  if (vouched && !same_before) require(!opened);
  return 0;
}
