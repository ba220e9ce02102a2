#include "twinkle/text/jinja_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace twinkle::jinja {
namespace {

constexpr size_t kIndexedDict = 12;  // entries from which string keys are hashed
constexpr int64_t kItemBytes = sizeof(Value), kEntryBytes = 3 * kItemBytes;
constexpr int64_t kCharSteps = 4;  // a text of one character is an allocation of its own

thread_local Budget* thread_budget = nullptr;

int depth_over(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

Value json_value(const Json& json, bool own, int level) {
  check_value_depth(level);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::integer(static_cast<Int>(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string: {
      const auto& bytes = json.get_ref<const std::string&>();
      return Value::string(own ? make_text(bytes) : make_input_text(bytes));
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(json_value(item, own, level + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<DictObject>();
      dict->entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict->put(Value::string(own ? make_text(key) : make_input_text(key)),
                  json_value(item, own, level + 1));
      }
      return Value::object(Kind::kDict, std::move(dict));
    }
    default:
      return Value();
  }
}

// Order of two sequences by their first unequal items.
template <class Less>
bool less_sequence(const std::vector<Value>& a, const std::vector<Value>& b, const Less& fallback) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    charge(1);
    if (!equal(a[i], b[i])) return less(a[i], b[i]);
  }
  return fallback(a.size(), b.size());
}

// An int against a double without losing bits.
int compare_int_double(Int a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 1.7014118346046923e38) return -1;
  if (b < -1.7014118346046923e38) return 1;
  const Int whole = static_cast<Int>(b);
  if (a != whole) return a < whole ? -1 : 1;
  const double rest = b - static_cast<double>(whole);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

}  // namespace

Budget::Use::Use(Budget* budget) : outer_(std::exchange(thread_budget, budget)) {}
Budget::Use::~Use() { thread_budget = outer_; }
Budget* Budget::current() { return thread_budget; }

void Budget::refuse_steps() const {
  throw Fault("the template takes more than " + std::to_string(limits_.max_steps) + " steps");
}

void Budget::charge_text(int64_t bytes) {
  if (bytes > limits_.max_output_bytes) {
    throw Fault("the template makes more than " + std::to_string(limits_.max_output_bytes) +
                " bytes of text");
  }
  charge(bytes / kBytesPerStep);
}

void Budget::charge_append(int64_t size, int64_t bytes) {
  if (size + bytes > limits_.max_output_bytes) charge_text(size + bytes);
  charge(1 + bytes / kBytesPerStep);
}

void Budget::check_room(int64_t bytes) const {
  if (held_ + bytes > limits_.max_value_bytes) {
    throw Fault("the template makes more than " + std::to_string(limits_.max_value_bytes) +
                " bytes of lists and dicts");
  }
}

void charge(int64_t steps) {
  if (thread_budget != nullptr) thread_budget->charge(steps);
}

void charge_text(int64_t bytes) {
  if (thread_budget != nullptr) thread_budget->charge_text(bytes);
}

void charge_items(int64_t count) {
  if (thread_budget == nullptr) return;
  thread_budget->charge(count / 8);
  thread_budget->check_room(count * kItemBytes);
}

void charge_append(const TextBuilder& out, int64_t bytes) {
  if (thread_budget != nullptr) thread_budget->charge_append(out.size(), bytes);
}

void Held::add(int64_t bytes) {
  if (thread_budget == nullptr) return;
  thread_budget->hold(bytes);
  bytes_ += bytes;
}

void Held::clear() {
  if (thread_budget != nullptr) thread_budget->release(bytes_);
  bytes_ = 0;
}

void check_value_depth(int depth) {
  if (depth > kMaxValueDepth)
    throw Fault("values are nested deeper than " + std::to_string(kMaxValueDepth) + " levels");
}

Value Value::undefined(std::string message, bool unsafe) {
  auto object = std::make_shared<UndefinedObject>();
  object->message = std::move(message);
  object->unsafe = unsafe;
  return Value::object(Kind::kUndefined, std::move(object));
}

Value Value::undefined_name(std::string_view name) { return undefined(string_repr(name) + " is undefined"); }

Value Value::boolean(bool value) {
  Value out;
  out.kind_ = Kind::kBool;
  out.int_ = value;
  return out;
}

Value Value::integer(Int value) {
  Value out;
  out.kind_ = Kind::kInt;
  out.int_ = value;
  return out;
}

Value Value::real(double value) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.int_ = std::bit_cast<int64_t>(value);
  return out;
}

Value Value::string(TextPtr text) {
  Value out;
  out.kind_ = Kind::kString;
  out.text_ = std::move(text);
  return out;
}

