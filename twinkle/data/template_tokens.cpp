#include "twinkle/data/template_tokens.h"

namespace twinkle {

RenderedEncoder::RenderedEncoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), bytes_(static_cast<size_t>(tokenizer_->vocab_size())) {}

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
Encoding RenderedEncoder::encode(const Rendered& rendered) const {
  const std::string_view text = rendered.text;
  const EncodeOptions options{.literal = rendered.input};
  Encoding out;
  out.ids = tokenizer_->encode(text, options);
  out.offsets.reserve(out.ids.size());
  size_t at = 0;
  for (const int32_t id : out.ids) {
    const std::string& bytes = bytes_of(id);
    if (bytes.empty() || text.substr(at, bytes.size()) != bytes)
      return tokenizer_->encode_with_offsets(text, options);
    out.offsets.emplace_back(static_cast<int64_t>(at), static_cast<int64_t>(at + bytes.size()));
    at += bytes.size();
  }
  if (at != text.size()) return tokenizer_->encode_with_offsets(text, options);
  return out;
}

}  // namespace twinkle
