// SentencePiece's tokenizer.model: reading it, and the tokenizer.json that stands for it when it is saved.
#include "twinkle/text/tokenizer_sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/protobuf.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace tokenizer {
namespace {

using File = SentencePieceFile;
constexpr size_t kLongestPiece = 1024;

File::Piece parse_piece(std::string_view bytes, const std::string& where) {
  WireReader reader(bytes, where);
  File::Piece piece;
  while (reader.next()) {
    if (reader.field() == 1) {
      piece.text = reader.bytes();
    } else if (reader.field() == 2) {
      piece.score = reader.real32();
    } else if (reader.field() == 3) {
      const int64_t type = reader.integer();
      if (type < 1 || type > 6)
        reader.fail("type " + std::to_string(type) + " of a piece (known are 1 to 6)");
      piece.type = static_cast<int>(type);
    }
  }
  if (piece.text.empty()) reader.fail("a piece without text");
  if (piece.text.size() > kLongestPiece) reader.fail("a piece of more than 1024 bytes");
  if (!unicode::is_valid(piece.text)) reader.fail("a piece that is not UTF-8");
  if (!std::isfinite(piece.score)) reader.fail("a score that is no number");
  return piece;
}

void parse_trainer(std::string_view bytes, const std::string& where, File* file) {
  WireReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 3: {
        const int64_t kind = reader.integer();
        if (kind < 1 || kind > 4) reader.fail("model kind " + std::to_string(kind) + " (known are 1 to 4)");
        file->kind = static_cast<File::Kind>(kind);
        break;
      }
      case 24:
        file->whitespace_as_suffix = reader.boolean();
        break;
      case 35:
        file->byte_fallback = reader.boolean();
        break;
      case 41:
        file->bos = static_cast<int32_t>(reader.integer());
        break;
      case 42:
        file->eos = static_cast<int32_t>(reader.integer());
        break;
      case 43:
        file->pad = static_cast<int32_t>(reader.integer());
        break;
      default:
        break;
    }
  }
}

void parse_normalizer_spec(std::string_view bytes, const std::string& where, File* file) {
  WireReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 2:
        file->charsmap_bytes = reader.bytes();
        break;
      case 3:
        file->add_dummy_prefix = reader.boolean();
        break;
      case 4:
        file->remove_extra_whitespaces = reader.boolean();
        break;
      case 5:
        file->escape_whitespaces = reader.boolean();
        break;
      default:
        break;
    }
  }
  if (!file->charsmap_bytes.empty())
    file->charsmap = Charsmap(file->charsmap_bytes, where + " precompiled_charsmap");
}

}  // namespace

SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& where) {
  const std::string root = "[" + where + "] ";
  WireReader reader(bytes, root + "SentencePiece model");
  File file;
  file.bos = 1;
  file.eos = 2;
  while (reader.next()) {
    if (reader.field() == 1) {
      if (file.pieces.size() >= static_cast<size_t>(kMaxId)) reader.fail("too many pieces");
      file.pieces.push_back(
          parse_piece(reader.bytes(), root + "pieces[" + std::to_string(file.pieces.size()) + "]"));
    } else if (reader.field() == 2) {
      parse_trainer(reader.bytes(), root + "trainer_spec", &file);
    } else if (reader.field() == 3) {
      parse_normalizer_spec(reader.bytes(), root + "normalizer_spec", &file);
    }
  }
  check_sentencepiece(&file, where);
  return file;
}

