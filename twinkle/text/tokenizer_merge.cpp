#include <queue>

#include "twinkle/text/tokenizer_bpe.h"

namespace twinkle::tokenizer {

void MergeTable::grow(size_t slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, {kEmpty, kNone, -1});
  mask_ = slots - 1;
  for (const Slot& s : old) {
    if (s.key != kEmpty) place(s);
  }
}

void MergeTable::place(const Slot& slot) {
  size_t at = hash(slot.key) & mask_;
  while (slots_[at].key != kEmpty && slots_[at].key != slot.key) at = (at + 1) & mask_;
  if (slots_[at].key == kEmpty) ++size_;
  slots_[at] = slot;
}

void MergeTable::reserve(size_t count) {
  size_t slots = 16;
  while (slots < 2 * count) slots *= 2;
  if (slots > slots_.size()) {
    size_ = 0;
    grow(slots);
  }
}

void MergeTable::add(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  if (2 * (size_ + 1) > slots_.size()) {
    const size_t slots = slots_.empty() ? 16 : 2 * slots_.size();
    size_ = 0;
    grow(slots);
  }
  place({key_of(left, right), rank, id});
}

namespace {

constexpr size_t kShort = 64;

size_t merge_short(const MergeTable& table, Symbol* symbols, size_t count) {
  MergeTable::Result pairs[kShort];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = table.find(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    uint32_t best = MergeTable::kNone;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i].rank < best) {
        best = pairs[i].rank;
        at = i;
      }
    }
    if (best == MergeTable::kNone) break;
    symbols[at].id = pairs[at].id;
    symbols[at].end = symbols[at + 1].end;
    --count;
    for (size_t i = at + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = at + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (at > 0) pairs[at - 1] = table.find(symbols[at - 1].id, symbols[at].id);
    if (at + 1 < count) pairs[at] = table.find(symbols[at].id, symbols[at + 1].id);
  }
  return count;
}

struct Candidate {
  uint32_t rank;
  uint32_t at;
  int32_t left, right;
};
struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

template <class MayMerge>
size_t merge_long(const MergeTable& table, Symbol* symbols, size_t count, const MayMerge& may_merge) {
  constexpr uint32_t kEnd = UINT32_MAX;
  std::vector<uint32_t> next(count), previous(count);
  std::vector<Candidate> heap;
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i == 0 ? kEnd : i - 1;
    if (i + 1 < count) {
      const auto found = table.find(symbols[i].id, symbols[i + 1].id);
      if (found.rank == MergeTable::kNone || !may_merge(symbols[i], symbols[i + 1], found.id)) continue;
      heap.push_back({found.rank, i, symbols[i].id, symbols[i + 1].id});
    }
  }
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue(Later(), std::move(heap));
  std::vector<bool> dead(count);
  const auto offer = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd) return;
    const auto found = table.find(symbols[left].id, symbols[right].id);
    if (found.rank == MergeTable::kNone || !may_merge(symbols[left], symbols[right], found.id)) return;
    queue.push({found.rank, left, symbols[left].id, symbols[right].id});
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    if (dead[top.at] || symbols[top.at].id != top.left) continue;
    const uint32_t right = next[top.at];
    if (right == kEnd || symbols[right].id != top.right) continue;
    symbols[top.at].id = table.find(top.left, top.right).id;
    symbols[top.at].end = symbols[right].end;
    dead[right] = true;
    next[top.at] = next[right];
    if (next[right] != kEnd) previous[next[right]] = top.at;
    offer(previous[top.at], top.at);
    offer(top.at, next[top.at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i != kEnd; i = next[i]) symbols[kept++] = symbols[i];
  return kept;
}

}  // namespace

size_t merge(const MergeTable& table, Symbol* symbols, size_t count) {
  if (count < 2) return count;
  return count <= kShort
             ? merge_short(table, symbols, count)
             : merge_long(table, symbols, count, [](const Symbol&, const Symbol&, int32_t) { return true; });
}

size_t merge_watched(const MergeTable& table, Symbol* symbols, size_t count, const MergeWatcher& may_merge) {
  return count < 2 ? count : merge_long(table, symbols, count, may_merge);
}

}  // namespace twinkle::tokenizer
