#include "twinkle/text/tokenizer_decoder.h"

#include <optional>

#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/tokenizer_pretokenizer.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t at = 0;
  for (size_t hit = text.find(from); hit != std::string::npos; hit = text.find(from, at)) {
    out.append(text, at, hit - at);
    out += to;
    at = hit + from.size();
  }
  if (at == 0) return;
  out.append(text, at);
  text = std::move(out);
}

void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

std::string unmapped(std::string_view token) {
  std::string out;
  if (!unmap_bytes(token, out)) out = token;
  return out;
}

// A stage that turns each token into one by itself.
template <class Fn>
class EachToken : public Stage {
 public:
  explicit EachToken(Fn fn) : fn_(std::move(fn)) {}
  void push(std::string token) override { next->push(fn_(std::move(token), index_++)); }
  void finish() override { next->finish(); }

 private:
  Fn fn_;
  size_t index_ = 0;
};
template <class Fn>
std::unique_ptr<Stage> each_token(Fn fn) {
  return std::make_unique<EachToken<Fn>>(std::move(fn));
}

class ByteLevelDecoder : public Decoder {
 public:
  bool gives_pieces() const override { return true; }
  std::string inside(std::string token) const override { return unmapped(token); }
  std::unique_ptr<Stage> start() const override { return std::make_unique<Run>(); }

 private:
  class Run : public Stage {
   public:
    void push(std::string token) override {
      bytes_ += unmapped(token);
      const size_t settled = unicode::settled_prefix(bytes_);
      if (settled == 0) return;
      next->push(unicode::replace_invalid(std::string_view(bytes_).substr(0, settled)));
      bytes_.erase(0, settled);
    }
    void finish() override {
      next->push(unicode::replace_invalid(bytes_));
      next->finish();
    }

   private:
    std::string bytes_;
  };
};

class ByteFallback : public Decoder {
 public:
  std::string inside(std::string token) const override {
    const int byte = byte_token_value(token);
    return byte < 0 ? token : std::string(1, static_cast<char>(byte));
  }
  std::unique_ptr<Stage> start() const override { return std::make_unique<Run>(); }

 private:
  // One bad byte spoils its whole run of byte tokens, so a run comes out when it is over.
  class Run : public Stage {
   public:
    void push(std::string token) override {
      const int byte = byte_token_value(token);
      if (byte >= 0) {
        bytes_ += static_cast<char>(byte);
        return;
      }
      flush();
      next->push(std::move(token));
    }
    void finish() override {
      flush();
      next->finish();
    }

   private:
    void flush() {
      if (bytes_.empty()) return;
      if (unicode::is_valid(bytes_)) {
        next->push(std::move(bytes_));
      } else {
        for (size_t i = 0; i < bytes_.size(); ++i) next->push("\xEF\xBF\xBD");
      }
      bytes_.clear();
    }
    std::string bytes_;
  };
};

