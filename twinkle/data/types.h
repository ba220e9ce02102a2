// What flows through a run before it becomes a batch: rows -> Trajectory -> InputFeature. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

/// A row of a data set: an object of columns.
using Row = Json;

/// Label of a position that is not trained on, as in Hugging Face and upstream.
inline constexpr int32_t kIgnoreIndex = -100;

/// A conversation. `messages` is a list of objects in the OpenAI form: {role, content, reasoning_content?,
/// tool_calls?, tool_call_id?}; content is a string, null or a list of blocks. `user_data` is a list of
/// [key, json-string] pairs that travels along for rewards and label rules (key_rounds).
struct Trajectory {
  Json messages = Json::array();
  Json tools = nullptr;
  Json user_data = Json::array();
};

/// A row that wants to know when a DataLoader gives a sample of it out (Dataset::save_as, mode "training").
class FetchedRow {
 public:
  virtual ~FetchedRow() = default;
  virtual void fetched() const = 0;
};

/// Tokens ready for the model. Labels are stored already shifted: labels[t] is the target of position t, and
/// kIgnoreIndex where nothing is scored; the last one is always kIgnoreIndex.
struct InputFeature {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;  // same length as input_ids, unless label_positions says where they belong
  std::vector<float> weights;   // empty (all 1) or one for each label: weight of each target in the loss
  std::string origin;           // where it came from ("file row N"), for messages; may be empty
  /// When not empty: the position that each label is the target of, ascending; a position may have several
  /// (distillation) or none.
  std::vector<int32_t> label_positions;
  int32_t label_position(size_t label) const {
    return label_positions.empty() ? static_cast<int32_t>(label) : label_positions[label];
  }
  std::shared_ptr<const FetchedRow> row;  // null, unless it wants to know when it is given out
  int64_t num_trained() const {
    int64_t n = 0;
    for (const int32_t label : labels) n += label != kIgnoreIndex;
    return n;
  }
};

}  // namespace twinkle
