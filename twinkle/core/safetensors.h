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
  int64_t num_bytes() const;
};

int64_t safetensors_dtype_bytes(std::string_view dtype);  // 0: unknown

/// What a header says. The tensors tile the data in this order; their `data` is empty.
struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;
  std::map<std::string, std::string> metadata;
};
/// Refuses a length that a header can not have in a file of so many bytes.
void check_safetensors_header_bytes(uint64_t header_bytes, uint64_t file_bytes, std::string_view where);
SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                           std::string_view where);

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string_view where);
  const std::vector<SafeTensor>& tensors() const { return header_.tensors; }  // by offset
  const SafeTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// One tensor to write: fill(byte_offset, out) gives a piece of its bytes. Pieces come in order, from the
/// calling thread, and are whole elements, not whole rows.
struct TensorToWrite {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::function<void(int64_t byte_offset, std::span<std::byte> out)> fill;
};

/// How the file of these tensors lies; it points into the list.
struct SafetensorsPlan {
  std::string head;                         // all bytes before the data
  std::vector<const TensorToWrite*> order;  // the reference writer's: widest dtype first, then by name
  std::vector<int64_t> sizes;               // bytes of each
  int64_t total_bytes = 0;                  // of the file
};
SafetensorsPlan plan_safetensors(const std::vector<TensorToWrite>& tensors,
                                 const std::map<std::string, std::string>& metadata);

/// Writes a file at the disk's speed (large aligned pieces, no page-cache pile-up), fsyncs it; the caller
/// renames. exhausted when the disk is full. The file is removed on failure.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace twinkle
