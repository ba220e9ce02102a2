// SentencePiece's charsmap: a double-array trie from a few characters to their replacement. The trie's bounds
// are checked at every step, so that a damaged one cannot lead out of it. Immutable: safe from many threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::tokenizer {

class Charsmap {
 public:
  Charsmap() = default;
  /// invalid_argument "path: ..." when the bytes are none.
  Charsmap(const std::string& blob, const std::string& path);

  bool empty() const { return units_.empty(); }
  /// The replacement of the shortest prefix that has one: what Hugging Face tokenizers takes.
  std::optional<std::string_view> shortest(std::string_view key) const;
  /// The longest prefix that has a replacement, as SentencePiece takes it; its size, or 0.
  size_t longest(std::string_view text, std::string_view* replacement) const;

 private:
  std::optional<std::string_view> text_at(size_t leaf) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace twinkle::tokenizer
