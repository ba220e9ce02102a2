// deps: core
// Any bytes: safetensors parsing either throws Error or gives tensors that tile the data.
#include <cstdint>

#include "twinkle/core/error.h"
#include "twinkle/core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  try {
    const auto file = SafetensorsFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    volatile uint8_t sum = 0;
    size_t bytes = 0;
    for (const auto& tensor : file.tensors()) {
      if (tensor.data.size() !=
          static_cast<size_t>(tensor.num_elements() * safetensors_dtype_bytes(tensor.dtype))) {
        __builtin_trap();
      }
      bytes += tensor.data.size();
      for (const std::byte b : tensor.data) sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(b));
    }
    if (bytes > size) __builtin_trap();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
