// What both unigram models share: their pieces as a trie over bytes, and the path of highest total score
// through a text (Viterbi). Immutable once the pieces are in; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/text/tokenizer_bpe.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {

class PieceTrie {
 public:
  void add(std::string_view text, int32_t id) {
    int32_t state = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t to = next(state, byte);
      if (to < 0) {
        to = static_cast<int32_t>(ends_.size());
        ends_.push_back(-1);
        table_.add(state, byte, 0, to);
      }
      state = to;
    }
    ends_[static_cast<size_t>(state)] = id;
  }
  /// The state after one more byte, from 0 on; -1 where no piece goes on so.
  int32_t next(int32_t state, unsigned char byte) const { return table_.find(state, byte).id; }
  /// The piece that ends in a state, or -1.
  int32_t piece(int32_t state) const { return ends_[static_cast<size_t>(state)]; }

 private:
  MergeTable table_;  // (state, byte) -> state
  std::vector<int32_t> ends_ = {-1};
};

/// The last step of the best path to one place of the text.
template <class Score>
struct Step {
  Score score = 0;
  uint32_t start = UINT32_MAX;
  int32_t id = -1;
};

/// Steps by the place where they end, to be followed back from the end of the text, into `best`. Sums are in
/// the precision of Score, and the first of equal paths stays. score_of(id, bytes) is that of a piece;
/// unknown() gives the score and id of a character that is no piece, and may throw; refused(id, begin, end)
/// leaves a piece out.
template <class Score, class ScoreOf, class Unknown, class Refuse>
void best_steps(const PieceTrie& trie, std::string_view text, const ScoreOf& score_of, const Unknown& unknown,
                const Refuse& refused, std::vector<Step<Score>>& best) {
  best.assign(text.size() + 1, {});
  for (size_t at = 0; at < text.size();) {
    const Score here = best[at].score;
    const size_t one = unicode::char_bytes(text[at]);
    const auto offer = [&](size_t end, Score score, int32_t id) {
      Step<Score>& step = best[end];
      if (step.start == UINT32_MAX || score > step.score) step = {score, static_cast<uint32_t>(at), id};
    };
    bool single = false;
    int32_t state = 0;
    for (size_t end = at; end < text.size();) {
      state = trie.next(state, static_cast<unsigned char>(text[end]));
      ++end;
      if (state < 0) break;
      const int32_t id = trie.piece(state);
      if (id < 0 || refused(id, at, end)) continue;
      const Score score = score_of(id, end - at);
      offer(end, score + here, id);
      single = single || end - at == one;
    }
    if (!single) {
      const std::pair<Score, int32_t> other = unknown();
      offer(at + one, other.first + here, other.second);
    }
    at += one;
  }
}

}  // namespace twinkle::tokenizer
