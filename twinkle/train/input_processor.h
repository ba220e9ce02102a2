// What happens to features right before a pass. Components of kind "processor"; the default one takes them as
// they are (packing needs no padding). Immutable.
#pragma once

#include <string_view>
#include <vector>

#include "twinkle/core/registry.h"
#include "twinkle/data/types.h"

namespace twinkle {

class InputProcessor {
 public:
  static constexpr std::string_view kKind = "processor";
  virtual ~InputProcessor() = default;
  virtual std::vector<InputFeature> operator()(std::vector<InputFeature> features) const { return features; }
};

}  // namespace twinkle