Value Value::list(std::vector<Value> items, Kind kind) {
  auto object = std::make_shared<ListObject>();
  object->held.add((static_cast<int64_t>(items.size()) + 2) * kItemBytes);
  object->depth = depth_over(items);
  object->items = std::move(items);
  return Value::object(kind, std::move(object));
}

Value Value::object(Kind kind, std::shared_ptr<Object> object) {
  check_value_depth(object->depth);
  Value out;
  out.kind_ = kind;
  out.object_ = std::move(object);
  return out;
}

double Value::as_double() const {
  return kind_ == Kind::kFloat ? std::bit_cast<double>(static_cast<int64_t>(int_))
                               : static_cast<double>(int_);
}

const std::vector<Value>& Value::items() const { return static_cast<const ListObject&>(*object_).items; }
const DictObject& Value::dict() const { return static_cast<const DictObject&>(*object_); }
const RangeObject& Value::range() const { return static_cast<const RangeObject&>(*object_); }
GeneratorObject& Value::generator() const { return static_cast<GeneratorObject&>(*object_); }
NativeObject& Value::native() const { return static_cast<NativeObject&>(*object_); }

const Object* Value::identity() const { return object_.get(); }

int Value::depth() const {
  const Object* object = identity();
  return object == nullptr ? 1 : object->depth;
}

std::string Value::undefined_message() const { return static_cast<const UndefinedObject&>(*object_).message; }

const Value* DictObject::find(std::string_view key) const {
  if (!index.empty()) {
    charge(static_cast<int64_t>(key.size()) / kBytesPerStep);
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &entries[it->second].second;
  }
  charge(static_cast<int64_t>(entries.size()) / 16);
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.bytes()));
  if (key.kind() == Kind::kList || key.kind() == Kind::kDict)
    throw Fault("unhashable type: '" + type_name(key) + "'");
  charge(static_cast<int64_t>(entries.size()) / 16);
  for (const auto& [name, value] : entries) {
    if (!name.is_string() && equal(name, key)) return &value;
  }
  return nullptr;
}

void DictObject::put(Value key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  held.add(kEntryBytes);
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexedDict) return;
  const size_t first = index.empty() ? 0 : entries.size() - 1;
  for (size_t i = first; i < entries.size(); ++i) {
    if (entries[i].first.is_string()) index.emplace(entries[i].first.bytes(), i);
  }
}

void GeneratorObject::force() {
  if (!make) return;
  const auto maker = std::move(make);
  make = nullptr;
  items = maker();
  held.add(static_cast<int64_t>(items.size()) * kItemBytes);
}

std::optional<Value> NativeObject::attribute(Runtime&, std::string_view) { return std::nullopt; }
Value NativeObject::call(Runtime&, const CallArgs&) {
  throw Fault("'" + type_name() + "' object is not callable");
}

Value make_function(std::string name, Function::Body body, int depth) {
  return Value::object(Kind::kNative, std::make_shared<Function>(std::move(name), std::move(body), depth));
}

Value from_json(const Json& json, bool own) { return json_value(json, own, 1); }

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.bytes().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kRange:
      return value.range().size != 0;
    case Kind::kGenerator:
      return true;
    case Kind::kNative:
      return value.native().length().value_or(1) != 0;
  }
  return false;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    if (a.is_integral()) return compare_int_double(a.as_int(), b.as_double()) == 0;
    if (b.is_integral()) return compare_int_double(b.as_int(), a.as_double()) == 0;
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.bytes().size() != b.bytes().size()) return false;
      charge(static_cast<int64_t>(a.bytes().size()) / kBytesPerStep);
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple: {
      const auto &x = a.items(), &y = b.items();
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        charge(1);
        if (!same_object(x[i], y[i]) && !equal(x[i], y[i])) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.dict().entries.size() != b.dict().entries.size()) return false;
      for (const auto& [key, value] : a.dict().entries) {
        charge(1);
        const Value* other = b.dict().find(key);
        if (other == nullptr || !equal(value, *other)) return false;
      }
      return true;
    }
    case Kind::kRange: {
      const RangeObject &x = a.range(), &y = b.range();
      if (x.size != y.size) return false;
      return x.size == 0 || (x.start == y.start && (x.size == 1 || x.step == y.step));
    }
    default:
      return a.identity() == b.identity();
  }
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Kind::kInt:
      return a.as_int() == b.as_int() && a.as_int() >= -5 && a.as_int() <= 256;
    case Kind::kFloat:
      return false;
    case Kind::kString:
      return a.text_ptr() == b.text_ptr();
    default:
      return a.identity() == b.identity();
  }
}

