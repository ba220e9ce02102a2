// The formulas are those of transformers' modeling_rope_utils, with its order of roundings: what it keeps in
// Python floats is double here, what it keeps in fp32 tensors is float (a number divided by a tensor is the
// number times the reciprocal, as torch has it). Powers, cosines and sines are taken in double and rounded
// once, so that they do not depend on a vector library. Pure functions, any thread.
#include "twinkle/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/model/config_reader.h"

namespace twinkle {
namespace {

double yarn_mscale(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

double positive(const ConfigReader& reader, std::string_view key, std::optional<double> fallback) {
  const double value = reader.number(key, fallback);
  if (!(value > 0.0)) reader.fail(key, "must be > 0");
  return value;
}

// base^(2i / dim) in fp32, as `base ** (arange(0, dim, 2) / dim)`.
std::vector<float> powers(double base, int64_t dim) {
  const float base32 = static_cast<float>(base);
  std::vector<float> out(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    out[i] = static_cast<float>(std::pow(static_cast<double>(base32), static_cast<double>(exponent)));
  }
  return out;
}

std::vector<float> inverses(std::vector<float> values) {
  for (float& v : values) v = 1.0f / v;
  return values;
}

std::vector<float> llama3(const RopeConfig& rope, int64_t dim) {
  const double context = static_cast<double>(rope.original_max_position);
  const float low_wavelength = static_cast<float>(context / rope.low_freq_factor);
  const float high_wavelength = static_cast<float>(context / rope.high_freq_factor);
  const float factor = static_cast<float>(rope.factor), low = static_cast<float>(rope.low_freq_factor);
  const float range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  std::vector<float> out = inverses(powers(rope.theta, dim));
  for (float& f : out) {
    const float wavelength = 1.0f / f * static_cast<float>(2.0 * std::numbers::pi);
    const bool is_low = wavelength > low_wavelength, is_high = wavelength < high_wavelength;
    if (is_low) {
      f = f / factor;
    } else if (!is_high) {
      const float smooth = (1.0f / wavelength * static_cast<float>(context) - low) / range;
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
  }
  return out;
}

std::vector<float> yarn(const RopeConfig& rope, int64_t dim) {
  const double size = static_cast<double>(dim), context = static_cast<double>(rope.original_max_position);
  const auto correction = [&](double rotations) {
    return size * std::log(context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1.0);
  if (low == high) high += 0.001;
  const float low32 = static_cast<float>(low), range = static_cast<float>(high - low);
  const std::vector<float> frequencies = powers(rope.theta, dim);
  std::vector<float> out(frequencies.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low32) / range, 0.0f, 1.0f);
    const float extrapolated = 1.0f - ramp;
    const float by_position = 1.0f / (static_cast<float>(rope.factor) * frequencies[i]);
    out[i] = by_position * (1.0f - extrapolated) + 1.0f / frequencies[i] * extrapolated;
  }
  return out;
}

// The section `key`; without a base of its own it takes `theta`.
RopeConfig read_section(const ConfigReader& top, const std::string& key, double theta,
                        const ModelConfig& config) {
  const Json* section = top.find(key);
  if (!section->is_object()) {
    top.fail(key, "expected an object, got " + std::string(json_type_name(*section)));
  }
  RopeConfig rope;
  const ConfigReader reader(*section, key + ".");
  for (const auto& [name, value] : section->items()) {
    if (value.is_object()) reader.fail(name, "rotary parameters by layer type are not supported");
  }
  rope.theta = positive(reader, "rope_theta", theta);
  if (reader.number("partial_rotary_factor", 1.0) != 1.0) {
    reader.fail("partial_rotary_factor", "partial rotary embeddings are not supported");
  }
  rope.type = reader.string("rope_type", reader.string("type", "default"));
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "dynamic" && rope.type != "llama3" && rope.type != "yarn") {
    reader.fail("rope_type",
                "'" + rope.type + "' is not supported (supported: default, linear, dynamic, llama3, yarn)");
  }
  if (rope.type == "llama3" || rope.type == "yarn") {
    constexpr int64_t kMax = int64_t{1} << 40;
    rope.original_max_position =
        reader.integer("original_max_position_embeddings", config.max_position, 1, kMax);
    rope.original_max_position =
        top.integer("original_max_position_embeddings", rope.original_max_position, 1, kMax);
  }
  std::optional<double> factor;
  if (rope.type == "yarn") {
    factor = static_cast<double>(config.max_position) / static_cast<double>(rope.original_max_position);
  }
  rope.factor = positive(reader, "factor", factor);
  if (rope.type == "llama3") {
    rope.low_freq_factor = positive(reader, "low_freq_factor", std::nullopt);
    rope.high_freq_factor = positive(reader, "high_freq_factor", std::nullopt);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      reader.fail("high_freq_factor", "must be greater than low_freq_factor");
    }
  }
  if (rope.type == "yarn") {
    if (rope.theta == 1.0) top.fail("rope_theta", "must not be 1 with yarn scaling");
    rope.beta_fast = reader.number("beta_fast", 32.0);
    rope.beta_slow = reader.number("beta_slow", 1.0);
    if (rope.beta_fast == 0.0) rope.beta_fast = 32.0;  // transformers: `or 32`
    if (rope.beta_slow == 0.0) rope.beta_slow = 1.0;
    if (rope.beta_slow < 0.0 || rope.beta_fast < rope.beta_slow) {
      reader.fail("beta_fast", "must not be less than beta_slow, and both must be > 0");
    }
    rope.truncate = reader.boolean("truncate", true);
    if (reader.find("attention_factor") != nullptr) {
      rope.attention_factor = positive(reader, "attention_factor", std::nullopt);
    } else {
      const double mscale = reader.number("mscale", 0.0), all_dim = reader.number("mscale_all_dim", 0.0);
      rope.attention_factor = mscale != 0.0 && all_dim != 0.0
                                  ? yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim)
                                  : yarn_mscale(rope.factor, 1.0);
    }
  }
  return rope;
}

}  // namespace

