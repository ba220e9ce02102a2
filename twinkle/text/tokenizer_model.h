// The models of tokenizer.json: from a pre-token to ids. Immutable after loading but for marks that only
// remember results; safe from many threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer_normalizer.h"
#include "twinkle/text/tokenizer_vocab.h"

namespace twinkle::tokenizer {

/// One id and the bytes of the pre-token that it covers.
struct Token {
  int32_t id;
  size_t begin, end;
};

/// Whether bytes [begin, end) of a pre-token may not be an id though they spell it.
using Refused = std::function<bool(int32_t id, size_t begin, size_t end)>;

class Model {
 public:
  virtual ~Model() = default;
  virtual void tokenize(std::string_view text, std::vector<Token>& out) const = 0;
  /// As if the vocabulary lacked the ids where they are refused. What stands for the unknown, for bytes and
  /// (in BPE) for single characters is never refused.
  virtual void tokenize_without(std::string_view text, const Refused& refused,
                                std::vector<Token>& out) const = 0;
  /// Only the ids: the same, faster.
  virtual void ids(std::string_view text, std::vector<int32_t>& out) const;
  /// The ids of raw bytes whose characters (ByteLevel's alphabet) tokenize would get; false when the model
  /// cannot.
  virtual bool takes_bytes() const { return false; }
  virtual void byte_ids(std::string_view, std::vector<int32_t>&) const {}

  const Vocab& vocab() const { return vocab_; }
  /// How many ids the package counts: added tokens that the vocabulary lacks come after them.
  virtual int64_t vocab_count() const { return static_cast<int64_t>(vocab_.size()); }
  /// A model that takes whole texts brings its own normalizer: then the normalizer and the pre-tokenizer of
  /// the parts only serve to be saved.
  virtual std::unique_ptr<const Normalizer> make_normalizer() const { return nullptr; }
  /// The value of "model" in a tokenizer.json.
  virtual Json to_json() const = 0;

 protected:
  Vocab vocab_;
};

struct BpeOptions {
  std::optional<std::string> unk_token, continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
  std::vector<int32_t> unmatched;  // sorted ids whose spelling in a text is not them (special tokens)
};

/// Reads "model". Errors name `path` and the field.
std::unique_ptr<const Model> parse_model(const Json& value, const std::string& path);

std::unique_ptr<const Model> parse_unigram(const Json& value, const std::string& path);
std::unique_ptr<const Model> parse_wordpiece(const Json& value, const std::string& path);  // and WordLevel

using Merge = std::pair<std::string_view, std::string_view>;
/// `merges` in order of their rank. Errors name `path`.
std::unique_ptr<const Model> make_bpe(Vocab vocab, const std::vector<Merge>& merges, BpeOptions options,
                                      const std::string& path);

/// An object {text: id} as a Vocab.
Vocab parse_vocab(const Json& value, const std::string& path);
/// {text: id} in the order of ids.
Json vocab_json(const Vocab& vocab);
/// Appends without the search for an equal key that a JSON object makes: keys must be different.
void append_key(Json& object, std::string_view key, Json value);

}  // namespace twinkle::tokenizer
