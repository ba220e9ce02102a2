// Tokens of a rendered conversation: what the user wrote never becomes a control token. Immutable: safe from
// many threads.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/text/jinja.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle {

class RenderedEncoder {
 public:
  explicit RenderedEncoder(std::shared_ptr<const Tokenizer> tokenizer);
  ~RenderedEncoder();
  RenderedEncoder(const RenderedEncoder&) = delete;
  RenderedEncoder& operator=(const RenderedEncoder&) = delete;

  /// Ids and byte ranges. They are those of encoding the text at once, but that no special token takes in
  /// characters of Rendered::input: there the tokenizer knows none (EncodeOptions::literal).
  Encoding encode(const Rendered& rendered) const;

 private:
  const std::string& bytes_of(int32_t id) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::vector<std::atomic<const std::string*>> bytes_;  // of each id, once it was asked for
};

}  // namespace twinkle
