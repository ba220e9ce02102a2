// Methods of str, list, tuple, dict and float that templates may call. Methods that would change their object
// are marked unsafe, as in Jinja's immutable sandbox.
#include <algorithm>
#include <cmath>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

using Method = Value (*)(Runtime&, const Value& self, const CallArgs& args);

bool every_char(const Value& self, bool (*good)(int32_t)) {
  const std::string& bytes = self.bytes();
  if (bytes.empty()) return false;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    if (!good(c.code)) return false;
    i += c.length;
  }
  return true;
}

template <bool (*kGood)(int32_t)>
Value is_every(Runtime&, const Value& self, const CallArgs&) {
  return Value::boolean(every_char(self, kGood));
}

bool is_alnum(int32_t code) { return is_alpha(code) || is_numeric(code); }

template <bool (*kWanted)(int32_t)>
Value is_cased_as(Runtime&, const Value& self, const CallArgs&) {
  bool any = false;
  for (size_t i = 0; i < self.bytes().size();) {
    const Char c = char_at(self.bytes(), i);
    i += c.length;
    if (!is_cased(c.code)) continue;
    if (!kWanted(c.code)) return Value::boolean(false);
    any = true;
  }
  return Value::boolean(any);
}

Value str_isascii(Runtime&, const Value& self, const CallArgs&) {
  return Value::boolean(is_ascii(self.bytes()));
}
Value str_isidentifier(Runtime&, const Value& self, const CallArgs&) {
  return Value::boolean(is_identifier(self.bytes()));
}
Value str_isprintable(Runtime&, const Value& self, const CallArgs&) {
  return Value::boolean(self.bytes().empty() || every_char(self, is_printable));
}
Value str_istitle(Runtime&, const Value& self, const CallArgs&) {
  bool any = false, previous = false;
  for (size_t i = 0; i < self.bytes().size();) {
    const Char c = char_at(self.bytes(), i);
    i += c.length;
    if (is_upper(c.code) || is_title(c.code)) {
      if (previous) return Value::boolean(false);
      previous = any = true;
    } else if (is_lower(c.code)) {
      if (!previous) return Value::boolean(false);
      any = true;
    } else {
      previous = false;
    }
  }
  return Value::boolean(any);
}

// A change of case looks every character up.
Value str_upper(Runtime&, const Value& self, const CallArgs&) {
  charge(static_cast<int64_t>(self.bytes().size()) / 16);
  return Value::string(upper_text(self.text()));
}
Value str_lower(Runtime&, const Value& self, const CallArgs&) {
  charge(static_cast<int64_t>(self.bytes().size()) / 16);
  return Value::string(lower_text(self.text()));
}

// Maps each character by what stands before it.
template <class Choose>
Value map_cases(const Value& self, const Choose& choose) {
  TextBuilder out;
  bool previous = false, first = true;
  const std::string& bytes = self.bytes();
  charge(static_cast<int64_t>(bytes.size()) / 16);
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    const std::string mapped =
        c.code < 0 ? bytes.substr(i, 1) : map_case(c.code, choose(c.code, previous, first));
    out.append_as(self.text(), static_cast<int64_t>(i), mapped);
    previous = is_cased(c.code);
    first = false;
    i += c.length;
  }
  out.set_markup(self.text().markup);
  return Value::string(out.finish());
}

Value str_title(Runtime&, const Value& self, const CallArgs&) {
  return map_cases(self, [](int32_t, bool previous, bool) { return previous ? Case::kLower : Case::kTitle; });
}
Value str_capitalize(Runtime&, const Value& self, const CallArgs&) {
  return map_cases(self, [](int32_t, bool, bool first) { return first ? Case::kTitle : Case::kLower; });
}
Value str_swapcase(Runtime&, const Value& self, const CallArgs&) {
  return map_cases(self,
                   [](int32_t code, bool, bool) { return is_upper(code) ? Case::kLower : Case::kUpper; });
}
Value str_casefold(Runtime&, const Value& self, const CallArgs&) {
  return map_cases(self, [](int32_t, bool, bool) { return Case::kFold; });
}

