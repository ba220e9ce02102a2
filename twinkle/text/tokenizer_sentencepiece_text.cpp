// SentencePiece's normalizer: the charsmap by longest match, spaces as the file says, and symbols of the user
// that nothing changes.
#include <algorithm>

#include "twinkle/text/tokenizer_added.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_sentencepiece.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

class SentencePieceNormalizer : public Normalizer {
 public:
  explicit SentencePieceNormalizer(std::shared_ptr<const SentencePieceFile> file) : file_(std::move(file)) {
    for (const auto& piece : file_->pieces) {
      if (piece.type == SentencePieceFile::kUserDefined) symbols_.add(piece.text, 0);
    }
  }

  void apply(TrackedText& text) const override {
    const std::string& bytes = text.bytes();
    const size_t size = bytes.size();
    if (size == 0) return;
    const bool trim = file_->remove_extra_whitespaces;
    const bool dummy = file_->add_dummy_prefix && (file_->prefix_every_part || text.origin_begin() == 0);
    const std::string_view space = file_->escape_whitespaces ? kSpaceMarker : std::string_view(" ");
    if (file_->charsmap.empty() && !trim && symbols_.empty()) {
      escape_spaces(text, dummy, space);
      return;
    }
    Symbols symbols(symbols_, bytes);
    size_t at = 0;
    while (trim && at < size) {
      const Step step = next(bytes, at, symbols);
      if (step.text != " ") break;
      at += step.size;
    }
    Rewriter rewriter(text);
    if (at == size) {
      rewriter.finish(text);
      return;
    }
    // Spaces at the end are held back until something follows; then they stand.
    std::vector<size_t> held;
    const auto put_space = [&](size_t source) {
      if (trim) {
        held.push_back(source);
      } else {
        rewriter.put(space, source);
      }
    };
    const auto release = [&] {
      for (const size_t source : held) rewriter.put(space, source);
      held.clear();
    };
    if (dummy && !file_->whitespace_as_suffix) put_space(at);
    bool after_space = trim;
    while (at < size) {
      const Step step = next(bytes, at, symbols);
      std::string_view out = step.text;
      while (after_space && out.starts_with(' ')) out.remove_prefix(1);
      if (!out.empty()) {
        for (size_t i = 0; i < out.size();) {
          if (out[i] == ' ') {
            put_space(at);
            ++i;
            continue;
          }
          // With markers in the text itself, what is cut off at the end are markers, too.
          if (trim && out.substr(i).starts_with(space)) {
            held.push_back(at);
            i += space.size();
            continue;
          }
          const size_t end = std::min(out.find(' ', i), out.size());
          size_t stop = end;
          if (trim) stop = std::min(out.find(space, i), end);
          release();
          rewriter.put_from(out.substr(i, stop - i), at, at + step.size);
          i = stop;
        }
        after_space = out.ends_with(' ');
      }
      if (!trim) after_space = false;
      at += step.size;
    }
    if (dummy && file_->whitespace_as_suffix) rewriter.put(space, size - 1);
    rewriter.finish(text);
  }

 private:
  struct Step {
    std::string_view text;
    size_t size;
  };
  // The next symbol of the user at or behind a place, found once for every stretch.
  class Symbols {
   public:
    Symbols(const TextMatcher& matcher, std::string_view text) : matcher_(matcher), text_(text) {
      none_ = matcher_.empty();
    }
    size_t at(size_t place) {
      if (none_) return 0;
      if (!searched_ || found_.begin < place) {
        int32_t value = 0;
        none_ = !matcher_.next(text_, place, &found_, &value);
        searched_ = true;
        if (none_) return 0;
      }
      return found_.begin == place ? found_.end - found_.begin : 0;
    }

   private:
    const TextMatcher& matcher_;
    std::string_view text_;
    Range found_;
    bool searched_ = false, none_ = false;
  };

  void escape_spaces(TrackedText& text, bool dummy, std::string_view space) const {
    const std::string& bytes = text.bytes();
    Rewriter rewriter(text);
    if (dummy && !file_->whitespace_as_suffix) rewriter.put(space, 0);
    size_t at = 0;
    for (size_t i = bytes.find(' '); i != std::string::npos; i = bytes.find(' ', at)) {
      rewriter.keep(at, i);
      rewriter.put(space, i);
      at = i + 1;
    }
    rewriter.keep(at, bytes.size());
    if (dummy && file_->whitespace_as_suffix) rewriter.put(space, bytes.size() - 1);
    rewriter.finish(text);
  }

  Step next(std::string_view bytes, size_t at, Symbols& symbols) const {
    if (const size_t n = symbols.at(at); n != 0) return {bytes.substr(at, n), n};
    std::string_view to;
    if (const size_t n = file_->charsmap.longest(bytes.substr(at), &to); n != 0) return {to, n};
    const size_t n = unicode::char_bytes(bytes[at]);
    return {bytes.substr(at, n), n};
  }

  std::shared_ptr<const SentencePieceFile> file_;
  TextMatcher symbols_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_sentencepiece_normalizer(
    std::shared_ptr<const SentencePieceFile> file) {
  return std::make_unique<SentencePieceNormalizer>(std::move(file));
}

}  // namespace twinkle::tokenizer
