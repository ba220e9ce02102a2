#include "twinkle/text/tokenizer_pretokenizer.h"

#include <array>

#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

// Steps whose parts are ranges of the text.
class Cutter : public PreTokenizer {
 public:
  bool only_cuts() const override { return true; }
  void cut(TrackedText text, std::vector<TrackedText>& out) const override {
    std::vector<Range> parts;
    ranges(text.bytes(), parts);
    if (parts.size() == 1 && parts[0].begin == 0 && parts[0].end == text.bytes().size()) {
      out.push_back(std::move(text));
      return;
    }
    for (const Range& part : parts) out.push_back(text.slice(part.begin, part.end));
  }
};

class Split : public Cutter {
 public:
  Split(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    if (behavior_ == Behavior::kIsolated && pattern_->covers()) {
      pattern_->matches(text, out);
      return;
    }
    std::vector<Range> found;
    pattern_->matches(text, found);
    split(text.size(), found, behavior_, invert_, out);
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

// Each character of a class is a match of its own.
class SplitChars : public Cutter {
 public:
  SplitChars(bool (*match)(char32_t), Behavior behavior) : match_(match), behavior_(behavior) {
    for (size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = match(static_cast<char32_t>(c));
  }
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    std::vector<Range> found;
    for (size_t at = 0; at < text.size();) {
      const auto byte = static_cast<unsigned char>(text[at]);
      const size_t end = at + unicode::char_bytes(text[at]);
      if (byte < ascii_.size() ? ascii_[byte] : match_(unicode::char_at(text, at)))
        found.push_back({at, end});
      at = end;
    }
    split(text.size(), found, behavior_, false, out);
  }

 private:
  bool (*match_)(char32_t);
  std::array<bool, 128> ascii_{};
  Behavior behavior_;
};

// \w+|[^\w\s]+ are the parts.
class Words : public Cutter {
 public:
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    int previous = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + unicode::char_bytes(text[at]);
      const char32_t c = unicode::char_at(text, at);
      const int kind = unicode::is_word(c) ? 1 : unicode::is_space(c) ? 0 : 2;
      if (kind != 0 && kind == previous) {
        out.back().end = end;
      } else if (kind != 0) {
        out.push_back({at, end});
      }
      previous = kind;
      at = end;
    }
  }
};

class BertCutter : public Cutter {
 public:
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    bool open = false;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + unicode::char_bytes(text[at]);
      const char32_t c = unicode::char_at(text, at);
      if (unicode::is_space(c)) {
        open = false;
      } else if (unicode::is_punctuation(c)) {
        out.push_back({at, end});
        open = false;
      } else if (open) {
        out.back().end = end;
      } else {
        out.push_back({at, end});
        open = true;
      }
      at = end;
    }
  }
};

class FixedLength : public Cutter {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    int64_t count = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + unicode::char_bytes(text[at]);
      if (count == 0) out.push_back({at, at});
      out.back().end = end;
      count = (count + 1) % length_;
      at = end;
    }
  }

 private:
  int64_t length_;
};

class ByteLevelCutter : public PreTokenizer {
 public:
  ByteLevelCutter(bool add_prefix_space, bool use_regex) : prefix_(add_prefix_space), regex_(use_regex) {}
  bool maps_bytes() const override { return true; }
  bool only_cuts() const override { return !prefix_; }
  void ranges(std::string_view text, std::vector<Range>& out) const override {
    if (regex_) {
      gpt2_pattern().matches(text, out);
    } else {
      out.push_back({0, text.size()});
    }
  }
  void cut(TrackedText text, std::vector<TrackedText>& out) const override {
    if (prefix_ && !text.bytes().starts_with(' ')) text.prepend(" ");
    std::vector<Range> parts;
    ranges(text.bytes(), parts);
    for (const Range& part : parts) {
      TrackedText one = text.slice(part.begin, part.end);
      map_bytes(one);
      out.push_back(std::move(one));
    }
  }

 private:
  bool prefix_, regex_;
};

class MetaspaceCutter : public PreTokenizer {
 public:
  MetaspaceCutter(char32_t replacement, Prepend scheme, bool split) : scheme_(scheme), split_(split) {
    unicode::append(replacement_, replacement);
  }
  bool needs_origin() const override { return scheme_ == Prepend::kFirst; }
  void cut(TrackedText text, std::vector<TrackedText>& out) const override {
    if (text.bytes().find(' ') != std::string::npos) {
      Rewriter rewriter(text);
      const std::string& bytes = text.bytes();
      size_t at = 0;
      for (size_t i = bytes.find(' '); i != std::string::npos; i = bytes.find(' ', i + 1)) {
        rewriter.keep(at, i);
        rewriter.put(replacement_, i);
        at = i + 1;
      }
      rewriter.keep(at, bytes.size());
      rewriter.finish(text);
    }
    const bool wanted =
        scheme_ == Prepend::kAlways || (scheme_ == Prepend::kFirst && text.origin_begin() == 0);
    if (wanted && !text.bytes().starts_with(replacement_)) text.prepend(replacement_);
    if (!split_) {
      if (!text.bytes().empty()) out.push_back(std::move(text));
      return;
    }
    std::vector<Range> found, parts;
    const std::string& bytes = text.bytes();
    for (size_t i = bytes.find(replacement_); i != std::string::npos;
         i = bytes.find(replacement_, i + replacement_.size())) {
      found.push_back({i, i + replacement_.size()});
    }
    split(bytes.size(), found, Behavior::kMergedWithNext, false, parts);
    for (const Range& part : parts) out.push_back(text.slice(part.begin, part.end));
  }