Value strip(const char* name, const Value& self, const CallArgs& args, bool left, bool right) {
  const BoundArgs bound(name, args, {"chars"});
  const bool spaces = !bound.has(0) || bound.get(0)->is_none();
  const std::string chars = spaces ? "" : bound.bytes(0, "");
  charge(static_cast<int64_t>(self.bytes().size() / kBytesPerStep * chars.size()));
  const TextSpan span = strip_span(self.bytes(), spaces ? nullptr : &chars, left, right);
  return Value::string(slice_bytes(self.text(), span.begin, span.end));
}
Value str_strip(Runtime&, const Value& self, const CallArgs& args) {
  return strip("strip", self, args, true, true);
}
Value str_lstrip(Runtime&, const Value& self, const CallArgs& args) {
  return strip("lstrip", self, args, true, false);
}
Value str_rstrip(Runtime&, const Value& self, const CallArgs& args) {
  return strip("rstrip", self, args, false, true);
}

Value split(const char* name, const Value& self, const CallArgs& args, bool from_right) {
  const BoundArgs bound(name, args, {"sep", "maxsplit"});
  const bool spaces = !bound.has(0) || bound.get(0)->is_none();
  const std::string separator = spaces ? "" : bound.bytes(0, "");
  return Value::list(
      split_text(self.text(), spaces ? nullptr : &separator, bound.integer(1, -1), from_right));
}
Value str_split(Runtime&, const Value& self, const CallArgs& args) {
  return split("split", self, args, false);
}
Value str_rsplit(Runtime&, const Value& self, const CallArgs& args) {
  return split("rsplit", self, args, true);
}
Value str_splitlines(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("splitlines", args, {"keepends"});
  return Value::list(split_lines(self.text(), bound.flag(0, false)));
}

// Byte range of self[start:end], for methods that take character positions.
TextSpan char_range(const Value& self, const BoundArgs& bound, size_t first) {
  const Value start = bound.value(first, Value()), stop = bound.value(first + 1, Value());
  const auto size = static_cast<int64_t>(self.bytes().size());
  if (start.is_none() && stop.is_none()) return {0, size};
  const CharIndex chars(self.bytes());
  auto [begin, end] = slice_bounds(start, stop, chars.count());
  // A start past the end finds nothing, not even the empty string.
  if (!start.is_none() && to_integer(start, "start") > chars.count()) return {-1, -1};
  if (begin > end) return {-1, -1};
  return {chars.at(begin), chars.at(end)};
}

bool affix(const char* name, const Value& self, const CallArgs& args, bool at_start) {
  const BoundArgs bound(name, args, {"prefix", "start", "end"}, 1);
  const TextSpan span = char_range(self, bound, 1);
  if (span.begin < 0) return false;
  const auto text = std::string_view(self.bytes())
                        .substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
  const auto matches = [&](const Value& wanted) {
    if (!wanted.is_string()) {
      throw Fault(std::string(name) + " first arg must be str or a tuple of str, not " + type_name(wanted));
    }
    charge(1 + static_cast<int64_t>(wanted.bytes().size()) / kBytesPerStep);
    return at_start ? text.starts_with(wanted.bytes()) : text.ends_with(wanted.bytes());
  };
  const Value& wanted = *bound.get(0);
  if (wanted.kind() != Kind::kTuple) return matches(wanted);
  return std::any_of(wanted.items().begin(), wanted.items().end(), matches);
}
Value str_startswith(Runtime&, const Value& self, const CallArgs& args) {
  return Value::boolean(affix("startswith", self, args, true));
}
Value str_endswith(Runtime&, const Value& self, const CallArgs& args) {
  return Value::boolean(affix("endswith", self, args, false));
}

