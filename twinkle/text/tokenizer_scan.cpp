// The pre-token expressions of the known model families, written by hand. Each looks at a character at most a
// few times, so any input takes linear time. Tests compare them with PCRE2 on the original expressions.
#include <cstring>

#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {

const char* const kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen35Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kCl100kExpression =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
const char* const kO200kExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kTekkenExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kKimiExpression =
    R"(\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using unicode::char_class;
using unicode::kLetter;
using unicode::kLower;
using unicode::kMark;
using unicode::kNumber;
using unicode::kSpace;
using unicode::kUpper;

struct Cursor {
  std::string_view text;

  uint8_t kind(size_t at, size_t* bytes) const {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) {
      *bytes = 1;
      return unicode::kAsciiClass[c];
    }
    *bytes = unicode::char_bytes(text[at]);
    return unicode::wide_class(unicode::char_at(text, at));
  }
  /// End of the run of characters at `at` whose class has a bit of `mask` (or none of it, when `without`).
  size_t run(size_t at, uint8_t mask, bool without = false) const {
    while (at < text.size()) {
      size_t n;
      if (((kind(at, &n) & mask) != 0) == without) break;
      at += n;
    }
    return at;
  }
  /// \s+(?!\S)|\s+ at a whitespace character: a run before other text leaves its last character to what
  /// follows.
  size_t blanks(size_t at) const {
    const size_t end = run(at, kSpace);
    if (end == text.size()) return end;
    const size_t last = unicode::previous(text, end);
    return last > at ? last : end;
  }
};

