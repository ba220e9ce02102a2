#include "twinkle/text/tokenizer_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kMaxExpression = 1 << 16;

// Insides of PCRE2 classes for what Oniguruma means by its shorthands.
constexpr const char* kSpaces =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Whether PCRE2 knows a script of this name.
bool is_script(const std::string& name) {
  const std::string expression = "\\p{sc:" + name + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// A script by its bare name is for PCRE2 all that is ever used with it, for Oniguruma the script itself.
std::string property_class(const std::string& name) {
  std::string out = "\\p{" + std::string(name.size() > 2 && is_script(name) ? "sc:" : "") + name + "}";
  if (name.size() <= 2) out += unicode::newer_ranges(name);
  // Extensions H and I and one character more than Unicode 14 has.
  if (name == "Han") out += R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
  return out;
}

std::string word_class() {
  return "\\p{L}\\p{M}\\p{Nd}\\p{Pc}" + unicode::newer_ranges("L") + unicode::newer_ranges("M") +
         unicode::newer_ranges("Nd") + unicode::newer_ranges("Pc") + unicode::more_word_ranges();
}

// Brings an expression in Oniguruma's Ruby syntax to PCRE2's.
class Translator {
 public:
  Translator(std::string_view in, const std::string& path) : in_(in), path_(path) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        bracket();
      } else if (c == '(' && in_.substr(at_).starts_with("(?")) {
        group();
      } else if (c == '{' && in_.substr(at_).starts_with("{,")) {
        out_ += "{0,";
        at_ += 2;
      } else if (c == '+' && after_interval()) {
        out_ += "{1,}";  // in Ruby {n,m}+ repeats the interval, it does not hold on to it
        ++at_;
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw invalid_argument(path_ + ": " + what + " in the expression \"" + std::string(in_) + "\"");
  }

  bool after_interval() const {
    const size_t open = out_.rfind('{');
    if (out_.empty() || out_.back() != '}' || open == std::string::npos || open == 0 ||
        open + 2 > out_.size() - 1)
      return false;
    if (out_[open - 1] == '\\' || (open > 1 && out_[open - 2] == '\\')) return false;
    return std::all_of(out_.begin() + static_cast<std::ptrdiff_t>(open) + 1, out_.end() - 1,
                       [](char c) { return (c >= '0' && c <= '9') || c == ','; });
  }

  // The class inside a shorthand escape at at_ (after '\'), or nothing; advances only when it is one.
  std::optional<std::string> shorthand(bool* negated) {
    const char c = in_[at_];
    *negated = c == 'S' || c == 'D' || c == 'W' || c == 'H';
    switch (c) {
      case 's':
      case 'S':
        ++at_;
        return kSpaces;
      case 'd':
      case 'D':
        ++at_;
        return property_class("Nd");
      case 'w':
      case 'W':
        ++at_;
        return word_class();
      case 'h':
      case 'H':
        ++at_;
        return "0-9A-Fa-f";
      case 'p':
      case 'P': {
        *negated = c == 'P';
        if (at_ + 1 >= in_.size() || in_[at_ + 1] != '{') fail("\\p needs a property in braces");
        const size_t close = in_.find('}', at_);
        if (close == std::string_view::npos) fail("\\p{ is not closed");
        std::string name(in_.substr(at_ + 2, close - at_ - 2));
        if (name.starts_with('^')) {
          *negated = !*negated;
          name.erase(0, 1);
        }
        at_ = close + 1;
        return property_class(name);
      }
      default:
        return std::nullopt;
    }
  }

  void escape() {
    ++at_;
    if (at_ >= in_.size()) fail("a lone \\ at the end");
    bool negated = false;
    if (const auto inside = shorthand(&negated)) {
      out_ += (negated ? "[^" : "[") + *inside + "]";
      return;
    }
    const char c = in_[at_++];
    if (c == 'b' || c == 'B') {
      const std::string w = "[" + word_class() + "]";
      out_ += c == 'b' ? "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))"
                       : "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))";
      return;
    }
    if (c == 'y' || c == 'Y' || c == 'O' || c == 'M' || c == 'C' || c == 'c')
      fail(std::string("\\") + c + " is not supported");
    if (c == 'u') {
      if (at_ + 4 > in_.size()) fail("\\u needs four digits");
      out_ += "\\x{" + std::string(in_.substr(at_, 4)) + "}";
      at_ += 4;
      return;
    }
    out_ += '\\';
    out_ += c;
  }

  void bracket() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    bool first = true;
    for (;; first = false) {
      if (at_ >= in_.size()) fail("[ is not closed");
      const char c = in_[at_];
      if (c == ']' && !first) break;
      if (c == '[') {
        if (!in_.substr(at_).starts_with("[:")) fail("a class within a class is not supported");
        const size_t close = in_.find(":]", at_);
        if (close == std::string_view::npos) fail("[: is not closed");
        out_ += in_.substr(at_, close + 2 - at_);
        at_ = close + 2;
      } else if (in_.substr(at_).starts_with("&&")) {
        fail("&& in a class is not supported");
      } else if (c == '\\') {
        ++at_;
        if (at_ >= in_.size()) fail("a lone \\ at the end");
        const size_t mark = at_;
        bool negated = false;
        if (const auto inside = shorthand(&negated)) {
          // Within a class a negated shorthand can only be PCRE2's own.
          out_ += negated ? "\\" + std::string(in_.substr(mark, at_ - mark)) : *inside;
        } else if (in_[at_] == 'u') {
          if (at_ + 5 > in_.size()) fail("\\u needs four digits");
          out_ += "\\x{" + std::string(in_.substr(at_ + 1, 4)) + "}";
          at_ += 5;
        } else {
          out_ += '\\';
          out_ += in_[at_++];
        }
      } else {
        out_ += c;
        ++at_;
      }
    }
    out_ += ']';
    ++at_;
  }

  // Ruby's (?m) lets the dot match line breaks, which PCRE2 calls (?s).
  void group() {
    size_t end = at_ + 2;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-'))
      ++end;
    const bool flags = end > at_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')');
    if (!flags) {
      if (in_.substr(at_).starts_with("(?~") || in_.substr(at_).starts_with("(?(") ||
          in_.substr(at_).starts_with("(?R") || in_.substr(at_).starts_with("(?C")) {
        fail("this kind of group is not supported");
      }
      out_ += "(?";
      at_ += 2;
      return;
    }
    for (; at_ <= end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
  }

  std::string_view in_;
  const std::string& path_;
  size_t at_ = 0;
  std::string out_;
};

struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr);
  MatchState() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, 10'000);
    pcre2_set_heap_limit(context, 64 << 10);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
};

class Pcre : public Pattern {
 public:
  Pcre(const std::string& expression, const std::string& path) : expression_(expression) {
    if (expression.size() > kMaxExpression)
      throw invalid_argument(path + ": the expression is longer than 65536 bytes");
    const std::string translated = Translator(expression, path).run();
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    pcre2_set_parens_nest_limit(context, 100);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                          context);
    pcre2_compile_context_free(context);
    if (code_ == nullptr) {
      PCRE2_UCHAR reason[256];
      pcre2_get_error_message(error, reason, sizeof reason);
      throw invalid_argument(path + ": the expression \"" + expression +
                             "\" does not compile: " + reinterpret_cast<const char*>(reason));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~Pcre() override { pcre2_code_free(code_); }
  Pcre(const Pcre&) = delete;
  Pcre& operator=(const Pcre&) = delete;

  void matches(std::string_view text, std::vector<Range>& out) const override {
    thread_local MatchState state;
    size_t at = 0;
    std::optional<size_t> last_end;
    while (at <= text.size()) {
      const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                 PCRE2_NO_UTF_CHECK, state.data, state.context);
      if (rc == PCRE2_ERROR_NOMATCH) return;
      if (rc < 0) {
        PCRE2_UCHAR reason[256];
        pcre2_get_error_message(rc, reason, sizeof reason);
        throw invalid_argument("[tokenizer] the expression \"" + expression_ + "\" gave up on a text of " +
                               std::to_string(text.size()) +
                               " bytes: " + reinterpret_cast<const char*>(reason));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
      const size_t begin = bounds[0], end = bounds[1];
      if (begin > end) {
        throw invalid_argument("[tokenizer] the expression \"" + expression_ +
                               "\" matches backwards (\\K in a lookaround)");
      }
      if (begin == end && last_end == end) {  // an empty match right behind a match does not count
        if (at >= text.size()) return;
        at += unicode::char_bytes(text[at]);
        continue;
      }
      out.push_back({begin, end});
      at = end;
      last_end = end;
    }
  }

 private:
  std::string expression_;
  pcre2_code* code_ = nullptr;
};

}  // namespace

