// The expression half of the template parser, by recursive descent. Depth of nesting and of operator chains
// is bounded, so neither parsing nor rendering can exhaust the stack. Included by jinja_parser.cpp only.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "twinkle/text/jinja_ast.h"
#include "twinkle/text/jinja_lexer.h"

namespace twinkle::jinja {

inline constexpr int kMaxParseDepth = 100;  // brackets and blocks inside each other
inline constexpr int kMaxTreeDepth = 400;   // operators and subscripts in a row

class ExpressionParser {
 public:
  explicit ExpressionParser(const std::string& source) : tokens_(tokenize(source)) {}

 protected:
  struct Guard {
    explicit Guard(ExpressionParser* parser) : parser_(parser) {
      if (++parser_->depth_ > kMaxParseDepth) parser_->fail("the template is nested too deeply");
    }
    ~Guard() { --parser_->depth_; }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ExpressionParser* parser_;
  };

  // Tokens.
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(next_ + ahead, tokens_.size() - 1)]; }
  bool at_end() const { return peek().type == Tok::kEnd; }
  Token take() {
    Token token = peek();
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool is_name(std::string_view name, size_t ahead = 0) const {
    return peek(ahead).type == Tok::kName && peek(ahead).text == name;
  }
  bool is_op(std::string_view op, size_t ahead = 0) const {
    return peek(ahead).type == Tok::kOperator && peek(ahead).text == op;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
  }
  static std::string describe(const Token& token) {
    switch (token.type) {
      case Tok::kData:
        return "text";
      case Tok::kVariableEnd:
        return "'}}'";
      case Tok::kBlockEnd:
        return "'%}'";
      case Tok::kVariableBegin:
        return "'{{'";
      case Tok::kBlockBegin:
        return "'{%'";
      case Tok::kEnd:
        return "the end of the template";
      case Tok::kInteger:
      case Tok::kFloat:
        return "a number";
      case Tok::kString:
        return "a string";
      default:
        return "'" + token.text + "'";
    }
  }
  [[noreturn]] void fail(const std::string& message) const { fault_at(peek().offset, message); }
  [[noreturn]] void fail_expected(const std::string& what) const {
    fail("expected " + what + ", got " + describe(peek()));
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected("'" + std::string(op) + "'");
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected("'" + std::string(name) + "'");
  }
  std::string expect_identifier() {
    if (peek().type != Tok::kName) fail_expected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (peek().type != Tok::kBlockEnd) fail_expected("'%}'");
    take();
  }

  // Expressions.
  ExprPtr make(ExprKind kind, int64_t offset) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->offset = offset;
    return expr;
  }
  ExprPtr add(ExprPtr parent, ExprPtr part) {
    if (part != nullptr) deepen(parent.get(), *part);
    parent->parts.push_back(std::move(part));
    return parent;
  }
  void deepen(Expr* parent, const Expr& part) const {
    parent->depth = std::max(parent->depth, part.depth + 1);
    if (parent->depth > kMaxTreeDepth) fail("the expression is nested too deeply");
  }
  ExprPtr binary(ExprKind kind, int64_t offset, ExprPtr left, ExprPtr right) {
    return add(add(make(kind, offset), std::move(left)), std::move(right));
  }

  ExprPtr parse_expression(bool conditions = true) {
    const Guard guard(this);
    return conditions ? parse_condition() : parse_or();
  }

  ExprPtr parse_condition() {
    ExprPtr value = parse_or();
    while (is_name("if")) {
      const int64_t offset = take().offset;
      ++conditional_;
      ExprPtr expr = add(make(ExprKind::kCondition, offset), parse_or());
      expr = add(std::move(expr), std::move(value));
      ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = add(std::move(expr), std::move(otherwise));
      --conditional_;
    }
    return value;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const int64_t offset = take().offset;
      left = binary(ExprKind::kOr, offset, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const int64_t offset = take().offset;
      left = binary(ExprKind::kAnd, offset, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Guard guard(this);
    const int64_t offset = take().offset;
    return add(make(ExprKind::kNot, offset), parse_not());
  }

  bool take_compare_op(CompareOp* op) {
    static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual}, {"<", CompareOp::kLess},
        {"<=", CompareOp::kLessEqual}, {">", CompareOp::kGreater},   {">=", CompareOp::kGreaterEqual}};
    for (const auto& [text, known] : kOps) {
      if (skip_op(text)) {
        *op = known;
        return true;
      }
    }
    if (skip_name("in")) {
      *op = CompareOp::kIn;
      return true;
    }
    if (is_name("not") && is_name("in", 1)) {
      take();
      take();
      *op = CompareOp::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr parse_compare() {
    const int64_t offset = peek().offset;
    ExprPtr first = parse_sum();
    CompareOp op;
    if (!take_compare_op(&op)) return first;
    ExprPtr expr = add(make(ExprKind::kCompare, offset), std::move(first));
    do {
      expr->compare_ops.push_back(op);
      expr = add(std::move(expr), parse_sum());
    } while (take_compare_op(&op));
    return expr;
  }

  ExprPtr arithmetic(BinaryOp op, int64_t offset, ExprPtr left, ExprPtr right) {
    ExprPtr expr = binary(ExprKind::kBinary, offset, std::move(left), std::move(right));
    expr->op = op;
    return expr;
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (is_op("+") || is_op("-")) {
      const Token op = take();
      left = arithmetic(op.text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract, op.offset, std::move(left),
                        parse_concat());
    }
    return left;
  }

  ExprPtr parse_concat() {
    const int64_t offset = peek().offset;
    ExprPtr first = parse_product();
    if (!is_op("~")) return first;
    ExprPtr expr = add(make(ExprKind::kConcat, offset), std::move(first));
    while (skip_op("~")) expr = add(std::move(expr), parse_product());
    return expr;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      const Token op = take();
      const BinaryOp kind = op.text == "*"    ? BinaryOp::kMultiply
                            : op.text == "/"  ? BinaryOp::kDivide
                            : op.text == "//" ? BinaryOp::kFloorDivide
                                              : BinaryOp::kModulo;
      left = arithmetic(kind, op.offset, std::move(left), parse_power());
    }
    return left;
  }

  ExprPtr parse_power() {
    ExprPtr left = parse_unary(true);
    while (is_op("**")) {
      const int64_t offset = take().offset;
      left = arithmetic(BinaryOp::kPower, offset, std::move(left), parse_unary(true));
    }
    return left;
  }

  ExprPtr parse_unary(bool filters) {
    ExprPtr expr;
    if (is_op("-") || is_op("+")) {
      const Guard guard(this);
      const Token op = take();
      expr = add(make(op.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, op.offset), parse_unary(false));
    } else {
      expr = parse_primary(false);
    }
    expr = parse_postfix(std::move(expr));
    return filters ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
  }

  ExprPtr constant(int64_t offset, Value value) const {
    ExprPtr expr = make(ExprKind::kConst, offset);
    expr->value = std::move(value);
    return expr;
  }

  ExprPtr parse_primary(bool namespaces) {
    const Token& token = peek();
    const int64_t offset = token.offset;
    switch (token.type) {
      case Tok::kName:
        return parse_name(namespaces);
      case Tok::kString: {
        std::string text;
        while (peek().type == Tok::kString) text += take().text;
        return constant(offset, Value::string(std::move(text)));
      }
      case Tok::kInteger:
        return constant(offset, Value::integer(take().integer));
      case Tok::kFloat:
        return constant(offset, Value::real(take().real));
      default:
        break;
    }
    if (skip_op("(")) {
      ExprPtr expr = parse_tuple({.parentheses = true});
      expect_op(")");
      return expr;
    }
    if (skip_op("[")) return parse_list(offset);
    if (skip_op("{")) return parse_dict(offset);
    fail("unexpected " + describe(peek()));
  }

  ExprPtr parse_name(bool namespaces) {
    const Token token = take();
    const std::string& name = token.text;
    if (name == "true" || name == "True") return constant(token.offset, Value::boolean(true));
    if (name == "false" || name == "False") return constant(token.offset, Value::boolean(false));
    if (name == "none" || name == "None") return constant(token.offset, Value());
    if (namespaces && skip_op(".")) {
      ExprPtr expr = make(ExprKind::kNamespaceAttribute, token.offset);
      expr->name = name;
      expr->attribute = expect_identifier();
      return expr;
    }
    for (Parameters* params : macros_) {
      params->uses_caller |= name == "caller";
      params->uses_varargs |= name == "varargs";
      params->uses_kwargs |= name == "kwargs";
    }
    ExprPtr expr = make(ExprKind::kName, token.offset);
    expr->name = name;
    return expr;
  }

  ExprPtr parse_list(int64_t offset) {
    ExprPtr expr = make(ExprKind::kList, offset);
    while (!is_op("]")) {
      if (!expr->parts.empty()) expect_op(",");
      if (is_op("]")) break;
      expr = add(std::move(expr), parse_expression());
    }
    expect_op("]");
    return expr;
  }

  ExprPtr parse_dict(int64_t offset) {
    ExprPtr expr = make(ExprKind::kDict, offset);
    while (!is_op("}")) {
      if (!expr->parts.empty()) expect_op(",");
      if (is_op("}")) break;
      expr = add(std::move(expr), parse_expression());
      expect_op(":");
      expr = add(std::move(expr), parse_expression());
    }
    expect_op("}");
    return expr;
  }

  struct TupleRules {
    bool targets = false;  // names and literals only
    bool conditions = true;
    bool parentheses = false;  // an empty tuple is allowed
    bool namespaces = false;
    std::string_view end_name = "";
  };

  ExprPtr parse_tuple(const TupleRules& rules) {
    const Guard guard(this);
    const int64_t offset = peek().offset;
    std::vector<ExprPtr> items;
    bool tuple = false;
    for (;;) {
      if (!items.empty()) expect_op(",");
      const Tok type = peek().type;
      if (type == Tok::kVariableEnd || type == Tok::kBlockEnd || is_op(")")) break;
      if (!rules.end_name.empty() && is_name(rules.end_name)) break;
      items.push_back(rules.targets ? parse_primary(rules.namespaces) : parse_expression(rules.conditions));
      if (!is_op(",")) break;
      tuple = true;
    }
    if (!tuple && !items.empty()) return std::move(items[0]);
    if (!tuple && !rules.parentheses) fail_expected("an expression");
    ExprPtr expr = make(ExprKind::kTuple, offset);
    for (ExprPtr& item : items) expr = add(std::move(expr), std::move(item));
    return expr;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (;;) {
      if (is_op(".")) {
        const int64_t offset = take().offset;
        if (peek().type == Tok::kInteger) {
          const Token index = take();
          expr = binary(ExprKind::kItem, offset, std::move(expr),
                        constant(index.offset, Value::integer(index.integer)));
        } else {
          if (peek().type != Tok::kName) fail_expected("a name or number");
          ExprPtr attribute = add(make(ExprKind::kAttribute, offset), std::move(expr));
          attribute->name = take().text;
          expr = std::move(attribute);
        }
      } else if (is_op("[")) {
        expr = parse_subscript(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_subscript(ExprPtr object) {
    const int64_t offset = take().offset;
    std::vector<ExprPtr> items;
    while (!is_op("]")) {
      if (!items.empty()) expect_op(",");
      items.push_back(parse_slice());
    }
    expect_op("]");
    if (items.size() == 1) return binary(ExprKind::kItem, offset, std::move(object), std::move(items[0]));
    ExprPtr tuple = make(ExprKind::kTuple, offset);
    for (ExprPtr& item : items) tuple = add(std::move(tuple), std::move(item));
    return binary(ExprKind::kItem, offset, std::move(object), std::move(tuple));
  }

  ExprPtr parse_slice() {
    const int64_t offset = peek().offset;
    ExprPtr start;
    if (!is_op(":")) {
      start = parse_expression();
      if (!is_op(":")) return start;
    }
    take();
    ExprPtr stop, step;
    if (!is_op(":") && !is_op("]") && !is_op(",")) stop = parse_expression();
    if (skip_op(":") && !is_op("]") && !is_op(",")) step = parse_expression();
    ExprPtr slice = make(ExprKind::kSlice, offset);
    slice = add(std::move(slice), std::move(start));
    slice = add(std::move(slice), std::move(stop));
    return add(std::move(slice), std::move(step));
  }

  std::unique_ptr<ArgumentList> parse_arguments() {
    auto args = std::make_unique<ArgumentList>();
    const auto ensure = [&](bool good) {
      if (!good) fail("arguments of a call are in the wrong order");
    };
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!first) {
        expect_op(",");
        if (is_op(")")) break;
      }
      first = false;
      if (skip_op("*")) {
        ensure(!args->star && !args->double_star);
        args->star = parse_expression();
      } else if (skip_op("**")) {
        ensure(!args->double_star);
        args->double_star = parse_expression();
      } else if (peek().type == Tok::kName && is_op("=", 1)) {
        ensure(!args->double_star);
        std::string name = take().text;
        take();
        for (const auto& [known, unused] : args->named) {
          if (known == name) fail("keyword argument '" + name + "' is given twice");
        }
        args->named.emplace_back(std::move(name), parse_expression());
      } else {
        ensure(!args->star && !args->double_star && args->named.empty());
        args->positional.push_back(parse_expression());
      }
    }
    expect_op(")");
    return args;
  }

  void deepen_by(Expr* expr, const ArgumentList& args) const {
    for (const auto& arg : args.positional) deepen(expr, *arg);
    for (const auto& [name, arg] : args.named) deepen(expr, *arg);
    if (args.star) deepen(expr, *args.star);
    if (args.double_star) deepen(expr, *args.double_star);
  }

  ExprPtr parse_call(ExprPtr callee) {
    ExprPtr call = add(make(ExprKind::kCall, peek().offset), std::move(callee));
    call->args = parse_arguments();
    deepen_by(call.get(), *call->args);
    return call;
  }

  ExprPtr parse_filters_and_tests(ExprPtr expr) {
    for (;;) {
      if (skip_op("|")) {
        expr = parse_filter(std::move(expr));
      } else if (is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  std::string dotted_name() {
    std::string name = expect_identifier();
    while (skip_op(".")) name += "." + expect_identifier();
    return name;
  }

  // Names that are looked up only when reached may be unknown, as in Jinja.
  void check_known(const char* what, const std::string& name, bool known, int64_t offset) const {
    if (!known && conditional_ == 0)
      fault_at(offset, "there is no " + std::string(what) + " named '" + name + "'");
  }

  ExprPtr parse_filter(ExprPtr input) {
    ExprPtr filter = make(ExprKind::kFilter, peek().offset);
    filter->name = dotted_name();
    check_known("filter", filter->name, is_known_filter(filter->name), filter->offset);
    if (input) filter = add(std::move(filter), std::move(input));
    filter->args = is_op("(") ? parse_arguments() : std::make_unique<ArgumentList>();
    deepen_by(filter.get(), *filter->args);
    return filter;
  }

  // "f|g|h" of a filter block or a set block.
  ExprPtr parse_filter_chain() {
    ExprPtr filter = parse_filter(nullptr);
    while (skip_op("|")) filter = parse_filter(std::move(filter));
    return filter;
  }

  ExprPtr parse_test(ExprPtr input) {
    const int64_t offset = take().offset;
    const bool negated = skip_name("not");
    ExprPtr test = add(make(ExprKind::kTest, offset), std::move(input));
    const int64_t name_offset = peek().offset;
    test->name = dotted_name();
    check_known("test", test->name, is_known_test(test->name), name_offset);
    test->args = std::make_unique<ArgumentList>();
    const Tok type = peek().type;
    const bool literal =
        type == Tok::kString || type == Tok::kInteger || type == Tok::kFloat || is_op("[") || is_op("{");
    if (is_op("(")) {
      test->args = parse_arguments();
    } else if (literal || (type == Tok::kName && !is_name("else") && !is_name("or") && !is_name("and"))) {
      if (is_name("is")) fail("tests cannot be chained with 'is'");
      test->args->positional.push_back(parse_postfix(parse_primary(false)));
    }
    deepen_by(test.get(), *test->args);
    return negated ? add(make(ExprKind::kNot, offset), std::move(test)) : std::move(test);
  }

  ExprPtr check_target(ExprPtr target) const {
    const auto assignable = [](const Expr& expr) {
      return expr.kind == ExprKind::kName || expr.kind == ExprKind::kNamespaceAttribute;
    };
    bool good = assignable(*target);
    if (target->kind == ExprKind::kTuple) {
      good = true;
      for (const auto& part : target->parts) good = good && (assignable(*part) || is_assignable_tuple(*part));
    }
    if (!good) fault_at(target->offset, "this cannot be assigned to");
    return target;
  }
  static bool is_assignable_tuple(const Expr& expr) {
    if (expr.kind != ExprKind::kTuple) return false;
    return std::all_of(expr.parts.begin(), expr.parts.end(), [](const ExprPtr& part) {
      return part->kind == ExprKind::kName || part->kind == ExprKind::kNamespaceAttribute ||
             is_assignable_tuple(*part);
    });
  }

  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  int conditional_ = 0;              // ifs around the place being parsed
  std::vector<Parameters*> macros_;  // macros around it
};

}  // namespace twinkle::jinja
