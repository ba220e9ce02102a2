// Walks the parsed template. Every step is counted and nesting is bounded, so a hostile template ends with an
// error.
#include <algorithm>
#include <ctime>

#include "twinkle/text/jinja_objects.h"
#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

constexpr int kDepthPerCall = 20;  // tree levels allowed in all, per allowed call level

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const auto& [known, value] : vars) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : vars) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  vars.emplace_back(name, std::move(value));
}

struct Runtime::Depth {
  explicit Depth(Runtime* runtime) : runtime_(runtime) {
    if (++runtime_->depth_ > runtime_->limits_.max_depth * kDepthPerCall) {
      --runtime_->depth_;
      throw Fault("the template recurses too deeply");
    }
  }
  ~Depth() { --runtime_->depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  Runtime* runtime_;
};

// Collects output instead of writing it, in a scope of its own.
struct Runtime::Capture {
  Capture(Runtime* runtime, ScopePtr scope)
      : runtime_(runtime), out_(runtime->out_), scope_(runtime->scope_) {
    runtime->out_ = &builder;
    runtime->scope_ = std::move(scope);
  }
  ~Capture() {
    runtime_->out_ = out_;
    runtime_->scope_ = scope_;
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  TextBuilder builder;
  Runtime* runtime_;
  TextBuilder* out_;
  ScopePtr scope_;
};

Runtime::Runtime(const Program& program, const RenderLimits& limits, int64_t now)
    : program_(program),
      limits_(limits),
      budget_(limits),
      now_(now),
      root_(std::make_shared<Scope>()),
      scope_(root_) {}

Runtime::~Runtime() {
  for (const auto& object : kept_) object->release();
  for (const auto& scope : kept_scopes_) scope->vars.clear();
  root_->vars.clear();
}

Rendered Runtime::render(const Json& context, const Json& own) {
  context_ = from_json(context, false);
  own_ = from_json(own.is_null() ? Json::object() : own, true);
  if (const Value* messages = context_.dict().find("messages");
      messages != nullptr && messages->is_sequence()) {
    int64_t index = 0;
    for (const Value& message : messages->items()) {
      if (message.identity() != nullptr) messages_.emplace(message.identity(), index);
      ++index;
    }
  }
  {
    const Budget::Use use(&budget_);
    run(program_.body);
  }
  Text text = root_out_.take();
  Rendered out;
  out.text = std::move(text.bytes);
  out.input = std::move(text.input);
  out.generation = std::move(text.generation);
  out.messages = std::move(message_spans_);
  out.read_clock = read_clock_;
  return out;
}

int64_t Runtime::now() {
  if (now_ >= 0) return now_;
  read_clock_ = true;
  const std::time_t clock = std::time(nullptr);
  std::tm local{};
  localtime_r(&clock, &local);
  return static_cast<int64_t>(clock) + local.tm_gmtoff;
}

void Runtime::check_output() const {
  if (out_->size() > limits_.max_output_bytes) {
    throw Fault("the template writes more than " + std::to_string(limits_.max_output_bytes) + " bytes");
  }
}

void Runtime::emit(const Value& value) {
  append_str(*out_, value);
  check_output();
}

void Runtime::emit(const Text& text) {
  charge_append(*out_, text_weight(text));
  out_->append(text);
  check_output();
}

// Expressions.

Value Runtime::eval(const Expr& expr) {
  const Depth depth(this);
  charge(1);
  try {
    return eval_inner(expr);
  } catch (Fault& fault) {
    if (fault.offset < 0) fault.offset = expr.offset;
    throw;
  }
}

Value Runtime::eval_inner(const Expr& expr) {
  const auto& parts = expr.parts;
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      items.reserve(parts.size());
      for (const auto& part : parts) items.push_back(eval(*part));
      return Value::list(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
    }
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute:
      return get_attribute(*this, eval(*parts[0]), expr.name);
    case ExprKind::kItem:
      if (parts[1]->kind == ExprKind::kSlice) return eval_slice(expr);
      return get_item(*this, eval(*parts[0]), eval(*parts[1]));
    case ExprKind::kSlice:
      throw Fault("a slice cannot be used here");
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr, nullptr);
    case ExprKind::kTest:
      return eval_test(expr);
    case ExprKind::kNot:
      return Value::boolean(!truth(eval(*parts[0])));
    case ExprKind::kNegate:
      return negate(eval(*parts[0]));
    case ExprKind::kPlus: {
      const Value operand = eval(*parts[0]);
      if (operand.is_undefined()) throw Fault(operand.undefined_message());
      if (!operand.is_number()) throw Fault("bad operand type for unary +: '" + type_name(operand) + "'");
      return operand.kind() == Kind::kBool ? Value::integer(operand.as_int()) : operand;
    }
    case ExprKind::kBinary: {
      const Value left = eval(*parts[0]);
      return binary_operation(*this, expr.op, left, eval(*parts[1]));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*parts[0]);
      return truth(left) == (expr.kind == ExprKind::kOr) ? left : eval(*parts[1]);
    }
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kCondition:
      if (truth(eval(*parts[0]))) return eval(*parts[1]);
      if (parts[2] != nullptr) return eval(*parts[2]);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
    case ExprKind::kNamespaceAttribute:
      break;
  }
  throw Fault("this expression has no value");
}

