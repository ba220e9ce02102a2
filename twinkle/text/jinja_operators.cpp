// Arithmetic, subscripts and attributes as Python and Jinja's immutable sandbox define them.
#include <algorithm>
#include <cmath>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

[[noreturn]] void unsupported(BinaryOp op, const Value& left, const Value& right) {
  throw Fault("unsupported operand type(s) for " + std::string(kSymbols[static_cast<int>(op)]) + ": '" +
              type_name(left) + "' and '" + type_name(right) + "'");
}

[[noreturn]] void overflow() { throw Fault("integers of more than 127 bits are not supported"); }

Int floor_divide(Int a, Int b) {
  if (b == -1) {
    Int out;
    if (__builtin_sub_overflow(Int{0}, a, &out)) overflow();
    return out;
  }
  const Int quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Value power(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral() && right.as_int() >= 0) {
    Int base = left.as_int(), exponent = right.as_int(), out = 1;
    if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
    if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
    if (exponent > 127) overflow();
    for (; exponent > 0; --exponent) {
      if (__builtin_mul_overflow(out, base, &out)) overflow();
    }
    return Value::integer(out);
  }
  const double a = left.as_double(), b = right.as_double();
  if (a == 0 && b < 0) throw Fault("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(b) && b != std::floor(b)) throw Fault("complex numbers are not supported");
  const double out = std::pow(a, b);
  if (std::isinf(out) && std::isfinite(a) && std::isfinite(b))
    throw Fault("(34, 'Numerical result out of range')");
  return Value::real(out);
}

Value integer_operation(BinaryOp op, Int a, Int b) {
  Int out = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &out)) overflow();
      break;
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &out)) overflow();
      break;
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &out)) overflow();
      break;
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo:
      if (b == 0) throw Fault("integer division or modulo by zero");
      out = op == BinaryOp::kFloorDivide ? floor_divide(a, b) : b == -1 ? 0 : a - floor_divide(a, b) * b;
      break;
    default:
      break;
  }
  return Value::integer(out);
}

Value number_operation(BinaryOp op, const Value& left, const Value& right) {
  if (op == BinaryOp::kPower) return power(left, right);
  if (left.is_integral() && right.is_integral() && op != BinaryOp::kDivide) {
    return integer_operation(op, left.as_int(), right.as_int());
  }
  const double a = left.as_double(), b = right.as_double();
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(a + b);
    case BinaryOp::kSubtract:
      return Value::real(a - b);
    case BinaryOp::kMultiply:
      return Value::real(a * b);
    case BinaryOp::kDivide:
      if (b == 0) throw Fault("division by zero");
      return Value::real(a / b);
    case BinaryOp::kFloorDivide: {
      if (b == 0) throw Fault("float floor division by zero");
      const double quotient = (a - floor_modulo(a, b)) / b;
      const double floor = std::floor(quotient);
      return Value::real(quotient - floor > 0.5 ? floor + 1 : floor);
    }
    default:
      if (b == 0) throw Fault("float modulo");
      return Value::real(floor_modulo(a, b));
  }
}

Value repeat(Runtime& runtime, const Value& value, Int times) {
  if (times < 0) times = 0;
  if (value.is_string()) {
    const Int size = static_cast<Int>(value.bytes().size());
    if (size != 0 && times > (Int{1} << 40) / size) throw Fault("the repeated text is too large");
    runtime.charge_bytes(static_cast<int64_t>(size * times));
    runtime.charge((text_weight(value.text()) - static_cast<int64_t>(size)) * static_cast<int64_t>(times) /
                   kBytesPerStep);
    TextBuilder out;
    for (Int i = 0; i < times && size != 0; ++i) out.append(value.text());
    out.set_markup(value.text().markup);
    return Value::string(out.finish());
  }
  const auto& items = value.items();
  const Int size = static_cast<Int>(items.size());
  if (size != 0 && times > 10'000'000 / size) throw Fault("the repeated list is too large");
  runtime.charge(static_cast<int64_t>(size * times));
  charge_items(static_cast<int64_t>(size * times));
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(size * times));
  for (Int i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return Value::list(std::move(out), value.kind());
}

std::string object_name(const Value& object) {
  return object.is_none() ? "None" : type_name(object) + " object";
}

Value missing(const Value& object, const Value& key) {
  if (key.is_string()) {
    return Value::undefined("'" + object_name(object) + "' has no attribute " + string_repr(key.bytes()));
  }
  TextBuilder name;
  append_repr(name, key);
  return Value::undefined(object_name(object) + " has no element " + name.text().bytes);
}

