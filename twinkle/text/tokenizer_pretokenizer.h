// The pre-tokenizers of tokenizer.json. Immutable after loading: safe from many threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer_text.h"

namespace twinkle::tokenizer {

/// A part of the input: already an added token, or text.
struct Piece {
  TrackedText text;
  int32_t token = -1;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Replaces every piece that is no token by its parts.
  void apply(std::vector<Piece>& pieces) const;

  /// The parts of one text, in order; may change it.
  virtual void cut(TrackedText text, std::vector<TrackedText>& out) const = 0;

  /// True when the parts are simply ranges of the text: then `ranges` gives them without copying.
  virtual bool only_cuts() const { return false; }
  virtual void ranges(std::string_view, std::vector<Range>&) const {}
  /// ByteLevel: after cutting, bytes become characters. When set and no space is put in front, `ranges`
  /// works, too.
  virtual bool maps_bytes() const { return false; }
  /// Needs to know whether a piece starts at the start of the input.
  virtual bool needs_origin() const { return false; }
};

/// The steps of a pre-tokenizer with sequences flattened; empty for a JSON null.
std::vector<std::unique_ptr<const PreTokenizer>> parse_pre_tokenizer(const Json& value,
                                                                     const std::string& path);

enum class Prepend { kAlways, kFirst, kNever };
class Fields;
/// Metaspace's prepend_scheme with the older add_prefix_space.
Prepend parse_prepend_scheme(Fields& fields);

}  // namespace twinkle::tokenizer