class Fuse : public Decoder {
 public:
  bool takes_pieces() const override { return true; }
  bool gives_pieces() const override { return true; }
  std::string inside(std::string token) const override { return token; }
  std::unique_ptr<Stage> start() const override {
    return each_token([](std::string token, size_t) { return token; });
  }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string inside(std::string token) const override {
    std::vector<Range> matches;
    pattern_->matches(token, matches);
    std::string out;
    size_t at = 0;
    for (const Range& m : matches) {
      out.append(token, at, m.begin - at);
      out += content_;
      at = m.end;
    }
    out.append(token, at);
    return out;
  }
  std::unique_ptr<Stage> start() const override {
    return each_token([this](std::string token, size_t) { return inside(std::move(token)); });
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(char32_t content, int64_t start, int64_t stop) : left_(start), right_(stop) {
    unicode::append(content_, content);
  }
  bool takes_pieces() const override { return right_ == 0; }
  bool gives_pieces() const override { return pieces_; }
  void set_pieces() { pieces_ = true; }
  // Where tokens are fused before, only the ends of the text are stripped.
  std::string inside(std::string token) const override { return pieces_ ? token : strip(std::move(token)); }
  std::unique_ptr<Stage> start() const override {
    if (pieces_) return std::make_unique<Run>(content_, left_);
    return each_token([this](std::string token, size_t) { return strip(std::move(token)); });
  }

 private:
  std::string strip(std::string token) const {
    size_t begin = 0, end = token.size();
    for (int64_t i = 0; i < left_ && std::string_view(token).substr(begin).starts_with(content_); ++i)
      begin += content_.size();
    for (int64_t i = 0;
         i < right_ && end > begin && std::string_view(token).substr(0, end).ends_with(content_); ++i) {
      end -= content_.size();
    }
    return begin < end ? token.substr(begin, end - begin) : std::string();
  }
  class Run : public Stage {
   public:
    Run(std::string content, int64_t left) : content_(std::move(content)), left_(left) {}
    void push(std::string piece) override {
      size_t begin = 0;
      while (left_ > 0 && begin < piece.size()) {
        if (!std::string_view(piece).substr(begin).starts_with(content_)) {
          left_ = 0;
          break;
        }
        begin += content_.size();
        --left_;
      }
      next->push(piece.substr(begin));
    }
    void finish() override { next->finish(); }

   private:
    std::string content_;
    int64_t left_;
  };

  std::string content_;
  int64_t left_, right_;
  bool pieces_ = false;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(char32_t replacement, Prepend scheme) : scheme_(scheme) {
    unicode::append(replacement_, replacement);
  }
  std::string inside(std::string token) const override { return spaced(std::move(token), " "); }
  std::unique_ptr<Stage> start() const override {
    return each_token([this](std::string token, size_t index) {
      return spaced(std::move(token), index == 0 && scheme_ != Prepend::kNever ? "" : " ");
    });
  }

 private:
  std::string spaced(std::string token, std::string_view space) const {
    replace_all(token, replacement_, space);
    return token;
  }
  std::string replacement_;
  Prepend scheme_;
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  std::string inside(std::string token) const override { return part(std::move(token), 1); }
  std::unique_ptr<Stage> start() const override {
    return each_token([this](std::string token, size_t index) { return part(std::move(token), index); });
  }

 private:
  std::string part(std::string token, size_t index) const {
    if (index != 0) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    if (cleanup_) clean_up(token);
    return token;
  }
  std::string prefix_;
  bool cleanup_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  std::string inside(std::string token) const override {
    replace_all(token, suffix_, " ");
    return token;
  }
  std::unique_ptr<Stage> start() const override { return std::make_unique<Run>(suffix_); }

 private:
  // The last token's suffix becomes nothing, so each token waits for the next.
  class Run : public Stage {
   public:
    explicit Run(std::string suffix) : suffix_(std::move(suffix)) {}
    void push(std::string token) override {
      flush(" ");
      held_ = std::move(token);
    }
    void finish() override {
      flush("");
      next->finish();
    }

   private:
    void flush(std::string_view to) {
      if (!held_) return;
      replace_all(*held_, suffix_, to);
      next->push(std::move(*held_));
      held_.reset();
    }
    std::string suffix_;
    std::optional<std::string> held_;
  };
  std::string suffix_;
};

class Ctc : public Decoder {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  std::string inside(std::string token) const override {
    replace_all(token, pad_, "");
    if (cleanup_) {
      clean_up(token);
      replace_all(token, delimiter_, " ");
    }
    return token;
  }
  std::unique_ptr<Stage> start() const override { return std::make_unique<Run>(*this); }

 private:
  class Run : public Stage {
   public:
    explicit Run(const Ctc& ctc) : ctc_(ctc) {}
    void push(std::string token) override {
      if (last_ == token) return;
      last_ = token;
      std::string out = ctc_.inside(std::move(token));
      if (!out.empty()) next->push(std::move(out));
    }
    void finish() override { next->finish(); }

   private:
    const Ctc& ctc_;
    std::optional<std::string> last_;
  };
  std::string pad_, delimiter_;
  bool cleanup_;
};

// Puts the pieces of one token together for a stage that needs it whole.
class Collect : public Stage {
 public:
  void push(std::string piece) override { whole_ += piece; }
  void finish() override {
    next->push(std::move(whole_));
    next->finish();
  }

 private:
  std::string whole_;
};

class Output : public Stage {
 public:
  explicit Output(bool spaces) : spaces_(spaces) {}
  void push(std::string token) override {
    if (spaces_ && !first_) text += ' ';
    first_ = false;
    text += token;
  }
  void finish() override {}
  std::string text;

