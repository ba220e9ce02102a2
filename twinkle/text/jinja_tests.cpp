// Jinja's tests ("x is defined").
#include <algorithm>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

const Value& only(const char* name, const CallArgs& args) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    throw Fault("test '" + std::string(name) + "' takes one argument");
  }
  return args.positional[0];
}

void none_taken(const CallArgs& args) {
  if (!args.positional.empty() || !args.named.empty()) throw Fault("this test takes no arguments");
}

template <bool (*kTest)(const Value&)>
bool plain(Runtime&, const Value& value, const CallArgs& args) {
  none_taken(args);
  return kTest(value);
}

bool every_cased(const Value& value, bool (*wanted)(int32_t)) {
  const std::string bytes = to_bytes(value);
  bool any = false;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    i += c.length;
    if (!is_cased(c.code)) continue;
    if (!wanted(c.code)) return false;
    any = true;
  }
  return any;
}

bool test_defined(const Value& v) { return !v.is_undefined(); }
bool test_undefined(const Value& v) { return v.is_undefined(); }
bool test_none(const Value& v) { return v.is_none(); }
bool test_boolean(const Value& v) { return v.kind() == Kind::kBool; }
bool test_true(const Value& v) { return v.kind() == Kind::kBool && v.as_bool(); }
bool test_false(const Value& v) { return v.kind() == Kind::kBool && !v.as_bool(); }
bool test_integer(const Value& v) { return v.kind() == Kind::kInt; }
bool test_float(const Value& v) { return v.kind() == Kind::kFloat; }
bool test_number(const Value& v) { return v.is_number(); }
bool test_string(const Value& v) { return v.is_string(); }
bool test_mapping(const Value& v) { return v.kind() == Kind::kDict; }
bool test_iterable(const Value& v) { return is_iterable(v); }
bool test_sequence(const Value& v) {
  return v.is_string() || v.is_sequence() || v.kind() == Kind::kDict || v.kind() == Kind::kRange ||
         v.is_undefined();
}
bool test_callable(const Value& v) {
  return v.is_undefined() || (v.kind() == Kind::kNative && v.native().callable());
}
bool test_escaped(const Value& v) { return v.is_string() && v.text().markup; }
bool test_lower(const Value& v) { return every_cased(v, is_lower); }
bool test_upper(const Value& v) { return every_cased(v, is_upper); }

bool modulo_is(Runtime& runtime, const Value& value, Int by, Int rest) {
  return equal(binary_operation(runtime, BinaryOp::kModulo, value, Value::integer(by)), Value::integer(rest));
}
bool test_odd(Runtime& runtime, const Value& v, const CallArgs& args) {
  none_taken(args);
  return modulo_is(runtime, v, 2, 1);
}
bool test_even(Runtime& runtime, const Value& v, const CallArgs& args) {
  none_taken(args);
  return modulo_is(runtime, v, 2, 0);
}
bool test_divisibleby(Runtime& runtime, const Value& v, const CallArgs& args) {
  const BoundArgs bound("divisibleby", args, {"num"}, 1);
  return equal(binary_operation(runtime, BinaryOp::kModulo, v, *bound.get(0)), Value::integer(0));
}
bool test_eq(Runtime&, const Value& v, const CallArgs& args) { return equal(v, only("eq", args)); }
bool test_ne(Runtime&, const Value& v, const CallArgs& args) { return !equal(v, only("ne", args)); }
bool test_lt(Runtime&, const Value& v, const CallArgs& args) { return less(v, only("lt", args), "<"); }
bool test_le(Runtime&, const Value& v, const CallArgs& args) { return less(v, only("le", args), "<="); }
bool test_gt(Runtime&, const Value& v, const CallArgs& args) { return less(v, only("gt", args), ">"); }
bool test_ge(Runtime&, const Value& v, const CallArgs& args) { return less(v, only("ge", args), ">="); }
bool test_in(Runtime&, const Value& v, const CallArgs& args) { return contains(only("in", args), v); }
bool test_sameas(Runtime&, const Value& v, const CallArgs& args) {
  return same_object(v, only("sameas", args));
}
bool test_filter(Runtime&, const Value& v, const CallArgs&) {
  return v.is_string() && is_known_filter(v.bytes());
}
bool test_test(Runtime&, const Value& v, const CallArgs&) {
  return v.is_string() && is_known_test(v.bytes());
}

constexpr std::pair<std::string_view, TestFunction> kTests[] = {{"!=", test_ne},
                                                                {"<", test_lt},
                                                                {"<=", test_le},
                                                                {"==", test_eq},
                                                                {">", test_gt},
                                                                {">=", test_ge},
                                                                {"boolean", plain<test_boolean>},
                                                                {"callable", plain<test_callable>},
                                                                {"defined", plain<test_defined>},
                                                                {"divisibleby", test_divisibleby},
                                                                {"eq", test_eq},
                                                                {"equalto", test_eq},
                                                                {"escaped", plain<test_escaped>},
                                                                {"even", test_even},
                                                                {"false", plain<test_false>},
                                                                {"filter", test_filter},
                                                                {"float", plain<test_float>},
                                                                {"ge", test_ge},
                                                                {"greaterthan", test_gt},
                                                                {"gt", test_gt},
                                                                {"in", test_in},
                                                                {"integer", plain<test_integer>},
                                                                {"iterable", plain<test_iterable>},
                                                                {"le", test_le},
                                                                {"lessthan", test_lt},
                                                                {"lower", plain<test_lower>},
                                                                {"lt", test_lt},
                                                                {"mapping", plain<test_mapping>},
                                                                {"ne", test_ne},
                                                                {"none", plain<test_none>},
                                                                {"number", plain<test_number>},
                                                                {"odd", test_odd},
                                                                {"sameas", test_sameas},
                                                                {"sequence", plain<test_sequence>},
                                                                {"string", plain<test_string>},
                                                                {"test", test_test},
                                                                {"true", plain<test_true>},
                                                                {"undefined", plain<test_undefined>},
                                                                {"upper", plain<test_upper>}};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

bool is_known_test(std::string_view name) { return find_test(name) != nullptr; }

}  // namespace twinkle::jinja