void check_sentencepiece(SentencePieceFile* given, const std::string& where) {
  const std::string root = "[" + where + "] ";
  File& file = *given;
  if (file.pieces.empty()) throw invalid_argument(root + "is no SentencePiece model: it has no pieces");
  std::set<std::string_view> seen;
  bool bytes_known[256] = {};
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const File::Piece& piece = file.pieces[i];
    const auto fail = [&](const std::string& what) {
      throw invalid_argument(root + "pieces[" + std::to_string(i) + "]: " + what);
    };
    if (piece.text.empty() || piece.text.size() > kLongestPiece || !unicode::is_valid(piece.text))
      fail("needs UTF-8 of 1 to 1024 bytes");
    if (!seen.insert(piece.text).second) fail("\"" + piece.text + "\" stands there twice");
    if (piece.type == File::kUnknown) {
      if (file.unk >= 0) fail("a second unknown piece");
      file.unk = static_cast<int64_t>(i);
    }
    if (piece.type == File::kByte) {
      const int byte = byte_token_value(piece.text);
      if (byte < 0) fail("\"" + piece.text + "\" is no byte");
      bytes_known[byte] = true;
    }
  }
  if (file.unk < 0) throw invalid_argument(root + "has no unknown piece");
  if (file.byte_fallback &&
      !std::all_of(std::begin(bytes_known), std::end(bytes_known), [](bool b) { return b; }))
    throw invalid_argument(root + "byte_fallback is on, but not all 256 byte pieces are there");
  const auto size = static_cast<int64_t>(file.pieces.size());
  for (int64_t* id : {&file.bos, &file.eos, &file.pad}) {
    // A file may name the ids of pieces that it does not have as such; then there are none.
    if (*id < 0 || *id >= size || file.pieces[static_cast<size_t>(*id)].type == File::kNormal) *id = -1;
  }
}

namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
    if (!plain && c > ' ' && c != 0x7F) out += '\\';
    out += c;
  }
  return out;
}

Json replace(Json pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

// The settings that transformers gives a model of its own reading (5.24), in the order SentencePiece applies
// them.
void add_settings(const File& file, Json* parts) {
  Json normalizers = Json::array();
  if (!file.charsmap_bytes.empty()) {
    normalizers.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(file.charsmap_bytes)}});
  }
  if (file.remove_extra_whitespaces) {
    normalizers.push_back(replace({{"Regex", "\\A +| +\\z"}}, ""));
    normalizers.push_back(replace({{"Regex", " {2,}"}}, " "));
  }
  if (file.escape_whitespaces) normalizers.push_back(replace({{"String", " "}}, kSpaceMarker));
  if (file.add_dummy_prefix && file.prefix_every_part)
    normalizers.push_back(
        replace({{"Regex", "\\A" + std::string(kSpaceMarker)}}, "\xE2\x96\x81\xE2\x96\x81"));
  (*parts)["normalizer"] = sequence("normalizers", std::move(normalizers));

  Json steps = Json::array();
  if (file.add_dummy_prefix) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", kSpaceMarker},
                     {"prepend_scheme", file.prefix_every_part ? "always" : "first"},
                     {"split", false}});
  }
  std::vector<std::string> symbols;
  for (const File::Piece& piece : file.pieces) {
    if (piece.type == File::kUserDefined) symbols.push_back(piece.text);
  }
  if (file.kind == File::Kind::kWord) {  // a word begins at a marker, whatever the symbols
    symbols.clear();
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"String", kSpaceMarker}}},
                     {"behavior", "MergedWithNext"},
                     {"invert", false}});
  }
  std::stable_sort(symbols.begin(), symbols.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  if (!symbols.empty()) {
    std::string any;
    for (const std::string& symbol : symbols) any += (any.empty() ? "" : "|") + escaped(symbol);
    steps.push_back(split_regex(any));
    // Symbols are read whole (ignore_merges), and so would be a text that spells the name of a byte.
    if (file.byte_fallback) steps.push_back(split_regex("(?<=\\A<0x[0-9A-F]{2})>\\z"));
  }
  (*parts)["pre_tokenizer"] = steps.empty() ? Json() : sequence("pretokenizers", std::move(steps));

  Json decoders = Json::array({replace({{"String", kSpaceMarker}}, " ")});
  if (file.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  if (file.byte_fallback || file.add_dummy_prefix) decoders.push_back({{"type", "Fuse"}});
  if (file.add_dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  (*parts)["decoder"] = sequence("decoders", std::move(decoders));
}

// Tokens that the config names: pieces under another name, or new ones behind the pieces.
Json added_tokens(File* file, const Json& config, const std::string& root) {
  Json list = Json::array();
  for (size_t i = 0; i < file->pieces.size(); ++i) {
    const File::Piece& piece = file->pieces[i];
    if (piece.type == File::kControl || piece.type == File::kUnknown)
      list.push_back(added_token(static_cast<int32_t>(i), piece.text, true));
  }
  const Json given = added_tokens_of(config, root);
  if (given.is_null()) return list;
  for (const Json& token : given) {
    const int64_t id = token.at("id").get<int64_t>();
    Json entry = token;
    entry["normalized"] = false;  // a normalizer that puts a space in front would hide it
    const auto content = token.find("content");
    if (content == token.end() || !content->is_string() || content->get_ref<const std::string&>().empty())
      throw invalid_argument(root + "added_tokens_decoder[\"" + std::to_string(id) + "\"]: needs a content");
    if (id < static_cast<int64_t>(file->pieces.size())) {
      File::Piece& piece = file->pieces[static_cast<size_t>(id)];
      if (piece.text != content->get_ref<const std::string&>()) {
        piece.text = content->get<std::string>();
        piece.type = File::kRenamed;
      }
    }
    const auto known =
        std::find_if(list.begin(), list.end(), [id](const Json& e) { return e.at("id") == id; });
    if (known != list.end()) {
      *known = std::move(entry);
    } else {
      list.push_back(std::move(entry));
    }
  }
  std::set<std::string_view> seen;
  for (const File::Piece& piece : file->pieces) {
    if (!seen.insert(piece.text).second)
      throw invalid_argument(root + "added_tokens_decoder: \"" + piece.text + "\" is the name of two pieces");
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Json& a, const Json& b) { return a.at("id") < b.at("id"); });
  return list;
}

}  // namespace

