// Added tokens: finding them in a text, with their flags. Immutable after build: safe from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/text_span.h"
#include "twinkle/text/tokenizer_bpe.h"
#include "twinkle/text/tokenizer_model.h"
#include "twinkle/text/tokenizer_normalizer.h"
#include "twinkle/text/tokenizer_text.h"

namespace twinkle::tokenizer {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = false;
};

/// Where the bytes of a text stand in the input: what was tracked, else from `start` on, one by one.
struct Place {
  const TrackedText* tracked = nullptr;
  size_t start = 0;
  std::pair<int64_t, int64_t> of(Range range) const {
    if (tracked != nullptr) return tracked->origin(range.begin, range.end);
    return {static_cast<int64_t>(start + range.begin), static_cast<int64_t>(start + range.end)};
  }
};

/// Which special tokens of a text count.
struct SpecialRule {
  bool none = false;                  // true: none is cut out
  std::span<const TextSpan> literal;  // ascending ranges of the input: none that takes in a byte of them
  /// Whether part of a text, but for blanks at its ends, comes from those ranges.
  bool touches(std::string_view text, Range range, const Place& place) const;
};

/// Finds the longest of several texts at the leftmost place.
class TextMatcher {
 public:
  void add(std::string_view text, int32_t value);
  bool empty() const { return ends_.size() <= 1; }
  /// The next match at or after `from`; false when there is none.
  bool next(std::string_view text, size_t from, Range* range, int32_t* value) const {
    return next(text, from, range, value, [](const Range&, int32_t) { return true; });
  }
  /// The same among those that accept(range, value) says yes to.
  template <class Accept>
  bool next(std::string_view text, size_t from, Range* range, int32_t* value, const Accept& accept) const {
    for (size_t at = from; at < text.size(); ++at) {
      if (!first_[static_cast<unsigned char>(text[at])]) continue;
      int32_t state = 0;
      size_t found = 0;
      for (size_t i = at; i < text.size(); ++i) {
        state = edges_.find(state, static_cast<unsigned char>(text[i])).id;
        if (state < 0) break;
        const int32_t end = ends_[static_cast<size_t>(state)];
        if (end >= 0 && accept(Range{at, i + 1}, end)) {
          found = i + 1;
          *value = end;
        }
      }
      if (found != 0) {
        *range = {at, found};
        return true;
      }
    }
    return false;
  }

 private:
  MergeTable edges_;  // (state, byte) -> state
  std::vector<int32_t> ends_ = {-1};
  bool first_[256] = {};
};

class AddedTokens {
 public:
  struct Part {
    Range range;
    int32_t id;  // -1: text
  };

  /// Gives each token its id: the vocabulary's when its text is there, else the next free one, as the package
  /// does.
  void build(std::vector<AddedToken> tokens, const Model& model, const Normalizer* normalizer);

  /// Cuts a text at the tokens that match before normalisation (or, `normalized`, at those that match after).
  void cut(std::string_view text, const Place& place, bool normalized, const SpecialRule& rule,
           std::vector<Part>& out) const;
  bool any(bool normalized) const { return !(normalized ? normalized_ : raw_).empty(); }
  /// Whether special tokens are among those that match after normalisation.
  bool normalizes_special() const { return normalizes_special_; }

  const AddedToken* by_id(int32_t id) const;
  int32_t find(std::string_view content) const;  // -1: none
  bool is_special(int32_t id) const;
  int32_t end_id() const { return end_id_; }
  Json to_json() const;

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TextMatcher raw_, normalized_;  // values: indices of tokens_
  int32_t end_id_ = 0;
  bool normalizes_special_ = false;
};

std::vector<AddedToken> parse_added_tokens(const Json& value, const std::string& path);

}  // namespace twinkle::tokenizer
