// deps: data
// Any bytes as a row of messages, judged and edited by every filter that needs nothing from outside: each
// ends with a verdict or an invalid_argument, and what it made of a conversation it can be given again.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/quality_filter.h"

namespace {

using namespace twinkle;

const std::vector<std::shared_ptr<const QualityFilter>>& filters() {
  static const auto all = [] {
    std::vector<std::shared_ptr<const QualityFilter>> out;
    for (const ComponentInfo* info : Catalog::instance().of_kind(QualityFilter::kKind)) {
      try {
        out.push_back(Registry<QualityFilter>::create(info->name));
      } catch (const Error&) {  // it asks for a tokenizer, a model, or is refused
      }
    }
    return out;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto messages = Registry<Preprocessor>::create("MessagesProcessor");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Row row = parse_json(text, "row");
    if (!row.is_object()) return 0;
    const Trajectory given = (*messages)(row);
    fuzz::require(filters().size() > 10);
    for (const auto& filter : filters()) {
      try {
        filter->row_drop_reason(row);
        Trajectory conversation = given;
        for (int round = 0; round < 2; ++round) {
          filter->edit(&conversation);
          filter->drop_reason(conversation);
          filter->key(conversation);
          fuzz::require(conversation.messages.is_array() && conversation.user_data.is_array());
        }
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
      }
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
  return 0;
}
