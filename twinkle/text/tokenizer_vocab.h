// Strings to ids and back. Filled while loading, then read from many threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::tokenizer {

/// Ids are bounded so that a file cannot claim a table of any size.
constexpr int32_t kMaxId = (1 << 23) - 1;

class Vocab {
 public:
  struct Entry {
    uint32_t offset;
    uint32_t size;
    int32_t id;
  };

  void reserve(size_t count, size_t bytes);
  /// The last of two equal texts wins, as does the last text of two equal ids.
  void add(std::string_view text, int32_t id);

  int32_t find(std::string_view text) const {  // -1: none
    const int64_t at = find_entry(text);
    return at < 0 ? -1 : entries_[static_cast<size_t>(at)].id;
  }
  int64_t find_entry(std::string_view text) const { return find_entry(text, hash(text)); }
  int64_t find_entry(std::string_view text, uint64_t hash) const;  // index of the entry, or -1
  static uint64_t hash(std::string_view text);
  const Entry& entry(int64_t index) const { return entries_[static_cast<size_t>(index)]; }
  std::string_view text(const Entry& e) const { return std::string_view(pool_).substr(e.offset, e.size); }
  /// Index of the entry of an id, or -1.
  int32_t entry_of(int32_t id) const {
    return id < 0 || static_cast<size_t>(id) >= by_id_.size() ? -1 : by_id_[static_cast<size_t>(id)];
  }
  bool has(int32_t id) const { return entry_of(id) >= 0; }
  std::string_view text_of(int32_t id) const;  // "" when there is none

  size_t size() const { return entries_.size(); }
  int32_t end_id() const { return static_cast<int32_t>(by_id_.size()); }  // highest id + 1
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void grow(size_t slots);

  std::string pool_;
  std::vector<Entry> entries_;
  std::vector<int32_t> by_id_;
  struct Slot {
    uint32_t tag;
    int32_t entry;
  };
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace twinkle::tokenizer
