// The tokenizer in a GGUF file's metadata, made into the parts of a tokenizer.json, so that the engine and
// what is saved are the same as for any other.
#include <algorithm>
#include <cctype>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_sentencepiece.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace tokenizer {
namespace {

const Json& need(const Json& metadata, const char* key, std::string_view where) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) throw invalid_argument("[" + std::string(where) + "] " + key + ": is missing");
  return *it;
}

std::string text_or(const Json& metadata, const char* key, const char* fallback, std::string_view where) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return fallback;
  if (!it->is_string()) throw invalid_argument("[" + std::string(where) + "] " + key + ": needs a string");
  return it->get<std::string>();
}

bool flag_or(const Json& metadata, const char* key, bool fallback, std::string_view where) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return fallback;
  if (!it->is_boolean())
    throw invalid_argument("[" + std::string(where) + "] " + key + ": needs true or false");
  return it->get<bool>();
}

// Metadata of a GGUF file on their way to a tokenizer.json.
class Gguf {
 public:
  Gguf(const Json& metadata, std::string_view where) : metadata_(metadata), where_(where) {
    if (!metadata.is_object()) throw invalid_argument("[" + where_ + "] GGUF metadata: needs an object");
    read_tokens();
  }

  std::shared_ptr<const Tokenizer> make() {
    const std::string kind = text_or(metadata_, "tokenizer.ggml.model", "", where_);
    if (kind == "t5") return make_unigram();
    if (kind == "bert") return make_bert();
    std::unique_ptr<const Model> model;
    if (kind == "gpt2") {
      model = make_byte_level();
    } else if (kind == "llama") {
      model = make_scored();
    } else {
      throw invalid_argument("[" + where_ + "] tokenizer.ggml.model: unknown model \"" + kind +
                             "\" (gpt2, llama, t5, bert)");
    }
    make_added(kind == "llama");
    make_special();
    return make_tokenizer(std::move(parts_), std::move(model), std::move(config_), where_);
  }

