// SentencePiece's models without a search: "word" takes what lies between markers, "char" each character and
// each symbol of the user. What is no piece, or an unused one, is unknown.
#include <algorithm>

#include "twinkle/text/tokenizer_added.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_sentencepiece.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

using File = SentencePieceFile;

class SentencePieceLookup : public Model {
 public:
  explicit SentencePieceLookup(std::shared_ptr<const File> file) : file_(std::move(file)) {
    size_t bytes = 0;
    for (const auto& piece : file_->pieces) bytes += piece.text.size();
    vocab_.reserve(file_->pieces.size(), bytes);
    for (size_t i = 0; i < file_->pieces.size(); ++i) {
      const auto& piece = file_->pieces[i];
      const auto id = static_cast<int32_t>(i);
      vocab_.add(piece.text, id);
      if (piece.type == File::kUserDefined && file_->kind == File::Kind::kChar) symbols_.add(piece.text, id);
    }
    for (size_t b = 0; b < 256; ++b) byte_ids_[b] = vocab_.find(byte_token(static_cast<unsigned char>(b)));
  }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    walk(text, [](int32_t, size_t, size_t) { return false; }, out);
  }
  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    walk(text, refused, out);
  }

  std::unique_ptr<const Normalizer> make_normalizer() const override {
    return make_sentencepiece_normalizer(file_);
  }

  // The closest that tokenizers has: WordLevel gives every unknown word a token of its own.
  Json to_json() const override {
    const std::string unknown(vocab_.text_of(static_cast<int32_t>(file_->unk)));
    Vocab used;  // an unused piece would be found there
    for (size_t i = 0; i < file_->pieces.size(); ++i) {
      const auto& piece = file_->pieces[i];
      if (piece.type != File::kUnused) used.add(piece.text, static_cast<int32_t>(i));
    }
    if (file_->kind == File::Kind::kWord)
      return {{"type", "WordLevel"}, {"vocab", vocab_json(used)}, {"unk_token", unknown}};
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", unknown},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", file_->byte_fallback},
            {"ignore_merges", !symbols_.empty()},
            {"vocab", vocab_json(used)},
            {"merges", Json::array()}};
  }

 private:
  template <class Refuse>
  void walk(std::string_view text, const Refuse& refused, std::vector<Token>& out) const {
    bool after_unknown = false;
    if (file_->kind == File::Kind::kWord) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(kSpaceMarker, at + 1), text.size());
        put(text, at, end, refused, &after_unknown, out);
        at = end;
      }
      return;
    }
    size_t at = 0;
    const auto characters = [&](size_t end) {
      while (at < end) {
        const size_t n = unicode::char_bytes(text[at]);
        put(text, at, at + n, refused, &after_unknown, out);
        at += n;
      }
    };
    Range found;
    int32_t id = -1;
    const auto accept = [&](const Range& range, int32_t symbol) {
      return !refused(symbol, range.begin, range.end);
    };
    while (!symbols_.empty() && symbols_.next(text, at, &found, &id, accept)) {
      characters(found.begin);
      put(text, found.begin, found.end, refused, &after_unknown, out);
      at = found.end;
    }
    characters(text.size());
  }

  template <class Refuse>
  void put(std::string_view text, size_t begin, size_t end, const Refuse& refused, bool* after_unknown,
           std::vector<Token>& out) const {
    const std::string_view piece = text.substr(begin, end - begin);
    const int32_t id = vocab_.find(piece);
    const int type = id < 0 ? File::kUnknown : file_->pieces[static_cast<size_t>(id)].type;
    const bool unknown =
        type == File::kUnknown || type == File::kUnused || type == File::kRenamed || refused(id, begin, end);
    if (!unknown) {
      out.push_back({id, begin, end});
    } else if (file_->byte_fallback) {
      for (const char b : piece) out.push_back({byte_ids_[static_cast<unsigned char>(b)], begin, end});
    } else if (*after_unknown) {
      out.back().end = end;
    } else {
      out.push_back({static_cast<int32_t>(file_->unk), begin, end});
    }
    *after_unknown = unknown && !file_->byte_fallback;
  }

  std::shared_ptr<const File> file_;
  TextMatcher symbols_;
  int32_t byte_ids_[256];
};

}  // namespace

std::unique_ptr<const Model> make_sentencepiece_lookup(std::shared_ptr<const SentencePieceFile> file) {
  return std::make_unique<SentencePieceLookup>(std::move(file));
}

}  // namespace twinkle::tokenizer
