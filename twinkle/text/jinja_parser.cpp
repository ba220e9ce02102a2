// The statement half of the template parser.
#include "twinkle/text/jinja_expressions.h"

namespace twinkle::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;
using Ends = std::initializer_list<std::string_view>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body body = parse_body({});
    if (!at_end()) fail("unexpected " + describe(peek()));
    return body;
  }
  bool has_generation() const { return has_generation_; }

 private:
  static StmtPtr make_stmt(StmtKind kind, int64_t offset) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->offset = offset;
    return stmt;
  }

  // Statements up to a tag of `ends`, whose name is then the next token.
  Body parse_body(const Ends& ends) {
    Body body;
    for (;;) {
      const Token& token = peek();
      if (token.type == Tok::kEnd) {
        if (ends.size() == 0) return body;
        std::string wanted;
        for (const auto end : ends) wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
        fail("unexpected end of the template: expected " + wanted);
      }
      if (token.type == Tok::kData) {
        StmtPtr stmt = make_stmt(StmtKind::kText, token.offset);
        stmt->text = make_text(take().text);
        body.push_back(std::move(stmt));
      } else if (token.type == Tok::kVariableBegin) {
        StmtPtr stmt = make_stmt(StmtKind::kOutput, take().offset);
        stmt->exprs.push_back(parse_tuple({}));
        if (peek().type != Tok::kVariableEnd) fail_expected("'}}'");
        take();
        body.push_back(std::move(stmt));
      } else if (token.type == Tok::kBlockBegin) {
        take();
        for (const auto end : ends) {
          if (is_name(end)) return body;
        }
        body.push_back(parse_statement());
        expect_block_end();
      } else {
        fail("unexpected " + describe(token));
      }
    }
  }

  // A body after its opening tag; the end tag's name is consumed and returned.
  Body parse_block_body(const Ends& ends, std::string* found = nullptr) {
    const Guard guard(this);
    skip_op(":");
    expect_block_end();
    Body body = parse_body(ends);
    const std::string name = take().text;
    if (found != nullptr) *found = name;
    return body;
  }

  StmtPtr parse_statement() {
    if (peek().type != Tok::kName) fail_expected("a tag name");
    const Token tag = take();
    const int64_t at = tag.offset;
    const std::string& name = tag.text;
    if (name == "set") return parse_set(at);
    if (name == "if") return parse_if(at);
    if (name == "for") return parse_for(at);
    if (name == "macro") return parse_macro(at);
    if (name == "call") return parse_call_block(at);
    if (name == "with") return parse_with(at);
    if (name == "filter") {
      StmtPtr stmt = make_stmt(StmtKind::kFilterBlock, at);
      stmt->test = parse_filter_chain();
      stmt->body = parse_block_body({"endfilter"});
      return stmt;
    }
    if (name == "generation") {
      StmtPtr stmt = make_stmt(StmtKind::kGeneration, at);
      has_generation_ = true;
      stmt->body = parse_block_body({"endgeneration"});
      return stmt;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fault_at(at, "'" + name + "' outside of a loop");
      return make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, at);
    }
    if (name == "print") {
      StmtPtr stmt = make_stmt(StmtKind::kOutput, at);
      while (peek().type != Tok::kBlockEnd) {
        if (!stmt->exprs.empty()) expect_op(",");
        stmt->exprs.push_back(parse_expression());
      }
      return stmt;
    }
    if (name == "block") return parse_named_block(at);
    if (name == "autoescape") {
      StmtPtr stmt = make_stmt(StmtKind::kAutoescape, at);
      stmt->exprs.push_back(parse_expression());
      stmt->body = parse_block_body({"endautoescape"});
      return stmt;
    }
    if (name == "include" || name == "import" || name == "from" || name == "extends") {
      StmtPtr stmt = make_stmt(StmtKind::kUnsupported, at);
      stmt->name = name;
      while (peek().type != Tok::kBlockEnd && !at_end()) take();
      return stmt;
    }
    fault_at(at, "unknown tag '" + name + "'");
  }

  StmtPtr parse_set(int64_t at) {
    ExprPtr target = check_target(parse_tuple({.targets = true, .namespaces = true}));
    if (skip_op("=")) {
      StmtPtr stmt = make_stmt(StmtKind::kSet, at);
      stmt->targets.push_back(std::move(target));
      stmt->exprs.push_back(parse_tuple({}));
      return stmt;
    }
    StmtPtr stmt = make_stmt(StmtKind::kSetBlock, at);
    stmt->targets.push_back(std::move(target));
    if (skip_op("|")) stmt->test = parse_filter_chain();
    stmt->body = parse_block_body({"endset"});
    return stmt;
  }

  StmtPtr parse_if(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kIf, at);
    ++conditional_;
    for (;;) {
      ExprPtr test = parse_tuple({.conditions = false});
      std::string end;
      Body body = parse_block_body({"elif", "else", "endif"}, &end);
      stmt->branches.emplace_back(std::move(test), std::move(body));
      if (end == "else") stmt->orelse = parse_block_body({"endif"});
      if (end != "elif") break;
    }
    --conditional_;
    return stmt;
  }

  StmtPtr parse_for(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kFor, at);
    stmt->targets.push_back(check_target(parse_tuple({.targets = true, .end_name = "in"})));
    forbid_loop_target(*stmt->targets[0]);
    expect_name("in");
    stmt->exprs.push_back(parse_tuple({.conditions = false, .end_name = "recursive"}));
    if (skip_name("if")) stmt->test = parse_expression();
    stmt->recursive = skip_name("recursive");
    std::string end;
    ++loops_;
    stmt->body = parse_block_body({"endfor", "else"}, &end);
    --loops_;
    if (end == "else") stmt->orelse = parse_block_body({"endfor"});
    return stmt;
  }

  static void forbid_loop_target(const Expr& target) {
    if (target.kind == ExprKind::kName && target.name == "loop") {
      fault_at(target.offset, "can't assign to special loop variable in for-loop target");
    }
    for (const auto& part : target.parts) forbid_loop_target(*part);
  }

  void parse_parameters(Parameters* params) {
    expect_op("(");
    while (!is_op(")")) {
      if (!params->names.empty()) expect_op(",");
      std::string name = expect_identifier();
      if (std::find(params->names.begin(), params->names.end(), name) != params->names.end()) {
        fail("parameter '" + name + "' is named twice");
      }
      if (skip_op("=")) {
        params->defaults.push_back(parse_expression());
      } else if (!params->defaults.empty()) {
        fail("a parameter without a default follows one with a default");
      }
      params->names.push_back(std::move(name));
    }
    expect_op(")");
  }

  Body parse_macro_body(Parameters* params, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macros_.push_back(params);
    Body body = parse_block_body({end});
    macros_.pop_back();
    loops_ = loops;
    return body;
  }

  StmtPtr parse_macro(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kMacro, at);
    stmt->name = expect_identifier();
    parse_parameters(&stmt->params);
    stmt->body = parse_macro_body(&stmt->params, "endmacro");
    return stmt;
  }

  StmtPtr parse_call_block(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kCallBlock, at);
    if (is_op("(")) parse_parameters(&stmt->params);
    stmt->exprs.push_back(parse_expression());
    if (stmt->exprs[0]->kind != ExprKind::kCall) fault_at(at, "a call block needs a call");
    stmt->body = parse_macro_body(&stmt->params, "endcall");
    return stmt;
  }

  StmtPtr parse_with(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kWith, at);
    while (peek().type != Tok::kBlockEnd) {
      if (!stmt->targets.empty()) expect_op(",");
      stmt->targets.push_back(check_target(parse_tuple({.targets = true})));
      expect_op("=");
      stmt->exprs.push_back(parse_expression());
    }
    stmt->body = parse_block_body({"endwith"});
    return stmt;
  }

  StmtPtr parse_named_block(int64_t at) {
    StmtPtr stmt = make_stmt(StmtKind::kBlock, at);
    stmt->name = expect_identifier();
    skip_name("scoped");
    skip_name("required");
    const int loops = std::exchange(loops_, 0);
    stmt->body = parse_block_body({"endblock"});
    loops_ = loops;
    skip_name(stmt->name);
    return stmt;
  }

  bool has_generation_ = false;
  int loops_ = 0;
};

}  // namespace

Program parse_program(std::string_view source) {
  Program program;
  program.source = normalise_source(source);
  Parser parser(program.source);
  program.body = parser.run();
  program.has_generation = parser.has_generation();
  return program;
}

}  // namespace twinkle::jinja