 private:
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  void read_tokens() {
    const Json& tokens = need(metadata_, "tokenizer.ggml.tokens", where_);
    if (!tokens.is_array() || tokens.empty())
      fail("tokenizer.ggml.tokens", "needs a list with at least one token");
    if (tokens.size() > static_cast<size_t>(kMaxId)) fail("tokenizer.ggml.tokens", "is too long");
    size_t bytes = 0;
    for (const Json& token : tokens) {
      if (!token.is_string())
        fail("tokenizer.ggml.tokens", "needs strings, got " + token.dump().substr(0, 40));
      tokens_.push_back(token.get_ref<const std::string&>());
      bytes += tokens_.back().size();
    }
    vocab_.reserve(tokens_.size(), bytes);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (vocab_.find(tokens_[i]) >= 0) {
        fail("tokenizer.ggml.tokens", "\"" + std::string(tokens_[i]) +
                                          "\" stands there twice, the second time at " + std::to_string(i));
      }
      vocab_.add(tokens_[i], static_cast<int32_t>(i));
    }
    types_.assign(tokens_.size(), kNormal);
    if (const auto it = metadata_.find("tokenizer.ggml.token_type"); it != metadata_.end()) {
      if (!it->is_array() || it->size() != tokens_.size()) {
        fail("tokenizer.ggml.token_type", "needs a list of " + std::to_string(tokens_.size()) + " numbers");
      }
      for (size_t i = 0; i < types_.size(); ++i) {
        types_[i] = integer_value((*it)[i], 0, 6,
                                  "[" + where_ + "] tokenizer.ggml.token_type[" + std::to_string(i) + "]");
      }
    }
  }

  std::unique_ptr<const Model> make_byte_level() {
    const std::string pre = text_or(metadata_, "tokenizer.ggml.pre", "default", where_);
    BytePreset preset = byte_preset(pre, "[" + where_ + "] tokenizer.ggml.pre");
    std::vector<Merge> merges;
    const Json& list = need(metadata_, "tokenizer.ggml.merges", where_);
    if (!list.is_array()) fail("tokenizer.ggml.merges", "needs a list");
    for (const Json& item : list) {
      // A part may itself begin with a space in no alphabet of ours, so the first space from the second byte
      // on parts them.
      const std::string_view line =
          item.is_string() ? std::string_view(item.get_ref<const std::string&>()) : std::string_view();
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos)
        fail("tokenizer.ggml.merges", "needs \"left right\", got " + item.dump().substr(0, 60));
      merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
    parts_["normalizer"] = std::move(preset.normalizer);
    parts_["pre_tokenizer"] = std::move(preset.pre_tokenizer);
    post_.push_back(byte_level(true, true));
    parts_["decoder"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    BpeOptions options;
    options.ignore_merges = preset.ignore_merges;
    default_bos_ =
        pre == "llama3" || pre == "llama-v3" || pre == "llama-bpe" || pre == "falcon3" || pre == "tekken";
    return make_bpe(vocab_, merges, options, "[" + where_ + "] tokenizer.ggml");
  }

  // SentencePiece merges the pair whose whole has the highest score: written out as a list of merges, every
  // way to part a token, best score first (and, as the reference conversion, longer parts first among
  // equals).
  std::unique_ptr<const Model> make_scored() {
    const Json& scores = need(metadata_, "tokenizer.ggml.scores", where_);
    if (!scores.is_array() || scores.size() != tokens_.size()) {
      fail("tokenizer.ggml.scores", "needs a list of " + std::to_string(tokens_.size()) + " numbers");
    }
    struct Row {
      double score;
      size_t left_chars, right_chars;
      int32_t left, right;
      uint32_t order;
    };
    std::vector<Row> rows;
    std::vector<Row> local;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!scores[i].is_number())
        fail("tokenizer.ggml.scores", "needs numbers, got " + scores[i].dump().substr(0, 40));
      if (types_[i] != kNormal && types_[i] != kUserDefined) continue;
      const std::string_view token = tokens_[i];
      const size_t chars = unicode::count_chars(token);
      local.clear();
      size_t left_chars = 1;
      for (size_t at = token.empty() ? 0 : unicode::char_bytes(token[0]); at < token.size();
           at += unicode::char_bytes(token[at])) {
        const int32_t left = vocab_.find(token.substr(0, at)), right = vocab_.find(token.substr(at));
        if (left >= 0 && right >= 0)
          local.push_back({scores[i].get<double>(), left_chars, chars - left_chars, left, right, 0});
        ++left_chars;
      }
      std::sort(local.begin(), local.end(), [](const Row& a, const Row& b) {
        return a.left != b.left ? a.left < b.left : a.right < b.right;
      });
      for (Row& row : local) {
        row.order = static_cast<uint32_t>(rows.size());
        rows.push_back(row);
      }
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.left_chars != b.left_chars ? a.left_chars > b.left_chars : a.right_chars > b.right_chars;
    });
    std::vector<Merge> merges;
    merges.reserve(rows.size());
    for (const Row& row : rows) merges.emplace_back(vocab_.text_of(row.left), vocab_.text_of(row.right));
    BpeOptions options;
    options.byte_fallback = true;
    options.fuse_unk = true;
    const auto unknown = std::find(types_.begin(), types_.end(), int64_t{kUnknown});
    options.unk_token = unknown == types_.end()
                            ? std::string(tokens_[static_cast<size_t>(token_id("unknown_token_id", 0))])
                            : std::string(tokens_[static_cast<size_t>(unknown - types_.begin())]);
    const Json space = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
    const bool prefix = flag_or(metadata_, "tokenizer.ggml.add_space_prefix", true, where_);
    Json normalizers = Json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}});
    normalizers.push_back(space);
    parts_["normalizer"] = sequence("normalizers", std::move(normalizers));
    parts_["pre_tokenizer"] = nullptr;
    Json decoders =
        Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}});
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    parts_["decoder"] = sequence("decoders", std::move(decoders));
    default_bos_ = true;
    return make_bpe(vocab_, merges, options, "[" + where_ + "] tokenizer.ggml");
  }

  // SentencePiece's unigram model, piece by piece.
  std::shared_ptr<const Tokenizer> make_unigram() {
    SentencePieceFile file;
    const Json& scores = need(metadata_, "tokenizer.ggml.scores", where_);
    if (!scores.is_array() || scores.size() != tokens_.size())
      fail("tokenizer.ggml.scores", "needs a list of " + std::to_string(tokens_.size()) + " numbers");
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!scores[i].is_number())
        fail("tokenizer.ggml.scores", "needs numbers, got " + scores[i].dump().substr(0, 40));
      const int type = types_[i] == 0 ? kNormal : static_cast<int>(types_[i]);
      file.byte_fallback = file.byte_fallback || type == kByte;
      file.pieces.push_back({std::string(tokens_[i]), scores[i].get<float>(), type});
    }
    if (const auto map = metadata_.find("tokenizer.ggml.precompiled_charsmap"); map != metadata_.end()) {
      if (!map->is_array()) fail("tokenizer.ggml.precompiled_charsmap", "needs a list of bytes");
      for (const Json& byte : *map) {
        const auto value =
            integer_value(byte, 0, 255, "[" + where_ + "] tokenizer.ggml.precompiled_charsmap");
        file.charsmap_bytes += static_cast<char>(value);
      }
      if (!file.charsmap_bytes.empty())
        file.charsmap = Charsmap(file.charsmap_bytes, "[" + where_ + "] tokenizer.ggml.precompiled_charsmap");
    }
    file.add_dummy_prefix = flag_or(metadata_, "tokenizer.ggml.add_space_prefix", true, where_);
    file.remove_extra_whitespaces =
        flag_or(metadata_, "tokenizer.ggml.remove_extra_whitespaces", true, where_);
    file.bos = token_id("bos_token_id", -1);
    file.eos = token_id("eos_token_id", -1);
    file.pad = token_id("padding_token_id", -1);
    Json config = {
        {"add_bos_token", flag_or(metadata_, "tokenizer.ggml.add_bos_token", false, where_)},
        {"add_eos_token", flag_or(metadata_, "tokenizer.ggml.add_eos_token", file.eos >= 0, where_)}};
    check_sentencepiece(&file, where_);
    return from_sentencepiece_file(std::move(file), std::move(config), where_);
  }

  // GGUF marks the pieces that begin a word, BERT's own vocabulary those that do not.
  std::shared_ptr<const Tokenizer> make_bert() {
    constexpr std::string_view kMarker = "\xE2\x96\x81";
    std::vector<std::string> tokens;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string_view token = tokens_[i];
      const bool bracketed = token.size() > 2 && token.starts_with('[') && token.ends_with(']');
      if (token.starts_with(kMarker)) {
        tokens.emplace_back(token.substr(kMarker.size()));
      } else if (types_[i] == kControl || types_[i] == kUnknown || bracketed) {
        tokens.emplace_back(token);
      } else {
        tokens.push_back("##" + std::string(token));
      }
    }
    Json config = Json::object();
    const std::pair<const char*, const char*> names[] = {{"unk_token", "unknown_token_id"},
                                                         {"sep_token", "seperator_token_id"},
                                                         {"pad_token", "padding_token_id"},
                                                         {"cls_token", "cls_token_id"},
                                                         {"mask_token", "mask_token_id"}};
    for (const auto& [name, key] : names) {
      if (const int32_t id = token_id(key, -1); id >= 0) config[name] = tokens[static_cast<size_t>(id)];
    }
    return from_bert_tokens(tokens, std::move(config), where_);
  }

  void make_added(bool scored) {
    // Phi-3's special tokens take the blanks behind them; GGUF has no place to say so.
    std::string name = text_or(metadata_, "general.name", "", where_) + " " +
                       text_or(metadata_, "general.architecture", "", where_);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool phi3 =
        scored && (name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos);
    Json added = Json::array();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (types_[i] != kControl && types_[i] != kUnknown && types_[i] != kUserDefined) continue;
      if (tokens_[i].empty()) continue;
      const std::string_view text = tokens_[i];
      const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      const bool rstrip = phi3 && ((types_[i] == kControl && !plain) || text == "</s>");
      added.push_back(added_token(static_cast<int32_t>(i), text, types_[i] != kUserDefined, rstrip));
    }
    parts_["added_tokens"] = std::move(added);
  }

  void make_special() {
    config_ = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    const std::pair<const char*, const char*> kinds[] = {{"bos_token", "bos_token_id"},
                                                         {"eos_token", "eos_token_id"},
                                                         {"unk_token", "unknown_token_id"},
                                                         {"pad_token", "padding_token_id"}};
    std::map<std::string, int32_t> ids;
    for (const auto& [name, key] : kinds) {
      const int32_t id = token_id(key, -1);
      if (id < 0) continue;
      ids[name] = id;
      config_[name] = std::string(tokens_[static_cast<size_t>(id)]);
    }
    std::vector<std::pair<std::string, int32_t>> before, after;
    const bool bos = flag_or(metadata_, "tokenizer.ggml.add_bos_token", default_bos_, where_);
    const bool eos = flag_or(metadata_, "tokenizer.ggml.add_eos_token", false, where_);
    const auto token = [&](const char* name, const char* flag) {
      if (!ids.contains(name)) fail(flag, std::string("is set, but there is no ") + name);
      return std::pair{std::string(tokens_[static_cast<size_t>(ids[name])]), ids[name]};
    };
    if (bos) before.push_back(token("bos_token", "tokenizer.ggml.add_bos_token"));
    if (eos) after.push_back(token("eos_token", "tokenizer.ggml.add_eos_token"));
    config_["add_bos_token"] = bos;
    config_["add_eos_token"] = eos;
    if (bos || eos) post_.push_back(template_processor(before, after));
    parts_["post_processor"] = post_.empty()       ? Json()
                               : post_.size() == 1 ? post_[0]
                                                   : sequence("processors", Json(post_));
    const std::string chat = text_or(metadata_, "tokenizer.chat_template", "", where_);
    if (!chat.empty()) config_["chat_template"] = chat;
  }

  int32_t token_id(const char* name, int32_t fallback) const {
    const std::string key = std::string("tokenizer.ggml.") + name;
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) return fallback;
    return static_cast<int32_t>(
        integer_value(*it, 0, static_cast<int64_t>(tokens_.size()) - 1, "[" + where_ + "] " + key));
  }

  [[noreturn]] void fail(const char* key, const std::string& message) const {
    throw invalid_argument("[" + where_ + "] " + key + ": " + message);
  }

  const Json& metadata_;
  std::string where_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
  Vocab vocab_;
  Json parts_ = Json::object();
  Json config_ = Json::object();
  std::vector<Json> post_;
  bool default_bos_ = false;
};

}  // namespace
}  // namespace tokenizer

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf_metadata(const Json& metadata, std::string_view where) {
  return tokenizer::Gguf(metadata, where).make();
}

}  // namespace twinkle
