#include "twinkle/text/jinja_objects.h"

#include <algorithm>

#include "twinkle/core/error.h"

namespace twinkle::jinja {
namespace {

// cycler(...) of Jinja.
class CyclerObject : public NativeObject {
 public:
  explicit CyclerObject(std::vector<Value> items) : items_(std::move(items)) {
    if (items_.empty()) throw Fault("at least one item has to be provided");
    depth = Value::list(items_).depth() + 1;
  }
  std::string type_name() const override { return "Cycler"; }
  std::string repr() const override { return "<Cycler>"; }
  std::optional<Value> attribute(Runtime&, std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next")
      return method([](CyclerObject& self) { return self.items_[self.at_++ % self.items_.size()]; });
    if (name == "reset") {
      return method([](CyclerObject& self) {
        self.at_ = 0;
        return Value();
      });
    }
    return std::nullopt;
  }
  std::shared_ptr<CyclerObject> self() { return self_.lock(); }
  static Value make(std::vector<Value> items) {
    auto object = std::make_shared<CyclerObject>(std::move(items));
    object->self_ = object;
    return Value::object(Kind::kNative, object);
  }

 private:
  template <class F>
  Value method(F body) {
    return make_function(
        "method",
        [self = self(), body](Runtime&, const CallArgs&) {
          Value out = body(*self);
          self->at_ %= self->items_.size();
          return out;
        },
        depth + 1);
  }
  std::vector<Value> items_;
  size_t at_ = 0;
  std::weak_ptr<CyclerObject> self_;
};

class JoinerObject : public NativeObject {
 public:
  explicit JoinerObject(Value separator) : separator_(std::move(separator)) {
    depth = separator_.depth() + 1;
  }
  std::string type_name() const override { return "Joiner"; }
  std::string repr() const override { return "<Joiner>"; }
  bool callable() const override { return true; }
  Value call(Runtime&, const CallArgs&) override {
    if (std::exchange(used_, true)) return separator_;
    return Value::string(std::string());
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value make_range(Runtime& runtime, const CallArgs& args) {
  if (!args.named.empty()) throw Fault("range() takes no keyword arguments");
  if (args.positional.empty() || args.positional.size() > 3) throw Fault("range expected 1 to 3 arguments");
  auto range = std::make_shared<RangeObject>();
  const auto at = [&](size_t i) { return to_integer(args.positional[i], "range"); };
  if (args.positional.size() == 1) {
    range->stop = at(0);
  } else {
    range->start = at(0);
    range->stop = at(1);
    if (args.positional.size() == 3) range->step = at(2);
  }
  if (range->step == 0) throw Fault("range() arg 3 must not be zero");
  constexpr Int kMax = 100000;
  constexpr Int kFar = Int{1} << 60;
  for (const Int number : {range->start, range->stop, range->step}) {
    if (number > kFar || number < -kFar) throw Fault("range() with numbers this large is not supported");
  }
  const Int distance = range->step > 0 ? range->stop - range->start : range->start - range->stop;
  const Int stride = range->step > 0 ? range->step : -range->step;
  const Int size = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (size > kMax) throw Fault("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  range->size = static_cast<int64_t>(size);
  runtime.charge(range->size / 8);
  return Value::object(Kind::kRange, std::move(range));
}

Value make_dict(Runtime&, const CallArgs& args) {
  auto dict = std::make_shared<DictObject>();
  if (args.positional.size() > 1) throw Fault("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.kind() == Kind::kDict) {
      charge_items(2 * static_cast<int64_t>(from.dict().entries.size()));
      for (const auto& [key, value] : from.dict().entries) dict->put(key, value);
    } else {
      for (const Value& item : iterate(from)) {
        const std::vector<Value> pair = iterate(item);
        if (pair.size() != 2) throw Fault("dictionary update sequence elements must be pairs");
        dict->put(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) dict->put(Value::string(name), value);
  return Value::object(Kind::kDict, std::move(dict));
}

Value raise_exception(Runtime&, const CallArgs& args) {
  const BoundArgs bound("raise_exception", args, {"message"}, 1);
  Fault fault(to_bytes(*bound.get(0)));
  fault.verbatim = true;
  throw fault;
}

Value strftime_now(Runtime& runtime, const CallArgs& args) {
  const BoundArgs bound("strftime_now", args, {"format"}, 1);
  return Value::string(format_time(bound.bytes(0, ""), runtime.now()));
}

}  // namespace

std::string NamespaceObject::repr() const {
  if (printing_) return "<Namespace {...}>";
  // Namespaces are filled after they are made, so only this bounds how deep they hold each other.
  thread_local int level = 0;
  struct Mark {
    explicit Mark(bool* printing) : flag(printing) { *flag = true, ++level; }
    ~Mark() { *flag = false, --level; }
    bool* flag;
  } mark(&printing_);
  check_value_depth(level);
  std::string out = "<Namespace {";
  bool first = true;
  for (const auto& [name, value] : attrs) {
    TextBuilder text;
    append_repr(text, value);
    charge_append(text, static_cast<int64_t>(name.size()) + text.size());
    out += (first ? "" : ", ") + string_repr(name) + ": " + text.text().bytes;
    first = false;
  }
  return out + "}>";
}

std::optional<Value> NamespaceObject::attribute(Runtime&, std::string_view name) {
  for (const auto& [known, value] : attrs) {
    if (known == name) return value;
  }
  return std::nullopt;
}

void NamespaceObject::set(const std::string& name, Value value) {
  for (auto& [known, old] : attrs) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  attrs.emplace_back(name, std::move(value));
}

Value Runtime::make_namespace(const CallArgs& args) {
  const Value dict = make_dict(*this, args);
  auto object = std::make_shared<NamespaceObject>();
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is_string()) throw Fault("attribute name must be string, not '" + type_name(key) + "'");
    charge(static_cast<int64_t>(object->attrs.size()) / 8);
    object->set(key.bytes(), value);
  }
  keep(object);
  return Value::object(Kind::kNative, std::move(object));
}

LoopObject::LoopObject(std::vector<Value> loop_items, const Stmt& loop_stmt, ScopePtr around, int level)
    : items(std::move(loop_items)), stmt(loop_stmt), scope(std::move(around)), loop_depth(level) {
  held.add(static_cast<int64_t>(items.size() * sizeof(Value)));
  for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
}

std::string LoopObject::repr() const {
  return "<LoopContext " + std::to_string(index + 1) + "/" + std::to_string(items.size()) + ">";
}

std::optional<Value> LoopObject::attribute(Runtime&, std::string_view name) {
  const auto number = [](size_t value) { return Value::integer(static_cast<Int>(value)); };
  if (name == "index") return number(index + 1);
  if (name == "index0") return number(index);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 >= items.size());
  if (name == "length") return number(items.size());
  if (name == "revindex") return number(items.size() - index);
  if (name == "revindex0") return number(items.size() - index - 1);
  if (name == "depth") return Value::integer(loop_depth + 1);
  if (name == "depth0") return Value::integer(loop_depth);
  if (name == "previtem")
    return index == 0 ? Value::undefined("there is no previous item") : items[index - 1];
  if (name == "nextitem") {
    return index + 1 >= items.size() ? Value::undefined("there is no next item") : items[index + 1];
  }
  if (name == "cycle") {
    return make_function("cycle", [at = index](Runtime&, const CallArgs& args) {
      if (args.positional.empty()) throw Fault("no items for cycling given");
      return args.positional[at % args.positional.size()];
    });
  }
  if (name == "changed") {
    return make_function(
        "changed",
        [self = shared_from_this()](Runtime& runtime, const CallArgs& args) {
          const bool changed =
              !self->seen_ || !equal(Value::tuple(self->last_changed_), Value::tuple(args.positional));
          if (!self->seen_) runtime.keep(self);
          self->seen_ = true;
          self->last_changed_ = args.positional;
          return Value::boolean(changed);
        },
        depth + 1);
  }
  return std::nullopt;
}

Value LoopObject::call(Runtime& runtime, const CallArgs& args) {
  const BoundArgs bound("loop", args, {"iterable"}, 1);
  if (!stmt.recursive) throw Fault("The loop must have the 'recursive' marker to be called recursively.");
  return runtime.call_loop(*this, *bound.get(0));
}

std::optional<Value> MacroObject::attribute(Runtime&, std::string_view name) {
  if (name == "name") return stmt_.kind == StmtKind::kMacro ? Value::string(stmt_.name) : Value();
  if (name == "arguments") {
    std::vector<Value> names;
    for (const auto& param : stmt_.params.names) names.push_back(Value::string(param));
    return Value::tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value::boolean(stmt_.params.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(stmt_.params.uses_varargs);
  if (name == "caller") return Value::boolean(stmt_.params.uses_caller);
  return std::nullopt;
}

const Value* find_global(std::string_view name) {
  static const std::vector<std::pair<std::string, Value>> globals = {
      {"range", make_function("range", make_range)},
      {"dict", make_function("dict", make_dict)},
      {"namespace",
       make_function("namespace",
                     [](Runtime& runtime, const CallArgs& args) { return runtime.make_namespace(args); })},
      {"raise_exception", make_function("raise_exception", raise_exception)},
      {"strftime_now", make_function("strftime_now", strftime_now)},
      {"cycler",
       make_function("cycler",
                     [](Runtime&, const CallArgs& args) { return CyclerObject::make(args.positional); })},
      {"joiner", make_function("joiner",
                               [](Runtime&, const CallArgs& args) {
                                 const BoundArgs bound("joiner", args, {"sep"});
                                 Value separator = bound.value(0, Value::string(std::string(", ")));
                                 return Value::object(Kind::kNative,
                                                      std::make_shared<JoinerObject>(separator));
                               })},
      {"lipsum", make_function("lipsum", [](Runtime&, const CallArgs&) -> Value {
         throw Fault("lipsum() makes random text and is not supported");
       })}};
  for (const auto& [known, value] : globals) {
    if (known == name) return &value;
  }
  return nullptr;
}

}  // namespace twinkle::jinja
