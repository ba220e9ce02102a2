// Text on its way through a tokenizer: the bytes by now, and for each byte the part of the input it came
// from. Without tracking only the bytes are kept. A value type; no locks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinkle::tokenizer {

struct Range {
  size_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

/// The part of the input a byte came from. 32 bits: an input with offsets is limited to 4 GiB.
struct Origin {
  uint32_t begin = 0, end = 0;
};

class TrackedText {
 public:
  TrackedText() = default;
  /// The part of the input that starts at `origin`; each byte comes from its whole character.
  TrackedText(std::string_view text, size_t origin, bool tracked);

  const std::string& bytes() const { return bytes_; }
  bool tracked() const { return tracked_; }
  /// Where this text starts in the input (exact only when tracked, else where the first piece started).
  size_t origin_begin() const { return tracked_ && !origins_.empty() ? origins_.front().begin : start_; }
  /// The part of the input that bytes [begin, end) came from.
  std::pair<int64_t, int64_t> origin(size_t begin, size_t end) const;

  TrackedText slice(size_t begin, size_t end) const;
  /// Puts `text` in front; it comes from where the first character comes from. Nothing happens to an empty
  /// text.
  void prepend(std::string_view text);

 private:
  friend class Rewriter;
  std::string bytes_;
  std::vector<Origin> origins_;
  size_t start_ = 0;
  size_t budget_ = 0;  // bytes this text may grow to
  bool tracked_ = false;
};

/// Writes a new text from an old one, left to right; exhausted when the text grows beyond 64 times its input
/// (a chain of replacements can grow without end). `source` is a byte of the old text.
class Rewriter {
 public:
  explicit Rewriter(const TrackedText& from);
  void keep(size_t begin, size_t end);                             // old bytes as they are
  void put(std::string_view text, size_t source);                  // new bytes, from where `source` came
  void put_from(std::string_view text, size_t begin, size_t end);  // new bytes, from all of [begin, end)
  void finish(TrackedText& to);

 private:
  void check() const;
  const TrackedText& from_;
  TrackedText to_;
};

}  // namespace twinkle::tokenizer
