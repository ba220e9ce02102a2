// Jinja's filters, with tojson as transformers defines it.
#include <algorithm>
#include <cmath>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {

// Filters over text, in jinja_text_filters.cpp.
FilterFunction find_text_filter(std::string_view name);

namespace {

const std::string kDot = ".", kComma = ",";

struct Path {
  std::vector<Value> parts;
};

Path path_of(const Value& attribute) {
  Path path;
  if (attribute.is_none()) return path;
  if (!attribute.is_string()) return {{attribute}};
  for (const Value& part : split_text(attribute.text(), &kDot, -1, false)) {
    const std::string& name = part.bytes();
    const bool number =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto index = number ? parse_int(name, 10) : std::nullopt;
    path.parts.push_back(index ? Value::integer(*index) : part);
  }
  return path;
}

Value follow(Runtime& runtime, Value item, const Path& path, const Value* otherwise = nullptr) {
  for (const Value& part : path.parts) {
    item = get_item(runtime, item, part);
    if (otherwise != nullptr && item.is_undefined()) item = *otherwise;
  }
  return item;
}

Value fold_case(const Value& value) {
  if (value.is_string()) charge(1 + static_cast<int64_t>(value.bytes().size()) / 16);
  return value.is_string() ? Value::string(lower_text(value.text())) : value;
}

Value generator(const char* name, int depth, std::function<std::vector<Value>()> make) {
  auto object = std::make_shared<GeneratorObject>();
  object->make = std::move(make);
  object->name = name;
  object->depth = depth;
  return Value::object(Kind::kGenerator, std::move(object));
}

void sort_values(Runtime& runtime, std::vector<std::pair<Value, Value>>* keyed, bool reverse) {
  runtime.charge(static_cast<int64_t>(keyed->size()) * 4);
  // A stable sort in both directions, as Python's reverse=True is.
  std::stable_sort(keyed->begin(), keyed->end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
}

Value filter_abs(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("abs", args, {});
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.kind() == Kind::kFloat) return Value::real(std::abs(value.as_double()));
  if (!value.is_integral()) throw Fault("bad operand type for abs(): '" + type_name(value) + "'");
  return value.as_int() < 0 ? negate(value) : Value::integer(value.as_int());
}

Value filter_attr(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("attr", args, {"name"}, 1);
  const std::string name = bound.bytes(0, "");
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.kind() == Kind::kNative) {
    if (auto out = value.native().attribute(runtime, name)) return *out;
  }
  if (auto out = builtin_attribute(value, name)) return *out;
  return Value::undefined("'" + type_name(value) + " object' has no attribute " + string_repr(name));
}

Value filter_batch(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("batch", args, {"linecount", "fill_with"}, 1);
  const Int size = bound.integer(0, 0);
  const Value fill = bound.value(1, Value());
  return generator("batch", value.depth() + 1, [value, size, fill] {
    std::vector<Value> out, row;
    for (Value& item : iterate(value)) {
      if (static_cast<Int>(row.size()) == size) out.push_back(Value::list(std::exchange(row, {})));
      row.push_back(std::move(item));
    }
    if (!row.empty()) {
      if (size > 1'000'000) throw Fault("rows this long are not supported");
      if (!fill.is_none()) charge_items(static_cast<int64_t>(std::max<Int>(size, 0)));
      while (!fill.is_none() && static_cast<Int>(row.size()) < size) row.push_back(fill);
      out.push_back(Value::list(std::move(row)));
    }
    return out;
  });
}

Value filter_slice(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("slice", args, {"slices", "fill_with"}, 1);
  const Int slices = bound.integer(0, 0);
  const Value fill = bound.value(1, Value());
  if (slices == 0) throw Fault("integer division or modulo by zero");
  if (slices > 1'000'000) throw Fault("slices this many are not supported");
  runtime.charge(static_cast<int64_t>(std::max<Int>(slices, 0)));
  return generator("slice", value.depth() + 1, [value, slices, fill] {
    const std::vector<Value> items = iterate(value);
    std::vector<Value> out;
    if (slices < 0) return out;
    const Int size = static_cast<Int>(items.size()), each = size / slices, longer = size % slices;
    size_t at = 0;
    for (Int i = 0; i < slices; ++i) {
      const auto count = static_cast<size_t>(each + (i < longer ? 1 : 0));
      std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(at),
                             items.begin() + static_cast<std::ptrdiff_t>(at + count));
      at += count;
      if (!fill.is_none() && i >= longer) row.push_back(fill);
      out.push_back(Value::list(std::move(row)));
    }
    return out;
  });
}

Value filter_default(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("default", args, {"default_value", "boolean"});
  const bool use = value.is_undefined() || (bound.flag(1, false) && !truth(value));
  return use ? bound.value(0, Value::string(std::string())) : value;
}

