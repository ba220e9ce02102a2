// SentencePiece's unigram model: the path of highest total score through the whole text, added up in single
// precision as the package does, so that equal paths are decided alike.
#include <algorithm>
#include <cfloat>

#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_lattice.h"
#include "twinkle/text/tokenizer_sentencepiece.h"

namespace twinkle::tokenizer {
namespace {

using File = SentencePieceFile;
constexpr float kUnknownPiecePenalty = 10.0F;

class SentencePieceUnigram : public Model {
 public:
  explicit SentencePieceUnigram(std::shared_ptr<const File> file) : file_(std::move(file)) {
    size_t bytes = 0;
    for (const auto& piece : file_->pieces) bytes += piece.text.size();
    vocab_.reserve(file_->pieces.size(), bytes);
    float min_score = FLT_MAX;
    for (size_t i = 0; i < file_->pieces.size(); ++i) {
      const auto& piece = file_->pieces[i];
      vocab_.add(piece.text, static_cast<int32_t>(i));
      if (piece.type == File::kNormal) {
        min_score = std::min(min_score, piece.score);
        max_score_ = std::max(max_score_, piece.score);
      }
      if (piece.type == File::kNormal || piece.type == File::kUserDefined)
        trie_.add(piece.text, static_cast<int32_t>(i));
    }
    unknown_score_ = min_score - kUnknownPiecePenalty;
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

  Json to_json() const override {
    Json vocab = Json::array();
    for (const auto& piece : file_->pieces) vocab.push_back(Json::array({piece.text, piece.score}));
    return {{"type", "Unigram"},
            {"unk_id", file_->unk},
            {"vocab", std::move(vocab)},
            {"byte_fallback", file_->byte_fallback}};
  }

 private:
  template <class Refuse>
  void walk(std::string_view text, const Refuse& refused, std::vector<Token>& out) const {
    const auto unknown = static_cast<int32_t>(file_->unk);
    std::vector<Step<float>> best;
    best_steps(
        trie_, text,
        [this](int32_t id, size_t bytes) {
          const auto& piece = file_->pieces[static_cast<size_t>(id)];
          return piece.type == File::kUserDefined
                     ? static_cast<float>(static_cast<float>(bytes) * max_score_ - 0.1)
                     : piece.score;
        },
        [&] { return std::pair(unknown_score_, unknown); }, refused, best);
    const size_t first = out.size();
    bool after_unknown = false;
    for (size_t end = text.size(); end > 0;) {
      const auto& node = best[end];
      if (node.id != unknown) {
        out.push_back({node.id, node.start, end});
      } else if (file_->byte_fallback) {
        for (size_t i = end; i > node.start; --i)
          out.push_back({byte_ids_[static_cast<unsigned char>(text[i - 1])], node.start, end});
      } else if (after_unknown) {
        out.back().begin = node.start;
      } else {
        out.push_back({unknown, node.start, end});
      }
      after_unknown = node.id == unknown && !file_->byte_fallback;
      end = node.start;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  }

  std::shared_ptr<const File> file_;
  PieceTrie trie_;
  int32_t byte_ids_[256];
  float max_score_ = 0.1F;  // at least, so that a symbol of the user is worth more the longer it is
  float unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<const Model> make_sentencepiece_unigram(std::shared_ptr<const SentencePieceFile> file) {
  return std::make_unique<SentencePieceUnigram>(std::move(file));
}

}  // namespace twinkle::tokenizer
