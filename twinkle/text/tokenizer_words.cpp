// WordPiece (greedy, longest first) and WordLevel (the whole word).
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_model.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

class WordPiece : public Model {
 public:
  WordPiece(Vocab vocab, std::string unk, std::string prefix, int64_t max_chars)
      : unk_(std::move(unk)), prefix_(std::move(prefix)), max_chars_(max_chars) {
    vocab_ = std::move(vocab);
    for (const auto& e : vocab_.entries()) max_size_ = std::max(max_size_, size_t{e.size});
  }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    walk(text, [](int32_t, size_t, size_t) { return false; }, out);
  }
  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    walk(text, refused, out);
  }

  Json to_json() const override {
    return {{"type", "WordPiece"},
            {"unk_token", unk_},
            {"continuing_subword_prefix", prefix_},
            {"max_input_chars_per_word", max_chars_},
            {"vocab", vocab_json(vocab_)}};
  }

 private:
  template <class Refuse>
  void walk(std::string_view text, const Refuse& refused, std::vector<Token>& out) const {
    if (static_cast<int64_t>(unicode::count_chars(text)) > max_chars_) {
      out.push_back({unknown(), 0, text.size()});
      return;
    }
    const size_t before = out.size();
    std::string part;
    for (size_t start = 0; start < text.size();) {
      size_t end = text.size();
      if (end - start > max_size_)
        end = unicode::previous(text, start + max_size_ + 1);  // nothing longer is known
      int32_t id = -1;
      while (start < end) {
        std::string_view piece = text.substr(start, end - start);
        if (start > 0) {
          part = prefix_;
          part += piece;
          piece = part;
        }
        id = vocab_.find(piece);
        if (id >= 0 && refused(id, start, end)) id = -1;
        if (id >= 0) break;
        end = unicode::previous(text, end);
      }
      if (id < 0) {
        out.resize(before);
        out.push_back({unknown(), 0, text.size()});
        return;
      }
      out.push_back({id, start, end});
      start = end;
    }
  }

  int32_t unknown() const {
    const int32_t id = vocab_.find(unk_);
    if (id < 0)
      throw invalid_argument("[tokenizer] a word is unknown, and unk_token \"" + unk_ +
                             "\" is not in the vocabulary");
    return id;
  }
  std::string unk_, prefix_;
  int64_t max_chars_;
  size_t max_size_ = 0;
};

class WordLevel : public Model {
 public:
  WordLevel(Vocab vocab, std::string unk) : unk_(std::move(unk)) { vocab_ = std::move(vocab); }
  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    put(vocab_.find(text), text, out);
  }
  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    const int32_t id = vocab_.find(text);
    put(id >= 0 && refused(id, 0, text.size()) ? -1 : id, text, out);
  }
  Json to_json() const override {
    return {{"type", "WordLevel"}, {"vocab", vocab_json(vocab_)}, {"unk_token", unk_}};
  }

 private:
  void put(int32_t id, std::string_view text, std::vector<Token>& out) const {
    if (id < 0) id = vocab_.find(unk_);
    if (id < 0)
      throw invalid_argument("[tokenizer] a word is unknown, and unk_token \"" + unk_ +
                             "\" is not in the vocabulary");
    out.push_back({id, 0, text.size()});
  }

  std::string unk_;
};

}  // namespace

std::unique_ptr<const Model> parse_wordpiece(const Json& value, const std::string& path) {
  Fields fields(value, path);
  const bool pieces = fields.string_or("type", "WordPiece") == "WordPiece";
  std::string unk = fields.string_or("unk_token", pieces ? "[UNK]" : "<unk>");
  Vocab vocab = parse_vocab(fields.need("vocab"), fields.at("vocab"));
  std::unique_ptr<const Model> model;
  if (pieces) {
    std::string prefix = fields.string_or("continuing_subword_prefix", "##");
    const int64_t max_chars = fields.integer_or("max_input_chars_per_word", 0, INT32_MAX, 100);
    model = std::make_unique<WordPiece>(std::move(vocab), std::move(unk), std::move(prefix), max_chars);
  } else {
    model = std::make_unique<WordLevel>(std::move(vocab), std::move(unk));
  }
  fields.done();
  return model;
}

}  // namespace twinkle::tokenizer
