// Where weights come from: tensors by Hugging Face name, row by row, from safetensors (single or sharded),
// GGUF or a seed. A source only maps and checks; it dequantises on demand, from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/model/model_config.h"

namespace twinkle {

/// A tensor as the file holds it.
struct WeightInfo {
  std::string name;            // Hugging Face name: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [n]
  std::string dtype;           // "F32", "BF16", "F16", "Q4_1", ...
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::vector<WeightInfo> tensors() const = 0;
  virtual const WeightInfo* find(const std::string& name) const = 0;
  /// fp32 rows [row_begin, row_end) (a vector counts as one row of n). Thread-safe.
  virtual void read_rows(const std::string& name, int64_t row_begin, int64_t row_end, float* out) const = 0;
  /// The tensor's rows as they lie in a mapped file, in its own float type; empty where they do not.
  virtual std::span<const std::byte> bytes(const std::string&) const { return {}; }
  /// Where the model was read from, for messages.
  virtual std::string where() const = 0;
};

/// A model directory or file as it lies on disk.
struct ModelFiles {
  std::string path;  // directory or .gguf file
  bool gguf = false;
  Json config;                            // config.json's value (made from the metadata for GGUF)
  Json generation_config;                 // null when absent
  std::shared_ptr<WeightSource> weights;  // null when the directory has a config but no weights
};

/// Opens a directory with config.json + *.safetensors (+ index) or a .gguf file. Pickled weights (*.bin,
/// *.pt) are refused by name. GGUF rotary rows of llama-architecture q and k are put back into rotate-half
/// order.
ModelFiles open_model_files(const std::string& path);

/// Weights drawn from a seed as transformers initialises a fresh model: N(0, initializer_range), norms 1,
/// biases 0.
std::shared_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed);

/// The names and shapes a model of this config has, in file order (tied heads left out).
std::vector<WeightInfo> expected_weights(const ModelConfig& config);

/// Every expected tensor is there with its shape and no other tensor is: invalid_argument naming the first
/// few missing, misshapen or unused ones. (A tied head that is stored all the same and rotary buffers are let
/// pass.)
void check_weights(const ModelConfig& config, const WeightSource& source);

}  // namespace twinkle
