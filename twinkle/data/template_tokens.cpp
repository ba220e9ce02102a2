#include "twinkle/data/template_tokens.h"

#include <algorithm>

namespace twinkle {

RenderedEncoder::RenderedEncoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), special_(256), bytes_(static_cast<size_t>(tokenizer_->vocab_size())) {
  for (int64_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (!tokenizer_->is_special(static_cast<int32_t>(id))) continue;
    std::string text = tokenizer_->id_to_token(static_cast<int32_t>(id));
    if (!text.empty()) special_[static_cast<unsigned char>(text[0])].push_back(std::move(text));
  }
  for (auto& list : special_) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }
}

std::vector<RenderedEncoder::Found> RenderedEncoder::find_special(const Rendered& rendered) const {
  std::vector<Found> out;
  const std::string_view text = rendered.text;
  auto input = rendered.input.begin();
  for (size_t at = 0; at < text.size();) {
    const auto& candidates = special_[static_cast<unsigned char>(text[at])];
    const auto match = std::find_if(candidates.begin(), candidates.end(), [&](const std::string& token) {
      return text.substr(at, token.size()) == token;
    });
    if (match == candidates.end()) {
      ++at;
      continue;
    }
    const auto begin = static_cast<int64_t>(at), end = begin + static_cast<int64_t>(match->size());
    while (input != rendered.input.end() && input->end <= begin) ++input;
    const bool touched = input != rendered.input.end() && input->begin < end;
    out.push_back({begin, end, touched});
    // Inside text that is only text, a control token of the template may still begin.
    at = static_cast<size_t>(touched ? begin + 1 : end);
  }
  return out;
}

RenderedEncoder::~RenderedEncoder() {
  for (auto& known : bytes_) delete known.load();
}

// Bytes of an id, found out once.
const std::string& RenderedEncoder::bytes_of(int32_t id) const {
  std::atomic<const std::string*>& slot = bytes_[static_cast<size_t>(id)];
  if (const std::string* known = slot.load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<const std::string>(tokenizer_->token_bytes(id));
  const std::string* expected = nullptr;
  if (slot.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *expected;  // another thread was first
}

// Where the bytes of the ids spell the text, they say where each id lies; following every byte through the
// tokenizer costs twice as much and is needed only where a normalizer or a marker changes the text.
Encoding RenderedEncoder::encode_whole(std::string_view text) const {
  Encoding out;
  out.ids = tokenizer_->encode(text);
  out.offsets.reserve(out.ids.size());
  size_t at = 0;
  for (const int32_t id : out.ids) {
    const std::string& bytes = bytes_of(id);
    if (bytes.empty() || text.substr(at, bytes.size()) != bytes) return tokenizer_->encode_with_offsets(text);
    out.offsets.emplace_back(static_cast<int64_t>(at), static_cast<int64_t>(at + bytes.size()));
    at += bytes.size();
  }
  if (at != text.size()) return tokenizer_->encode_with_offsets(text);
  return out;
}

Encoding RenderedEncoder::encode(const Rendered& rendered) const {
  const std::vector<Found> found = find_special(rendered);
  if (std::none_of(found.begin(), found.end(), [](const Found& f) { return f.from_input; })) {
    return encode_whole(rendered.text);
  }
  Encoding out;
  const auto size = static_cast<int64_t>(rendered.text.size());
  const auto append = [&](int64_t begin, int64_t end, bool parse_special) {
    if (begin >= end) return;
    const auto piece = tokenizer_->encode_with_offsets(
        std::string_view(rendered.text).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        {.parse_special = parse_special});
    out.ids.insert(out.ids.end(), piece.ids.begin(), piece.ids.end());
    for (const auto& [from, to] : piece.offsets) out.offsets.emplace_back(from + begin, to + begin);
  };
  // Control tokens of the template cut the text for any encoder, so cutting there changes nothing else.
  int64_t plain = 0;    // begin of what is not encoded yet
  int64_t segment = 0;  // end of the last control token of the template
  bool hostile = false;
  const auto close = [&](int64_t end) {
    if (!std::exchange(hostile, false)) return;
    append(plain, segment, true);
    append(segment, end, false);
    plain = end;
  };
  for (const Found& f : found) {
    if (f.from_input) {
      hostile = true;
      continue;
    }
    close(f.begin);
    segment = f.end;
  }
  close(size);
  append(plain, size, true);
  return out;
}

}  // namespace twinkle
