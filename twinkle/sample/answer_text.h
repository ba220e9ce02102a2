// The text of an answer while it grows: whole characters only, nothing that may still become a stop string,
// cut before one. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "twinkle/text/tokenizer.h"

namespace twinkle {

class AnswerText {
 public:
  /// Without a tokenizer there is no text.
  AnswerText(const std::shared_ptr<const Tokenizer>& tokenizer, std::vector<std::string> stops);

  /// Adds a token; true when it completes a stop string. With `may_stop` false one that it completes is text,
  /// one that it only begins may still be completed by a later token.
  bool push(int32_t id, bool may_stop);
  /// Nothing more comes: what was held back is text, unless a stop string cut it off.
  void finish();
  /// The text that became certain since the last call.
  std::string take();
  const std::string& text() const { return text_; }

 private:
  std::unique_ptr<StreamDecoder> decoder_;
  std::vector<std::string> stops_;
  std::string text_, held_;  // `held_` may be the beginning of a stop string
  size_t taken_ = 0;
  bool stopped_ = false;
};

}  // namespace twinkle
