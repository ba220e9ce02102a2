// SentencePiece's unigram model: the path of highest total score through the whole text, added up in single
// precision as the package does, so that equal paths are decided alike.
#include <algorithm>
#include <cfloat>

#include "twinkle/text/tokenizer_bpe.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_sentencepiece.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

using File = SentencePieceFile;
constexpr float kUnknownPenalty = 10.0F;

class SentencePieceUnigram : public Model {
 public:
  explicit SentencePieceUnigram(std::shared_ptr<const File> file) : file_(std::move(file)) {
    size_t bytes = 0;
    for (const auto& piece : file_->pieces) bytes += piece.text.size();
    vocab_.reserve(file_->pieces.size(), bytes);
    ends_.push_back(-1);
    float min_score = FLT_MAX;
    for (size_t i = 0; i < file_->pieces.size(); ++i) {
      const auto& piece = file_->pieces[i];
      vocab_.add(piece.text, static_cast<int32_t>(i));
      if (piece.type == File::kNormal) {
        min_score = std::min(min_score, piece.score);
        max_score_ = std::max(max_score_, piece.score);
      }
      if (piece.type == File::kNormal || piece.type == File::kUserDefined)
        add(piece.text, static_cast<int32_t>(i));
    }
    unknown_score_ = min_score - kUnknownPenalty;
    for (size_t b = 0; b < 256; ++b) byte_ids_[b] = vocab_.find(byte_token(static_cast<unsigned char>(b)));
  }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    struct Node {
      float score = 0;
      uint32_t start = UINT32_MAX;
      int32_t id = -1;
    };
    std::vector<Node> best(text.size() + 1);
    const auto unknown = static_cast<int32_t>(file_->unk);
    for (size_t at = 0; at < text.size();) {
      const float here = best[at].score;
      const size_t one = unicode::char_bytes(text[at]);
      bool single = false;
      int32_t state = 0;
      for (size_t end = at; end < text.size();) {
        state = trie_.find(state, static_cast<unsigned char>(text[end])).id;
        ++end;
        if (state < 0) break;
        const int32_t id = ends_[static_cast<size_t>(state)];
        if (id < 0) continue;
        const size_t length = end - at;
        const auto& piece = file_->pieces[static_cast<size_t>(id)];
        const float score = piece.type == File::kUserDefined
                                ? static_cast<float>(static_cast<float>(length) * max_score_ - 0.1)
                                : piece.score;
        const float candidate = score + here;
        Node& node = best[end];
        if (node.start == UINT32_MAX || candidate > node.score)
          node = {candidate, static_cast<uint32_t>(at), id};
        single = single || length == one;
      }
      if (!single) {
        Node& node = best[at + one];
        const float candidate = unknown_score_ + here;
        if (node.start == UINT32_MAX || candidate > node.score)
          node = {candidate, static_cast<uint32_t>(at), unknown};
      }
      at += one;
    }
    const size_t first = out.size();
    bool after_unknown = false;
    for (size_t end = text.size(); end > 0;) {
      const Node& node = best[end];
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
  void add(std::string_view text, int32_t id) {
    int32_t state = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t next = trie_.find(state, byte).id;
      if (next < 0) {
        next = static_cast<int32_t>(ends_.size());
        ends_.push_back(-1);
        trie_.add(state, byte, 0, next);
      }
      state = next;
    }
    ends_[static_cast<size_t>(state)] = id;
  }

  std::shared_ptr<const File> file_;
  MergeTable trie_;            // (state, byte) -> state
  std::vector<int32_t> ends_;  // id of the piece that ends in a state, or -1
  int32_t byte_ids_[256];
  float max_score_ = 0.1F;  // at least, so that a symbol of the user is worth more the longer it is
  float unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<const Model> make_sentencepiece_unigram(std::shared_ptr<const SentencePieceFile> file) {
  return std::make_unique<SentencePieceUnigram>(std::move(file));
}

}  // namespace twinkle::tokenizer
