// Values of the template engine with Python's semantics: truth, equality, order, str() and repr(). Containers
// never change once made (as in Jinja's immutable sandbox); only namespaces, loops and generators have state.
// A value lives within one rendering, so nothing here is locked.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/jinja_text.h"

namespace twinkle::jinja {

using Int = __int128;
class Runtime;
class Value;

/// What a template does wrong while it runs; the interpreter adds the place.
class Fault : public std::runtime_error {
 public:
  explicit Fault(const std::string& message) : std::runtime_error(message) {}
  int64_t offset = -1;    // in the source; -1: not known yet
  bool verbatim = false;  // raise_exception: the message is the template's own
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,
  kGenerator,
  kNative
};

/// Nesting deeper than this is refused, so that no walk over a value can exhaust the stack.
inline constexpr int kMaxValueDepth = 200;

/// What one rendering may still take. Work on values is charged to the budget of its thread before it is
/// done; where there is none, as while a template is parsed, nothing is counted.
class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits) {}
  /// Makes a budget that of its thread.
  class Use {
   public:
    explicit Use(Budget* budget);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Budget* outer_;
  };
  static Budget* current();

  void charge(int64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.max_steps) refuse_steps();
  }
  /// For a text of that many bytes that is about to be made.
  void charge_text(int64_t bytes);
  /// Likewise for the next piece of a text that has `size` bytes; a piece is at least a step.
  void charge_append(int64_t size, int64_t bytes);
  /// Refuses `bytes` more in lists and dicts.
  void check_room(int64_t bytes) const;
  void hold(int64_t bytes) {
    check_room(bytes);
    held_ += bytes;
  }
  void release(int64_t bytes) { held_ -= bytes; }

 private:
  [[noreturn]] void refuse_steps() const;
  const RenderLimits& limits_;
  int64_t steps_ = 0, held_ = 0;
};

inline constexpr int64_t kBytesPerStep = 64;
/// Of the thread's budget, if there is one.
void charge(int64_t steps);
void charge_text(int64_t bytes);
/// For `count` values that are about to be copied or put into a list.
void charge_items(int64_t count);
/// For a piece of `bytes` that is about to be added to a text.
void charge_append(const TextBuilder& out, int64_t bytes);

/// What a container counts as while it lives.
class Held {
 public:
  Held() = default;
  ~Held() { clear(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void add(int64_t bytes);
  void clear();

 private:
  int64_t bytes_ = 0;
};

struct Object {
  virtual ~Object() = default;
  int depth = 1;
};

struct ListObject;
struct DictObject;
struct RangeObject;
struct GeneratorObject;
class NativeObject;
struct UndefinedObject;

class Value {
 public:
  Value() : kind_(Kind::kNone), int_(0) {}
  static Value undefined(std::string message, bool unsafe = false);
  static Value undefined_name(std::string_view name);
  static Value boolean(bool value);
  static Value integer(Int value);
  static Value real(double value);
  static Value string(TextPtr text);
  static Value string(Text text) { return string(std::make_shared<const Text>(std::move(text))); }
  static Value string(std::string bytes) { return string(make_text(std::move(bytes))); }
  static Value list(std::vector<Value> items, Kind kind = Kind::kList);
  static Value tuple(std::vector<Value> items) { return list(std::move(items), Kind::kTuple); }
  static Value object(Kind kind, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  bool as_bool() const { return int_ != 0; }
  Int as_int() const { return int_; }  // kInt, kBool
  double as_double() const;            // any number
  const Text& text() const { return *text_; }
  const TextPtr& text_ptr() const { return text_; }
  const std::string& bytes() const { return text().bytes; }
  const std::vector<Value>& items() const;  // kList, kTuple, kView
  const DictObject& dict() const;
  const RangeObject& range() const;
  GeneratorObject& generator() const;
  NativeObject& native() const;
  const Object* identity() const;
  int depth() const;
  /// The message of an undefined value.
  std::string undefined_message() const;

 private:
  Kind kind_;
  Int int_;  // a float's bits
  TextPtr text_;
  std::shared_ptr<Object> object_;
};

struct ListObject : Object {
  std::vector<Value> items;
  std::string type_name;            // of a view: "dict_items" ...
  std::vector<std::string> fields;  // names of a named tuple
  Held held;
};

struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string_view, size_t> index;  // of string keys, once there are many
  Held held;

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  /// Adds or replaces; only while the dict is being made.
  void put(Value key, Value value);
};

struct RangeObject : Object {
  Int start = 0, stop = 0, step = 1;
  int64_t size = 0;
};

/// A lazy filter result: made when first read, read once.
struct GeneratorObject : Object {
  std::function<std::vector<Value>()> make;
  std::vector<Value> items;
  size_t next = 0;
  std::string name;
  Held held;
  void force();
};

struct UndefinedObject : Object {
  std::string message;
  bool unsafe = false;
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Namespaces, macros, loops, bound methods, global functions.
class NativeObject : public Object {
 public:
  virtual std::string type_name() const = 0;
  virtual std::string repr() const = 0;
  virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const CallArgs& args);
  virtual std::optional<int64_t> length() { return std::nullopt; }
  /// Lets go of what it holds, at the end of the rendering (circles).
  virtual void release() {}
};

/// A function of the host.
class Function : public NativeObject {
 public:
  using Body = std::function<Value(Runtime&, const CallArgs&)>;
  Function(std::string name, Body body, int depth = 1) : name_(std::move(name)), body_(std::move(body)) {
    this->depth = depth;
  }
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr() const override { return "<built-in function " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const CallArgs& args) override { return body_(runtime, args); }

 private:
  std::string name_;
  Body body_;
};
Value make_function(std::string name, Function::Body body, int depth = 1);

/// Refuses nesting past kMaxValueDepth.
void check_value_depth(int depth);

/// From the context. Strings remember that they are input unless `own`.
Value from_json(const Json& json, bool own);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
bool same_object(const Value& a, const Value& b);
/// Python's a < b; a Fault when they have no order.
bool less(const Value& a, const Value& b, const char* symbol = "<");
std::string type_name(const Value& value);
/// What a loop over the value sees; a Fault when it is not iterable. Consumes generators.
std::vector<Value> iterate(const Value& value);
std::optional<int64_t> length_of(const Value& value);
bool is_iterable(const Value& value);
bool contains(const Value& container, const Value& item);

std::string float_repr(double value);
std::string int_repr(Int value);
std::string string_repr(std::string_view bytes);
void append_repr(TextBuilder& out, const Value& value);
/// Python's str(); strings keep their origin.
TextPtr to_text(const Value& value);
std::string to_bytes(const Value& value);
void append_str(TextBuilder& out, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// json.dumps. A Fault for what JSON does not know.
void append_json(TextBuilder& out, const Value& value, const JsonStyle& style, int level = 0);

}  // namespace twinkle::jinja
