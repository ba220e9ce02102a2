// Text to token ids and back, from tokenizer.json, a GGUF file's metadata, and the older file forms. Ids
// equal those of Hugging Face tokenizers. Immutable after loading: every method is safe from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

struct EncodeOptions {
  bool add_special_tokens = false;  // apply the post-processor's BOS/EOS
  bool parse_special = true;        // false: text that spells a special token is ordinary text
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
  /// A model directory (tokenizer.json [+ tokenizer_config.json]), a tokenizer.json, or a .gguf file.
  static std::shared_ptr<const Tokenizer> load(const std::string& path);
  static std::shared_ptr<const Tokenizer> from_json(const Json& tokenizer, const Json& tokenizer_config,
                                                    std::string_view where);
  static std::shared_ptr<const Tokenizer> from_gguf_metadata(const Json& metadata, std::string_view where);
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