Value filter_dictsort(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.bytes(1, "key");
  if (by != "key" && by != "value") throw Fault("You can only sort by either \"key\" or \"value\"");
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.kind() != Kind::kDict) throw Fault("'" + type_name(value) + "' object has no attribute 'items'");
  charge_items(2 * static_cast<int64_t>(value.dict().entries.size()));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.dict().entries) {
    const Value& sort_by = by == "key" ? key : item;
    keyed.emplace_back(bound.flag(0, false) ? sort_by : fold_case(sort_by), Value::tuple({key, item}));
  }
  sort_values(runtime, &keyed, bound.flag(2, false));
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return Value::list(std::move(out));
}

Value filter_first(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("first", args, {});
  if (value.kind() == Kind::kGenerator) {
    GeneratorObject& object = value.generator();
    object.force();
    if (object.next < object.items.size()) return object.items[object.next++];
    return Value::undefined("No first item, sequence was empty.");
  }
  const std::vector<Value> items = iterate(value);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("last", args, {});
  if (value.kind() == Kind::kGenerator || value.is_undefined()) {
    if (value.is_undefined()) throw Fault("'Undefined' object is not reversible");
    throw Fault("'generator' object is not reversible");
  }
  const std::vector<Value> items = iterate(value);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_float(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("float", args, {"default"});
  const Value otherwise = bound.value(0, Value::real(0.0));
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.is_number()) return Value::real(value.as_double());
  if (!value.is_string()) return otherwise;
  const auto parsed = parse_float(value.bytes());
  return parsed ? Value::real(*parsed) : otherwise;
}

Value filter_int(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("int", args, {"default", "base"});
  const Value otherwise = bound.value(0, Value::integer(0));
  const Int base = bound.integer(1, 10);
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_string() && (base == 0 || (base >= 2 && base <= 36))) {
    if (const auto parsed = parse_int(value.bytes(), static_cast<int>(base))) return Value::integer(*parsed);
  }
  std::optional<double> number;
  if (value.is_string()) number = parse_float(value.bytes());
  if (value.kind() == Kind::kFloat) {
    number = value.as_double();
    if (std::isinf(*number)) throw Fault("cannot convert float infinity to integer");
  }
  if (!number || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 1.7e38) throw Fault("integers of more than 127 bits are not supported");
  return Value::integer(static_cast<Int>(*number));
}

Value filter_groupby(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const Path path = path_of(*bound.get(0));
  const Value* otherwise = bound.has(1) && !bound.get(1)->is_none() ? bound.get(1) : nullptr;
  const bool exact = bound.flag(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(value)) {
    const Value key = follow(runtime, item, path, otherwise);
    keyed.emplace_back(exact ? key : fold_case(key), std::move(item));
  }
  sort_values(runtime, &keyed, false);
  std::vector<Value> out;
  for (size_t i = 0; i < keyed.size();) {
    size_t end = i;
    std::vector<Value> group;
    for (; end < keyed.size() && equal(keyed[end].first, keyed[i].first); ++end)
      group.push_back(keyed[end].second);
    auto tuple = std::make_shared<ListObject>();
    tuple->items = {follow(runtime, group[0], path, otherwise), Value::list(std::move(group))};
    tuple->depth = std::max(tuple->items[0].depth(), tuple->items[1].depth()) + 1;
    tuple->fields = {"grouper", "list"};
    out.push_back(Value::object(Kind::kTuple, std::move(tuple)));
    i = std::max(end, i + 1);
  }
  return Value::list(std::move(out));
}

Value filter_items(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("items", args, {});
  return generator("do_items", value.depth() + 2, [value] {
    std::vector<Value> out;
    if (value.is_undefined()) return out;
    if (value.kind() != Kind::kDict) throw Fault("Can only get item pairs from a mapping.");
    charge(static_cast<int64_t>(value.dict().entries.size()));
    for (const auto& [key, item] : value.dict().entries) out.push_back(Value::tuple({key, item}));
    return out;
  });
}

Value filter_join(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("join", args, {"d", "attribute"});
  const bool deep = bound.has(1) && !bound.get(1)->is_none();
  const Path path = deep ? path_of(*bound.get(1)) : Path();
  std::vector<TextPtr> parts;
  for (const Value& item : iterate(value)) {
    runtime.charge(2);
    parts.push_back(to_text(deep ? follow(runtime, item, path) : item));
  }
  Text separator = *to_text(bound.value(0, Value::string(std::string())));
  separator.markup = false;
  return Value::string(join_texts(runtime, separator, parts));
}

Value filter_length(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("length", args, {});
  const auto size = length_of(value);
  if (!size) throw Fault("object of type '" + type_name(value) + "' has no len()");
  return Value::integer(*size);
}

Value filter_list(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("list", args, {});
  return Value::list(iterate(value));
}

