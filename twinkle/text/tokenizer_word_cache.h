// Ids of words: those whose one token is the whole word, and of the others those that a thread met last. What
// is no token as a whole is merged or searched anew each time it comes, and in real text the same words come
// again and again.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "twinkle/text/tokenizer_bpe.h"
#include "twinkle/text/tokenizer_vocab.h"

namespace twinkle::tokenizer {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxIds = 12;

  /// The cache of the calling thread, which all tokenizers share; 640 KiB once it is used.
  static WordCache& of_thread() {
    thread_local WordCache cache;
    return cache;
  }
  /// A number of its own for each way of reading words.
  static uint32_t new_owner() {
    static std::atomic<uint32_t> last = 0;
    return ++last;
  }

  /// Appends the word's ids, if they are known. `hash` is the word's.
  bool get(uint32_t owner, uint64_t hash, std::string_view word, std::vector<int32_t>& out) const {
    if (slots_ == nullptr || word.size() > kMaxBytes) return false;
    const Slot& slot = slots_[hash % kSlots];
    if (slot.owner != owner || slot.size != word.size() ||
        std::memcmp(slot.text, word.data(), word.size()) != 0)
      return false;
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return true;
  }
  template <class Token>  // with a member `id`
  void put(uint32_t owner, uint64_t hash, std::string_view word, const Token* tokens, size_t count) {
    if (word.size() > kMaxBytes || count > kMaxIds) return;
    if (slots_ == nullptr) slots_ = std::make_unique<Slot[]>(kSlots);
    Slot& slot = slots_[hash % kSlots];
    slot.owner = owner;
    slot.size = static_cast<uint16_t>(word.size());
    slot.count = static_cast<uint16_t>(count);
    std::memcpy(slot.text, word.data(), word.size());
    for (size_t i = 0; i < count; ++i) slot.ids[i] = tokens[i].id;
  }

 private:
  static constexpr size_t kSlots = 8192;
  struct Slot {
    uint32_t owner = 0;  // 0: nobody's
    uint16_t size = 0, count = 0;
    char text[kMaxBytes];
    int32_t ids[kMaxIds];
  };

  std::unique_ptr<Slot[]> slots_;
};

/// Appends the ids of a word. `split` gives its tokens (with a member `id`) where they are not remembered;
/// what it gives depends on the word alone. Words of more than `max_size` bytes are not in `vocab`.
template <class Token, class Split>
void ids_of_word(std::string_view word, const Vocab& vocab, const WholeMarks& marks, size_t max_size,
                 uint32_t owner, const Split& split, std::vector<int32_t>& out) {
  const uint64_t hash = Vocab::hash(word);
  const int64_t entry = word.size() <= max_size ? vocab.find_entry(word, hash) : -1;
  const auto known = entry >= 0 ? marks.get(entry) : WholeMarks::kParts;
  if (known == WholeMarks::kWhole) {
    out.push_back(vocab.entry(entry).id);
    return;
  }
  WordCache& cache = WordCache::of_thread();
  if (cache.get(owner, hash, word, out)) return;
  thread_local std::vector<Token> tokens;
  tokens.clear();
  split(word, tokens);
  for (const Token& t : tokens) out.push_back(t.id);
  const bool whole = entry >= 0 && tokens.size() == 1 && tokens[0].id == vocab.entry(entry).id;
  if (known == WholeMarks::kUnknown) marks.set(entry, whole ? WholeMarks::kWhole : WholeMarks::kParts);
  if (!whole) cache.put(owner, hash, word, tokens.data(), tokens.size());
  trim_buffer(tokens);
}

}  // namespace twinkle::tokenizer
