// Added tokens: finding them in a text, with their flags. Immutable after build: safe from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "twinkle/core/json.h"
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

/// Finds the longest of several texts at the leftmost place.
class TextMatcher {
 public:
  void add(std::string_view text, int32_t value);
  bool empty() const { return ends_.size() <= 1; }
  /// The next match at or after `from`; false when there is none.
  bool next(std::string_view text, size_t from, Range* range, int32_t* value) const;

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
  void cut(std::string_view text, bool normalized, bool parse_special, std::vector<Part>& out) const;
  bool any(bool normalized) const { return !(normalized ? normalized_ : raw_).empty(); }

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
};

std::vector<AddedToken> parse_added_tokens(const Json& value, const std::string& path);

}  // namespace twinkle::tokenizer
