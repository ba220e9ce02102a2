// The loop variable and macros.
#pragma once

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {

/// `loop` of a for statement.
class LoopObject : public NativeObject, public std::enable_shared_from_this<LoopObject> {
 public:
  LoopObject(std::vector<Value> items, const Stmt& stmt, ScopePtr scope, int loop_depth);
  std::string type_name() const override { return "LoopContext"; }
  std::string repr() const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const CallArgs& args) override;
  std::optional<int64_t> length() override { return static_cast<int64_t>(items.size()); }
  void release() override { last_changed_.clear(); }

  std::vector<Value> items;
  Held held;
  const Stmt& stmt;
  ScopePtr scope;  // around a recursive loop
  int loop_depth;
  size_t index = 0;

 private:
  bool seen_ = false;
  std::vector<Value> last_changed_;
};

class MacroObject : public NativeObject {
 public:
  MacroObject(const Stmt& stmt, ScopePtr scope) : stmt_(stmt), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr() const override {
    return stmt_.kind == StmtKind::kMacro ? "<Macro " + string_repr(stmt_.name) + ">" : "<Macro anonymous>";
  }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const CallArgs& args) override {
    return runtime.call_macro(stmt_, scope_, args);
  }

 private:
  const Stmt& stmt_;
  ScopePtr scope_;
};

}  // namespace twinkle::jinja
