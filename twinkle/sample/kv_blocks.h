// Which blocks of the key/value cache hold what: a free list, reference counts, and a prefix cache of whole
// blocks. A cached block is found again by its weights' version and all tokens up to its end: entries form a
// tree, each naming its parent entry and its own tokens, both compared in full, so two different prefixes
// never share a block, whatever their hashes. Blocks that nobody uses stay cached until their room is needed,
// the least recently used first. Numbers only, no tensors. Not thread-safe: the engine's thread owns it.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace twinkle {

class KvBlocks {
 public:
  static constexpr int64_t kTokens = 64;  // positions of a block, ops::kAttentionBlock

  explicit KvBlocks(int64_t num_blocks);

  /// A block with one reference, whatever it held; nothing when all are in use. Low numbers first.
  std::optional<int32_t> allocate();
  void add_reference(int32_t block);
  /// Drops one reference. The last one of a cached block leaves it to be found again.
  void release(int32_t block);
  /// Drops the references of a sequence's blocks from the end, so that its beginning is kept longest.
  void release_all(std::vector<int32_t>& blocks);

  /// Where a prefix stands in its version's tree of cached prefixes; 0: at the root, before any token.
  using Node = uint64_t;
  /// The root of a tree of its own: what is cached below it is not found from another root.
  Node new_root() { return next_node_++; }
  struct Match {
    std::vector<int32_t> blocks;  // a reference was taken on each
    Node node = 0;                // of the last one, or the root
  };
  /// The longest prefix of `tokens` that is cached below `root` in whole blocks, at most `max_tokens` tokens
  /// of it.
  Match match(uint64_t version, std::span<const int32_t> tokens, int64_t max_tokens, Node root = 0);
  /// Makes a full block findable below `parent`; returns its node. When the same prefix is cached already,
  /// `block` becomes that block (same bits) and the caller's is released.
  Node commit(int32_t& block, uint64_t version, Node parent, std::span<const int32_t> tokens);

  /// Forgets what is cached for a version, or for all; blocks in use stay with their sequences.
  void forget_version(uint64_t version);
  void forget_all();

  struct Counters {
    int64_t total = 0, free = 0, cached = 0, used = 0;  // free + cached (unused, findable) + used = total
    int64_t lookups = 0, hit_tokens = 0, evictions = 0;
  };
  Counters counters() const;
  /// Blocks that allocate() could still give.
  int64_t available() const { return static_cast<int64_t>(free_.size()) + idle_count_; }

 private:
  struct Block {
    int32_t references = 0;
    Node node = 0, parent = 0;  // node 0: not cached
    uint64_t version = 0, key = 0;
    std::list<int32_t>::iterator idle;  // place among idle_ while cached and unused
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  std::span<int32_t> tokens_of(int32_t block) {
    return std::span(tokens_).subspan(static_cast<size_t>(block * kTokens), kTokens);
  }
  int32_t find(uint64_t version, Node parent, uint64_t key, std::span<const int32_t> tokens);
  void forget(int32_t block);
  void forget_and_free(int32_t block);
  void make_free(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> tokens_;  // of cached blocks, kTokens each
  std::vector<int32_t> free_;    // a heap, lowest number on top
  std::list<int32_t> idle_;      // cached and unused, least recently used first
  int64_t idle_count_ = 0;
  std::unordered_multimap<uint64_t, int32_t> by_key_;
  Node next_node_ = 1;
  int64_t lookups_ = 0, hit_tokens_ = 0, evictions_ = 0;
};

}  // namespace twinkle
