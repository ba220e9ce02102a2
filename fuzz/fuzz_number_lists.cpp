// deps: core
// Any text as JSON, read with its long lists of numbers packed and as it is: both readers take it or both
// refuse it in the same words, and what they took is the same, number by number.
#include "fuzz/fuzzing.h"
#include "twinkle/core/number_lists.h"

namespace {

using namespace twinkle;
using fuzz::require;

void compare(const Json& packed, const Json& plain);

void compare_packed(const Json& packed, const Json& plain) {
  require(plain.is_array() && plain.size() >= kLeastPacked);
  require(!packed.is_array() && !packed.is_number() && !packed.is_object());
  const auto floats = packed_floats(packed);
  require(floats.size() == plain.size());
  for (size_t i = 0; i < floats.size(); ++i)
    require(plain[i].is_number() && floats[i] == plain[i].get<float>());
  const bool whole =
      std::all_of(plain.begin(), plain.end(), [](const Json& v) { return v.is_number_integer(); });
  const auto integers = packed_integers(packed);
  require(integers.has_value() == whole);
  for (size_t i = 0; whole && i < plain.size(); ++i) require((*integers)[i] == plain[i].get<int64_t>());
}

void compare(const Json& packed, const Json& plain) {
  if (is_packed(packed)) return compare_packed(packed, plain);
  if (!plain.is_structured()) return require(packed == plain);
  require(packed.type() == plain.type() && packed.size() == plain.size());
  auto other = plain.begin();
  for (auto it = packed.begin(); it != packed.end(); ++it, ++other) {
    if (plain.is_object()) require(it.key() == other.key());
    compare(*it, *other);
  }
}

template <class Parse>
std::string words_of(Parse parse, Json& value) {
  try {
    value = parse();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json packed, plain;
  const std::string packed_error = words_of([&] { return parse_json_packed(text, "body", 64); }, packed);
  const std::string plain_error = words_of([&] { return parse_json(text, "body", 64); }, plain);
  require(packed_error == plain_error);
  if (plain_error.empty()) compare(packed, plain);
  return 0;
}
