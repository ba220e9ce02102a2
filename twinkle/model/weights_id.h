// Names for the very bits of a model's weights: two models with one name and one set of facts compute the
// same numbers on the same instruction set.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "twinkle/model/causal_lm.h"

namespace twinkle {

/// Adds up a name from tensors in any order.
class WeightsId {
 public:
  /// `crc`: crc32c over the tensor's elements in row-major order.
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           uint32_t crc);
  std::string value() const;

 private:
  std::map<std::string, std::string> lines_;
};

/// Reads all weights once.
std::string weights_id(const CausalLM& model);
/// Reads the first 4 KiB of every tensor: quick at a start. A change past them is not seen.
std::string weights_sample_id(const CausalLM& model);

/// What a model computes beside its weights, by name.
Json model_facts(const ModelConfig& config);

}  // namespace twinkle