 private:
  bool spaces_;
  bool first_ = true;
};

using DecoderSteps = std::vector<std::unique_ptr<const Decoder>>;

void parse_decoder_into(const Json& value, const std::string& path, bool* pieces, DecoderSteps& steps) {
  const std::string type = component_type(value, path);
  Fields fields(value, path);
  fields.ignore("type");
  std::unique_ptr<const Decoder> made;
  if (type == "ByteLevel") {
    fields.boolean_or("add_prefix_space", true);
    fields.boolean_or("trim_offsets", true);
    fields.boolean_or("use_regex", true);
    made = std::make_unique<ByteLevelDecoder>();
  } else if (type == "ByteFallback") {
    made = std::make_unique<ByteFallback>();
  } else if (type == "Fuse") {
    made = std::make_unique<Fuse>();
  } else if (type == "Replace") {
    auto pattern = parse_pattern(fields.need("pattern"), fields.at("pattern"));
    made = std::make_unique<ReplaceDecoder>(std::move(pattern), fields.string("content"));
  } else if (type == "Strip") {
    const char32_t content = fields.character("content");
    const int64_t start = fields.integer("start", 0, INT32_MAX);
    auto strip = std::make_unique<StripDecoder>(content, start, fields.integer("stop", 0, INT32_MAX));
    if (*pieces && strip->takes_pieces()) strip->set_pieces();
    made = std::move(strip);
  } else if (type == "Metaspace") {
    const char32_t replacement = fields.character("replacement");
    const Prepend scheme = parse_prepend_scheme(fields);
    fields.boolean_or("split", true);
    made = std::make_unique<MetaspaceDecoder>(replacement, scheme);
  } else if (type == "WordPiece") {
    std::string prefix = fields.string("prefix");
    made = std::make_unique<WordPieceDecoder>(std::move(prefix), fields.boolean("cleanup"));
  } else if (type == "BPEDecoder") {
    made = std::make_unique<BpeDecoder>(fields.string("suffix"));
  } else if (type == "CTC") {
    std::string pad = fields.string("pad_token"), delimiter = fields.string("word_delimiter_token");
    made = std::make_unique<Ctc>(std::move(pad), std::move(delimiter), fields.boolean("cleanup"));
  } else if (type == "Sequence") {
    size_t i = 0;
    for (const Json& step : fields.list("decoders")) {
      parse_decoder_into(step, fields.at("decoders") + "[" + std::to_string(i++) + "]", pieces, steps);
    }
    fields.done();
    return;
  } else {
    throw invalid_argument(path + ".type: unknown decoder \"" + type + "\"");
  }
  fields.done();
  *pieces = made->gives_pieces();
  steps.push_back(std::move(made));
}

}  // namespace

DecoderChain DecoderChain::parse(const Json& value, const std::string& path) {
  DecoderChain chain;
  if (value.is_null()) return chain;
  bool pieces = false;
  parse_decoder_into(value, path, &pieces, chain.steps_);
  chain.byte_level_ =
      chain.steps_.size() == 1 && dynamic_cast<const ByteLevelDecoder*>(chain.steps_[0].get()) != nullptr;
  if (chain.steps_.empty())
    chain.steps_.push_back(std::make_unique<Fuse>());  // an empty sequence joins without spaces
  return chain;
}

std::string DecoderChain::inside(std::string token) const {
  for (const auto& step : steps_) token = step->inside(std::move(token));
  return token;
}

DecoderChain::Run::Run(const DecoderChain& chain) {
  bool pieces = false;
  for (const auto& step : chain.steps_) {
    if (pieces && !step->takes_pieces()) stages_.push_back(std::make_unique<Collect>());
    stages_.push_back(step->start());
    pieces = step->gives_pieces();
  }
  auto output = std::make_unique<Output>(chain.steps_.empty());
  out_ = &output->text;
  stages_.push_back(std::move(output));
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->next = stages_[i + 1].get();
  first_ = stages_[0].get();
}

std::string DecoderChain::Run::take() { return std::exchange(*out_, std::string()); }

}  // namespace twinkle::tokenizer