int64_t find_in(const char* name, const Value& self, const CallArgs& args, bool last) {
  const BoundArgs bound(name, args, {"sub", "start", "end"}, 1);
  const std::string wanted = bound.bytes(0, "");
  const TextSpan span = char_range(self, bound, 1);
  if (span.begin < 0) return -1;
  const std::string_view bytes = self.bytes();
  const auto text = bytes.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
  const size_t at = last ? find_last(text, wanted) : find_text(text, wanted, 0);
  if (at == std::string_view::npos) return -1;
  return count_chars(bytes.substr(0, static_cast<size_t>(span.begin) + at));
}
Value str_find(Runtime&, const Value& self, const CallArgs& args) {
  return Value::integer(find_in("find", self, args, false));
}
Value str_rfind(Runtime&, const Value& self, const CallArgs& args) {
  return Value::integer(find_in("rfind", self, args, true));
}
Value found(int64_t at) {
  if (at < 0) throw Fault("substring not found");
  return Value::integer(at);
}
Value str_index(Runtime&, const Value& self, const CallArgs& args) {
  return found(find_in("index", self, args, false));
}
Value str_rindex(Runtime&, const Value& self, const CallArgs& args) {
  return found(find_in("rindex", self, args, true));
}
Value str_count(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("count", args, {"sub", "start", "end"}, 1);
  const std::string wanted = bound.bytes(0, "");
  const TextSpan span = char_range(self, bound, 1);
  if (span.begin < 0) return Value::integer(0);
  const auto text = std::string_view(self.bytes())
                        .substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
  if (wanted.empty()) return Value::integer(count_chars(text) + 1);
  Int count = 0;
  for (size_t at = find_text(text, wanted, 0); at != std::string_view::npos;
       at = find_text(text, wanted, at + wanted.size()))
    ++count;
  return Value::integer(count);
}

Value str_replace(Runtime& runtime, const Value& self, const CallArgs& args) {
  const BoundArgs bound("replace", args, {"old", "new", "count"}, 2);
  const Value& to = *bound.get(1);
  if (!to.is_string()) throw Fault("replace() argument 2 must be str, not " + type_name(to));
  const Text text = self.text().markup ? escape_html(to) : to.text();
  return Value::string(replace_text(runtime, self.text(), bound.bytes(0, ""), text, bound.integer(2, -1)));
}
Value str_removeprefix(Runtime&, const Value& self, const CallArgs& args) {
  const std::string prefix = BoundArgs("removeprefix", args, {"prefix"}, 1).bytes(0, "");
  const bool cut = self.bytes().starts_with(prefix);
  return Value::string(slice_bytes(self.text(), cut ? static_cast<int64_t>(prefix.size()) : 0,
                                   static_cast<int64_t>(self.bytes().size())));
}
Value str_removesuffix(Runtime&, const Value& self, const CallArgs& args) {
  const std::string suffix = BoundArgs("removesuffix", args, {"suffix"}, 1).bytes(0, "");
  const bool cut = self.bytes().ends_with(suffix);
  return Value::string(
      slice_bytes(self.text(), 0, static_cast<int64_t>(self.bytes().size() - (cut ? suffix.size() : 0))));
}

Value str_join(Runtime& runtime, const Value& self, const CallArgs& args) {
  const BoundArgs bound("join", args, {"iterable"}, 1);
  std::vector<TextPtr> parts;
  for (const Value& item : iterate(*bound.get(0))) {
    runtime.charge(1);
    if (!item.is_string()) {
      throw Fault("sequence item " + std::to_string(parts.size()) + ": expected str instance, " +
                  type_name(item) + " found");
    }
    parts.push_back(self.text().markup ? std::make_shared<const Text>(escape_html(item)) : item.text_ptr());
  }
  return Value::string(join_texts(runtime, self.text(), parts));
}

