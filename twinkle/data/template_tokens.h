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

  /// Ids and byte ranges. They equal those of encoding the text at once, but where characters of
  /// Rendered::input take part in the text of a special token: from the control token before to the one
  /// after, text is only text.
  Encoding encode(const Rendered& rendered) const;

 private:
  struct Found {
    int64_t begin = 0, end = 0;
    bool from_input = false;
  };
  std::vector<Found> find_special(const Rendered& rendered) const;
  Encoding encode_whole(std::string_view text) const;
  const std::string& bytes_of(int32_t id) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::vector<std::string>> special_;               // by first byte, longest first
  mutable std::vector<std::atomic<const std::string*>> bytes_;  // of each id, once it was asked for
};

}  // namespace twinkle
