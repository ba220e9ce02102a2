// Unigram: the path of highest total score through the pieces of a text (Viterbi), as SentencePiece defines
// it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_lattice.h"
#include "twinkle/text/tokenizer_model.h"
#include "twinkle/text/tokenizer_word_cache.h"

namespace twinkle::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;

// The package reads a score as its digits divided by a power of ten, which rounds twice. Equal paths through
// long runs are decided by that last bit.
double as_package_reads(double exact) {
  if (!std::isfinite(exact) || exact == 0) return exact;
  char text[64];
  const char* const end =
      std::to_chars(text, text + sizeof text, std::abs(exact), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  for (const char* p = text; p < end; ++p) {
    if (*p == 'e') {
      exponent += std::atoi(std::string(p + 1, end).c_str());
      break;
    }
    if (*p == '.') continue;
    digits = digits * 10 + static_cast<uint64_t>(*p - '0');
    if (p != text) --exponent;  // behind the point
  }
  if (exponent < -300 || exponent > 22) return exact;
  double power = 1;
  const std::string spelled = "1e" + std::to_string(std::abs(exponent));
  std::from_chars(spelled.data(), spelled.data() + spelled.size(), power);
  const double value =
      exponent < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  return std::copysign(value, exact);
}

class Unigram : public Model {
 public:
  Unigram(std::vector<std::pair<std::string, double>> pieces, int64_t unk_id, bool byte_fallback)
      : pieces_(std::move(pieces)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
    size_t bytes = 0;
    for (const auto& [text, score] : pieces_) bytes += text.size();
    vocab_.reserve(pieces_.size(), bytes);
    int32_t id = 0;
    for (const auto& [text, score] : pieces_) {
      vocab_.add(text, id++);
      scores_.push_back(as_package_reads(score));
      min_score_ = std::min(min_score_, scores_.back());
    }
    for (const auto& e : vocab_.entries()) trie_.add(vocab_.text(e), e.id);
    whole_.resize(vocab_.size());
    for (int b = 0; b < 256; ++b) byte_tokens_[b] = vocab_.find(byte_token(static_cast<unsigned char>(b)));
  }

  int64_t vocab_count() const override { return static_cast<int64_t>(pieces_.size()); }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    walk(text, [](int32_t, size_t, size_t) { return false; }, out);
  }
  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    walk(text, refused, out);
  }

  void ids(std::string_view text, std::vector<int32_t>& out) const override {
    ids_of_word<Token>(
        text, vocab_, whole_, std::numeric_limits<size_t>::max(), owner_,
        [this](std::string_view word, std::vector<Token>& tokens) { tokenize(word, tokens); }, out);
  }

  Json to_json() const override {
    Json vocab = Json::array();
    for (const auto& [text, score] : pieces_) vocab.push_back(Json::array({text, score}));
    return {{"type", "Unigram"},
            {"unk_id", unk_id_ < 0 ? Json() : Json(unk_id_)},
            {"vocab", std::move(vocab)},
            {"byte_fallback", byte_fallback_}};
  }

 private:
  template <class Refuse>
  void walk(std::string_view text, const Refuse& refused, std::vector<Token>& out) const {
    thread_local std::vector<Step<double>> best;
    thread_local std::vector<Token> path;
    best_steps(
        trie_, text, [this](int32_t id, size_t) { return scores_[static_cast<size_t>(id)]; },
        [this] {
          if (unk_id_ < 0)
            throw invalid_argument("[tokenizer] a character is unknown, and the model has no unk_id");
          return std::pair(min_score_ - kUnknownPenalty, static_cast<int32_t>(unk_id_));
        },
        refused, best);
    path.clear();
    for (size_t end = text.size(); end > 0;) {
      const auto& node = best[end];
      const bool unknown = node.id == unk_id_;
      if (unknown && !path.empty() && path.back().id == unk_id_ && path.back().begin == end) {
        path.back().begin = node.start;
      } else {
        path.push_back({node.id, node.start, end});
      }
      end = node.start;
    }
    for (auto t = path.rbegin(); t != path.rend(); ++t) emit(text, *t, refused, out);
    trim_buffer(best);
    trim_buffer(path);
  }

  template <class Refuse>
  void emit(std::string_view text, Token t, const Refuse& refused, std::vector<Token>& out) const {
    const std::string_view piece = text.substr(t.begin, t.end - t.begin);
    const int32_t id = vocab_.find(piece);
    if (id >= 0 && !refused(id, t.begin, t.end)) {
      out.push_back({id, t.begin, t.end});
      return;
    }
    const bool bytes = byte_fallback_ && std::all_of(piece.begin(), piece.end(), [this](char b) {
                         return byte_tokens_[static_cast<unsigned char>(b)] >= 0;
                       });
    if (!bytes) {
      out.push_back({static_cast<int32_t>(unk_id_), t.begin, t.end});
      return;
    }
    for (const char b : piece) out.push_back({byte_tokens_[static_cast<unsigned char>(b)], t.begin, t.end});
  }

  std::vector<std::pair<std::string, double>> pieces_;
  std::vector<double> scores_;
  int64_t unk_id_;
  bool byte_fallback_;
  double min_score_ = std::numeric_limits<double>::infinity();
  PieceTrie trie_;
  WholeMarks whole_;
  const uint32_t owner_ = WordCache::new_owner();
  int32_t byte_tokens_[256];
};

}  // namespace

std::unique_ptr<const Model> parse_unigram(const Json& value, const std::string& path) {
  Fields fields(value, path);
  fields.ignore("type");
  std::vector<std::pair<std::string, double>> pieces;
  size_t i = 0;
  for (const Json& item : fields.list("vocab")) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
      fields.fail("vocab",
                  "[" + std::to_string(i) + "] needs [text, score], got " + item.dump().substr(0, 60));
    }
    pieces.emplace_back(item[0].get<std::string>(), item[1].get<double>());
    if (++i > static_cast<size_t>(kMaxId)) fields.fail("vocab", "has too many pieces");
  }
  const int64_t unk = fields.integer_or("unk_id", 0, static_cast<int64_t>(pieces.size()) - 1, -1);
  const bool fallback = fields.boolean_or("byte_fallback", false);
  fields.done();
  return std::make_unique<Unigram>(std::move(pieces), unk, fallback);
}

}  // namespace twinkle::tokenizer
