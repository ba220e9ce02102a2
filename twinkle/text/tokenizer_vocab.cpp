#include "twinkle/text/tokenizer_vocab.h"

#include <cstring>

#include "twinkle/core/error.h"

namespace twinkle::tokenizer {
namespace {

uint64_t load(const char* p, size_t n) {
  uint64_t value = 0;
  std::memcpy(&value, p, n);
  return value;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t Vocab::hash(std::string_view text) {
  constexpr uint64_t kA = 0xA0761D6478BD642FULL, kB = 0xE7037ED1A0B428DBULL;
  const char* p = text.data();
  size_t n = text.size();
  uint64_t h = kA ^ n;
  for (; n > 16; p += 16, n -= 16) h = mix(load(p, 8) ^ kA, load(p + 8, 8) ^ h);
  if (n >= 8) return mix(load(p, 8) ^ kB, load(p + n - 8, 8) ^ h);
  if (n >= 4) return mix(load(p, 4) ^ kB, load(p + n - 4, 4) ^ h);
  if (n > 0) return mix((load(p, 1) << 16 | load(p + n / 2, 1) << 8 | load(p + n - 1, 1)) ^ kB, h ^ kA);
  return mix(h, kB);
}

void Vocab::grow(size_t slots) {
  slots_.assign(slots, {0, -1});
  mask_ = slots - 1;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const uint64_t h = hash(text(entries_[i]));
    size_t at = h & mask_;
    while (slots_[at].entry >= 0) at = (at + 1) & mask_;
    slots_[at] = {static_cast<uint32_t>(h >> 32), static_cast<int32_t>(i)};
  }
}

void Vocab::reserve(size_t count, size_t bytes) {
  pool_.reserve(bytes);
  entries_.reserve(count);
  size_t slots = 16;
  while (slots < 2 * count) slots *= 2;
  if (slots > slots_.size()) grow(slots);
}

void Vocab::add(std::string_view text, int32_t id) {
  TW_CHECK(id >= 0 && id <= kMaxId, "id is checked by the caller");
  if (pool_.size() + text.size() > UINT32_MAX)
    throw invalid_argument("[tokenizer] the vocabulary is larger than 4 GiB");
  if (2 * (entries_.size() + 1) > slots_.size()) grow(slots_.empty() ? 16 : 2 * slots_.size());
  int64_t index = find_entry(text);
  if (index < 0) {
    index = static_cast<int64_t>(entries_.size());
    entries_.push_back({static_cast<uint32_t>(pool_.size()), static_cast<uint32_t>(text.size()), id});
    pool_ += text;
    const uint64_t h = hash(text);
    size_t at = h & mask_;
    while (slots_[at].entry >= 0) at = (at + 1) & mask_;
    slots_[at] = {static_cast<uint32_t>(h >> 32), static_cast<int32_t>(index)};
  } else {
    Entry& old = entries_[static_cast<size_t>(index)];
    if (by_id_[static_cast<size_t>(old.id)] == index) by_id_[static_cast<size_t>(old.id)] = -1;
    old.id = id;
  }
  if (static_cast<size_t>(id) >= by_id_.size()) by_id_.resize(static_cast<size_t>(id) + 1, -1);
  by_id_[static_cast<size_t>(id)] = static_cast<int32_t>(index);
}

int64_t Vocab::find_entry(std::string_view text, uint64_t h) const {
  if (slots_.empty()) return -1;
  const auto tag = static_cast<uint32_t>(h >> 32);
  for (size_t at = h & mask_; slots_[at].entry >= 0; at = (at + 1) & mask_) {
    if (slots_[at].tag != tag) continue;
    const Entry& e = entries_[static_cast<size_t>(slots_[at].entry)];
    if (e.size == text.size() && std::memcmp(pool_.data() + e.offset, text.data(), e.size) == 0)
      return slots_[at].entry;
  }
  return -1;
}

std::string_view Vocab::text_of(int32_t id) const {
  const int32_t index = entry_of(id);
  return index < 0 ? std::string_view() : text(entries_[static_cast<size_t>(index)]);
}

}  // namespace twinkle::tokenizer
