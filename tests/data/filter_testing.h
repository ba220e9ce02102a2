// What the tests of filters share: conversations, what a filter says of one, and what it makes of one.
#pragma once

#include "tests/data/data_testing.h"
#include "twinkle/data/quality_filter.h"

namespace twinkle {

inline Json said(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}
inline Trajectory talk(const std::string& question, const std::string& answer) {
  return {.messages = Json::array({said("user", question), said("assistant", answer)})};
}
inline const std::string kQuestion = "How do I boil an egg?";
inline const std::string kAnswer =
    "Put the egg into boiling water, wait for eight minutes, and then cool it down under running water.";

inline std::string reason(const std::string& name, const Trajectory& conversation,
                          const Json& options = nullptr) {
  return Registry<QualityFilter>::create(name, options)->drop_reason(conversation);
}
inline Trajectory edited_by(const std::string& name, Trajectory conversation, const Json& options = nullptr) {
  Registry<QualityFilter>::create(name, options)->edit(&conversation);
  return conversation;
}
inline Json edited(const std::string& name, const Trajectory& conversation, const Json& options = nullptr) {
  return edited_by(name, conversation, options).messages;
}
/// The message that making the filter throws.
inline std::string refused(const std::string& name, const Json& options) {
  return test::thrown([&] { Registry<QualityFilter>::create(name, options); }, test::kAnyKind);
}

}  // namespace twinkle