std::optional<Value> subscript(Runtime& runtime, const Value& object, const Value& key) {
  switch (object.kind()) {
    case Kind::kDict: {
      if (key.kind() == Kind::kList || key.kind() == Kind::kDict) return std::nullopt;
      const Value* value = object.dict().find(key);
      return value == nullptr ? std::nullopt : std::optional<Value>(*value);
    }
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      break;
    default:
      return std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  const bool string = object.is_string();
  if (string) runtime.charge(static_cast<int64_t>(object.bytes().size()) / 64);
  const Int size = *length_of(object);
  Int index = key.as_int();
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  const auto at = static_cast<size_t>(index);
  if (object.is_sequence()) return object.items()[at];
  if (object.kind() == Kind::kRange)
    return Value::integer(object.range().start + object.range().step * index);
  if (size == static_cast<Int>(object.bytes().size())) {
    return Value::string(slice_bytes(object.text(), static_cast<int64_t>(at), static_cast<int64_t>(at) + 1));
  }
  const CharIndex chars(object.bytes());
  return Value::string(
      slice_bytes(object.text(), chars.at(static_cast<int64_t>(at)), chars.at(static_cast<int64_t>(at) + 1)));
}

}  // namespace

Int to_integer(const Value& value, const char* what) {
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (!value.is_integral()) {
    throw Fault(std::string(what) + ": '" + type_name(value) +
                "' object cannot be interpreted as an integer");
  }
  return value.as_int();
}

Value add_strings(Runtime& runtime, const Text& left, const Text& right) {
  runtime.charge_bytes(text_weight(left) + text_weight(right));
  TextBuilder out;
  const bool markup = left.markup || right.markup;
  const auto side = [&](const Text& text) {
    if (markup && !text.markup) {
      out.append(escape_html(Value::string(text)));
    } else {
      out.append(text);
    }
  };
  side(left);
  side(right);
  out.set_markup(markup);
  return Value::string(out.finish());
}

void charge_pass(const Value& value) {
  if (value.is_string()) charge(text_weight(value.text()) / kBytesPerStep);
}

void charge_pass(const CallArgs& args) {
  for (const Value& value : args.positional) charge_pass(value);
  for (const auto& [name, value] : args.named) charge_pass(value);
}

CharIndex::CharIndex(std::string_view bytes) : count_(static_cast<int64_t>(bytes.size())) {
  if (is_ascii(bytes)) return;
  charge(count_ / 8);  // eight times as large as the text
  offsets_ = char_offsets(bytes);
  count_ = static_cast<int64_t>(offsets_.size()) - 1;
}

Value negate(const Value& value) {
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (value.kind() == Kind::kFloat) return Value::real(-value.as_double());
  if (!value.is_integral()) throw Fault("bad operand type for unary -: '" + type_name(value) + "'");
  return integer_operation(BinaryOp::kSubtract, 0, value.as_int());
}

Value binary_operation(Runtime& runtime, BinaryOp op, const Value& left, const Value& right) {
  if (op == BinaryOp::kModulo && left.is_string()) return percent_format(runtime, left.text(), right);
  if (left.is_undefined()) throw Fault(left.undefined_message());
  if (right.is_undefined()) throw Fault(right.undefined_message());
  if (left.is_number() && right.is_number()) return number_operation(op, left, right);
  if (op == BinaryOp::kAdd) {
    if (left.is_string() && right.is_string()) return add_strings(runtime, left.text(), right.text());
    if (left.is_sequence() && left.kind() == right.kind()) {
      const size_t size = left.items().size() + right.items().size();
      charge_items(static_cast<int64_t>(size));
      std::vector<Value> items;
      items.reserve(size);
      items.insert(items.end(), left.items().begin(), left.items().end());
      items.insert(items.end(), right.items().begin(), right.items().end());
      return Value::list(std::move(items), left.kind());
    }
    if (left.is_string()) {
      throw Fault("can only concatenate str (not \"" + type_name(right) + "\") to str");
    }
  }
  if (op == BinaryOp::kMultiply) {
    if ((left.is_string() || left.is_sequence()) && right.is_integral())
      return repeat(runtime, left, right.as_int());
    if ((right.is_string() || right.is_sequence()) && left.is_integral())
      return repeat(runtime, right, left.as_int());
  }
  unsupported(op, left, right);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) throw Fault(object.undefined_message());
  if (auto value = subscript(runtime, object, key)) return *value;
  if (key.is_string()) {
    if (object.kind() == Kind::kNative) {
      if (auto value = object.native().attribute(runtime, key.bytes())) return *value;
    }
    if (auto value = builtin_attribute(object, key.bytes())) return *value;
  }
  return missing(object, key);
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) throw Fault(object.undefined_message());
  if (object.kind() == Kind::kNative) {
    if (auto value = object.native().attribute(runtime, name)) return *value;
  }
  if (auto value = builtin_attribute(object, name)) return *value;
  if (object.kind() == Kind::kDict) {
    if (const Value* value = object.dict().find(name)) return *value;
  }
  return missing(object, Value::string(std::string(name)));
}

