// The "Precompiled" normalizer: SentencePiece's charsmap, applied as Hugging Face tokenizers does.
#include <utf8proc.h>

#include <optional>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_charsmap.h"
#include "twinkle/text/tokenizer_normalizer.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

uint32_t word(const std::string& blob, size_t at) {
  uint32_t value = 0;
  for (size_t k = 0; k < 4; ++k)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(blob[at + k])) << (8 * k);
  return value;
}
size_t offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & (1U << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(const std::string& blob, const std::string& path) {
  if (blob.size() < 4) throw invalid_argument(path + ": shorter than its header");
  const size_t trie_bytes = word(blob, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob.size() - 4) {
    throw invalid_argument(path + ": the trie's size " + std::to_string(trie_bytes) + " does not fit " +
                           std::to_string(blob.size()) + " bytes");
  }
  for (size_t i = 0; i < trie_bytes / 4; ++i) units_.push_back(word(blob, 4 + 4 * i));
  texts_ = blob.substr(4 + trie_bytes);
  if (!unicode::is_valid(texts_)) throw invalid_argument(path + ": the replacements are not UTF-8");
}

std::optional<std::string_view> Charsmap::text_at(size_t leaf) const {
  if (leaf >= units_.size()) return std::nullopt;
  const size_t begin = units_[leaf] & 0x7FFFFFFFU;
  if (begin > texts_.size()) return std::nullopt;
  if (begin < texts_.size() && (static_cast<unsigned char>(texts_[begin]) & 0xC0) == 0x80)
    return std::nullopt;
  const size_t end = texts_.find('\0', begin);
  return std::string_view(texts_).substr(begin, end == std::string::npos ? end : end - begin);
}

std::optional<std::string_view> Charsmap::shortest(std::string_view key) const {
  size_t node = offset(units_[0]);
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size()) return std::nullopt;
    const uint32_t unit = units_[node];
    if ((unit & (0x80000000U | 0xFF)) != byte) return std::nullopt;
    node ^= offset(unit);
    if ((unit >> 8 & 1) != 0) return text_at(node);
  }
  return std::nullopt;
}

size_t Charsmap::longest(std::string_view text, std::string_view* replacement) const {
  if (units_.empty()) return 0;
  size_t node = offset(units_[0]), found = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if ((unit & (0x80000000U | 0xFF)) != byte) break;
    node ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const auto to = text_at(node);
    // Whole characters only, so that a damaged trie cannot cut one.
    const bool whole = i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xC0) != 0x80;
    if (to && whole) {
      *replacement = *to;
      found = i + 1;
    }
  }
  return found;
}

namespace {

class Precompiled : public Normalizer {
 public:
  Precompiled(const std::string& blob, const std::string& path) : map_(blob, path) {}

  void apply(TrackedText& text) const override {
    const std::string& bytes = text.bytes();
    Rewriter rewriter(text);
    for (size_t at = 0; at < bytes.size();) {
      const size_t end = grapheme_end(bytes, at);
      const std::string_view whole(bytes.data() + at, end - at);
      std::optional<std::string_view> to;
      if (whole.size() < 6) to = map_.shortest(whole);
      if (to) {
        rewriter.put_from(*to, at, end);
      } else {
        for (size_t i = at; i < end;) {
          const size_t next = i + unicode::char_bytes(bytes[i]);
          if (const auto one = map_.shortest({bytes.data() + i, next - i})) {
            rewriter.put_from(*one, i, next);
          } else {
            rewriter.keep(i, next);
          }
          i = next;
        }
      }
      at = end;
    }
    rewriter.finish(text);
  }

 private:
  static size_t grapheme_end(const std::string& bytes, size_t at) {
    utf8proc_int32_t state = 0;
    auto previous = static_cast<utf8proc_int32_t>(unicode::char_at(bytes, at));
    size_t end = at + unicode::char_bytes(bytes[at]);
    while (end < bytes.size()) {
      const auto next = static_cast<utf8proc_int32_t>(unicode::char_at(bytes, end));
      // Marks newer than utf8proc belong to what stands before them, too.
      const bool newer_mark = utf8proc_category(next) == UTF8PROC_CATEGORY_CN &&
                              (unicode::char_class(static_cast<char32_t>(next)) & unicode::kMark) != 0;
      if (!newer_mark && utf8proc_grapheme_break_stateful(previous, next, &state)) break;
      previous = next;
      end += unicode::char_bytes(bytes[end]);
    }
    return end;
  }

  Charsmap map_;
};

}  // namespace

std::unique_ptr<const Normalizer> parse_precompiled(const std::string& base64, const std::string& path) {
  return std::make_unique<Precompiled>(decode_base64(base64, path), path);
}

}  // namespace twinkle::tokenizer
