#include "twinkle/text/tokenizer_normalizer.h"

#include <algorithm>
#include <vector>

#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

// Calls fn(rewriter, character, its begin, its end) for each character and takes the result.
template <class Fn>
void each_char(TrackedText& text, Fn fn) {
  Rewriter rewriter(text);
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at + unicode::char_bytes(bytes[at]);
    fn(rewriter, unicode::char_at(bytes, at), at, end);
    at = end;
  }
  rewriter.finish(text);
}

void to_form(TrackedText& text, unicode::Form form) {
  const auto rewrites = unicode::normalize(text.bytes(), form);
  if (rewrites.empty()) return;
  Rewriter rewriter(text);
  size_t at = 0;
  for (const auto& rewrite : rewrites) {
    rewriter.keep(at, rewrite.begin);
    // Narrowing can leave an insertion with nothing of its own: it comes from the character before it.
    const size_t from = rewrite.begin < rewrite.end ? rewrite.begin
                        : rewrite.begin == 0        ? 0
                                                    : rewrite.begin - 1;
    rewriter.put_from(rewrite.out, from, std::max(rewrite.end, from + 1));
    at = rewrite.end;
  }
  rewriter.keep(at, text.bytes().size());
  rewriter.finish(text);
}

void lower(TrackedText& text) {
  std::string low;
  each_char(text, [&low](Rewriter& r, char32_t c, size_t b, size_t) {
    low.clear();
    unicode::append_lower(low, c);
    r.put(low, b);
  });
}

template <class Predicate>
void drop(TrackedText& text, Predicate dropped) {
  each_char(text, [&](Rewriter& r, char32_t c, size_t b, size_t e) {
    if (!dropped(c)) r.keep(b, e);
  });
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(unicode::Form form) : form_(form) {}
  void apply(TrackedText& text) const override { to_form(text, form_); }
  bool leaves(std::string_view text) const override {
    return form_ == unicode::Form::kNfc && unicode::is_surely_nfc(text);
  }

 private:
  unicode::Form form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(TrackedText& text) const override { lower(text); }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(TrackedText& text) const override {
    const std::string& bytes = text.bytes();
    size_t begin = 0, end = bytes.size();
    while (left_ && begin < end && unicode::is_space(unicode::char_at(bytes, begin)))
      begin += unicode::char_bytes(bytes[begin]);
    while (right_ && end > begin) {
      const size_t last = unicode::previous(bytes, end);
      if (!unicode::is_space(unicode::char_at(bytes, last))) break;
      end = last;
    }
    if (begin != 0 || end != bytes.size()) text = text.slice(begin, end);
  }

 private:
  bool left_, right_;
};

class StripAccents : public Normalizer {
 public:
  void apply(TrackedText& text) const override { drop(text, unicode::is_mark); }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(TrackedText& text) const override {
    std::vector<Range> matches;
    pattern_->matches(text.bytes(), matches);
    if (matches.empty() || text.bytes().empty()) return;
    Rewriter rewriter(text);
    size_t at = 0;
    for (const Range& m : matches) {
      rewriter.keep(at, m.begin);
      // What is put in comes from the last character before its end, as the package has it.
      rewriter.put(content_, m.end == 0 ? 0 : m.end - 1);
      at = m.end;
    }
    rewriter.keep(at, text.bytes().size());
    rewriter.finish(text);
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string text) : text_(std::move(text)) {}
  void apply(TrackedText& text) const override { text.prepend(text_); }

 private:
  std::string text_;
};

