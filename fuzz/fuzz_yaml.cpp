// deps: core
// Any bytes: YAML either throws invalid_argument or gives a tree within its limits that becomes JSON.
#include <cstdint>

#include "twinkle/core/error.h"
#include "twinkle/core/yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  try {
    const Json value = yaml_to_json(parse_yaml({reinterpret_cast<const char*>(data), size}, "fuzz"));
    if (value.dump(-1, ' ', false, Json::error_handler_t::replace).empty()) __builtin_trap();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