Value Runtime::eval_name(const Expr& expr) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->find(expr.name)) return *value;
  }
  if (const Value* value = context_.dict().find(expr.name)) return *value;
  if (const Value* value = own_.dict().find(expr.name)) return *value;
  if (const Value* value = find_global(expr.name)) return *value;
  return Value::undefined_name(expr.name);
}

Value Runtime::eval_dict(const Expr& expr) {
  auto dict = std::make_shared<DictObject>();
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    Value key = eval(*expr.parts[i]);
    dict->put(std::move(key), eval(*expr.parts[i + 1]));
  }
  return Value::object(Kind::kDict, std::move(dict));
}

Value Runtime::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.parts[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.parts[1]->parts[i] != nullptr) bounds[i] = eval(*expr.parts[1]->parts[i]);
  }
  return get_slice(*this, object, bounds[0], bounds[1], bounds[2]);
}

CallArgs Runtime::eval_args(const ArgumentList& list) {
  CallArgs args;
  args.positional.reserve(list.positional.size());
  for (const auto& arg : list.positional) args.positional.push_back(eval(*arg));
  for (const auto& [name, arg] : list.named) args.named.emplace_back(name, eval(*arg));
  if (list.star) {
    for (Value& value : iterate(eval(*list.star))) args.positional.push_back(std::move(value));
  }
  if (list.double_star) {
    const Value dict = eval(*list.double_star);
    if (dict.kind() != Kind::kDict)
      throw Fault("argument after ** must be a mapping, not " + type_name(dict));
    for (const auto& [key, value] : dict.dict().entries) {
      if (!key.is_string()) throw Fault("keywords must be strings");
      for (const auto& [known, unused] : args.named) {
        if (known == key.bytes()) throw Fault("got multiple values for keyword argument '" + known + "'");
      }
      charge(static_cast<int64_t>(args.named.size()) / 16);
      args.named.emplace_back(key.bytes(), value);
    }
  }
  charge_pass(args);
  return args;
}

Value Runtime::eval_call(const Expr& expr) {
  const Value callee = eval(*expr.parts[0]);
  return call(callee, eval_args(*expr.args));
}

Value Runtime::call(const Value& callee, const CallArgs& args) {
  if (callee.is_undefined()) throw Fault(callee.undefined_message());
  if (callee.kind() != Kind::kNative || !callee.native().callable()) {
    throw Fault("'" + type_name(callee) + "' object is not callable");
  }
  charge(1 + static_cast<int64_t>(args.positional.size()));
  // The callee may be the last owner of itself while it runs.
  const Value hold = callee;
  return hold.native().call(*this, args);
}

Value Runtime::eval_filter(const Expr& expr, const Value* block) {
  Value input;
  if (!expr.parts.empty()) {
    const Expr& inner = *expr.parts[0];
    input = block != nullptr && inner.kind == ExprKind::kFilter ? eval_filter(inner, block) : eval(inner);
  } else if (block != nullptr) {
    input = *block;
  }
  const FilterFunction filter = find_filter(expr.name);
  if (filter == nullptr) throw Fault("No filter named '" + expr.name + "' found.");
  const CallArgs args = eval_args(*expr.args);
  charge(1);
  charge_pass(input);
  return filter(*this, input, args);
}