class BertNormalizer : public Normalizer {
 public:
  BertNormalizer(bool clean, bool chinese, bool strip, bool lowercase)
      : clean_(clean), chinese_(chinese), strip_(strip), lowercase_(lowercase) {}
  void apply(TrackedText& text) const override {
    if (clean_) {
      each_char(text, [](Rewriter& r, char32_t c, size_t b, size_t e) {
        const bool blank = c == '\t' || c == '\n' || c == '\r';
        if (!blank && (c == 0xFFFD || unicode::is_other(c))) return;
        if (blank || unicode::is_space(c)) {
          r.put(" ", b);
        } else {
          r.keep(b, e);
        }
      });
    }
    if (chinese_) {
      each_char(text, [](Rewriter& r, char32_t c, size_t b, size_t e) {
        const bool cjk = unicode::is_cjk(c);
        if (cjk) r.put(" ", b);
        r.keep(b, e);
        if (cjk) r.put(" ", b);
      });
    }
    if (strip_) {
      to_form(text, unicode::Form::kNfd);
      drop(text, unicode::is_nonspacing_mark);
    }
    if (lowercase_) lower(text);
  }

 private:
  bool clean_, chinese_, strip_, lowercase_;
};

class Nmt : public Normalizer {
 public:
  void apply(TrackedText& text) const override {
    each_char(text, [](Rewriter& r, char32_t c, size_t b, size_t e) {
      if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return;
      if (c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
          c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD ||
          (c >= 0x2000 && c <= 0x200A)) {
        r.put(" ", b);
      } else {
        r.keep(b, e);
      }
    });
  }
};

class ByteChars : public Normalizer {
 public:
  void apply(TrackedText& text) const override { map_bytes(text); }
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(TrackedText& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }
  bool leaves(std::string_view text) const override {
    for (const auto& step : steps_) {
      if (!step->leaves(text)) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<const Normalizer> parse_normalizer(const Json& value, const std::string& path) {
  if (value.is_null()) return nullptr;
  const std::string type = component_type(value, path);
  Fields fields(value, path);
  fields.ignore("type");
  std::unique_ptr<const Normalizer> made;
  if (type == "NFC") {
    made = std::make_unique<UnicodeForm>(unicode::Form::kNfc);
  } else if (type == "NFD") {
    made = std::make_unique<UnicodeForm>(unicode::Form::kNfd);
  } else if (type == "NFKC") {
    made = std::make_unique<UnicodeForm>(unicode::Form::kNfkc);
  } else if (type == "NFKD") {
    made = std::make_unique<UnicodeForm>(unicode::Form::kNfkd);
  } else if (type == "Lowercase") {
    made = std::make_unique<Lowercase>();
  } else if (type == "StripAccents") {
    made = std::make_unique<StripAccents>();
  } else if (type == "Nmt") {
    made = std::make_unique<Nmt>();
  } else if (type == "ByteLevel") {
    made = std::make_unique<ByteChars>();
  } else if (type == "Strip") {
    const bool left = fields.boolean("strip_left");
    made = std::make_unique<StripNormalizer>(left, fields.boolean("strip_right"));
  } else if (type == "Prepend") {
    made = std::make_unique<PrependNormalizer>(fields.string("prepend"));
  } else if (type == "Replace") {
    auto pattern = parse_pattern(fields.need("pattern"), fields.at("pattern"));
    made = std::make_unique<ReplaceNormalizer>(std::move(pattern), fields.string("content"));
  } else if (type == "BertNormalizer") {
    const bool clean = fields.boolean("clean_text"), chinese = fields.boolean("handle_chinese_chars");
    const bool lowercase = fields.boolean("lowercase");
    made = std::make_unique<BertNormalizer>(clean, chinese, fields.boolean_or("strip_accents", lowercase),
                                            lowercase);
  } else if (type == "Precompiled") {
    if (fields.has("precompiled_charsmap")) {
      made = parse_precompiled(fields.string("precompiled_charsmap"), fields.at("precompiled_charsmap"));
    }
  } else if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> steps;
    size_t i = 0;
    for (const Json& step : fields.list("normalizers")) {
      auto one = parse_normalizer(step, fields.at("normalizers") + "[" + std::to_string(i++) + "]");
      if (one != nullptr) steps.push_back(std::move(one));
    }
    made = std::make_unique<Sequence>(std::move(steps));
  } else {
    throw invalid_argument(path + ".type: unknown normalizer \"" + type + "\"");
  }
  fields.done();
  return made;
}

}  // namespace twinkle::tokenizer
