// safetensors files: a reader over a memory map and a durable writer.
// The header is refused when longer than 100 MB or the file, when ranges overlap, leave holes, run past the
// end or disagree with shape x dtype, when a product overflows, or when bytes follow the last tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/files.h"

namespace twinkle {

struct SafeTensor {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  int64_t num_elements() const;
};

int64_t safetensors_dtype_bytes(std::string_view dtype);  // 0: unknown

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string_view where);
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // by offset
  const SafeTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

/// One tensor to write: fill(byte_offset, out) gives a piece of its bytes. Pieces come in order, from the
/// calling thread, and are whole elements, not whole rows.
struct TensorToWrite {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::function<void(int64_t byte_offset, std::span<std::byte> out)> fill;
};

/// Writes a file at the disk's speed (large aligned pieces, no page-cache pile-up), fsyncs it; the caller
/// renames. Tensors lie in the reference writer's order (widest dtype first, then by name), whatever order
/// they are given in. exhausted when the disk is full. The file is removed on failure.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace twinkle
