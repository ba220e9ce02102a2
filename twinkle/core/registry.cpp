#include "twinkle/core/registry.h"

#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle {
namespace {

std::string place(std::string_view where, const ParamSpec& spec) {
  return "[" + std::string(where) + "] '" + spec.name + "'";
}

[[noreturn]] void wrong_type(const ParamSpec& spec, const Json& value, std::string_view where) {
  throw invalid_argument(place(where, spec) + ": expected " + std::string(param_type_name(spec.type)) +
                         ", got " + std::string(json_type_name(value)) + " " + value.dump());
}

std::string number_text(double x) {
  Json value = x;
  if (x == std::floor(x) && std::abs(x) < 1e15) value = static_cast<int64_t>(x);
  return value.dump();
}

// `x` is `value`, which is shown as it was given.
void check_range(const ParamSpec& spec, double x, const Json& value, std::string_view where) {
  if (!std::isfinite(x)) throw invalid_argument(place(where, spec) + ": must be a finite number");
  const bool low = spec.min && (spec.exclusive_min ? x <= *spec.min : x < *spec.min);
  const bool high = spec.max && x > *spec.max;
  if (!low && !high) return;
  std::string need;
  if (spec.min) need += std::string(spec.exclusive_min ? "> " : ">= ") + number_text(*spec.min);
  if (spec.max) need += (need.empty() ? "<= " : " and <= ") + number_text(*spec.max);
  throw invalid_argument(place(where, spec) + ": must be " + need + ", got " +
                         (value.is_number_integer() ? value.dump() : number_text(x)));
}

Json check_int(const ParamSpec& spec, const Json& value, std::string_view where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw invalid_argument(place(where, spec) + ": " + value.dump() + " is too large");
  }
  if (value.is_number_integer()) {
    check_range(spec, static_cast<double>(value.get<int64_t>()), value, where);
    return value.get<int64_t>();
  }
  if (value.is_number_float()) {
    const double x = value.get<double>();
    if (x == std::floor(x) && std::abs(x) < 9e15) {
      check_range(spec, x, value, where);
      return static_cast<int64_t>(x);
    }
  }
  wrong_type(spec, value, where);
}

Json check_float(const ParamSpec& spec, const Json& value, std::string_view where) {
  if (!value.is_number()) wrong_type(spec, value, where);
  check_range(spec, value.get<double>(), value, where);
  return value.get<double>();
}

}  // namespace

std::string_view param_type_name(ParamType type) {
  switch (type) {
    case ParamType::kBool:
      return "true or false";
    case ParamType::kInt:
      return "a whole number";
    case ParamType::kFloat:
      return "a number";
    case ParamType::kString:
      return "a string";
    case ParamType::kIntList:
      return "a list of whole numbers";
    case ParamType::kFloatList:
      return "a list of numbers";
    case ParamType::kStringList:
      return "a list of strings";
    case ParamType::kJson:
      return "a JSON value";
  }
  return "a value";
}

Json check_param(const ParamSpec& spec, const Json& value, std::string_view where) {
  if (value.is_null()) {
    if (spec.required) throw invalid_argument(place(where, spec) + ": is required");
    return nullptr;
  }
  switch (spec.type) {
    case ParamType::kBool:
      if (!value.is_boolean()) wrong_type(spec, value, where);
      return value;
    case ParamType::kInt:
      return check_int(spec, value, where);
    case ParamType::kFloat:
      return check_float(spec, value, where);
    case ParamType::kString: {
      if (!value.is_string()) wrong_type(spec, value, where);
      const auto& text = value.get_ref<const std::string&>();
      if (!spec.choices.empty() &&
          std::find(spec.choices.begin(), spec.choices.end(), text) == spec.choices.end()) {
        std::string list;
        for (const auto& choice : spec.choices) list += (list.empty() ? "" : ", ") + choice;
        throw invalid_argument(place(where, spec) + ": must be one of " + list + ", got '" + text + "'");
      }
      return value;
    }
    case ParamType::kIntList:
    case ParamType::kFloatList:
    case ParamType::kStringList: {
      if (!value.is_array()) wrong_type(spec, value, where);
      Json list = Json::array();
      for (const auto& item : value) {
        if (spec.type == ParamType::kIntList) {
          list.push_back(check_int(spec, item, where));
        } else if (spec.type == ParamType::kFloatList) {
          list.push_back(check_float(spec, item, where));
        } else {
          if (!item.is_string()) wrong_type(spec, value, where);
          list.push_back(item);
        }
      }
      return list;
    }
    case ParamType::kJson:
      return value;
  }
  return value;
}