Value call_filter(Runtime& runtime, const std::string& name, const Value& value, const CallArgs& args) {
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr) throw Fault("No filter named '" + name + "' found.");
  runtime.charge(4);  // most make a text of their own
  charge_pass(value);
  charge_pass(args);
  return filter(runtime, value, args);
}

Value filter_map(Runtime& runtime, const Value& value, const CallArgs& args) {
  return generator("sync_do_map", value.depth() + 1, [&runtime, value, args] {
    std::vector<Value> out;
    if (!truth(value)) return out;
    const Value* attribute = nullptr;
    for (const auto& [name, arg] : args.named) {
      if (name == "attribute") attribute = &arg;
    }
    if (args.positional.empty() && attribute != nullptr) {
      const Value* otherwise = nullptr;
      for (const auto& [name, arg] : args.named) {
        if (name == "default") {
          otherwise = arg.is_none() ? nullptr : &arg;
        } else if (name != "attribute") {
          throw Fault("Unexpected keyword argument " + string_repr(name));
        }
      }
      const Path path = path_of(*attribute);
      for (const Value& item : iterate(value)) {
        runtime.charge(1);
        out.push_back(follow(runtime, item, path, otherwise));
      }
      return out;
    }
    if (args.positional.empty()) throw Fault("map requires a filter argument");
    const std::string name = to_bytes(args.positional[0]);
    CallArgs rest = args;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : iterate(value)) out.push_back(call_filter(runtime, name, item, rest));
    return out;
  });
}

Value select_items(Runtime& runtime, const Value& value, const CallArgs& args, bool keep, bool by_attribute) {
  return generator("select_or_reject", value.depth() + 1, [&runtime, value, args, keep, by_attribute] {
    std::vector<Value> out;
    if (!truth(value)) return out;
    CallArgs rest = args;
    Path path;
    if (by_attribute) {
      if (rest.positional.empty()) throw Fault("Missing parameter for attribute name");
      path = path_of(rest.positional[0]);
      rest.positional.erase(rest.positional.begin());
    }
    std::string name;
    TestFunction test = nullptr;
    if (!rest.positional.empty()) {
      name = to_bytes(rest.positional[0]);
      rest.positional.erase(rest.positional.begin());
      test = find_test(name);
      if (test == nullptr) throw Fault("No test named '" + name + "' found.");
    }
    for (Value& item : iterate(value)) {
      runtime.charge(1);
      const Value subject = by_attribute ? follow(runtime, item, path) : item;
      charge_pass(subject);
      charge_pass(rest);
      const bool good = test != nullptr ? test(runtime, subject, rest) : truth(subject);
      if (good == keep) out.push_back(std::move(item));
    }
    return out;
  });
}
Value filter_select(Runtime& r, const Value& v, const CallArgs& a) {
  return select_items(r, v, a, true, false);
}
Value filter_reject(Runtime& r, const Value& v, const CallArgs& a) {
  return select_items(r, v, a, false, false);
}
Value filter_selectattr(Runtime& r, const Value& v, const CallArgs& a) {
  return select_items(r, v, a, true, true);
}
Value filter_rejectattr(Runtime& r, const Value& v, const CallArgs& a) {
  return select_items(r, v, a, false, true);
}

Value extreme(Runtime& runtime, const Value& value, const CallArgs& args, bool largest) {
  const BoundArgs bound(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const Path path = path_of(bound.value(1, Value()));
  const std::vector<Value> items = iterate(value);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    const Value key = follow(runtime, item, path);
    return bound.flag(0, false) ? key : fold_case(key);
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    if (largest ? less(key, best_key, ">") : less(key, best_key)) best = i, best_key = std::move(key);
  }
  return items[best];
}
Value filter_min(Runtime& r, const Value& v, const CallArgs& a) { return extreme(r, v, a, false); }
Value filter_max(Runtime& r, const Value& v, const CallArgs& a) { return extreme(r, v, a, true); }

Value filter_reverse(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("reverse", args, {});
  if (value.is_string()) return get_slice(runtime, value, Value(), Value(), Value::integer(-1));
  const auto reversed = [value] {
    std::vector<Value> items = iterate(value);
    std::reverse(items.begin(), items.end());
    return items;
  };
  if (value.kind() == Kind::kGenerator || value.is_undefined()) return Value::list(reversed());
  if (!is_iterable(value)) iterate(value);  // says so now
  return generator("reversed", value.depth() + 1, reversed);
}