bool less(const Value& a, const Value& b, const char* symbol) {
  const bool or_equal = symbol[1] == '=';
  const bool swapped = symbol[0] == '>';
  const Value &low = swapped ? b : a, &high = swapped ? a : b;
  if (low.is_number() && high.is_number()) {
    if (low.is_integral() && high.is_integral()) {
      return low.as_int() < high.as_int() || (or_equal && low.as_int() == high.as_int());
    }
    int order;
    if (low.is_integral()) {
      order = compare_int_double(low.as_int(), high.as_double());
    } else if (high.is_integral()) {
      order = compare_int_double(high.as_int(), low.as_double());
      if (order != 2) order = -order;
    } else {
      const double x = low.as_double(), y = high.as_double();
      return or_equal ? x <= y : x < y;
    }
    return order == -1 || (or_equal && order == 0);
  }
  if (low.is_undefined()) throw Fault(low.undefined_message());
  if (high.is_undefined()) throw Fault(high.undefined_message());
  if (low.is_string() && high.is_string()) {
    charge(static_cast<int64_t>(std::min(low.bytes().size(), high.bytes().size())) / kBytesPerStep);
    const int order = low.bytes().compare(high.bytes());  // UTF-8 sorts as its code points do
    return order < 0 || (or_equal && order == 0);
  }
  if (low.is_sequence() && low.kind() == high.kind()) {
    return less_sequence(low.items(), high.items(),
                         [&](size_t x, size_t y) { return x < y || (or_equal && x == y); });
  }
  throw Fault("'" + std::string(symbol) + "' not supported between instances of '" + type_name(a) +
              "' and '" + type_name(b) + "'");
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.text().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return static_cast<const ListObject*>(value.identity())->type_name;
    case Kind::kGenerator:
      return "generator";
    case Kind::kNative:
      return value.native().type_name();
  }
  return "object";
}

std::vector<Value> iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      charge_items(static_cast<int64_t>(value.items().size()));
      return value.items();
    case Kind::kDict: {
      charge_items(static_cast<int64_t>(value.dict().entries.size()));
      std::vector<Value> keys;
      keys.reserve(value.dict().entries.size());
      for (const auto& [key, unused] : value.dict().entries) keys.push_back(key);
      return keys;
    }
    case Kind::kString: {
      const int64_t count = count_chars(value.bytes());
      charge_items(count);
      charge(count * kCharSteps);
      std::vector<Value> chars;
      const auto offsets = char_offsets(value.bytes());
      chars.reserve(offsets.size());
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        Text one = slice_bytes(value.text(), offsets[i], offsets[i + 1]);
        one.markup = false;
        chars.push_back(Value::string(std::move(one)));
      }
      return chars;
    }
    case Kind::kRange: {
      std::vector<Value> numbers;
      const RangeObject& range = value.range();
      charge_items(range.size);
      numbers.reserve(static_cast<size_t>(range.size));
      for (int64_t i = 0; i < range.size; ++i)
        numbers.push_back(Value::integer(range.start + range.step * i));
      return numbers;
    }
    case Kind::kGenerator: {
      GeneratorObject& generator = value.generator();
      generator.force();
      charge(static_cast<int64_t>(generator.items.size()) / 8);
      std::vector<Value> rest = std::move(generator.items);
      rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(generator.next));
      generator.items.clear();
      generator.next = 0;
      generator.held.clear();
      return rest;
    }
    default:
      throw Fault("'" + type_name(value) + "' object is not iterable");
  }
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return false;
    case Kind::kNative:
      return value.native().type_name() == "LoopContext";
    default:
      return true;
  }
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return count_chars(value.bytes());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kRange:
      return value.range().size;
    case Kind::kNative:
      return value.native().length();
    default:
      return std::nullopt;
  }
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      throw Fault("'in <string>' requires string as left operand, not " + type_name(item));
    }
    charge(static_cast<int64_t>(container.bytes().size()) / kBytesPerStep);
    return find_text(container.bytes(), item.bytes(), 0) != std::string::npos;
  }
  if (container.kind() == Kind::kDict) return container.dict().find(item) != nullptr;
  if (!is_iterable(container)) throw Fault("argument of type '" + type_name(container) + "' is not iterable");
  const auto found = [&](const std::vector<Value>& items) {
    charge(static_cast<int64_t>(items.size()) / 16);
    return std::any_of(items.begin(), items.end(), [&](const Value& candidate) {
      return same_object(candidate, item) || equal(candidate, item);
    });
  };
  if (container.is_sequence() || container.kind() == Kind::kView) return found(container.items());
  return found(iterate(container));
}

}  // namespace twinkle::jinja
