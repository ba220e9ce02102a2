#include "twinkle/text/tokenizer_text.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {

TrackedText::TrackedText(std::string_view text, size_t origin, bool tracked)
    : bytes_(text), start_(origin), budget_((1 << 20) + 64 * text.size()), tracked_(tracked) {
  if (!tracked) return;
  origins_.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t n = unicode::char_bytes(text[at]);
    const Origin whole{static_cast<uint32_t>(origin + at), static_cast<uint32_t>(origin + at + n)};
    origins_.insert(origins_.end(), n, whole);
    at += n;
  }
}

std::pair<int64_t, int64_t> TrackedText::origin(size_t begin, size_t end) const {
  if (!tracked_ || origins_.empty()) return {static_cast<int64_t>(start_), static_cast<int64_t>(start_)};
  if (begin >= end) {
    const int64_t at = begin < origins_.size() ? origins_[begin].begin : origins_.back().end;
    return {at, at};
  }
  return {origins_[begin].begin, origins_[end - 1].end};
}

TrackedText TrackedText::slice(size_t begin, size_t end) const {
  TrackedText out;
  out.bytes_.assign(bytes_, begin, end - begin);
  out.tracked_ = tracked_;
  out.start_ = start_ + begin;
  out.budget_ = budget_;
  if (tracked_) {
    out.origins_.assign(origins_.begin() + static_cast<std::ptrdiff_t>(begin),
                        origins_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return out;
}

void TrackedText::prepend(std::string_view text) {
  if (bytes_.empty()) return;
  bytes_.insert(0, text);
  if (tracked_) origins_.insert(origins_.begin(), text.size(), Origin(origins_.front()));
}

Rewriter::Rewriter(const TrackedText& from) : from_(from) {
  to_.tracked_ = from.tracked_;
  to_.start_ = from.start_;
  to_.budget_ = from.budget_;
  to_.bytes_.reserve(from.bytes_.size() + 16);
  if (from.tracked_) to_.origins_.reserve(from.bytes_.size() + 16);
}

void Rewriter::check() const {
  if (to_.bytes_.size() > to_.budget_) {
    throw exhausted("[tokenizer] the normalizer makes the text more than 64 times longer");
  }
}

void Rewriter::keep(size_t begin, size_t end) {
  to_.bytes_.append(from_.bytes_, begin, end - begin);
  if (to_.tracked_) {
    to_.origins_.insert(to_.origins_.end(), from_.origins_.begin() + static_cast<std::ptrdiff_t>(begin),
                        from_.origins_.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

void Rewriter::put(std::string_view text, size_t source) {
  to_.bytes_ += text;
  check();
  if (to_.tracked_) to_.origins_.insert(to_.origins_.end(), text.size(), from_.origins_[source]);
}

void Rewriter::put_from(std::string_view text, size_t begin, size_t end) {
  to_.bytes_ += text;
  check();
  if (to_.tracked_) {
    const Origin all{from_.origins_[begin].begin, from_.origins_[end - 1].end};
    to_.origins_.insert(to_.origins_.end(), text.size(), all);
  }
}

void Rewriter::finish(TrackedText& to) { to = std::move(to_); }

}  // namespace twinkle::tokenizer
