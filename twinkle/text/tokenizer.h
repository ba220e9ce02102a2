// Text to token ids and back, from tokenizer.json, a GGUF file's metadata, SentencePiece models, tiktoken
// files and the older file forms. Ids equal those of Hugging Face tokenizers, of sentencepiece for a
// tokenizer.model and of tiktoken for its files. Immutable after loading: every method is safe from many
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/text_span.h"

namespace twinkle {

struct EncodeOptions {
  bool add_special_tokens = false;  // apply the post-processor's BOS/EOS
  bool parse_special = true;        // false: as encode_special_tokens of the package: no special token is cut
                              // out of the text; a model that has its spelling as a piece may still give it
  int64_t max_length = 0;      // 0: no limit; what add_special_tokens puts around counts and stays
  bool truncate_left = false;  // cut the start of a text that is too long, not its end
  /// Ascending ranges of the text as given. What takes in a byte of them is no special token, neither cut out
  /// nor found by the model, however a normalizer changes it: the ids are those of a tokenizer that does not
  /// know the token there. Blanks at a token's ends do not count.
  std::span<const TextSpan> literal = {};
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<std::pair<int64_t, int64_t>> offsets;  // byte range of each id in the text as given
};

/// A decoding in progress: what push and finish return, put together, is decode() of all ids.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  virtual std::string push(int32_t id) = 0;
  virtual std::string finish() = 0;
};

class Tokenizer {
 public:
  /// A model directory or one file: tokenizer.json, vocab.json with merges.txt, vocab.txt (BERT), a
  /// SentencePiece or tiktoken tokenizer.model, *.tiktoken, or a .gguf file. Settings come from the
  /// tokenizer_config.json beside it.
  static std::shared_ptr<const Tokenizer> load(const std::string& path);
  static std::shared_ptr<const Tokenizer> from_json(const Json& tokenizer, const Json& tokenizer_config,
                                                    std::string_view where);
  static std::shared_ptr<const Tokenizer> from_gguf_metadata(const Json& metadata, std::string_view where);
  /// The bytes of a SentencePiece model. Of the config are read: the names of special
  /// tokens, added_tokens_decoder (names pieces anew), add_bos_token, add_eos_token, legacy.
  static std::shared_ptr<const Tokenizer> from_sentencepiece(std::string_view model,
                                                             const Json& tokenizer_config,
                                                             std::string_view where);
  /// The text of a tiktoken file (lines of base64 and rank). The expression and the special tokens are those
  /// of the encoding in `where`'s file name (cl100k_base, o200k_base, p50k_base, r50k_base, qwen), else of
  /// the config's "pat_str" or tokenizer_class, else Llama 3's or Qwen's for a file as long as theirs.
  static std::shared_ptr<const Tokenizer> from_tiktoken(std::string_view ranks, const Json& tokenizer_config,
                                                        std::string_view where);
  virtual ~Tokenizer() = default;

  virtual std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  virtual Encoding encode_with_offsets(std::string_view text, const EncodeOptions& options = {}) const = 0;
  /// Invalid UTF-8 in the result becomes U+FFFD, as in Hugging Face. Ids out of range are invalid_argument.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const = 0;
  /// Must not outlive the tokenizer; StreamDecoder takes care of that. This default gives everything at the
  /// end.
  virtual std::unique_ptr<DecodeStream> start_decoding(bool skip_special_tokens) const;
  /// The bytes one id stands for within a text.
  virtual std::string token_bytes(int32_t id) const = 0;

  virtual int64_t vocab_size() const = 0;                         // with added tokens: highest id + 1
  virtual int32_t token_to_id(std::string_view token) const = 0;  // -1: none
  virtual std::string id_to_token(int32_t id) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  virtual int32_t bos_id() const = 0;  // -1: none
  virtual int32_t eos_id() const = 0;
  virtual int32_t pad_id() const = 0;
  /// Values of tokenizer_config.json (or made from GGUF metadata): chat_template, bos_token, ...
  virtual const Json& config() const = 0;
  /// tokenizer.json's value, to save beside a model.
  virtual Json to_json() const = 0;
};

/// Decodes a growing sequence: push returns the text that is certain by now; a multi-byte character never
/// comes out in halves.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens = true);
  std::string push(int32_t id);
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace twinkle
