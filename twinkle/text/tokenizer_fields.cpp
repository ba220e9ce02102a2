#include "twinkle/text/tokenizer_fields.h"

#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

std::string got(const Json& value) { return ", got " + std::string(json_type_name(value)); }

}  // namespace

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) throw invalid_argument(path_ + ": needs an object" + got(object));
}

void Fields::fail(std::string_view key, const std::string& message) const {
  throw invalid_argument(at(key) + ": " + message);
}

const Json* Fields::find(std::string_view key) {
  seen_.insert(std::string(key));
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::has(std::string_view key) { return find(key) != nullptr; }

const Json& Fields::need(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "is missing");
  return *value;
}

std::string Fields::string(std::string_view key) {
  const Json& value = need(key);
  if (!value.is_string()) fail(key, "needs a string" + got(value));
  return value.get<std::string>();
}

std::string Fields::string_or(std::string_view key, std::string fallback) {
  return has(key) ? string(key) : std::move(fallback);
}

bool Fields::boolean(std::string_view key) {
  const Json& value = need(key);
  if (!value.is_boolean()) fail(key, "needs true or false" + got(value));
  return value.get<bool>();
}

bool Fields::boolean_or(std::string_view key, bool fallback) { return has(key) ? boolean(key) : fallback; }

int64_t integer_value(const Json& value, int64_t low, int64_t high, const std::string& path) {
  if (!value.is_number_integer()) throw invalid_argument(path + ": needs a whole number" + got(value));
  const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_big ? INT64_MAX : value.get<int64_t>();
  if (number < low || number > high) {
    throw invalid_argument(path + ": needs a number from " + std::to_string(low) + " to " +
                           std::to_string(high) + ", got " + value.dump());
  }
  return number;
}

int64_t Fields::integer(std::string_view key, int64_t low, int64_t high) {
  return integer_value(need(key), low, high, at(key));
}

int64_t Fields::integer_or(std::string_view key, int64_t low, int64_t high, int64_t fallback) {
  return has(key) ? integer(key, low, high) : fallback;
}

char32_t Fields::character(std::string_view key) {
  const std::string text = string(key);
  if (text.empty() || unicode::char_bytes(text[0]) != text.size())
    fail(key, "needs exactly one character, got \"" + text + "\"");
  return unicode::char_at(text, 0);
}

const Json& Fields::list(std::string_view key) {
  const Json& value = need(key);
  if (!value.is_array()) fail(key, "needs a list" + got(value));
  return value;
}

void Fields::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (!seen_.contains(key)) throw invalid_argument(path_ + ": unknown key \"" + key + "\"");
  }
}

std::string component_type(const Json& component, const std::string& path) {
  if (!component.is_object()) throw invalid_argument(path + ": needs an object" + got(component));
  const auto it = component.find("type");
  if (it == component.end() || !it->is_string()) throw invalid_argument(path + ".type: needs a string");
  return it->get<std::string>();
}

}  // namespace twinkle::tokenizer