 private:
  std::string replacement_;
  Prepend scheme_;
  bool split_;
};

using PreTokenizerSteps = std::vector<std::unique_ptr<const PreTokenizer>>;

void parse_pretokenizer_into(const Json& value, const std::string& path, PreTokenizerSteps& steps) {
  const std::string type = component_type(value, path);
  Fields fields(value, path);
  fields.ignore("type");
  std::unique_ptr<const PreTokenizer> made;
  if (type == "ByteLevel") {
    const bool prefix = fields.boolean("add_prefix_space");
    fields.boolean("trim_offsets");
    made = std::make_unique<ByteLevelCutter>(prefix, fields.boolean_or("use_regex", true));
  } else if (type == "Split") {
    auto pattern = parse_pattern(fields.need("pattern"), fields.at("pattern"));
    const Behavior behavior = parse_behavior(fields.string("behavior"), fields.at("behavior"));
    made = std::make_unique<Split>(std::move(pattern), behavior, fields.boolean("invert"));
  } else if (type == "Digits") {
    const bool single = fields.boolean("individual_digits");
    made = std::make_unique<SplitChars>(unicode::is_numeric,
                                        single ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    const Behavior behavior = parse_behavior(fields.string_or("behavior", "Isolated"), fields.at("behavior"));
    made = std::make_unique<SplitChars>(unicode::is_punctuation, behavior);
  } else if (type == "Whitespace") {
    made = std::make_unique<Words>();
  } else if (type == "WhitespaceSplit") {
    made = std::make_unique<SplitChars>(unicode::is_space, Behavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    made = std::make_unique<BertCutter>();
  } else if (type == "CharDelimiterSplit") {
    std::string delimiter;
    unicode::append(delimiter, fields.character("delimiter"));
    made = std::make_unique<Split>(literal_pattern(delimiter), Behavior::kRemoved, false);
  } else if (type == "FixedLength") {
    made = std::make_unique<FixedLength>(fields.integer_or("length", 1, INT32_MAX, 5));
  } else if (type == "Metaspace") {
    const char32_t replacement = fields.character("replacement");
    const Prepend scheme = parse_prepend_scheme(fields);
    made = std::make_unique<MetaspaceCutter>(replacement, scheme, fields.boolean_or("split", true));
  } else if (type == "Sequence") {
    size_t i = 0;
    for (const Json& step : fields.list("pretokenizers")) {
      parse_pretokenizer_into(step, fields.at("pretokenizers") + "[" + std::to_string(i++) + "]", steps);
    }
    fields.done();
    return;
  } else {
    throw invalid_argument(path + ".type: unknown pre-tokenizer \"" + type + "\"");
  }
  fields.done();
  steps.push_back(std::move(made));
}

}  // namespace

void PreTokenizer::apply(std::vector<Piece>& pieces) const {
  std::vector<Piece> out;
  std::vector<TrackedText> parts;
  for (Piece& piece : pieces) {
    if (piece.token >= 0) {
      out.push_back(std::move(piece));
      continue;
    }
    parts.clear();
    cut(std::move(piece.text), parts);
    for (TrackedText& part : parts) out.push_back({std::move(part), -1});
  }
  pieces = std::move(out);
}

Prepend parse_prepend_scheme(Fields& fields) {
  const std::string name = fields.string_or("prepend_scheme", "always");
  Prepend scheme = Prepend::kAlways;
  if (name == "first") {
    scheme = Prepend::kFirst;
  } else if (name == "never") {
    scheme = Prepend::kNever;
  } else if (name != "always") {
    fields.fail("prepend_scheme", "unknown scheme \"" + name + "\" (always, first, never)");
  }
  if (!fields.boolean_or("add_prefix_space", true)) {
    if (fields.has("prepend_scheme") && scheme != Prepend::kNever) {
      fields.fail("add_prefix_space", "is false, but prepend_scheme is \"" + name + "\"");
    }
    scheme = Prepend::kNever;
  }
  fields.ignore("str_rep");
  return scheme;
}

PreTokenizerSteps parse_pre_tokenizer(const Json& value, const std::string& path) {
  PreTokenizerSteps steps;
  if (!value.is_null()) parse_pretokenizer_into(value, path, steps);
  return steps;
}

}  // namespace twinkle::tokenizer