Value Runtime::eval_test(const Expr& expr) {
  const Value input = eval(*expr.parts[0]);
  const TestFunction test = find_test(expr.name);
  if (test == nullptr) throw Fault("No test named '" + expr.name + "' found.");
  charge_pass(input);
  return Value::boolean(test(*this, input, eval_args(*expr.args)));
}

Value Runtime::eval_compare(const Expr& expr) {
  Value left = eval(*expr.parts[0]);
  for (size_t i = 0; i < expr.compare_ops.size(); ++i) {
    Value right = eval(*expr.parts[i + 1]);
    bool result = false;
    switch (expr.compare_ops[i]) {
      case CompareOp::kEqual:
        result = equal(left, right);
        break;
      case CompareOp::kNotEqual:
        result = !equal(left, right);
        break;
      case CompareOp::kLess:
        result = less(left, right, "<");
        break;
      case CompareOp::kLessEqual:
        result = less(left, right, "<=");
        break;
      case CompareOp::kGreater:
        result = less(left, right, ">");
        break;
      case CompareOp::kGreaterEqual:
        result = less(left, right, ">=");
        break;
      case CompareOp::kIn:
        result = contains(right, left);
        break;
      case CompareOp::kNotIn:
        result = !contains(right, left);
        break;
    }
    if (!result) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Runtime::eval_concat(const Expr& expr) {
  TextBuilder out;
  for (const auto& part : expr.parts) {
    append_str(out, eval(*part));
  }
  return Value::string(out.finish());
}

// Statements.

Runtime::Flow Runtime::run(const Body& body) {
  for (const auto& stmt : body) {
    if (const Flow flow = run_stmt(*stmt); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::run_stmt(const Stmt& stmt) {
  const Depth depth(this);
  charge(1);
  try {
    switch (stmt.kind) {
      case StmtKind::kText:
        emit(*stmt.text);
        break;
      case StmtKind::kOutput:
        for (const auto& expr : stmt.exprs) emit(eval(*expr));
        break;
      case StmtKind::kFor:
        return run_for(stmt, eval(*stmt.exprs[0]), 0);
      case StmtKind::kIf:
        return run_if(stmt);
      case StmtKind::kSet:
        assign(*stmt.targets[0], eval(*stmt.exprs[0]));
        break;
      case StmtKind::kSetBlock: {
        Value value = Value::string(run_captured(stmt.body));
        if (stmt.test) value = eval_filter(*stmt.test, &value);
        assign(*stmt.targets[0], std::move(value));
        break;
      }
      case StmtKind::kWith:
        run_with(stmt);
        break;
      case StmtKind::kMacro:
        scope_->set(stmt.name, make_macro(stmt));
        break;
      case StmtKind::kCallBlock: {
        const Expr& call_expr = *stmt.exprs[0];
        const Value callee = eval(*call_expr.parts[0]);
        CallArgs args = eval_args(*call_expr.args);
        args.named.emplace_back("caller", make_macro(stmt));
        emit(call(callee, args));
        break;
      }
      case StmtKind::kFilterBlock: {
        const Value body = Value::string(run_captured(stmt.body));
        emit(eval_filter(*stmt.test, &body));
        break;
      }
      case StmtKind::kGeneration: {
        Flow flow = Flow::kNormal;
        run_generation(stmt, &flow);
        return flow;
      }
      case StmtKind::kBreak:
        return Flow::kBreak;
      case StmtKind::kContinue:
        return Flow::kContinue;
      case StmtKind::kBlock: {
        const Capture at_root(this, std::make_shared<Scope>(Scope{root_, {}}));
        run(stmt.body);
        at_root.out_->append(at_root.builder.text());
        break;
      }
      case StmtKind::kAutoescape:
        if (truth(eval(*stmt.exprs[0]))) throw Fault("autoescape is not supported");
        return run_scoped(stmt.body);
      case StmtKind::kUnsupported:
        throw Fault("'" + stmt.name + "' is not supported: a chat template stands alone");
    }
    check_output();
    return Flow::kNormal;
  } catch (Fault& fault) {
    if (fault.offset < 0) fault.offset = stmt.offset;
    throw;
  }
}

Runtime::Flow Runtime::run_if(const Stmt& stmt) {
  for (const auto& [test, body] : stmt.branches) {
    if (truth(eval(*test))) return run(body);
  }
  return run(stmt.orelse);
}

Runtime::Flow Runtime::run_scoped(const Body& body) {
  const ScopePtr outer = std::exchange(scope_, std::make_shared<Scope>(Scope{scope_, {}}));
  struct Restore {
    ScopePtr* place;
    const ScopePtr& value;
    ~Restore() { *place = value; }
  } restore{&scope_, outer};
  return run(body);
}

void Runtime::run_with(const Stmt& stmt) {
  const ScopePtr outer = scope_;
  const auto inner = std::make_shared<Scope>(Scope{outer, {}});
  struct Restore {
    ScopePtr* place;
    const ScopePtr& value;
    ~Restore() { *place = value; }
  } restore{&scope_, outer};
  std::vector<Value> values;
  for (const auto& expr : stmt.exprs) values.push_back(eval(*expr));
  scope_ = inner;
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], values[i]);
  run(stmt.body);
}

void Runtime::run_generation(const Stmt& stmt, Flow* flow) {
  const int64_t begin = out_->size();
  *flow = run_scoped(stmt.body);
  out_->mark_generation(begin, out_->size());
}

Text Runtime::run_captured(const Body& body) {
  Capture capture(this, std::make_shared<Scope>(Scope{scope_, {}}));
  run(body);
  return capture.builder.take();
}

int64_t Runtime::message_index(const Value& item) const {
  const auto it = item.identity() == nullptr ? messages_.end() : messages_.find(item.identity());
  return it == messages_.end() ? -1 : it->second;
}

Runtime::Flow Runtime::run_for(const Stmt& stmt, const Value& iterable, int depth) {
  const ScopePtr outer = scope_;
  struct Restore {
    ScopePtr* place;
    const ScopePtr& value;
    ~Restore() { *place = value; }
  } restore{&scope_, outer};
  std::vector<Value> items = iterate(iterable);
  if (stmt.test) {
    std::vector<Value> kept;
    for (Value& item : items) {
      scope_ = std::make_shared<Scope>(Scope{outer, {}});
      assign(*stmt.targets[0], item);
      if (truth(eval(*stmt.test))) kept.push_back(std::move(item));
    }
    scope_ = outer;
    items = std::move(kept);
  }
  if (items.empty()) {
    return run_scoped(stmt.orelse);
  }
  if (stmt.recursive) keep_scope(outer);
  const auto loop =
      std::make_shared<LoopObject>(std::move(items), stmt, stmt.recursive ? outer : nullptr, depth);
  const Value loop_value = Value::object(Kind::kNative, loop);
  const bool traced = out_ == &root_out_ && !in_message_;
  const int64_t loop_id = message_loops_;
  bool any_message = false;
  ScopePtr scope;
  for (size_t i = 0; i < loop->items.size(); ++i) {
    loop->index = i;
    // A scope nobody kept is used again.
    if (scope == nullptr || scope.use_count() > 2) {
      scope = std::make_shared<Scope>(Scope{outer, {}});
      scope_ = scope;
    }
    scope->vars.clear();
    scope->set("loop", loop_value);
    assign(*stmt.targets[0], loop->items[i]);
    const int64_t message = traced ? message_index(loop->items[i]) : -1;
    const int64_t begin = out_->size();
    in_message_ = in_message_ || message >= 0;
    const Flow flow = run(stmt.body);
    if (message >= 0) {
      in_message_ = false;
      any_message = true;
      message_spans_.push_back({message, loop_id, {begin, out_->size()}});
    }
    if (flow == Flow::kBreak) break;
  }
  if (any_message) ++message_loops_;
  return Flow::kNormal;
}

Value Runtime::call_loop(const LoopObject& loop, const Value& iterable) {
  if (++calls_ > limits_.max_depth) {
    --calls_;
    throw Fault("the loop recurses too deeply");
  }
  struct Restore {
    int* calls;
    ~Restore() { --*calls; }
  } restore{&calls_};
  Capture capture(this, loop.scope);
  run_for(loop.stmt, iterable, loop.loop_depth + 1);
  return Value::string(capture.builder.take());
}

void Runtime::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) {
    scope_->set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExprKind::kNamespaceAttribute) {
    Expr name;
    name.name = target.name;
    const Value object = eval_name(name);
    auto* space = object.kind() == Kind::kNative ? dynamic_cast<NamespaceObject*>(&object.native()) : nullptr;
    if (space == nullptr) throw Fault("cannot assign attribute on non-namespace object");
    space->set(target.attribute, std::move(value));
    return;
  }
  const std::vector<Value> items = iterate(value);
  if (items.size() != target.parts.size()) {
    throw Fault(items.size() > target.parts.size()
                    ? "too many values to unpack (expected " + std::to_string(target.parts.size()) + ")"
                    : "not enough values to unpack (expected " + std::to_string(target.parts.size()) +
                          ", got " + std::to_string(items.size()) + ")");
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i]);
}