std::shared_ptr<const Tokenizer> from_sentencepiece_file(SentencePieceFile given, Json config,
                                                         const std::string& where) {
  const std::string root = "[" + where + "] ";
  if (!config.is_object()) config = Json::object();
  auto file = std::make_shared<File>(std::move(given));
  file->prefix_every_part = config_flag(config, "legacy", true, root);
  Json parts = Json::object();
  parts["added_tokens"] = added_tokens(file.get(), config, root);
  add_settings(*file, &parts);
  const std::pair<const char*, int64_t> names[] = {
      {"bos_token", file->bos}, {"eos_token", file->eos}, {"unk_token", file->unk}, {"pad_token", file->pad}};
  for (const auto& [name, id] : names) {
    if (id >= 0 && (!config.contains(name) || config[name].is_null()))
      config[name] = file->pieces[static_cast<size_t>(id)].text;
  }
  // By default a language model's text begins with BOS; T5's (the unigram models) and SpeechT5's (char) end
  // with EOS.
  const bool bpe = file->kind == File::Kind::kBpe;
  const bool bos = config_flag(config, "add_bos_token", bpe && file->bos >= 0, root);
  const bool eos = config_flag(config, "add_eos_token", !bpe && file->eos >= 0, root);
  config["add_bos_token"] = bos;
  config["add_eos_token"] = eos;
  std::shared_ptr<const File> done = file;
  auto model = bpe                                  ? make_sentencepiece_bpe(done)
               : file->kind == File::Kind::kUnigram ? make_sentencepiece_unigram(done)
                                                    : make_sentencepiece_lookup(done);
  return make_tokenizer(std::move(parts), std::move(model), std::move(config), where);
}

}  // namespace tokenizer

std::shared_ptr<const Tokenizer> Tokenizer::from_sentencepiece(std::string_view model, const Json& config,
                                                               std::string_view where) {
  const std::string place(where);
  return tokenizer::from_sentencepiece_file(tokenizer::parse_sentencepiece(model, place), config, place);
}

}  // namespace twinkle
