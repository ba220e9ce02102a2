// The decoders of tokenizer.json as stages that tokens run through one by one; decoding a whole list and
// streaming are the same stages, so their texts are the same. Decoders are immutable; a running chain belongs
// to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle::tokenizer {

/// Takes tokens (or, behind a stage that fuses them, pieces of one token) and hands on what is certain.
class Stage {
 public:
  virtual ~Stage() = default;
  virtual void push(std::string token) = 0;
  virtual void finish() = 0;
  Stage* next = nullptr;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::unique_ptr<Stage> start() const = 0;
  /// Its stage can take one token in pieces.
  virtual bool takes_pieces() const { return false; }
  /// Its stage hands on one single token, in pieces.
  virtual bool gives_pieces() const { return false; }
  /// What one token stands for inside a text.
  virtual std::string inside(std::string token) const = 0;
};

class DecoderChain {
 public:
  DecoderChain() = default;
  /// Steps with sequences flattened; no steps for a JSON null: then tokens are joined with spaces.
  static DecoderChain parse(const Json& value, const std::string& path);

  class Run {
   public:
    explicit Run(const DecoderChain& chain);
    void push(std::string token) { first_->push(std::move(token)); }
    void finish() { first_->finish(); }
    /// The text that came out since the last call.
    std::string take();

   private:
    std::vector<std::unique_ptr<Stage>> stages_;
    Stage* first_;
    std::string* out_;
  };

  /// A token's bytes inside a text.
  std::string inside(std::string token) const;
  /// Only ByteLevel: the text is the tokens' bytes one after the other.
  bool is_byte_level() const { return byte_level_; }

 private:
  std::vector<std::unique_ptr<const Decoder>> steps_;
  bool byte_level_ = false;
};

}  // namespace twinkle::tokenizer
