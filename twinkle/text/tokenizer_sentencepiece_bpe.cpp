// SentencePiece's BPE: of all neighbours whose text together is a piece, those of the highest score merge
// first, the leftmost of equals. Symbols of the user never merge; unused pieces fall apart again.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "twinkle/text/tokenizer_added.h"
#include "twinkle/text/tokenizer_bpe.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_sentencepiece.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

using File = SentencePieceFile;

bool can_match(int type) {
  return type == File::kNormal || type == File::kUserDefined || type == File::kUnused;
}

// Ids while merging: those of pieces, nothing_ for a character of no piece, and above it characters that are
// only parts of pieces.
class SentencePieceBpe : public Model {
 public:
  explicit SentencePieceBpe(std::shared_ptr<const File> file) : file_(std::move(file)) {
    size_t bytes = 0;
    for (const auto& piece : file_->pieces) bytes += piece.text.size();
    vocab_.reserve(file_->pieces.size(), bytes);
    symbols_.reserve(file_->pieces.size(), bytes);
    nothing_ = static_cast<int32_t>(file_->pieces.size());
    for (int32_t id = 0; id < nothing_; ++id) {
      const auto& piece = file_->pieces[static_cast<size_t>(id)];
      vocab_.add(piece.text, id);
      if (!can_match(piece.type)) continue;
      symbols_.add(piece.text, id);
      max_size_ = std::max(max_size_, piece.text.size());
      has_unused_ = has_unused_ || piece.type == File::kUnused;
      if (piece.type == File::kUserDefined) user_.add(piece.text, id);
    }
    add_merges();
    for (size_t c = 0; c < ascii_.size(); ++c) {
      const char text = static_cast<char>(c);
      const int32_t id = symbols_.find({&text, 1});
      ascii_[c] = id < 0 ? nothing_ : id;
    }
    for (size_t b = 0; b < 256; ++b) byte_ids_[b] = vocab_.find(byte_token(static_cast<unsigned char>(b)));
    marks_.resize(symbols_.size());
    // No piece has a marker behind other text: then texts fall apart into words at markers.
    cuts_ = std::none_of(file_->pieces.begin(), file_->pieces.end(), [](const File::Piece& piece) {
      size_t lead = 0;
      while (std::string_view(piece.text).substr(lead).starts_with(kSpaceMarker)) lead += kSpaceMarker.size();
      return can_match(piece.type) && piece.text.find(kSpaceMarker, lead) != std::string::npos;
    });
  }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    TokenSink sink{out};
    encode(text, nullptr, sink);
  }
  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    TokenSink sink{out};
    encode(text, &refused, sink);
  }
  void ids(std::string_view text, std::vector<int32_t>& out) const override {
    struct Ids {
      std::vector<int32_t>& out;
      void put(int32_t id, size_t, size_t) { out.push_back(id); }
      void extend(size_t) {}
    } sink{out};
    encode(text, nullptr, sink);
  }

  std::unique_ptr<const Normalizer> make_normalizer() const override {
    return make_sentencepiece_normalizer(file_);
  }

  Json to_json() const override {
    struct Row {
      float score;
      int32_t id;
      std::string_view left, right;
    };
    std::vector<Row> rows;
    const auto normal = [this](std::string_view text) {
      const int32_t id = symbols_.find(text);
      return id >= 0 && id < nothing_ && type_of(id) == File::kNormal;
    };
    for (int32_t id = 0; id < nothing_; ++id) {
      if (type_of(id) != File::kNormal) continue;
      const std::string_view text = vocab_.text_of(id);
      for (size_t at = unicode::char_bytes(text[0]); at < text.size(); at += unicode::char_bytes(text[at])) {
        if (normal(text.substr(0, at)) && normal(text.substr(at)))
          rows.push_back(
              {file_->pieces[static_cast<size_t>(id)].score, id, text.substr(0, at), text.substr(at)});
      }
    }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
      if (a.score != b.score) return a.score > b.score;
      if (a.id != b.id) return a.id < b.id;
      return a.left != b.left ? a.left < b.left : a.right < b.right;
    });
    Json merges = Json::array();
    for (const Row& row : rows)
      merges.push_back(Json::array({std::string(row.left), std::string(row.right)}));
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", std::string(vocab_.text_of(static_cast<int32_t>(file_->unk)))},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", file_->byte_fallback},
            {"ignore_merges", !user_.empty()},
            {"vocab", vocab_json(vocab_)},
            {"merges", std::move(merges)}};
  }

 private:
  struct TokenSink {
    std::vector<Token>& out;
    void put(int32_t id, size_t begin, size_t end) { out.push_back({id, begin, end}); }
    void extend(size_t end) { out.back().end = end; }
  };

  int type_of(int32_t id) const { return file_->pieces[static_cast<size_t>(id)].type; }

  // The id of a part of a piece; a character of its own gets one when it has none.
  int32_t part_id(std::string_view text, int32_t* next) {
    int32_t id = symbols_.find(text);
    if (id < 0 && text.size() == unicode::char_bytes(text[0])) {
      id = (*next)++;
      symbols_.add(text, id);
    }
    return id;
  }

  void add_merges() {
    std::vector<int32_t> order;
    for (int32_t id = 0; id < nothing_; ++id) {
      if (can_match(type_of(id))) order.push_back(id);
    }
    const auto score = [this](int32_t id) { return file_->pieces[static_cast<size_t>(id)].score; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
    uint32_t rank = 0;
    int32_t next = nothing_ + 1;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
      const std::string_view text = file_->pieces[static_cast<size_t>(order[i])].text;
      for (size_t at = unicode::char_bytes(text[0]); at < text.size(); at += unicode::char_bytes(text[at])) {
        const int32_t left = part_id(text.substr(0, at), &next);
        const int32_t right = left < 0 ? -1 : part_id(text.substr(at), &next);
        if (right >= 0) merges_.add(left, right, rank, order[i]);
      }
    }
  }

  // `refused`: what may not be, or null.
  template <class Sink>
  void encode(std::string_view text, const Refused* refused, Sink& sink) const {
    const auto accept = [&](const Range& range, int32_t symbol) {
      return refused == nullptr || !(*refused)(symbol, range.begin, range.end);
    };
    bool after_unknown = false;
    size_t done = 0;
    Range found;
    int32_t id = -1;
    while (!user_.empty() && user_.next(text, done, &found, &id, accept)) {
      encode_words(text, done, found.begin, refused, &after_unknown, sink);
      sink.put(id, found.begin, found.end);
      after_unknown = false;
      done = found.end;
    }
    encode_words(text, done, text.size(), refused, &after_unknown, sink);
  }

  template <class Sink>
  void encode_words(std::string_view text, size_t begin, size_t end, const Refused* refused,
                    bool* after_unknown, Sink& sink) const {
    while (begin < end) {
      size_t stop = end;
      if (cuts_) {
        size_t from = begin;
        while (text.substr(from, end - from).starts_with(kSpaceMarker)) from += kSpaceMarker.size();
        stop = std::min(text.find(kSpaceMarker, from), end);
      }
      const std::string_view word = text.substr(begin, stop - begin);
      if (refused != nullptr) {
        take_apart(word, begin, refused, after_unknown, sink);
      } else {
        encode_word(word, begin, after_unknown, sink);
      }
      begin = stop;
    }
  }

  template <class Sink>
  void encode_word(std::string_view word, size_t at, bool* after_unknown, Sink& sink) const {
    const int64_t entry = word.size() <= max_size_ ? symbols_.find_entry(word) : -1;
    const auto known = entry >= 0 ? marks_.get(entry) : WholeMarks::kParts;
    if (known == WholeMarks::kWhole) {
      sink.put(symbols_.entry(entry).id, at, at + word.size());
      *after_unknown = false;
      return;
    }
    thread_local std::vector<Symbol> symbols;
    spell(word, symbols);
    const size_t count = merge(merges_, symbols.data(), symbols.size());
    const auto unused = [this](const Symbol& s) { return s.id < nothing_ && type_of(s.id) == File::kUnused; };
    if (has_unused_ &&
        std::any_of(symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count), unused)) {
      take_apart(word, at, nullptr, after_unknown, sink);
      return;
    }
    for (size_t i = 0; i < count; ++i) emit(symbols[i], word, at, nullptr, after_unknown, sink);
    if (known == WholeMarks::kUnknown) {
      const bool whole = count == 1 && symbols[0].id < nothing_;
      marks_.set(entry, whole ? WholeMarks::kWhole : WholeMarks::kParts);
    }
    if (symbols.capacity() > (1 << 16)) std::vector<Symbol>().swap(symbols);
  }

  void spell(std::string_view word, std::vector<Symbol>& symbols) const {
    symbols.clear();
    for (size_t at = 0; at < word.size();) {
      const size_t n = unicode::char_bytes(word[at]);
      int32_t id = n == 1 ? ascii_[static_cast<unsigned char>(word[at])] : symbols_.find(word.substr(at, n));
      if (id < 0) id = nothing_;
      symbols.push_back({id, static_cast<uint32_t>(at), static_cast<uint32_t>(at + n)});
      at += n;
    }
  }

  template <class Sink>
  void emit(const Symbol& symbol, std::string_view word, size_t at, const Refused* refused,
            bool* after_unknown, Sink& sink) const {
    const size_t begin = at + symbol.begin, end = at + symbol.end;
    if (symbol.id < nothing_ && type_of(symbol.id) != File::kUnused) {
      sink.put(symbol.id, begin, end);
      *after_unknown = false;
      return;
    }
    const std::string_view text = word.substr(symbol.begin, symbol.end - symbol.begin);
    if (const int32_t id = vocab_.find(text); id >= 0 &&
                                              (type_of(id) == File::kControl || type_of(id) == File::kByte) &&
                                              (refused == nullptr || !(*refused)(id, begin, end))) {
      sink.put(id, begin, end);
      *after_unknown = false;
    } else if (file_->byte_fallback) {
      for (const char b : text) sink.put(byte_ids_[static_cast<unsigned char>(b)], begin, end);
    } else if (*after_unknown) {
      sink.extend(end);
    } else {
      sink.put(static_cast<int32_t>(file_->unk), begin, end);
      *after_unknown = true;
    }
  }

  // Unused pieces give way to the two parts that were last seen to make them; refused ones are not made.
  template <class Sink>
  void take_apart(std::string_view word, size_t at, const Refused* refused, bool* after_unknown,
                  Sink& sink) const {
    std::unordered_map<int32_t, std::pair<int32_t, int32_t>> parts;
    std::vector<Symbol> symbols;
    spell(word, symbols);
    const size_t count = merge_watched(
        merges_, symbols.data(), symbols.size(), [&](const Symbol& left, const Symbol& right, int32_t id) {
          if (refused != nullptr && (*refused)(id, at + left.begin, at + right.end)) return false;
          if (type_of(id) == File::kUnused) parts[id] = {left.id, right.id};
          return true;
        });
    std::vector<Symbol> stack;
    for (size_t i = 0; i < count; ++i) {
      stack.push_back(symbols[i]);
      while (!stack.empty()) {
        const Symbol top = stack.back();
        stack.pop_back();
        const auto split = parts.find(top.id);
        if (split == parts.end()) {
          emit(top, word, at, refused, after_unknown, sink);
          continue;
        }
        const auto [left, right] = split->second;
        const auto middle = top.begin + static_cast<uint32_t>(symbols_.text_of(left).size());
        stack.push_back({right, middle, top.end});
        stack.push_back({left, top.begin, middle});
      }
    }
  }

  std::shared_ptr<const File> file_;
  Vocab symbols_;  // what merging works on
  MergeTable merges_;
  TextMatcher user_;
  WholeMarks marks_;
  std::array<int32_t, 128> ascii_{};
  std::array<int32_t, 256> byte_ids_{};
  int32_t nothing_ = 0;
  size_t max_size_ = 0;
  bool has_unused_ = false, cuts_ = false;
};

}  // namespace

std::unique_ptr<const Model> make_sentencepiece_bpe(std::shared_ptr<const SentencePieceFile> file) {
  return std::make_unique<SentencePieceBpe>(std::move(file));
}

}  // namespace twinkle::tokenizer