Options check_options(const std::vector<ParamSpec>& specs, const Json& given, std::string_view where) {
  if (!given.is_null() && !given.is_object()) {
    throw invalid_argument("[" + std::string(where) + "] expected an object of options, got " +
                           std::string(json_type_name(given)));
  }
  std::vector<std::string> known;
  for (const auto& spec : specs) known.push_back(spec.name);
  if (given.is_object()) {
    for (const auto& [name, value] : given.items()) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        throw invalid_argument("[" + std::string(where) + "] unknown option '" + name + "'" +
                               did_you_mean(name, known));
      }
    }
  }
  Json values = Json::object();
  for (const auto& spec : specs) {
    const bool present = given.is_object() && given.contains(spec.name) && !given.at(spec.name).is_null();
    values[spec.name] = check_param(spec, present ? given.at(spec.name) : spec.default_value, where);
  }
  return Options(std::move(values));
}

bool Options::has(std::string_view name) const {
  const auto it = values_.find(name);
  return it != values_.end() && !it->is_null();
}

const Json& Options::get(std::string_view name) const {
  const auto it = values_.find(name);
  TW_CHECK(it != values_.end(), "option '" + std::string(name) + "' was not declared");
  return *it;
}

bool Options::get_bool(std::string_view name) const { return get(name).get<bool>(); }
int64_t Options::get_int(std::string_view name) const { return get(name).get<int64_t>(); }
double Options::get_float(std::string_view name) const { return get(name).get<double>(); }
std::string Options::get_string(std::string_view name) const { return get(name).get<std::string>(); }

Catalog& Catalog::instance() {
  static Catalog catalog;
  return catalog;
}

void Catalog::add(ComponentInfo info, std::any factory) {
  auto& of_kind = entries_[info.kind];
  const std::string name = info.name;
  const bool fresh = of_kind.emplace(name, Entry{std::move(info), std::move(factory)}).second;
  TW_CHECK(fresh, "component '" + name + "' is registered twice");
}

std::vector<std::string> Catalog::kinds() const {
  std::vector<std::string> out;
  for (const auto& [kind, unused] : entries_) out.push_back(kind);
  return out;
}

std::vector<const ComponentInfo*> Catalog::of_kind(std::string_view kind) const {
  std::vector<const ComponentInfo*> out;
  if (const auto it = entries_.find(kind); it != entries_.end()) {
    for (const auto& [name, entry] : it->second) out.push_back(&entry.info);
  }
  return out;
}

const Catalog::Entry& Catalog::entry(std::string_view kind, std::string_view name) const {
  std::vector<std::string> known;
  if (const auto it = entries_.find(kind); it != entries_.end()) {
    for (const auto& [key, entry] : it->second) {
      if (key == name) return entry;
      for (const auto& alias : entry.info.aliases) {
        if (alias == name) return entry;
      }
      known.push_back(key);
    }
  }
  throw not_found("[" + std::string(kind) + "] there is no " + std::string(kind) + " named '" +
                  std::string(name) + "'" + did_you_mean(name, known));
}

const ComponentInfo& Catalog::info(std::string_view kind, std::string_view name) const {
  return entry(kind, name).info;
}
const std::any& Catalog::factory(std::string_view kind, std::string_view name) const {
  return entry(kind, name).factory;
}

}  // namespace twinkle
