// Filters of whole conversations by their quality, under upstream's names, parameters and reasons. The rules
// behind the names are our own. Immutable, safe from many threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  /// edit, and drop_reason of what it made: in one look where both need the same.
  virtual std::string edit_and_judge(Trajectory* conversation) const {
    edit(conversation);
    return drop_reason(*conversation);
  }
  /// Of the conversations with the same key the longest stays, the first of equals. "": like no other.
  virtual std::string key(const Trajectory& conversation) const {
    static_cast<void>(conversation);
    return "";
  }
  /// Why a row is left out by its columns, before a preprocessor reads them; "" keeps it.
  virtual std::string row_drop_reason(const Row& row) const {
    static_cast<void>(row);
    return "";
  }
  /// Judges conversations many at a time, in the order of the rows. It is made for one pass over a data set
  /// and dropped after it, so it may hold what is large, a model for instance.
  class Judge {
   public:
    virtual ~Judge() = default;
    /// drop_reason of each.
    virtual std::vector<std::string> drop_reasons(std::span<const Trajectory> conversations) = 0;
  };
  /// null: drop_reason is asked of each, on all cores.
  virtual std::unique_ptr<Judge> start_judging() const { return nullptr; }
  /// What edits depend on beside the options, known once a pass is over: part of the key of encoded data.
  virtual std::string edits_key() const { return ""; }
};

namespace quality {

/// The text of a message: its content, or its text blocks one after another.
std::string text_of(const Json& message);
/// reasoning_content, or what a leading <think> block of the content holds; `rest` gets the text without it.
std::string thinking_of(const Json& message, std::string* rest);
bool has_calls(const Json& message);
std::string role_of(const Json& message);
/// The texts of all messages of a role, one after another with a blank between them.
std::string texts_of(const Trajectory& conversation, std::string_view role);
/// True when a message calls a tool or is the result of one.
bool uses_tools(const Trajectory& conversation);
/// Characters of a text, ill-formed bytes counting one each.
int64_t count_chars(std::string_view text);
/// ASCII letters in lower case.
std::string lower(std::string_view text);
/// The strings of a list option, likewise.
std::vector<std::string> lowered(const Options& options, const char* name);
bool is_blank(std::string_view text);
/// The share of the letters of a text that are Chinese, Japanese or Korean; 0 without letters.
double cjk_share(std::string_view text);

/// The value of a pair of user_data, parsed; null when there is none, or none that can be read.
Json user_data_of(const Trajectory& conversation, const std::string& key);
/// Sets the pair, or takes it out when the value is null.
void set_user_data(Trajectory* conversation, const std::string& key, const Json& value);

/// Calls fn on the texts of a message: its content, or its text blocks, and its reasoning_content.
template <class Fn>
void edit_texts(Json* message, const Fn& fn) {
  for (const char* key : {"content", "reasoning_content"}) {
    const auto found = message->find(key);
    if (found == message->end()) continue;
    if (found->is_string()) *found = fn(found->template get_ref<const std::string&>());
    if (!found->is_array()) continue;
    for (Json& block : *found) {
      if (block.is_object() && block.contains("text") && block.at("text").is_string())
        block["text"] = fn(block.at("text").template get_ref<const std::string&>());
    }
  }
}

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
inline ParamSpec string_option(std::string name, std::string default_value, std::string help) {
  return {.name = std::move(name), .default_value = std::move(default_value), .help = std::move(help)};
}
inline ParamSpec words(std::string name, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kStringList,
          .default_value = Json::array(),
          .help = std::move(help)};
}

}  // namespace quality
}  // namespace twinkle
