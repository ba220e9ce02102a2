// One rendering: variables, output, budgets. Used by one thread, thrown away afterwards.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "twinkle/text/jinja_ast.h"

namespace twinkle::jinja {

/// Variables of one block; lookups go outwards.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> vars;  // names live in the Program

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class NamespaceObject : public NativeObject {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::string repr() const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  std::vector<std::pair<std::string, Value>> attrs;
  void set(const std::string& name, Value value);
  void release() override { attrs.clear(); }

 private:
  mutable bool printing_ = false;
};

class LoopObject;

class Runtime {
 public:
  Runtime(const Program& program, const RenderLimits& limits, int64_t now);
  ~Runtime();
  Rendered render(const Json& context, const Json& own);

  // For filters, methods and objects.
  void charge(int64_t steps) { budget_.charge(steps); }
  /// Charges for a string of that many bytes that is about to be made; refuses absurd sizes.
  void charge_bytes(int64_t bytes) { budget_.charge_text(bytes); }
  Value call(const Value& callee, const CallArgs& args);
  Value call_macro(const Stmt& macro, const ScopePtr& scope, const CallArgs& args);
  Value call_loop(const LoopObject& loop, const Value& iterable);
  Value make_namespace(const CallArgs& args);
  /// Seconds since the epoch by the local clock, or what the caller gave instead.
  int64_t now();
  /// Objects with state and scopes that closures hold may refer to each other in circles; they are emptied at
  /// the end.
  void keep(std::shared_ptr<NativeObject> object) { kept_.push_back(std::move(object)); }
  void keep_scope(const ScopePtr& scope) { kept_scopes_.push_back(scope); }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  struct Depth;
  struct Capture;

  Value eval(const Expr& expr);
  Value eval_inner(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr, const Value* block);
  Value eval_test(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  CallArgs eval_args(const ArgumentList& args);

  Flow run(const Body& body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& iterable, int depth);
  Flow run_scoped(const Body& body);
  void run_with(const Stmt& stmt);
  void run_generation(const Stmt& stmt, Flow* flow);
  Text run_captured(const Body& body);
  void emit(const Value& value);
  void emit(const Text& text);
  void check_output() const;
  void assign(const Expr& target, Value value);
  Value make_macro(const Stmt& stmt);
  int64_t message_index(const Value& item) const;

  const Program& program_;
  const RenderLimits& limits_;
  Budget budget_;  // outlives the values
  int64_t now_;
  int depth_ = 0;
  int calls_ = 0;
  TextBuilder root_out_;
  TextBuilder* out_ = &root_out_;
  ScopePtr root_, scope_;
  Value context_, own_;
  std::unordered_map<const Object*, int64_t> messages_;
  std::vector<MessageSpan> message_spans_;
  int64_t message_loops_ = 0;
  bool in_message_ = false;
  bool read_clock_ = false;
  std::vector<std::shared_ptr<NativeObject>> kept_;
  std::vector<ScopePtr> kept_scopes_;
};

/// Reads arguments by name or place, as Python's call rules do. `required` of the `names` must be given.
class BoundArgs {
 public:
  BoundArgs(const char* function, const CallArgs& args, std::initializer_list<const char*> names,
            size_t required = 0);
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value* get(size_t i) const { return values_[i]; }
  Value value(size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }
  Int integer(size_t i, Int otherwise) const;
  std::string bytes(size_t i, std::string otherwise) const;  // a string is needed

 private:
  const char* function_;
  std::vector<const Value*> values_;
};

using FilterFunction = Value (*)(Runtime&, const Value&, const CallArgs&);
FilterFunction find_filter(std::string_view name);
Value filter_wordwrap(Runtime& runtime, const Value& value, const CallArgs& args);
using TestFunction = bool (*)(Runtime&, const Value&, const CallArgs&);
TestFunction find_test(std::string_view name);
/// raise_exception, range, namespace ...; null when there is none.
const Value* find_global(std::string_view name);

Value binary_operation(Runtime& runtime, BinaryOp op, const Value& left, const Value& right);
Value negate(const Value& value);
Value add_strings(Runtime& runtime, const Text& left, const Text& right);
/// a[b] and a.b as Jinja's immutable sandbox resolves them.
Value get_item(Runtime& runtime, const Value& object, const Value& key);
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step);
/// A bound method of a built-in type, or a value marked unsafe; nothing when the type has no such attribute.
std::optional<Value> builtin_attribute(const Value& object, std::string_view name);
Int to_integer(const Value& value, const char* what);
/// Charges for a pass over what is handed to a filter, test, method or function.
void charge_pass(const Value& value);
void charge_pass(const CallArgs& args);
/// Positions of characters as bytes. Without cost where a text is ASCII.
class CharIndex {
 public:
  explicit CharIndex(std::string_view bytes);
  int64_t count() const { return count_; }
  int64_t at(int64_t i) const { return offsets_.empty() ? i : offsets_[static_cast<size_t>(i)]; }

 private:
  int64_t count_;
  std::vector<int64_t> offsets_;
};
/// [begin, end) of Python's slice(start, stop) with step 1 over `size` items; none counts as missing.
std::pair<int64_t, int64_t> slice_bounds(const Value& start, const Value& stop, int64_t size);

/// "%" formatting and str.format.
Value percent_format(Runtime& runtime, const Text& format, const Value& args);
Value brace_format(Runtime& runtime, const Text& format, const CallArgs& args);
Text escape_html(const Value& value);
std::string format_time(std::string_view format, int64_t local_seconds);
/// float(s) and int(s, base) of Python; nothing when the text is no number.
std::optional<double> parse_float(std::string_view text);
std::optional<Int> parse_int(std::string_view text, int base);
/// round(value, digits) as Python rounds.
double round_half_even(double value, int digits);

/// A list, split pieces or single characters with their origin.
std::vector<Value> split_text(const Text& text, const std::string* separator, Int limit, bool from_right);
/// Position of the last `wanted`; npos when there is none.
size_t find_last(std::string_view bytes, std::string_view wanted);
std::vector<Value> split_lines(const Text& text, bool keep_ends);
Text replace_text(Runtime& runtime, const Text& text, const std::string& from, const Text& to, Int count);
Text join_texts(Runtime& runtime, const Text& separator, const std::vector<TextPtr>& parts);

}  // namespace twinkle::jinja