Value Runtime::make_macro(const Stmt& stmt) {
  keep_scope(scope_);
  return Value::object(Kind::kNative, std::make_shared<MacroObject>(stmt, scope_));
}

Value Runtime::call_macro(const Stmt& macro, const ScopePtr& scope, const CallArgs& args) {
  if (++calls_ > limits_.max_depth) {
    --calls_;
    throw Fault("macros call each other too deeply");
  }
  struct Restore {
    int* calls;
    ~Restore() { --*calls; }
  } restore{&calls_};
  const Parameters& params = macro.params;
  const std::string name = macro.kind == StmtKind::kMacro ? macro.name : "caller";
  Capture capture(this, std::make_shared<Scope>(Scope{scope, {}}));
  const size_t count = params.names.size();
  std::vector<bool> named_used(args.named.size(), false);
  const auto take_named = [&](const std::string& wanted) -> const Value* {
    for (size_t k = 0; k < args.named.size(); ++k) {
      if (args.named[k].first != wanted) continue;
      named_used[k] = true;
      return &args.named[k].second;
    }
    return nullptr;
  };
  std::vector<const Value*> given(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    given[i] = i < args.positional.size() ? &args.positional[i] : take_named(params.names[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    if (given[i] != nullptr) scope_->set(params.names[i], *given[i]);
  }
  const bool own_caller = std::find(params.names.begin(), params.names.end(), "caller") != params.names.end();
  if (params.uses_caller && !own_caller) {
    const Value* caller = take_named("caller");
    scope_->set("caller", caller != nullptr ? *caller : Value::undefined("No caller defined"));
  }
  auto rest = std::make_shared<DictObject>();
  for (size_t k = 0; k < args.named.size(); ++k) {
    if (named_used[k]) continue;
    if (!params.uses_kwargs) {
      throw Fault("macro " + string_repr(name) + " takes no keyword argument '" + args.named[k].first + "'");
    }
    rest->put(Value::string(args.named[k].first), args.named[k].second);
  }
  if (params.uses_kwargs) scope_->set("kwargs", Value::object(Kind::kDict, std::move(rest)));
  if (params.uses_varargs) {
    const auto first =
        args.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, args.positional.size()));
    scope_->set("varargs", Value::tuple(std::vector<Value>(first, args.positional.end())));
  } else if (args.positional.size() > count) {
    throw Fault("macro " + string_repr(name) + " takes not more than " + std::to_string(count) +
                " argument(s)");
  }
  for (size_t i = 0; i < count; ++i) {
    if (given[i] != nullptr) continue;
    const size_t without = count - params.defaults.size();
    scope_->set(params.names[i], i < without ? Value::undefined("parameter " + string_repr(params.names[i]) +
                                                                " was not provided")
                                             : eval(*params.defaults[i - without]));
  }
  run(macro.body);
  return Value::string(capture.builder.take());
}

}  // namespace twinkle::jinja
