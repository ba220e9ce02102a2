#include "twinkle/text/tokenizer_added.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {

void TextMatcher::add(std::string_view text, int32_t value) {
  if (text.empty()) return;
  first_[static_cast<unsigned char>(text[0])] = true;
  int32_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = edges_.find(state, byte).id;
    if (next < 0) {
      next = static_cast<int32_t>(ends_.size());
      ends_.push_back(-1);
      edges_.add(state, byte, 0, next);
    }
    state = next;
  }
  ends_[static_cast<size_t>(state)] = value;
}

bool SpecialRule::touches(std::string_view text, Range range, const Place& place) const {
  const Range whole = range;
  const auto part = [&] { return text.substr(range.begin, range.end - range.begin); };
  const auto size_if = [](bool blank, bool marker) { return blank ? 1 : marker ? kSpaceMarker.size() : 0; };
  while (const size_t n = size_if(part().starts_with(' '), part().starts_with(kSpaceMarker)))
    range.begin += n;
  while (const size_t n = size_if(part().ends_with(' '), part().ends_with(kSpaceMarker))) range.end -= n;
  if (range.begin == range.end) range = whole;
  const auto [begin, end] = place.of(range);
  const auto at = std::partition_point(literal.begin(), literal.end(),
                                       [begin = begin](const TextSpan& span) { return span.end <= begin; });
  return at != literal.end() && at->begin < end;
}

void AddedTokens::build(std::vector<AddedToken> tokens, const Model& model, const Normalizer* normalizer) {
  const int64_t count = model.vocab_count();
  int64_t next_id = count;
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto known = by_content_.find(token.content);
    if (known != by_content_.end()) {
      token.id = tokens_[known->second].id;
      token.special = token.special || tokens_[known->second].special;
      tokens_[known->second] = token;
      continue;
    }
    token.id = model.vocab().find(token.content);
    if (token.id < 0) {
      if (next_id > kMaxId) throw invalid_argument("[tokenizer] too many added tokens");
      token.id = static_cast<int32_t>(next_id++);
    }
    by_content_.emplace(token.content, tokens_.size());
    by_id_[token.id] = tokens_.size();
    end_id_ = std::max(end_id_, token.id + 1);
    tokens_.push_back(std::move(token));
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    normalizes_special_ = normalizes_special_ || (token.normalized && token.special);
    if (!token.normalized) {
      raw_.add(token.content, static_cast<int32_t>(i));
    } else if (normalizer == nullptr) {
      normalized_.add(token.content, static_cast<int32_t>(i));
    } else {
      TrackedText text(token.content, 0, false);
      normalizer->apply(text);
      normalized_.add(text.bytes(), static_cast<int32_t>(i));
    }
  }
}

void AddedTokens::cut(std::string_view text, const Place& place, bool normalized, const SpecialRule& rule,
                      std::vector<Part>& out) const {
  const TextMatcher& matcher = normalized ? normalized_ : raw_;
  const auto known = [&](const Range& range, int32_t i) {
    return rule.literal.empty() || !tokens_[static_cast<size_t>(i)].special ||
           !rule.touches(text, range, place);
  };
  size_t done = 0, from = 0;
  Range match;
  int32_t index = -1;
  while (!matcher.empty() && matcher.next(text, from, &match, &index, known)) {
    from = match.end;
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (rule.none && token.special) continue;
    size_t begin = match.begin, end = match.end;
    if (token.single_word) {
      const bool left = begin > 0 && unicode::is_word(unicode::char_at(text, unicode::previous(text, begin)));
      const bool right = end < text.size() && unicode::is_word(unicode::char_at(text, end));
      if (left || right) continue;
    }
    if (token.lstrip) {
      while (begin > done) {
        const size_t before = unicode::previous(text, begin);
        if (!unicode::is_space(unicode::char_at(text, before))) break;
        begin = before;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size() && unicode::is_space(unicode::char_at(text, end)))
        end += unicode::char_bytes(text[end]);
    }
    if (done < begin) out.push_back({{done, begin}, -1});
    out.push_back({{begin, end}, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, -1});
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

int32_t AddedTokens::find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? -1 : tokens_[it->second].id;
}

bool AddedTokens::is_special(int32_t id) const {
  const AddedToken* token = by_id(id);
  return token != nullptr && token->special;
}

Json AddedTokens::to_json() const {
  std::vector<const AddedToken*> order;
  for (const AddedToken& token : tokens_) order.push_back(&token);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  Json list = Json::array();
  for (const AddedToken* t : order) {
    list.push_back({{"id", t->id},
                    {"content", t->content},
                    {"single_word", t->single_word},
                    {"lstrip", t->lstrip},
                    {"rstrip", t->rstrip},
                    {"normalized", t->normalized},
                    {"special", t->special}});
  }
  return list;
}

std::vector<AddedToken> parse_added_tokens(const Json& value, const std::string& path) {
  std::vector<AddedToken> tokens;
  if (value.is_null()) return tokens;
  if (!value.is_array())
    throw invalid_argument(path + ": needs a list, got " + std::string(json_type_name(value)));
  size_t i = 0;
  for (const Json& item : value) {
    Fields fields(item, path + "[" + std::to_string(i++) + "]");
    AddedToken token;
    token.content = fields.string("content");
    token.id = static_cast<int32_t>(fields.integer("id", 0, kMaxId));
    token.special = fields.boolean_or("special", false);
    token.single_word = fields.boolean_or("single_word", false);
    token.lstrip = fields.boolean_or("lstrip", false);
    token.rstrip = fields.boolean_or("rstrip", false);
    token.normalized = fields.boolean_or("normalized", !token.special);
    fields.done();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace twinkle::tokenizer
