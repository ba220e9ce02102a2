// The parsed template. Immutable after parsing and shared by all renderings.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/text/jinja_value.h"

namespace twinkle::jinja {

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegate,
  kPlus,
  kBinary,
  kAnd,
  kOr,
  kConcat,
  kCompare,
  kCondition,
  kNamespaceAttribute
};
enum class BinaryOp : uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct ArgumentList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
};

/// One shape for every expression; which fields are set depends on the kind.
struct Expr {
  ExprKind kind = ExprKind::kConst;
  BinaryOp op = BinaryOp::kAdd;
  int64_t offset = 0;
  int depth = 1;
  std::string name;       // kName, kAttribute, kFilter, kTest, kNamespaceAttribute (the namespace)
  std::string attribute;  // kNamespaceAttribute
  Value value;            // kConst
  std::vector<ExprPtr>
      parts;  // operands in reading order; kSlice and kCondition may hold nulls; kFilter of a block: none
  std::vector<CompareOp> compare_ops;
  std::unique_ptr<ArgumentList> args;  // kCall, kFilter, kTest
};

enum class StmtKind : uint8_t {
  kText,
  kOutput,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kWith,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kGeneration,
  kBreak,
  kContinue,
  kBlock,
  kAutoescape,
  kUnsupported
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Parameters {
  std::vector<std::string> names;
  std::vector<ExprPtr> defaults;  // of the last names
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int64_t offset = 0;
  TextPtr text;                  // kText
  std::string name;              // kMacro, kBlock; kUnsupported: the tag
  std::vector<ExprPtr> targets;  // kFor, kSet, kSetBlock: one; kWith: one a value
  std::vector<ExprPtr>
      exprs;     // kOutput: the printed ones; kFor: iterable; kSet: value; kWith: values; kCallBlock: call
  ExprPtr test;  // kFor: the filter; kSetBlock, kFilterBlock: filter chain (may be null for kSetBlock)
  bool recursive = false;
  std::vector<std::pair<ExprPtr, Body>> branches;  // kIf
  Body body;
  Body orelse;        // kFor, kIf
  Parameters params;  // kMacro, kCallBlock
};

struct Program {
  std::string source;
  Body body;
  bool has_generation = false;
};

/// Throws Fault with an offset into Program::source (which is the normalised source).
Program parse_program(std::string_view source);

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace twinkle::jinja
