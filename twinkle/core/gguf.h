// GGUF v2/v3 files: metadata and the table of tensors, checked against the file's size; data stay in the map.
// Parsing allocates in proportion to the file, never to a number that the file claims.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/files.h"
#include "twinkle/core/json.h"

namespace twinkle {

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};
std::string_view ggml_type_name(GgmlType type);
int64_t ggml_block_size(GgmlType type);   // elements of a block
int64_t ggml_block_bytes(GgmlType type);  // bytes of a block

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;  // row-major as in Hugging Face: [out, in] (GGUF's order reversed)
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  /// Maps and checks the file; invalid_argument "[gguf] ..." when malformed.
  static GgufFile open(const std::string& path);
  /// The same over bytes in memory (tests, fuzzers); the bytes must outlive the object.
  static GgufFile parse(std::span<const std::byte> bytes, std::string_view where);

  /// Metadata values by key; long arrays are kept, as JSON arrays.
  const Json& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;

 private:
  MappedFile file_;
  Json metadata_ = Json::object();
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// Dequantises `count` elements (a whole number of blocks) to fp32, as ggml defines each format.
void dequantize(GgmlType type, const std::byte* data, int64_t count, float* out);

}  // namespace twinkle