RopeConfig read_rope(const Json& raw, const ModelConfig& config) {
  const ConfigReader top(raw);
  const double theta = positive(top, "rope_theta", 10000.0);
  const bool parameters = top.find("rope_parameters") != nullptr,
             scaling = top.find("rope_scaling") != nullptr;
  if (!parameters && !scaling) return {.theta = theta};
  if (!parameters) return read_section(top, "rope_scaling", theta, config);
  const RopeConfig rope = read_section(top, "rope_parameters", theta, config);
  if (scaling && read_section(top, "rope_scaling", rope.theta, config) != rope) {
    top.fail("rope_scaling", top.find("rope_scaling")->dump() +
                                 " contradicts 'rope_parameters': " + top.find("rope_parameters")->dump() +
                                 "; keep the one that the model was trained with");
  }
  return rope;
}

RopeFrequencies rope_frequencies(const ModelConfig& config, int64_t length) {
  const RopeConfig& rope = config.rope;
  const int64_t dim = config.head_dim;
  if (rope.type == "default") return {inverses(powers(rope.theta, dim))};
  if (rope.type == "linear") {
    RopeFrequencies out{inverses(powers(rope.theta, dim))};
    for (float& f : out.inv_freq) f /= static_cast<float>(rope.factor);
    return out;
  }
  if (rope.type == "dynamic") {
    // A head of two has one frequency, 1, whatever the base.
    if (length <= config.max_position || dim == 2) return {inverses(powers(rope.theta, dim))};
    const float grown = static_cast<float>(rope.factor) * static_cast<float>(length) /
                            static_cast<float>(config.max_position) -
                        static_cast<float>(rope.factor - 1.0);
    const double size = static_cast<double>(dim);
    const float exponent = static_cast<float>(size / (size - 2.0));
    const float stretch =
        static_cast<float>(std::pow(static_cast<double>(grown), static_cast<double>(exponent)));
    return {inverses(powers(static_cast<float>(rope.theta) * stretch, dim))};
  }
  if (rope.type == "llama3") return {llama3(rope, dim)};
  TW_CHECK(rope.type == "yarn", "rope type " + rope.type);
  return {yarn(rope, dim), static_cast<float>(rope.attention_factor.value_or(yarn_mscale(rope.factor, 1.0)))};
}

RopeTables rope_tables(const ModelConfig& config, int64_t positions) {
  const RopeFrequencies frequencies = rope_frequencies(config, positions);
  RopeTables out;
  out.positions = positions;
  out.half_dim = config.head_dim / 2;
  out.cos.resize(static_cast<size_t>(positions * out.half_dim));
  out.sin.resize(out.cos.size());
  parallel_for(positions, 64, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t i = 0; i < out.half_dim; ++i) {
        const size_t at = static_cast<size_t>(p * out.half_dim + i);
        const double angle = static_cast<float>(p) * frequencies.inv_freq[static_cast<size_t>(i)];
        out.cos[at] = static_cast<float>(std::cos(angle)) * frequencies.attention_factor;
        out.sin[at] = static_cast<float>(std::sin(angle)) * frequencies.attention_factor;
      }
    }
  });
  return out;
}

}  // namespace twinkle
