// The normalizers of tokenizer.json. Immutable after loading: safe from many threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer_text.h"

namespace twinkle::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(TrackedText& text) const = 0;
  /// True when apply would certainly leave the text as it is.
  virtual bool leaves(std::string_view) const { return false; }
};

/// null for a JSON null. Unknown types, keys and values are invalid_argument that name them below `path`.
std::unique_ptr<const Normalizer> parse_normalizer(const Json& value, const std::string& path);

/// The "Precompiled" charsmap of SentencePiece, from its base64.
std::unique_ptr<const Normalizer> parse_precompiled(const std::string& base64, const std::string& path);

}  // namespace twinkle::tokenizer