Value filter_round(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("round", args, {"precision", "method"});
  const Int precision = bound.integer(0, 0);
  const std::string method = bound.bytes(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Fault("method must be common, ceil or floor");
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (!value.is_number()) throw Fault("type " + type_name(value) + " doesn't define __round__ method");
  if (precision > 400 || precision < -400) throw Fault("a precision this large is not supported");
  const int digits = static_cast<int>(precision);
  if (method == "common") {
    if (value.kind() == Kind::kFloat) return Value::real(round_half_even(value.as_double(), digits));
    if (digits >= 0) return Value::integer(value.as_int());
    if (digits < -37) return Value::integer(0);
    constexpr Int kFar = Int{1} << 120;
    if (value.as_int() > kFar || value.as_int() < -kFar)
      throw Fault("integers of more than 120 bits cannot be rounded");
    Int unit = 1;
    for (int i = 0; i < -digits; ++i) unit *= 10;
    const Int rest = ((value.as_int() % unit) + unit) % unit;
    const Int low = value.as_int() - rest;
    const bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
    return Value::integer(up ? low + unit : low);
  }
  const double scale = std::pow(10.0, digits), x = value.as_double() * scale;
  return Value::real((method == "ceil" ? std::ceil(x) : std::floor(x)) / scale);
}

Value filter_sort(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Path> paths;
  const Value attribute = bound.value(2, Value());
  if (attribute.is_string()) {
    for (const Value& part : split_text(attribute.text(), &kComma, -1, false)) {
      paths.push_back(path_of(part));
    }
  } else {
    paths.push_back(path_of(attribute));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(value)) {
    std::vector<Value> key;
    key.reserve(paths.size());
    for (const Path& path : paths) {
      const Value part = follow(runtime, item, path);
      key.push_back(bound.flag(1, false) ? part : fold_case(part));
    }
    keyed.emplace_back(Value::list(std::move(key)), std::move(item));
  }
  sort_values(runtime, &keyed, bound.flag(0, false));
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return Value::list(std::move(out));
}

Value filter_sum(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("sum", args, {"attribute", "start"});
  const bool deep = bound.has(0) && !bound.get(0)->is_none();
  const Path path = deep ? path_of(*bound.get(0)) : Path();
  Value total = bound.value(1, Value::integer(0));
  if (total.is_string()) throw Fault("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(value)) {
    runtime.charge(1);
    total = binary_operation(runtime, BinaryOp::kAdd, total, deep ? follow(runtime, item, path) : item);
  }
  return total;
}

Value filter_unique(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("unique", args, {"case_sensitive", "attribute"});
  const bool exact = bound.flag(0, false);
  const Path path = path_of(bound.value(1, Value()));
  return generator("sync_do_unique", value.depth() + 1, [&runtime, value, exact, path] {
    DictObject seen;
    std::vector<Value> out;
    for (Value& item : iterate(value)) {
      const Value found = follow(runtime, item, path);
      Value key = exact ? found : fold_case(found);
      if (!key.is_string()) runtime.charge(static_cast<int64_t>(seen.entries.size()) / 8);
      if (seen.find(key) != nullptr) continue;
      seen.put(std::move(key), Value());
      out.push_back(std::move(item));
    }
    return out;
  });
}

Value filter_tojson(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (const Value* indent = bound.get(1); indent != nullptr && !indent->is_none()) {
    if (indent->is_string()) {
      style.indent = indent->bytes();
    } else {
      const Int width = to_integer(*indent, "indent");
      if (width > 1000) throw Fault("an indent of more than 1000 is not supported");
      style.indent = std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (const Value* pair = bound.get(2); pair != nullptr && !pair->is_none()) {
    const std::vector<Value> both = iterate(*pair);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string())
      throw Fault("separators must be two strings");
    style.item_separator = both[0].bytes();
    style.key_separator = both[1].bytes();
  }
  TextBuilder out;
  append_json(out, value, style);
  return Value::string(out.finish());
}

Value filter_random(Runtime&, const Value&, const CallArgs&) {
  throw Fault("random gives another text each time and is not supported");
}

constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {
    {"abs", filter_abs},           {"attr", filter_attr},
    {"batch", filter_batch},       {"count", filter_length},
    {"d", filter_default},         {"default", filter_default},
    {"dictsort", filter_dictsort}, {"first", filter_first},
    {"float", filter_float},       {"groupby", filter_groupby},
    {"int", filter_int},           {"items", filter_items},
    {"join", filter_join},         {"last", filter_last},
    {"length", filter_length},     {"list", filter_list},
    {"map", filter_map},           {"max", filter_max},
    {"min", filter_min},           {"random", filter_random},
    {"reject", filter_reject},     {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse},   {"round", filter_round},
    {"select", filter_select},     {"selectattr", filter_selectattr},
    {"slice", filter_slice},       {"sort", filter_sort},
    {"sum", filter_sum},           {"tojson", filter_tojson},
    {"unique", filter_unique}};

}  // namespace

FilterFunction find_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return find_text_filter(name);
}

bool is_known_filter(std::string_view name) { return find_filter(name) != nullptr; }

}  // namespace twinkle::jinja
