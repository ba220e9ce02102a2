// Jinja's wordwrap: lines cut as Python's textwrap cuts them.
#include <algorithm>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

struct Piece {
  int64_t begin = 0, end = 0;  // characters
  int64_t size() const { return end - begin; }
};

bool is_word_char(int32_t c) {
  return c == '_' || is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}
bool is_letter(int32_t c) { return is_word_char(c) && !is_decimal(c); }
bool is_gap(int32_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_word_or_mark(int32_t c) {
  return is_word_char(c) ||
         (c > 0 && c < 128 &&
          std::string_view("!\"'&.,?").find(static_cast<char>(c)) != std::string_view::npos);
}

class Wrapper {
 public:
  Wrapper(const Text& line, int64_t width, bool break_long_words, bool break_on_hyphens)
      : width_(width), break_long_words_(break_long_words), break_on_hyphens_(break_on_hyphens) {
    for (size_t at = 0; at < line.bytes.size();) {
      const Char c = char_at(line.bytes, at);
      codes_.push_back(c.code);
      at += static_cast<size_t>(c.length);
    }
    split();
  }

  // TextWrapper._wrap_chunks: every line is a piece of the text.
  std::vector<Piece> lines() {
    std::vector<Piece> out;
    for (size_t next = 0; next < chunks_.size();) {
      if (!out.empty() && is_blank(chunks_[next])) ++next;
      std::vector<Piece> line;
      int64_t length = 0;
      for (; next < chunks_.size() && length + chunks_[next].size() <= width_; ++next) {
        line.push_back(chunks_[next]);
        length += chunks_[next].size();
      }
      if (next < chunks_.size() && chunks_[next].size() > width_) {
        Piece& chunk = chunks_[next];
        if (break_long_words_) {
          const int64_t end = chunk.begin + part_of(chunk, width_ - length);
          line.push_back({chunk.begin, end});
          chunk.begin = end;
        } else if (line.empty()) {
          line.push_back(chunk);
          ++next;
        }
      }
      // A piece of no characters counts as blank, too.
      if (!line.empty() && is_blank(line.back())) line.pop_back();
      if (!line.empty()) out.push_back({line.front().begin, line.back().end});
    }
    return out;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(codes_.size()); }
  int32_t code(int64_t at) const { return at >= 0 && at < size() ? codes_[static_cast<size_t>(at)] : 0; }
  bool is_blank(const Piece& range) const {
    return std::all_of(codes_.begin() + range.begin, codes_.begin() + range.end, is_space);
  }

  // How much of a word longer than a line goes where `space` is left: to its last hyphen.
  int64_t part_of(const Piece& chunk, int64_t space) const {
    for (int64_t at = space - 1; break_on_hyphens_ && at > 0; --at) {
      if (code(chunk.begin + at) != '-') continue;
      const auto first = codes_.begin() + chunk.begin;
      return std::any_of(first, first + at, [](int32_t c) { return c != '-'; }) ? at + 1 : space;
    }
    return space;
  }

  // Two dashes or more, and a word behind them: where they end; else 0.
  int64_t dash_end(int64_t at) const {
    int64_t end = at;
    while (code(end) == '-') ++end;
    return end >= at + 2 && is_word_char(code(end)) ? end : 0;
  }

  // TextWrapper.wordsep_re, or wordsep_simple_re.
  int64_t chunk_end(int64_t begin) const {
    int64_t end = begin;
    if (is_gap(code(begin))) {
      while (end < size() && is_gap(code(end))) ++end;
      return end;
    }
    if (break_on_hyphens_ && begin > 0 && is_word_or_mark(code(begin - 1))) {
      if (const int64_t dashes = dash_end(begin)) return dashes;
    }
    for (++end; end < size() && !is_gap(code(end)); ++end) {
      if (!break_on_hyphens_ || code(end) != '-') continue;
      const bool after_word = is_letter(code(end - 1)) && is_letter(code(end - 2));
      const bool after_part =
          is_word_or_mark(code(end - 1)) && code(end - 2) == '-' && is_letter(code(end - 3));
      const bool before_word =
          is_letter(code(end + 1)) &&
          (is_letter(code(end + 2)) || (code(end + 2) == '-' && is_letter(code(end + 3))));
      if ((after_word || after_part) && before_word) return end + 1;
      if (is_word_or_mark(code(end - 1)) && dash_end(end) > 0) return end;
    }
    return end;
  }

  void split() {
    for (int64_t at = 0; at < size();) {
      const int64_t end = chunk_end(at);
      chunks_.push_back({at, end});
      at = end;
    }
  }

  int64_t width_;
  bool break_long_words_, break_on_hyphens_;
  std::vector<int32_t> codes_;
  std::vector<Piece> chunks_;
};

}  // namespace

Value filter_wordwrap(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (!value.is_string()) throw Fault("wordwrap needs a string, got " + type_name(value));
  const Int width = bound.integer(0, 79);
  const bool given = bound.has(2) && !bound.get(2)->is_none();
  if (given && !bound.get(2)->is_string()) throw Fault("wordwrap: 'wrapstring' must be a string");
  const Text between = given ? bound.get(2)->text() : Text{"\n", {}, {}, false};
  runtime.charge(static_cast<int64_t>(value.bytes().size()));
  TextBuilder out;
  bool first = true;
  const auto add = [&](Text piece) {
    if (!first) {
      runtime.charge_bytes(static_cast<int64_t>(between.bytes.size()));
      out.append(between);
    }
    first = false;
    out.append(between.markup ? escape_html(Value::string(std::move(piece))) : piece);
  };
  for (const Value& line : split_lines(value.text(), false)) {
    if (width <= 0) throw Fault("invalid width " + int_repr(width) + " (must be > 0)");
    Text text = line.text();
    text.markup = false;
    const auto offsets = char_offsets(text.bytes);
    const auto pieces = Wrapper(text, width, bound.flag(1, true), bound.flag(3, true)).lines();
    if (pieces.empty()) add({});
    for (const Piece& piece : pieces) {
      add(slice_bytes(text, offsets[static_cast<size_t>(piece.begin)],
                      offsets[static_cast<size_t>(piece.end)]));
    }
  }
  out.set_markup(between.markup);
  return Value::string(out.finish());
}

}  // namespace twinkle::jinja