Value partition(const char* name, const Value& self, const CallArgs& args, bool last) {
  const std::string separator = BoundArgs(name, args, {"sep"}, 1).bytes(0, "");
  if (separator.empty()) throw Fault("empty separator");
  const std::string& bytes = self.bytes();
  const size_t at = last ? find_last(bytes, separator) : find_text(bytes, separator, 0);
  const Value empty = Value::string(std::string());
  if (at == std::string::npos)
    return Value::tuple(last ? std::vector<Value>{empty, empty, self}
                             : std::vector<Value>{self, empty, empty});
  const auto cut = [&](size_t begin, size_t end) {
    return Value::string(slice_bytes(self.text(), static_cast<int64_t>(begin), static_cast<int64_t>(end)));
  };
  return Value::tuple({cut(0, at), cut(at, at + separator.size()), cut(at + separator.size(), bytes.size())});
}
Value str_partition(Runtime&, const Value& self, const CallArgs& args) {
  return partition("partition", self, args, false);
}
Value str_rpartition(Runtime&, const Value& self, const CallArgs& args) {
  return partition("rpartition", self, args, true);
}

// Fill on both sides; `left_share` of it before the text.
Value pad(Runtime& runtime, const char* name, const Value& self, const CallArgs& args, int side) {
  const BoundArgs bound(name, args, {"width", "fillchar"}, 1);
  const std::string fill = bound.bytes(1, " ");
  if (count_chars(fill) != 1) throw Fault("The fill character must be exactly one character long");
  const Int size = count_chars(self.bytes());
  const Int width = bound.integer(0, 0);
  const Int missing = width > size ? width - size : 0;
  if (missing > (Int{1} << 32)) throw Fault("the padded text is too large");
  runtime.charge_bytes(static_cast<int64_t>(missing) * static_cast<int64_t>(fill.size()));
  // center() puts the odd one on the left when the width is odd.
  const Int before = side == 0 ? missing / 2 + (missing & width & 1) : side < 0 ? 0 : missing;
  TextBuilder out;
  for (Int i = 0; i < before; ++i) out.append(fill);
  out.append(self.text());
  for (Int i = before; i < missing; ++i) out.append(fill);
  out.set_markup(self.text().markup);
  return Value::string(out.finish());
}
Value str_center(Runtime& r, const Value& self, const CallArgs& args) {
  return pad(r, "center", self, args, 0);
}
Value str_ljust(Runtime& r, const Value& self, const CallArgs& args) {
  return pad(r, "ljust", self, args, -1);
}
Value str_rjust(Runtime& r, const Value& self, const CallArgs& args) {
  return pad(r, "rjust", self, args, 1);
}
Value str_zfill(Runtime& runtime, const Value& self, const CallArgs& args) {
  const Int width = BoundArgs("zfill", args, {"width"}, 1).integer(0, 0);
  const Int missing = width - count_chars(self.bytes());
  if (missing <= 0) return self;
  if (missing > (Int{1} << 32)) throw Fault("the padded text is too large");
  runtime.charge_bytes(static_cast<int64_t>(missing));
  const bool sign = !self.bytes().empty() && (self.bytes()[0] == '-' || self.bytes()[0] == '+');
  TextBuilder out;
  out.append_slice(self.text(), 0, sign);
  out.append(std::string(static_cast<size_t>(missing), '0'));
  out.append_slice(self.text(), sign, static_cast<int64_t>(self.bytes().size()));
  return Value::string(out.finish());
}
Value str_expandtabs(Runtime&, const Value& self, const CallArgs& args) {
  const Int size = BoundArgs("expandtabs", args, {"tabsize"}).integer(0, 8);
  if (size > 1000) throw Fault("tabs of more than 1000 columns are not supported");
  TextBuilder out;
  Int column = 0;
  const std::string& bytes = self.bytes();
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    if (c.code == '\t') {
      const Int count = size > 0 ? size - column % size : 0;
      charge_append(out, static_cast<int64_t>(count));
      out.append(std::string(static_cast<size_t>(count), ' '));
      column += count;
    } else {
      out.append_slice(self.text(), static_cast<int64_t>(i), static_cast<int64_t>(i) + c.length);
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    i += c.length;
  }
  return Value::string(out.finish());
}

