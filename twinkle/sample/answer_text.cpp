#include "twinkle/sample/answer_text.h"

#include <algorithm>

namespace twinkle {
namespace {

// How much of text can no longer grow into a stop string.
size_t safe_length(const std::string& text, const std::vector<std::string>& stops) {
  size_t safe = text.size();
  for (const auto& stop : stops) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > 0; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        safe = std::min(safe, text.size() - n);
        break;
      }
    }
  }
  return safe;
}

}  // namespace

AnswerText::AnswerText(const std::shared_ptr<const Tokenizer>& tokenizer, std::vector<std::string> stops)
    : stops_(std::move(stops)) {
  if (tokenizer != nullptr) decoder_ = std::make_unique<StreamDecoder>(tokenizer);
}

bool AnswerText::push(int32_t id, bool may_stop) {
  if (decoder_ == nullptr) return false;
  const size_t before = held_.size();
  held_ += decoder_->push(id);
  size_t first = std::string::npos;
  for (const auto& stop : stops_) {
    if (!may_stop) break;
    // One that ends in what was held back already came too early to count.
    first = std::min(first, held_.find(stop, before < stop.size() ? 0 : before - stop.size() + 1));
  }
  stopped_ = first != std::string::npos;
  if (stopped_) held_.resize(first);
  const size_t safe = stopped_ ? first : safe_length(held_, stops_);
  text_ += held_.substr(0, safe);
  held_.erase(0, safe);
  return stopped_;
}

void AnswerText::finish() {
  if (decoder_ == nullptr || stopped_) return;
  text_ += held_ + decoder_->finish();
  held_.clear();
}

std::string AnswerText::take() {
  std::string out = text_.substr(taken_);
  taken_ = text_.size();
  return out;
}

}  // namespace twinkle
