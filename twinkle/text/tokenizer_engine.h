// The tokenizer that every file form becomes: added tokens, normalizer, pre-tokenizer, model, post-processor,
// decoder. Immutable after construction: safe from many threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tokenizer_added.h"
#include "twinkle/text/tokenizer_decoder.h"
#include "twinkle/text/tokenizer_model.h"
#include "twinkle/text/tokenizer_normalizer.h"
#include "twinkle/text/tokenizer_post.h"
#include "twinkle/text/tokenizer_pretokenizer.h"

namespace twinkle::tokenizer {

/// `parts` is a tokenizer.json without its model; errors begin with "[where]".
std::shared_ptr<const Tokenizer> make_tokenizer(Json parts, std::unique_ptr<const Model> model, Json config,
                                                std::string_view where);

/// A directory with vocab.json and merges.txt (GPT-2, Qwen2), `config` being its tokenizer_config.json.
std::shared_ptr<const Tokenizer> from_vocab_and_merges(const std::string& folder, Json config);
/// BERT's vocab.txt.
std::shared_ptr<const Tokenizer> from_bert_vocab(const std::string& path, Json config);
std::shared_ptr<const Tokenizer> from_bert_tokens(const std::vector<std::string>& tokens, Json config,
                                                  const std::string& where);

class Engine : public Tokenizer {
 public:
  Engine(Json parts, std::unique_ptr<const Model> model, Json config, std::string_view where);

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override;
  Encoding encode_with_offsets(std::string_view text, const EncodeOptions& options) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  std::unique_ptr<DecodeStream> start_decoding(bool skip_special_tokens) const override;
  std::string token_bytes(int32_t id) const override;
  int64_t vocab_size() const override { return size_; }
  int32_t token_to_id(std::string_view token) const override;
  std::string id_to_token(int32_t id) const override;
  bool is_special(int32_t id) const override { return added_.is_special(id); }
  int32_t bos_id() const override { return bos_; }
  int32_t eos_id() const override { return eos_; }
  int32_t pad_id() const override { return pad_; }
  const Json& config() const override { return config_; }
  Json to_json() const override;

 private:
  class Stream;

  int32_t config_id(const char* key) const;
  void check_id(int32_t id) const;
  void apply_bos_eos_rules();
  size_t room(const EncodeOptions& options) const;
  bool encode_ids(std::string_view text, const SpecialRule& rule, std::vector<int32_t>& out) const;
  void segment_ids(std::string_view text, size_t origin, const SpecialRule& rule, std::vector<int32_t>& out,
                   bool* special) const;
  void plain_ids(std::string_view text, std::vector<int32_t>& out, bool* special) const;
  void piece_ids(const std::vector<Piece>& pieces, std::vector<int32_t>& out, bool* special) const;
  std::vector<Piece> pieces_of(std::string_view text, const SpecialRule& rule, bool tracked) const;
  bool has_spelled(std::string_view text, const std::vector<int32_t>& ids, size_t from) const;
  void encode_tracked(std::string_view text, const SpecialRule& rule, Encoding& out) const;

  std::string where_;
  Json parts_;  // tokenizer.json without model and added_tokens
  Json config_;
  std::unique_ptr<const Model> model_;
  std::unique_ptr<const Normalizer> normalizer_;
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
  AddedTokens added_;
  PostProcessor post_;
  DecoderChain decoder_;
  bool only_cuts_ = false;   // pre-tokens are ranges of the normalised text
  bool maps_bytes_ = false;  // and the model takes their bytes
  bool needs_origin_ = false;
  std::vector<bool> spelled_;  // by id: special, and a piece of the model
  int64_t size_ = 0;
  int32_t bos_ = -1, eos_ = -1, pad_ = -1;
};

}  // namespace twinkle::tokenizer
