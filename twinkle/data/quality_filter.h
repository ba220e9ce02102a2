// Filters of whole conversations by their quality, under upstream's names, parameters and reasons. The rules
// behind the names are our own. Immutable, safe from many threads.
#pragma once

#include <string>
#include <string_view>

#include "twinkle/core/registry.h"
#include "twinkle/data/types.h"

namespace twinkle {

/// Components of kind "filter"; Dataset::quality_filter applies them.
class QualityFilter {
 public:
  static constexpr std::string_view kKind = "filter";
  virtual ~QualityFilter() = default;
  /// Changes a conversation before it is judged or used.
  virtual void edit(Trajectory* conversation) const { static_cast<void>(conversation); }
  /// Why it is left out ("refusal", "dead_loop" ...); "" keeps it.
  virtual std::string drop_reason(const Trajectory& conversation) const {
    static_cast<void>(conversation);
    return "";
  }
  /// Of the conversations with the same key the longest stays, the first of equals. "": like no other.
  virtual std::string key(const Trajectory& conversation) const {
    static_cast<void>(conversation);
    return "";
  }
};

namespace quality {

/// The text of a message: its content, or its text blocks one after another.
std::string text_of(const Json& message);
/// reasoning_content, or what a leading <think> block of the content holds; `rest` gets the text without it.
std::string thinking_of(const Json& message, std::string* rest);
bool has_calls(const Json& message);
std::string role_of(const Json& message);
/// Characters of a text, ill-formed bytes counting one each.
int64_t count_chars(std::string_view text);
/// ASCII letters in lower case.
std::string lower(std::string_view text);

template <class T>
Registry<QualityFilter>::Add add_filter(std::string name, std::string help, std::vector<ParamSpec> params) {
  return {{.name = std::move(name), .help = std::move(help), .params = std::move(params)},
          [](const Options& options) { return std::make_unique<T>(options); }};
}
inline ParamSpec number(std::string name, double default_value, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kFloat,
          .default_value = default_value,
          .help = std::move(help),
          .min = 0.0};
}
inline ParamSpec count(std::string name, int64_t default_value, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kInt,
          .default_value = default_value,
          .help = std::move(help),
          .min = 0.0};
}
inline ParamSpec flag(std::string name, bool default_value, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kBool,
          .default_value = default_value,
          .help = std::move(help)};
}
inline ParamSpec words(std::string name, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kStringList,
          .default_value = Json::array(),
          .help = std::move(help)};
}

}  // namespace quality
}  // namespace twinkle
