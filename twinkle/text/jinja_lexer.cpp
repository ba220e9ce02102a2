#include "twinkle/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace twinkle::jinja {
namespace {

bool is_word(int32_t code) { return code == '_' || is_alpha(code) || is_numeric(code); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(Tok::kEnd, at_);
    return std::move(tokens_);
  }

 private:
  void push(Tok type, size_t offset, std::string text = "") {
    Token token;
    token.type = type;
    token.text = std::move(text);
    token.offset = static_cast<int64_t>(offset);
    tokens_.push_back(std::move(token));
  }

  bool starts(size_t at, std::string_view what) const {
    return std::string_view(source_).substr(at, what.size()) == what;
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const Char c = char_at(source_, at);
      if (!is_space(c.code)) break;
      at += c.length;
    }
    return at;
  }

  // Past "name" with white space around it, or npos.
  size_t skip_word(size_t at, std::string_view name) const {
    at = skip_space(at);
    return starts(at, name) ? skip_space(at + name.size()) : std::string::npos;
  }

  // Past a tag's end: "-%}" eats white space, "%}" one newline, "+%}" nothing; npos when there is none.
  size_t tag_end(size_t at, std::string_view close, bool plus, bool newline) const {
    if (plus && source_[at] == '+' && starts(at + 1, close)) return at + 1 + close.size();
    if (source_[at] == '-' && starts(at + 1, close)) return skip_space(at + 1 + close.size());
    if (!starts(at, close)) return std::string::npos;
    at += close.size();
    return newline && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  // The text before a tag, after what its sign and lstrip_blocks take away.
  void push_data(size_t begin, size_t end, char sign, bool variable) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = text.substr(0, static_cast<size_t>(strip_span(text, nullptr, false, true).end));
    } else if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if (line > 0 || line_starting_) {
        const auto rest = strip_span(text.substr(line), nullptr, true, false);
        if (rest.begin == rest.end) text = text.substr(0, line);
      }
    }
    if (!text.empty()) push(Tok::kData, begin, std::string(text));
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : 0;
  }

  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(Tok::kData, at_, source_.substr(at_));
        at_ = source_.size();
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign != 0);
    push_data(at_, tag, sign, kind == '{');
    if (kind == '#') {
      comment(tag, inside);
    } else if (kind == '{') {
      push(Tok::kVariableBegin, tag);
      at_ = inside;
      line_starting_ = false;
      expression(tag, "}}", Tok::kVariableEnd);
    } else if (const size_t raw = raw_begin(inside); raw != std::string::npos) {
      raw_block(tag, raw);
    } else {
      push(Tok::kBlockBegin, tag);
      at_ = inside;
      expression(tag, "%}", Tok::kBlockEnd);
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void comment(size_t tag, size_t at) {
    for (; at < source_.size(); ++at) {
      if (const size_t end = tag_end(at, "#}", true, true); end != std::string::npos) {
        at_ = end;
        return;
      }
    }
    fault_at(static_cast<int64_t>(tag), "missing end of comment tag");
  }

  size_t raw_begin(size_t at) const {
    at = skip_word(at, "raw");
    if (at == std::string::npos || at >= source_.size()) return std::string::npos;
    return tag_end(at, "%}", false, false);
  }

  void raw_block(size_t tag, size_t begin) {
    if (begin == source_.size()) {  // as in Jinja, which looks no further at the end
      at_ = begin;
      return;
    }
    line_starting_ = source_[begin - 1] == '\n';
    for (size_t at = source_.find("{%", begin); at != std::string::npos; at = source_.find("{%", at + 1)) {
      const char sign = sign_at(at + 2);
      const size_t word = skip_word(at + 2 + (sign != 0), "endraw");
      if (word == std::string::npos || word >= source_.size()) continue;
      const size_t end = tag_end(word, "%}", true, true);
      if (end == std::string::npos) continue;
      push_data(begin, at, sign, false);
      at_ = end;
      return;
    }
    fault_at(static_cast<int64_t>(tag), "missing end of raw directive");
  }

  void expression(size_t tag, std::string_view close, Tok end_type) {
    std::string open;
    while (at_ < source_.size()) {
      if (open.empty()) {
        const bool block = end_type == Tok::kBlockEnd;
        if (const size_t end = tag_end(at_, close, block, block); end != std::string::npos) {
          push(end_type, at_);
          at_ = end;
          return;
        }
      }
      const Char c = char_at(source_, at_);
      if (is_space(c.code)) {
        at_ += c.length;
      } else if (is_ascii_digit(source_[at_])) {
        number();
      } else if (is_word(c.code)) {
        name();
      } else if (c.code == '\'' || c.code == '"') {
        string(source_[at_]);
      } else {
        op(&open);
      }
    }
    fault_at(static_cast<int64_t>(tag),
             "the tag that begins here is not closed by '" + std::string(close) + "'");
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size()) {
      const Char c = char_at(source_, at_);
      if (!is_word(c.code)) break;
      at_ += c.length;
    }
    std::string name = source_.substr(begin, at_ - begin);
    if (!is_identifier(name)) fault_at(static_cast<int64_t>(begin), "invalid character in identifier");
    push(Tok::kName, begin, std::move(name));
  }

  // Digits with single underscores between them.
  size_t digits(size_t at) const {
    size_t end = at;
    while (end < source_.size() && is_ascii_digit(source_[end])) {
      ++end;
      if (end + 1 < source_.size() && source_[end] == '_' && is_ascii_digit(source_[end + 1])) ++end;
    }
    return end;
  }

  void number() {
    const size_t begin = at_;
    size_t end = digits(at_);
    bool real = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    if (!after_dot) {
      size_t more = end;
      if (more + 1 < source_.size() && source_[more] == '.' && is_ascii_digit(source_[more + 1])) {
        more = digits(more + 1);
        real = true;
      }
      size_t power = more;
      if (power < source_.size() && (source_[power] == 'e' || source_[power] == 'E')) {
        ++power;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && is_ascii_digit(source_[power])) {
          more = digits(power);
          real = true;
        }
      }
      if (real) end = more;
    }
    int base = 10;
    if (!real && source_[begin] == '0' && begin + 1 < source_.size()) {
      const char mark = static_cast<char>(source_[begin + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    }
    if (base != 10) {
      based_integer(begin, base);
      return;
    }
    std::string text = source_.substr(begin, end - begin);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    if (real) {
      push(Tok::kFloat, begin);
      tokens_.back().real = std::strtod(text.c_str(), nullptr);
    } else {
      if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
        fault_at(static_cast<int64_t>(begin), "numbers do not begin with 0");
      }
      push(Tok::kInteger, begin);
      tokens_.back().integer = to_integer(begin, text, 10);
    }
    at_ = end;
  }

  void based_integer(size_t begin, int base) {
    size_t end = begin + 2;
    std::string text;
    for (; end < source_.size(); ++end) {
      const char c = source_[end];
      if (c == '_') continue;
      const int digit = is_ascii_digit(c)                        ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : 99;
      if (digit >= base) break;
      text += c;
    }
    if (text.empty()) fault_at(static_cast<int64_t>(begin), "expected digits");
    push(Tok::kInteger, begin);
    tokens_.back().integer = to_integer(begin, text, base);
    at_ = end;
  }

  Int to_integer(size_t begin, const std::string& text, int base) const {
    Int value = 0;
    for (const char c : text) {
      const int digit = is_ascii_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
          __builtin_add_overflow(value, static_cast<Int>(digit), &value)) {
        fault_at(static_cast<int64_t>(begin), "the number is too large");
      }
    }
    return value;
  }

  int hex_value(size_t at, int digits) const {
    int value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = at + i < source_.size() ? source_[at + i] : 0;
      const char low = static_cast<char>(c | 0x20);
      if (!is_ascii_digit(c) && (low < 'a' || low > 'f')) {
        fault_at(static_cast<int64_t>(at),
                 "bad escape in a string: expected " + std::to_string(digits) + " hex digits");
      }
      value = value * 16 + (is_ascii_digit(c) ? c - '0' : low - 'a' + 10);
    }
    return value;
  }

  void string(char quote) {
    const size_t begin = at_;
    std::string out;
    size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= source_.size())
        fault_at(static_cast<int64_t>(begin), "the string that begins here is not closed");
      const char c = source_[at];
      if (c == quote) break;
      if (c != '\\' || at + 1 >= source_.size()) {
        out += c;
        continue;
      }
      at = escape(at + 1, &out);
    }
    push(Tok::kString, begin, std::move(out));
    at_ = at + 1;
  }

  // An escape as Python's unicode-escape reads it; returns its last byte.
  size_t escape(size_t at, std::string* out) {
    const char c = source_[at];
    constexpr std::string_view kNames = "abfnrtv", kCodes = "\a\b\f\n\r\t\v";
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      *out += kCodes[i];
    } else if (c == '\\' || c == '\'' || c == '"') {
      *out += c;
    } else if (c == '\n') {
      return at;
    } else if (c >= '0' && c <= '7') {
      int value = 0;
      size_t end = at;
      for (; end < at + 3 && end < source_.size() && source_[end] >= '0' && source_[end] <= '7'; ++end) {
        value = value * 8 + source_[end] - '0';
      }
      append_utf8(*out, value);
      return end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const int count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      int code = c == 'U' && hex_value(at + 1, 2) != 0 ? 0x110000 : hex_value(at + 1, count);
      if (c == 'u' && code >= 0xD800 && code < 0xDC00 && starts(at + 5, "\\u")) {
        const int low = hex_value(at + 7, 4);
        if (low >= 0xDC00 && low < 0xE000) {
          append_utf8(*out, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
          return at + 10;
        }
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        fault_at(static_cast<int64_t>(at), "bad escape in a string: not a Unicode character");
      }
      append_utf8(*out, code);
      return at + static_cast<size_t>(count);
    } else if (c == 'N') {
      fault_at(static_cast<int64_t>(at), "\\N{...} escapes are not supported in strings");
    } else {
      *out += '\\';
      *out += c;
    }
    return at;
  }

  void op(std::string* open) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view known : kOperators) {
      if (!starts(at_, known)) continue;
      const char c = known[0];
      if (c == '(' || c == '[' || c == '{') {
        *open += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c) {
          fault_at(static_cast<int64_t>(at_),
                   "unexpected '" + std::string(known) + "'" +
                       (open->empty() ? "" : ", expected '" + open->substr(open->size() - 1) + "'"));
        }
        open->pop_back();
      }
      push(Tok::kOperator, at_, std::string(known));
      at_ += known.size();
      return;
    }
    const Char c = char_at(source_, at_);
    fault_at(static_cast<int64_t>(at_), "unexpected character '" + source_.substr(at_, c.length) + "'");
  }

  const std::string& source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void fault_at(int64_t offset, const std::string& message) {
  Fault fault(message);
  fault.offset = offset;
  throw fault;
}

std::string normalise_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(const std::string& source) { return Lexer(source).run(); }

std::string place_in(std::string_view source, int64_t offset) {
  const size_t at = std::min(source.size(), static_cast<size_t>(std::max<int64_t>(offset, 0)));
  const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const size_t previous = at == 0 ? std::string_view::npos : source.rfind('\n', at - 1);
  const size_t begin = previous == std::string_view::npos ? 0 : previous + 1;
  return "line " + std::to_string(line) + ", column " +
         std::to_string(count_chars(source.substr(begin, at - begin)) + 1);
}

}  // namespace twinkle::jinja
