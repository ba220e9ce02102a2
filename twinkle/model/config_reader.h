// Typed access to the keys of a config.json: a missing key, a wrong type or an absurd value is
// invalid_argument that begins with "[config] ". Null counts as missing, as in transformers. For the families
// and the rope reader.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "twinkle/core/json.h"

namespace twinkle {

class ConfigReader {
 public:
  explicit ConfigReader(const Json& raw, std::string prefix = "") : raw_(raw), prefix_(std::move(prefix)) {}

  /// The value, or null when the key is absent or null.
  const Json* find(std::string_view key) const;
  /// A whole number in [min, max]; without a fallback the key must be there.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback, int64_t min = 1,
                  int64_t max = 1 << 30) const;
  /// A finite number.
  double number(std::string_view key, std::optional<double> fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key, std::string_view fallback) const;

  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const Json& raw_;
  std::string prefix_;  // "rope_scaling." for a nested object
};

struct ModelConfig;

/// Options of the Llama line that every family here shares and that some configs set otherwise: activations
/// other than silu, attention dropout, partial rotary factors.
void refuse_unsupported(const ConfigReader& reader, const std::string& architecture);
/// "layer_types" or, without it, layers from `first_sliding` on.
void read_sliding_layers(const ConfigReader& reader, int64_t first_sliding, ModelConfig& config);

}  // namespace twinkle