Value str_format(Runtime& runtime, const Value& self, const CallArgs& args) {
  return brace_format(runtime, self.text(), args);
}
Value str_format_map(Runtime& runtime, const Value& self, const CallArgs& args) {
  const BoundArgs bound("format_map", args, {"mapping"}, 1);
  if (bound.get(0)->kind() != Kind::kDict) throw Fault("format_map() needs a mapping");
  CallArgs named;
  for (const auto& [key, value] : bound.get(0)->dict().entries) {
    if (key.is_string()) named.named.emplace_back(key.bytes(), value);
  }
  return brace_format(runtime, self.text(), named);
}

Value list_index(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("index", args, {"value", "start", "stop"}, 1);
  const auto [begin, end] = slice_bounds(bound.value(1, Value()), bound.value(2, Value()),
                                         static_cast<int64_t>(self.items().size()));
  charge(std::max<int64_t>(end - begin, 0) / 16);
  for (int64_t i = begin; i < end; ++i) {
    if (equal(self.items()[static_cast<size_t>(i)], *bound.get(0))) return Value::integer(i);
  }
  throw Fault("the value is not in the " + type_name(self));
}
Value list_count(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("count", args, {"value"}, 1);
  charge(static_cast<int64_t>(self.items().size()) / 16);
  return Value::integer(std::count_if(self.items().begin(), self.items().end(),
                                      [&](const Value& item) { return equal(item, *bound.get(0)); }));
}
Value list_copy(Runtime&, const Value& self, const CallArgs&) {
  charge_items(static_cast<int64_t>(self.items().size()));
  return Value::list(self.items(), self.kind());
}

Value view(const char* name, std::vector<Value> items) {
  auto object = std::make_shared<ListObject>();
  object->held.add(static_cast<int64_t>(items.size() * sizeof(Value)));
  for (const Value& item : items) object->depth = std::max(object->depth, item.depth() + 1);
  object->items = std::move(items);
  object->type_name = name;
  return Value::object(Kind::kView, std::move(object));
}
Value dict_keys(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("keys", args, {});
  return view("dict_keys", iterate(self));
}
Value dict_values(Runtime&, const Value& self, const CallArgs& args) {
  const BoundArgs bound("values", args, {});
  charge_items(static_cast<int64_t>(self.dict().entries.size()));
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict().entries) values.push_back(value);
  return view("dict_values", std::move(values));
}
Value dict_items(Runtime& runtime, const Value& self, const CallArgs& args) {
  const BoundArgs bound("items", args, {});
  runtime.charge(static_cast<int64_t>(self.dict().entries.size()));
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) items.push_back(Value::tuple({key, value}));
  return view("dict_items", std::move(items));
}
Value dict_get(Runtime&, const Value& self, const CallArgs& args) {
  if (!args.named.empty()) throw Fault("dict.get() takes no keyword arguments");
  const BoundArgs bound("get", args, {"key", "default"}, 1);
  const Value* value = self.dict().find(*bound.get(0));
  return value != nullptr ? *value : bound.value(1, Value());
}
Value dict_copy(Runtime&, const Value& self, const CallArgs&) { return self; }

Value float_is_integer(Runtime&, const Value& self, const CallArgs&) {
  const double x = self.as_double();
  return Value::boolean(std::isfinite(x) && x == std::floor(x));
}

struct Entry {
  std::string_view name;
  Method method;
  bool takes_arguments = true;
};

