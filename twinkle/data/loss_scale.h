// How much each token of a conversation counts in the loss. Components of kind "loss_scale"; immutable, safe
// from many threads. Weights multiply those of the messages themselves ("loss", "train", "weight").
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/core/registry.h"

namespace twinkle {

class LossScale {
 public:
  static constexpr std::string_view kKind = "loss_scale";
  virtual ~LossScale() = default;
  /// Weight of what is no assistant turn: system messages, questions, results of tools, markup.
  virtual float outside() const { return 0; }
  /// Weight of the turn of the assistant message `index`.
  virtual float turn(const Json& messages, size_t index) const {
    static_cast<void>(messages), static_cast<void>(index);
    return 1;
  }
  /// Parts of a turn's text, as rendered, that have another weight than 1: ascending, disjoint byte ranges. A
  /// token takes the weight of the part where it begins.
  struct Part {
    size_t begin = 0, end = 0;
    float weight = 1;
  };
  virtual std::vector<Part> parts(std::string_view turn) const {
    static_cast<void>(turn);
    return {};
  }
};

/// not_found with the nearest name; "" is "default".
std::shared_ptr<const LossScale> make_loss_scale(std::string_view name);

}  // namespace twinkle