std::pair<int64_t, int64_t> slice_bounds(const Value& start, const Value& stop, int64_t size) {
  const auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    Int at = to_integer(bound, "slice indices");
    if (at < 0) at += size;
    return static_cast<int64_t>(std::clamp<Int>(at, 0, size));
  };
  return {clamp(start, 0), clamp(stop, size)};
}

Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step_value) {
  if (object.is_undefined()) throw Fault(object.undefined_message());
  if (!object.is_string() && !object.is_sequence() && object.kind() != Kind::kRange) {
    return Value::undefined(object_name(object) + " has no element slice");
  }
  for (const Value* bound : {&start, &stop, &step_value}) {
    // As in Python, bad bounds are a TypeError, which Jinja turns into an undefined value.
    if (!bound->is_none() && !bound->is_integral()) {
      return Value::undefined(object_name(object) + " has no element slice");
    }
  }
  const Int step = step_value.is_none() ? 1 : step_value.as_int();
  if (step == 0) throw Fault("slice step cannot be zero");
  constexpr Int kFar = Int{1} << 60;
  if (step > kFar || step < -kFar) throw Fault("a slice step this large is not supported");
  const bool string = object.is_string();
  if (string) runtime.charge(static_cast<int64_t>(object.bytes().size()) / 64);
  const CharIndex chars(string ? std::string_view(object.bytes()) : std::string_view());
  const int64_t size = string ? chars.count() : *length_of(object);
  if (step == 1 && object.kind() != Kind::kRange) {
    const auto [begin, end] = slice_bounds(start, stop, size);
    if (string) {
      return Value::string(begin >= end ? slice_bytes(object.text(), 0, 0)
                                        : slice_bytes(object.text(), chars.at(begin), chars.at(end)));
    }
    if (begin >= end) return Value::list({}, object.kind());
    charge_items(end - begin);
    const auto first = object.items().begin();
    return Value::list(std::vector<Value>(first + begin, first + end), object.kind());
  }
  const auto clamp = [&](const Value& bound, Int otherwise) -> Int {
    if (bound.is_none()) return otherwise;
    Int at = bound.as_int();
    if (at < 0) at += size;
    return step < 0 ? std::clamp<Int>(at, -1, size - 1) : std::clamp<Int>(at, 0, size);
  };
  const Int begin = clamp(start, step < 0 ? size - 1 : 0);
  const Int end = clamp(stop, step < 0 ? -1 : size);
  if (object.kind() == Kind::kRange) {
    const RangeObject& whole = object.range();
    auto part = std::make_shared<RangeObject>();
    part->start = whole.start + whole.step * begin;
    part->stop = whole.start + whole.step * end;
    if (whole.step > kFar || whole.step < -kFar) throw Fault("a slice step this large is not supported");
    part->step = whole.step * step;
    const Int distance = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : -step;
    part->size = static_cast<int64_t>(distance <= 0 ? 0 : (distance + stride - 1) / stride);
    return Value::object(Kind::kRange, std::move(part));
  }
  TextBuilder text;
  std::vector<Value> items;
  for (Int at = begin; step < 0 ? at > end : at < end; at += step) {
    runtime.charge(1);
    const auto i = static_cast<size_t>(at);
    if (string) {
      text.append_slice(object.text(), chars.at(static_cast<int64_t>(i)),
                        chars.at(static_cast<int64_t>(i) + 1));
    } else {
      items.push_back(object.items()[i]);
    }
    if (step > size || step < -size) break;
  }
  if (!string) return Value::list(std::move(items), object.kind());
  text.set_markup(object.text().markup);
  return Value::string(text.finish());
}

}  // namespace twinkle::jinja
