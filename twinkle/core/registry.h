// Components by name. An entry carries its parameters with types, defaults, ranges and a sentence of help;
// the CLI's help, the server's validation and the reference docs come from it. Entries are added by static
// initialisers before main and only read afterwards, so reading needs no lock.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

enum class ParamType { kBool, kInt, kFloat, kString, kIntList, kFloatList, kStringList, kJson };
std::string_view param_type_name(ParamType type);

/// One parameter of a component or one option of a command.
struct ParamSpec {
  std::string name;  // snake_case, as users type it
  ParamType type = ParamType::kString;
  Json default_value = nullptr;  // null: not set (and, with `required`, must be given)
  std::string help;
  bool required = false;
  std::optional<double> min;   // inclusive; numbers only
  std::optional<double> max;   // inclusive
  bool exclusive_min = false;  // min itself is refused
  std::vector<std::string> choices;
};

/// Checked values of a component's parameters; each getter asks for a declared name.
class Options {
 public:
  Options() = default;
  explicit Options(Json values) : values_(std::move(values)) {}
  bool has(std::string_view name) const;  // present and not null
  bool get_bool(std::string_view name) const;
  int64_t get_int(std::string_view name) const;
  double get_float(std::string_view name) const;
  std::string get_string(std::string_view name) const;
  const Json& get(std::string_view name) const;
  const Json& values() const { return values_; }

 private:
  Json values_ = Json::object();
};

/// Checks `given` (object or null) against `specs`: unknown names (with the nearest known), wrong types,
/// values out of range are invalid_argument beginning with "[`where`]"; defaults are filled in. Integers are
/// accepted for floats; a float with an integral value for an int.
Options check_options(const std::vector<ParamSpec>& specs, const Json& given, std::string_view where);

/// Checks one value and returns it in canonical form.
Json check_param(const ParamSpec& spec, const Json& value, std::string_view where);

/// What is known of a registered component, whatever its base class.
struct ComponentInfo {
  std::string kind;  // "loss", "optimizer", "template", ...
  std::string name;  // "GRPOLoss"
  std::string help;
  std::vector<ParamSpec> params;
  std::vector<std::string> aliases;
};

class Catalog {
 public:
  static Catalog& instance();
  void add(ComponentInfo info, std::any factory);
  std::vector<std::string> kinds() const;
  std::vector<const ComponentInfo*> of_kind(std::string_view kind) const;  // by name
  /// not_found with the nearest name when there is none.
  const ComponentInfo& info(std::string_view kind, std::string_view name) const;
  const std::any& factory(std::string_view kind, std::string_view name) const;

 private:
  struct Entry {
    ComponentInfo info;
    std::any factory;
  };
  const Entry& entry(std::string_view kind, std::string_view name) const;
  std::map<std::string, std::map<std::string, Entry>, std::less<>> entries_;
};

/// Typed view of one kind. Base must have `static constexpr std::string_view kKind`.
template <class Base>
class Registry {
 public:
  using Factory = std::function<std::unique_ptr<Base>(const Options&)>;

  /// Makes the component; options are checked against its declared parameters.
  static std::unique_ptr<Base> create(std::string_view name, const Json& options = nullptr) {
    const auto& info = Catalog::instance().info(Base::kKind, name);
    const auto& factory = std::any_cast<const Factory&>(Catalog::instance().factory(Base::kKind, name));
    return factory(check_options(info.params, options, info.name));
  }

  /// static const Registry<Loss>::Add registered{{.name = "GRPOLoss", ...}, [](const Options& o) { ... }};
  struct Add {
    Add(ComponentInfo info, Factory factory) {
      info.kind = std::string(Base::kKind);
      Catalog::instance().add(std::move(info), std::move(factory));
    }
  };
};

}  // namespace twinkle
