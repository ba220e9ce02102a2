// A SentencePiece model file as data, and the models that encode as the sentencepiece package does. Plain
// values; the models are immutable and safe from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tokenizer_charsmap.h"
#include "twinkle/text/tokenizer_model.h"

namespace twinkle::tokenizer {

struct SentencePieceFile {
  /// Types as in the file; kRenamed: a piece that the config gave another name, found as an added token only.
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6, kRenamed };
  struct Piece {
    std::string text;
    float score = 0;
    int type = kNormal;
  };
  enum class Kind { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };  // as in the file
  std::vector<Piece> pieces;
  Kind kind = Kind::kUnigram;
  bool byte_fallback = false;
  int64_t unk = -1, bos = -1, eos = -1, pad = -1;

  Charsmap charsmap;
  std::string charsmap_bytes;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool prefix_every_part = true;  // also behind special tokens ("legacy" in tokenizer_config.json)
};

/// Reads the protobuf; errors name `where`.
SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& where);

/// The same checks for a file that came another way (GGUF).
void check_sentencepiece(SentencePieceFile* file, const std::string& where);
/// `config` is a tokenizer_config.json's value.
std::shared_ptr<const Tokenizer> from_sentencepiece_file(SentencePieceFile file, Json config,
                                                         const std::string& where);

/// Models of a file whose ids and pieces have been checked by parse_sentencepiece.
std::unique_ptr<const Model> make_sentencepiece_bpe(std::shared_ptr<const SentencePieceFile> file);
std::unique_ptr<const Model> make_sentencepiece_unigram(std::shared_ptr<const SentencePieceFile> file);
/// Kinds "word" and "char".
std::unique_ptr<const Model> make_sentencepiece_lookup(std::shared_ptr<const SentencePieceFile> file);

/// What all models share: the whole text is normalized at once, spaces and all, as the file says.
std::unique_ptr<const Normalizer> make_sentencepiece_normalizer(
    std::shared_ptr<const SentencePieceFile> file);

}  // namespace twinkle::tokenizer
