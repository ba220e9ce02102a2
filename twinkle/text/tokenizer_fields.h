// Reading one component of a tokenizer.json: typed fields, an error that names the field, and refusal of keys
// that nobody read. A value type used while loading, from one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"

namespace twinkle::tokenizer {

class Fields {
 public:
  /// `path` names the object in errors: "[tokenizer.json] normalizer.normalizers[2]".
  Fields(const Json& object, std::string path);

  const std::string& path() const { return path_; }
  std::string at(std::string_view key) const { return path_ + "." + std::string(key); }
  bool has(std::string_view key);  // present and not null

  const Json& need(std::string_view key);
  const Json* find(std::string_view key);  // null when absent or JSON null
  std::string string(std::string_view key);
  std::string string_or(std::string_view key, std::string fallback);
  bool boolean(std::string_view key);
  bool boolean_or(std::string_view key, bool fallback);
  int64_t integer(std::string_view key, int64_t low, int64_t high);
  int64_t integer_or(std::string_view key, int64_t low, int64_t high, int64_t fallback);
  char32_t character(std::string_view key);
  const Json& list(std::string_view key);

  /// Marks a key as known without reading it.
  void ignore(std::string_view key) { seen_.insert(std::string(key)); }
  /// Refuses keys that were not asked for.
  void done() const;

  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> seen_;
};

/// The "type" of a component, invalid_argument when it is no object or has none.
std::string component_type(const Json& component, const std::string& path);

/// A JSON number as an id of at most `high`, or invalid_argument "path: ...".
int64_t integer_value(const Json& value, int64_t low, int64_t high, const std::string& path);

}  // namespace twinkle::tokenizer