constexpr Entry kStringMethods[] = {{"strip", str_strip},
                                    {"split", str_split},
                                    {"startswith", str_startswith},
                                    {"endswith", str_endswith},
                                    {"replace", str_replace},
                                    {"lstrip", str_lstrip},
                                    {"rstrip", str_rstrip},
                                    {"upper", str_upper, false},
                                    {"lower", str_lower, false},
                                    {"join", str_join},
                                    {"title", str_title, false},
                                    {"capitalize", str_capitalize, false},
                                    {"swapcase", str_swapcase, false},
                                    {"casefold", str_casefold, false},
                                    {"rsplit", str_rsplit},
                                    {"splitlines", str_splitlines},
                                    {"find", str_find},
                                    {"rfind", str_rfind},
                                    {"index", str_index},
                                    {"rindex", str_rindex},
                                    {"count", str_count},
                                    {"removeprefix", str_removeprefix},
                                    {"removesuffix", str_removesuffix},
                                    {"partition", str_partition},
                                    {"rpartition", str_rpartition},
                                    {"center", str_center},
                                    {"ljust", str_ljust},
                                    {"rjust", str_rjust},
                                    {"zfill", str_zfill},
                                    {"expandtabs", str_expandtabs},
                                    {"format", str_format},
                                    {"format_map", str_format_map},
                                    {"isalnum", is_every<is_alnum>, false},
                                    {"isalpha", is_every<is_alpha>, false},
                                    {"isdecimal", is_every<is_decimal>, false},
                                    {"isdigit", is_every<is_digit>, false},
                                    {"isnumeric", is_every<is_numeric>, false},
                                    {"isspace", is_every<is_space>, false},
                                    {"islower", is_cased_as<is_lower>, false},
                                    {"isupper", is_cased_as<is_upper>, false},
                                    {"isascii", str_isascii, false},
                                    {"isidentifier", str_isidentifier, false},
                                    {"isprintable", str_isprintable, false},
                                    {"istitle", str_istitle, false}};
constexpr Entry kListMethods[] = {{"index", list_index}, {"count", list_count}, {"copy", list_copy, false}};
constexpr Entry kTupleMethods[] = {{"index", list_index}, {"count", list_count}};
constexpr Entry kDictMethods[] = {{"get", dict_get},
                                  {"items", dict_items},
                                  {"keys", dict_keys},
                                  {"values", dict_values},
                                  {"copy", dict_copy, false}};
constexpr Entry kFloatMethods[] = {{"is_integer", float_is_integer, false}};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t N>
std::optional<Value> bind(const Entry (&entries)[N], const Value& self, std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.name != name) continue;
    return make_function(
        std::string(name),
        [self, &entry](Runtime& runtime, const CallArgs& args) {
          if (!entry.takes_arguments && !(args.positional.empty() && args.named.empty())) {
            throw Fault(std::string(entry.name) + "() takes no arguments");
          }
          if (self.is_string()) runtime.charge(static_cast<int64_t>(self.bytes().size()) / 64);
          return entry.method(runtime, self, args);
        },
        self.depth() + 1);
  }
  return std::nullopt;
}

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value unsafe(const Value& object, std::string_view name) {
  return Value::undefined("access to attribute " + string_repr(name) + " of " +
                              string_repr(type_name(object)) + " object is unsafe.",
                          true);
}

}  // namespace

std::optional<Value> builtin_attribute(const Value& object, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) {
    // Every Python object has some of these; a template may use none of them.
    if (object.kind() != Kind::kDict || object.dict().find(name) == nullptr) return unsafe(object, name);
    return std::nullopt;
  }
  switch (object.kind()) {
    case Kind::kString:
      return bind(kStringMethods, object, name);
    case Kind::kFloat:
      return bind(kFloatMethods, object, name);
    case Kind::kList:
      if (is_one_of(kListChanges, name)) return unsafe(object, name);
      return bind(kListMethods, object, name);
    case Kind::kTuple: {
      const auto& fields = static_cast<const ListObject*>(object.identity())->fields;
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i] == name) return object.items()[i];
      }
      return bind(kTupleMethods, object, name);
    }
    case Kind::kDict:
      if (is_one_of(kDictChanges, name)) return unsafe(object, name);
      return bind(kDictMethods, object, name);
    default:
      return std::nullopt;
  }
}

}  // namespace twinkle::jinja