std::shared_ptr<const Pattern> pcre_pattern(const std::string& expression, const std::string& path) {
  return std::make_shared<Pcre>(expression, path);
}

std::shared_ptr<const Pattern> regex_pattern(const std::string& expression, const std::string& path) {
  if (auto known = known_pattern(expression)) return known;
  return pcre_pattern(expression, path);
}

std::shared_ptr<const Pattern> parse_pattern(const Json& value, const std::string& path) {
  Fields fields(value, path);
  std::shared_ptr<const Pattern> pattern;
  if (fields.has("String")) {
    const std::string text = fields.string("String");
    // The package turns literals into expressions, so an empty one matches between all characters.
    pattern = text.empty() ? pcre_pattern("", path) : literal_pattern(text);
  } else if (fields.has("Regex")) {
    pattern = regex_pattern(fields.string("Regex"), fields.at("Regex"));
  } else {
    throw invalid_argument(path + ": needs {\"String\": ...} or {\"Regex\": ...}");
  }
  fields.done();
  return pattern;
}

Behavior parse_behavior(const std::string& name, const std::string& path) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw invalid_argument(path + ": unknown behavior \"" + name +
                         "\" (Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous)");
}

namespace {

struct Part {
  Range range;
  bool match;
};

std::vector<Part> parts_of(size_t size, const std::vector<Range>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t at = 0;
  for (const Range& m : matches) {
    if (at != m.begin) parts.push_back({{at, m.begin}, invert});
    parts.push_back({m, !invert});
    at = m.end;
  }
  if (at != size) parts.push_back({{at, size}, invert});
  return parts;
}

}  // namespace

void split(size_t size, const std::vector<Range>& matches, Behavior behavior, bool invert,
           std::vector<Range>& out) {
  const auto emit = [&out](Range r) {
    if (r.begin != r.end) out.push_back(r);
  };
  if (behavior == Behavior::kIsolated) {
    size_t at = 0;
    for (const Range& m : matches) {
      emit({at, m.begin});
      emit(m);
      at = m.end;
    }
    emit({at, size});
    return;
  }
  const std::vector<Part> parts = parts_of(size, matches, invert);
  if (behavior == Behavior::kRemoved) {
    for (const Part& p : parts) {
      if (!p.match) emit(p.range);
    }
    return;
  }
  std::vector<Range> merged;
  bool previous = false;
  if (behavior == Behavior::kMergedWithNext) {
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
      if (p->match && !previous && !merged.empty()) {
        merged.back().begin = p->range.begin;
      } else {
        merged.push_back(p->range);
      }
      previous = p->match;
    }
    for (auto r = merged.rbegin(); r != merged.rend(); ++r) emit(*r);
    return;
  }
  for (const Part& p : parts) {
    const bool join = behavior == Behavior::kContiguous ? p.match == previous : p.match && !previous;
    if (join && !merged.empty()) {
      merged.back().end = p.range.end;
    } else {
      merged.push_back(p.range);
    }
    previous = p.match;
  }
  for (const Range& r : merged) emit(r);
}

}  // namespace twinkle::tokenizer
