#include "twinkle/sample/kv_blocks.h"

#include <algorithm>
#include <functional>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

uint64_t key_of(uint64_t version, KvBlocks::Node parent, std::span<const int32_t> tokens) {
  uint64_t key = mix_key(version, parent);
  for (size_t i = 0; i < tokens.size(); i += 2) {
    const uint64_t low = static_cast<uint32_t>(tokens[i]),
                   high = i + 1 < tokens.size() ? static_cast<uint32_t>(tokens[i + 1]) : 0;
    key = mix_key(key, high << 32 | low);
  }
  return key;
}

}  // namespace

KvBlocks::KvBlocks(int64_t num_blocks)
    : blocks_(static_cast<size_t>(num_blocks)), tokens_(static_cast<size_t>(num_blocks * kTokens)) {
  for (int64_t i = 0; i < num_blocks; ++i) free_.push_back(static_cast<int32_t>(i));  // ascending is a heap
}

void KvBlocks::make_free(int32_t block) {
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

std::optional<int32_t> KvBlocks::allocate() {
  int32_t block;
  if (!free_.empty()) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    block = free_.back();
    free_.pop_back();
  } else if (!idle_.empty()) {
    block = idle_.front();
    idle_.pop_front();
    --idle_count_;
    ++evictions_;
    forget(block);
  } else {
    return std::nullopt;
  }
  at(block).references = 1;
  return block;
}

void KvBlocks::add_reference(int32_t block) {
  Block& b = at(block);
  if (b.references == 0) {
    TW_CHECK(b.node != 0, "only a cached block is used again");
    idle_.erase(b.idle);
    --idle_count_;
  }
  ++b.references;
}

void KvBlocks::release(int32_t block) {
  Block& b = at(block);
  TW_CHECK(b.references > 0, "block " + std::to_string(block) + " is not in use");
  if (--b.references > 0) return;
  if (b.node == 0) return make_free(block);
  b.idle = idle_.insert(idle_.end(), block);
  ++idle_count_;
}

void KvBlocks::release_all(std::vector<int32_t>& blocks) {
  for (size_t i = blocks.size(); i-- > 0;) release(blocks[i]);
  blocks.clear();
}

int32_t KvBlocks::find(uint64_t version, Node parent, uint64_t key, std::span<const int32_t> tokens) {
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const Block& b = at(it->second);
    if (b.version == version && b.parent == parent && std::ranges::equal(tokens_of(it->second), tokens))
      return it->second;
  }
  return -1;
}

KvBlocks::Match KvBlocks::match(uint64_t version, std::span<const int32_t> tokens, int64_t max_tokens,
                                Node root) {
  Match out{.node = root};
  ++lookups_;
  const int64_t most = std::min(static_cast<int64_t>(tokens.size()), max_tokens);
  for (int64_t begin = 0; begin + kTokens <= most; begin += kTokens) {
    const auto piece = tokens.subspan(static_cast<size_t>(begin), kTokens);
    const int32_t block = find(version, out.node, key_of(version, out.node, piece), piece);
    if (block < 0) break;
    add_reference(block);
    out.blocks.push_back(block);
    out.node = at(block).node;
    hit_tokens_ += kTokens;
  }
  return out;
}

KvBlocks::Node KvBlocks::commit(int32_t& block, uint64_t version, Node parent,
                                std::span<const int32_t> tokens) {
  TW_CHECK(tokens.size() == kTokens, "only whole blocks are cached");
  const uint64_t key = key_of(version, parent, tokens);
  if (const int32_t found = find(version, parent, key, tokens); found >= 0) {
    if (found != block) {
      add_reference(found);
      release(block);
      block = found;
    }
    return at(found).node;
  }
  Block& b = at(block);
  TW_CHECK(b.node == 0, "a block is cached once");
  b.node = next_node_++;
  b.parent = parent;
  b.version = version;
  b.key = key;
  std::ranges::copy(tokens, tokens_of(block).begin());
  by_key_.emplace(key, block);
  return b.node;
}

void KvBlocks::forget(int32_t block) {
  Block& b = at(block);
  const auto [begin, end] = by_key_.equal_range(b.key);
  for (auto it = begin; it != end; ++it) {
    if (it->second == block) {
      by_key_.erase(it);
      break;
    }
  }
  b.node = 0;
}

void KvBlocks::forget_and_free(int32_t block) {
  forget(block);
  if (at(block).references > 0) return;
  idle_.erase(at(block).idle);
  --idle_count_;
  make_free(block);
}

void KvBlocks::forget_version(uint64_t version) {
  for (int32_t i = 0; i < static_cast<int32_t>(blocks_.size()); ++i) {
    if (at(i).node != 0 && at(i).version == version) forget_and_free(i);
  }
}

void KvBlocks::forget_all() {
  for (int32_t i = 0; i < static_cast<int32_t>(blocks_.size()); ++i) {
    if (at(i).node != 0) forget_and_free(i);
  }
}

KvBlocks::Counters KvBlocks::counters() const {
  Counters c;
  c.total = static_cast<int64_t>(blocks_.size());
  c.free = static_cast<int64_t>(free_.size());
  c.cached = idle_count_;
  c.used = c.total - c.free - c.cached;
  c.lookups = lookups_;
  c.hit_tokens = hit_tokens_;
  c.evictions = evictions_;
  return c;
}

}  // namespace twinkle