size_t plain_contraction(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

size_t caseless_contraction(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  const char a = static_cast<char>(rest[0] | 0x20);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (rest == "\xC5\xBF") return 3;  // U+017F folds to s
  if (rest.size() < 2) return 0;
  const char b = static_cast<char>(rest[1] | 0x20);
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// A pattern whose matches cover every text: Next::next gives the end of the one that begins at a place.
template <class Next>
class Scanner : public Pattern {
 public:
  bool covers() const override { return true; }
  void matches(std::string_view text, std::vector<Range>& out) const override {
    const Cursor cursor{text};
    size_t at = 0;
    while (at < text.size()) {
      const size_t end = Next::next(cursor, at);
      out.push_back({at, end});
      at = end;
    }
  }
};

bool is_break(char c) { return c == '\r' || c == '\n'; }

// Whitespace of \s*[\r\n]+|\s+(?!\S)|\s+: up to the last line break of the run, if there is one.
size_t blanks_to_break(const Cursor& cursor, size_t at) {
  const std::string_view text = cursor.text;
  const size_t end = cursor.run(at, kSpace);
  for (size_t i = end; i > at; --i) {
    if (is_break(text[i - 1])) return i;
  }
  if (end == text.size()) return end;
  const size_t last = unicode::previous(text, end);
  return last > at ? last : end;
}

struct Gpt2 {
  static size_t next(const Cursor& cursor, size_t at) {
    const std::string_view text = cursor.text;
    if (text[at] == '\'') {
      if (const size_t n = plain_contraction(text, at); n != 0) return at + n;
    }
    size_t from = at, n = 0;
    uint8_t kind = cursor.kind(at, &n);
    if (text[at] == ' ' && at + 1 < text.size()) {
      size_t m;
      const uint8_t after = cursor.kind(at + 1, &m);
      if ((after & kSpace) == 0) {
        from = at + 1;
        kind = after;
        n = m;
      }
    }
    if ((kind & kLetter) != 0) return cursor.run(from + n, kLetter);
    if ((kind & kNumber) != 0) return cursor.run(from + n, kNumber);
    if ((kind & kSpace) == 0) return cursor.run(from + n, kSpace | kLetter | kNumber, true);
    return cursor.blanks(at);
  }
};

// Up to `most` digits.
size_t digits(const Cursor& cursor, size_t end, int most) {
  for (int i = 0; i < most && end < cursor.text.size(); ++i) {
    size_t n;
    if ((cursor.kind(end, &n) & kNumber) == 0) break;
    end += n;
  }
  return end;
}

// Llama 3, Qwen and their kin: kDigits digits in a piece; letters are kWord; with kTrailing the blanks at the
// end of the text are one piece.
template <int kDigits, uint8_t kWord, bool kTrailing = false>
struct Tiktoken {
  static size_t next(const Cursor& cursor, size_t at) {
    const std::string_view text = cursor.text;
    if (text[at] == '\'') {
      if (const size_t n = caseless_contraction(text, at); n != 0) return at + n;
    }
    size_t n = 0;
    const uint8_t kind = cursor.kind(at, &n);
    if ((kind & kWord) != 0) return cursor.run(at + n, kWord);
    if ((kind & kNumber) != 0) return digits(cursor, at, kDigits);
    uint8_t after = kSpace;
    size_t m = 0;
    if (at + n < text.size()) {
      after = cursor.kind(at + n, &m);
      if ((after & kWord) != 0 && !is_break(text[at])) return cursor.run(at + n + m, kWord);
    }
    const bool blank = (kind & kSpace) != 0;
    if (!blank || (text[at] == ' ' && (after & (kSpace | kWord | kNumber)) == 0)) {
      size_t end = cursor.run(at + n, kSpace | kWord | kNumber, true);
      while (end < text.size() && is_break(text[end])) ++end;
      return end;
    }
    if (kTrailing) {
      if (const size_t end = cursor.run(at, kSpace); end == text.size()) return end;
    }
    return blanks_to_break(cursor, at);
  }
};

// o200k and Tekken: a word is capitals, then small letters; letters without case, and marks, are both.
template <int kDigits, bool kContractions>
struct Cased {
  static size_t next(const Cursor& cursor, size_t at) {
    const std::string_view text = cursor.text;
    size_t n = 0;
    const uint8_t kind = cursor.kind(at, &n);
    const bool lead = (kind & (kLetter | kNumber)) == 0 && !is_break(text[at]);
    const size_t behind = at + n;
    size_t end = 0;
    if (lead) end = capitals_then_small(cursor, behind);
    if (end == 0) end = capitals_then_small(cursor, at);
    if (end == 0 && lead) end = capitals(cursor, behind);
    if (end == 0) end = capitals(cursor, at);
    if (end != 0) {
      if (kContractions && end < text.size() && text[end] == '\'') end += caseless_contraction(text, end);
      return end;
    }
    if ((kind & kNumber) != 0) return digits(cursor, at, kDigits);
    const bool blank = (kind & kSpace) != 0;
    uint8_t after = kSpace;
    size_t m = 0;
    if (behind < text.size()) after = cursor.kind(behind, &m);
    if (!blank || (text[at] == ' ' && (after & (kSpace | kLetter | kNumber)) == 0)) {
      end = cursor.run(behind, kSpace | kLetter | kNumber, true);
      while (end < text.size() && (is_break(text[end]) || text[end] == '/')) ++end;
      return end;
    }
    return blanks_to_break(cursor, at);
  }

 private:
  static bool upper(uint8_t kind) { return (kind & (kLetter | kMark)) != 0 && (kind & kLower) == 0; }
  static bool lower(uint8_t kind) { return (kind & (kLetter | kMark)) != 0 && (kind & kUpper) == 0; }

  // [upper]*[lower]+ with what backtracking finds: the last letter without case ends the word when nothing
  // small follows. 0: no match.
  static size_t capitals_then_small(const Cursor& cursor, size_t at) {
    size_t neither = 0;  // end of the last character that is both
    size_t end = at;
    while (end < cursor.text.size()) {
      size_t n;
      const uint8_t kind = cursor.kind(end, &n);
      if (!upper(kind)) {
        if (!lower(kind)) break;
        end += n;
        while (end < cursor.text.size() && lower(cursor.kind(end, &n))) end += n;
        return end;
      }
      end += n;
      if (lower(kind)) neither = end;
    }
    return neither;
  }
  static size_t capitals(const Cursor& cursor, size_t at) {
    size_t end = at, n = 0;
    while (end < cursor.text.size() && upper(cursor.kind(end, &n))) end += n;
    return end == at ? 0 : end;
  }
};

class Literal : public Pattern {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}
  void matches(std::string_view text, std::vector<Range>& out) const override {
    for (size_t at = text.find(text_); at != std::string_view::npos; at = text.find(text_, at)) {
      out.push_back({at, at + text_.size()});
      at += text_.size();
    }
  }

 private:
  std::string text_;
};

template <class Next>
std::shared_ptr<const Pattern> make() {
  return std::make_shared<Scanner<Next>>();
}

}  // namespace

std::shared_ptr<const Pattern> known_pattern(std::string_view expression) {
  const std::pair<const char*, std::shared_ptr<const Pattern> (*)()> known[] = {
      {kGpt2Expression, make<Gpt2>},
      {kLlama3Expression, make<Tiktoken<3, kLetter>>},
      {kQwen2Expression, make<Tiktoken<1, kLetter>>},
      {kQwen35Expression, make<Tiktoken<1, kLetter | kMark>>},
      {kCl100kExpression, make<Tiktoken<3, kLetter, true>>},
      {kO200kExpression, make<Cased<3, true>>},
      {kTekkenExpression, make<Cased<1, false>>}};
  for (const auto& [text, maker] : known) {
    if (expression == text) return maker();
  }
  return nullptr;
}

const Pattern& gpt2_pattern() {
  static const Scanner<Gpt2> pattern;
  return pattern;
}

std::shared_ptr<const Pattern> literal_pattern(std::string text) {
  return std::make_shared<Literal>(std::move(text));
}

}  // namespace twinkle::tokenizer
