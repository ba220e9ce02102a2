// Byte-pair merging: always the pair of lowest rank, the leftmost of equals. Short words by search, long ones
// with a heap in O(n log n). Immutable but for marks that remember
// results: safe from many threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace twinkle::tokenizer {

class MergeTable {
 public:
  struct Result {
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void reserve(size_t count);
  /// The last of two equal pairs wins.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t id);
  /// rank kNone when the pair does not merge.
  Result find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {kNone, -1};
    const uint64_t key = key_of(left, right);
    for (size_t at = hash(key) & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return {slot.rank, slot.id};
      if (slot.key == kEmpty) return {kNone, -1};
    }
  }
  size_t size() const { return size_; }
  template <class Fn>
  void each(Fn fn) const {
    for (const Slot& s : slots_) {
      if (s.key != kEmpty)
        fn(static_cast<int32_t>(s.key >> 32), static_cast<int32_t>(s.key & 0xFFFFFFFF), s.rank, s.id);
    }
  }

 private:
  struct Slot {
    uint64_t key;
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15ULL;
    return key ^ key >> 29;
  }
  void grow(size_t slots);
  void place(const Slot& slot);

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

/// An id and the bytes of the word that it covers.
struct Symbol {
  int32_t id;
  uint32_t begin, end;
};

/// Frees what a long input left in a buffer that its thread keeps.
template <class T>
void trim_buffer(std::vector<T>& buffer) {
  if (buffer.capacity() > (1 << 16)) std::vector<T>().swap(buffer);
}

/// Merges in place; returns how many symbols are left.
size_t merge(const MergeTable& table, Symbol* symbols, size_t count);
/// The same, asking of every pair of neighbours that could merge to an id whether it may.
using MergeWatcher = std::function<bool(const Symbol& left, const Symbol& right, int32_t id)>;
size_t merge_watched(const MergeTable& table, Symbol* symbols, size_t count, const MergeWatcher& may_merge);

// What is known of a text that is in the vocabulary: whether merging its characters gives that one token.
// Most words of real text do, so the vocabulary itself is the cache; a race only repeats work.
class WholeMarks {
 public:
  enum State : uint8_t { kUnknown, kWhole, kParts };
  void resize(size_t count) { marks_ = std::make_unique<std::atomic<uint8_t>[]>(count); }
  State get(int64_t entry) const {
    return static_cast<State>(marks_[static_cast<size_t>(entry)].load(std::memory_order_relaxed));
  }
  void set(int64_t entry, State state) const {
    marks_[static_cast<size_t>(entry)].store(state, std::memory_order_relaxed);
  }

 private:
  std::unique_ptr<std::atomic<uint8_t>[]> marks_;
};

}  // namespace twinkle::tokenizer
