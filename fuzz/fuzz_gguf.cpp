// deps: core
// Any bytes: GGUF parsing either throws Error or gives tensors whose every byte can be decoded.
#include <algorithm>
#include <cstdint>

#include "twinkle/core/error.h"
#include "twinkle/core/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace twinkle;
  try {
    const GgufFile file = GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    for (const auto& tensor : file.tensors()) {
      const int64_t block = ggml_block_size(tensor.type);
      const int64_t blocks = static_cast<int64_t>(tensor.data.size()) / ggml_block_bytes(tensor.type);
      std::vector<float> out(static_cast<size_t>(std::min<int64_t>(blocks, 4) * block));
      dequantize(tensor.type, tensor.data.data(), static_cast<int64_t>(out.size()), out.data());
      if (blocks > 4) {
        dequantize(tensor.type, tensor.data.data() + (blocks - 4) * ggml_block_bytes(tensor.type), 4 * block,
                   out.data());
      }
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
