#include "twinkle/text/tokenizer_bpe.h"

#include <algorithm>
#include <array>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_model.h"
#include "twinkle/text/tokenizer_word_cache.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

class Bpe : public Model {
 public:
  Bpe(Vocab vocab, const std::vector<Merge>& merges, BpeOptions options, const std::string& path)
      : options_(std::move(options)) {
    vocab_ = std::move(vocab);
    const size_t prefix = options_.continuing_subword_prefix ? options_.continuing_subword_prefix->size() : 0;
    merges_.reserve(merges.size());
    std::string whole;
    uint32_t rank = 0;
    for (const auto& [left, right] : merges) {
      const auto where = [&] { return path + ".merges[" + std::to_string(rank) + "]"; };
      const auto need = [&](std::string_view text) {
        const int32_t id = vocab_.find(text);
        if (id < 0)
          throw invalid_argument(where() + ": \"" + std::string(text) + "\" is not in the vocabulary");
        return id;
      };
      const int32_t left_id = need(left), right_id = need(right);
      if (right.size() < prefix)
        throw invalid_argument(where() + ": \"" + std::string(right) + "\" is shorter than the prefix");
      whole.assign(left);
      whole += right.substr(prefix);
      merges_.add(left_id, right_id, rank, need(whole));
      ++rank;
    }
    if (options_.unk_token) unk_id_ = vocab_.find(*options_.unk_token);
    bool all_bytes = true;
    for (int b = 0; b < 256; ++b) {
      const auto byte = static_cast<unsigned char>(b);
      byte_tokens_[byte] = vocab_.find(byte_token(byte));
      all_bytes = all_bytes && byte_tokens_[byte] >= 0;
    }
    for (int c = 0; c < 128; ++c) {
      const char text = static_cast<char>(c);
      ascii_ids_[static_cast<size_t>(c)] = vocab_.find({&text, 1});
    }
    plain_ = !options_.continuing_subword_prefix && !options_.end_of_word_suffix;
    for (const auto& e : vocab_.entries()) max_size_ = std::max(max_size_, size_t{e.size});
    whole_.resize(vocab_.size());
    find_marker_cuts(options_.byte_fallback && all_bytes);
    make_raw();
  }

  void tokenize(std::string_view text, std::vector<Token>& out) const override {
    if (text.empty()) return;
    if (options_.ignore_merges) {
      if (const int32_t id = vocab_.find(text); id >= 0) {
        out.push_back({id, 0, text.size()});
        return;
      }
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    char_symbols(text, symbols);
    const size_t count = merge(merges_, symbols.data(), symbols.size());
    for (size_t i = 0; i < count; ++i) out.push_back({symbols[i].id, symbols[i].begin, symbols[i].end});
    trim_buffer(symbols);
  }

  void tokenize_without(std::string_view text, const Refused& refused,
                        std::vector<Token>& out) const override {
    if (text.empty()) return;
    if (options_.ignore_merges) {
      const int32_t id = vocab_.find(text);
      const bool single = text.size() == unicode::char_bytes(text[0]);
      if (id >= 0 && (single || !refused(id, 0, text.size()))) {
        out.push_back({id, 0, text.size()});
        return;
      }
    }
    std::vector<Symbol> symbols;
    char_symbols(text, symbols);
    const size_t count = merge_watched(merges_, symbols.data(), symbols.size(),
                                       [&](const Symbol& left, const Symbol& right, int32_t id) {
                                         return !refused(id, left.begin, right.end);
                                       });
    for (size_t i = 0; i < count; ++i) out.push_back({symbols[i].id, symbols[i].begin, symbols[i].end});
  }

  void ids(std::string_view text, std::vector<int32_t>& out) const override {
    if (text.empty()) return;
    if (options_.ignore_merges) {
      if (const int32_t id = vocab_.find(text); id >= 0) {
        out.push_back(id);
        return;
      }
    }
    const auto symbols_of = [this](std::string_view word, std::vector<Symbol>& symbols) {
      char_symbols(word, symbols);
    };
    if (!marker_cuts_) {
      word_ids(text, vocab_, whole_, max_size_, owner_, symbols_of, out);
      return;
    }
    size_t at = 0;
    while (at < text.size()) {
      size_t end = at;
      while (text.substr(end).starts_with(kSpaceMarker)) end += kSpaceMarker.size();
      end = std::min(text.find(kSpaceMarker, end), text.size());
      word_ids(text.substr(at, end - at), vocab_, whole_, max_size_, owner_, symbols_of, out);
      at = end;
    }
  }

  bool takes_bytes() const override { return takes_bytes_; }

  void byte_ids(std::string_view text, std::vector<int32_t>& out) const override {
    if (options_.ignore_merges) {
      if (const int32_t id = raw_.find(text); id >= 0) {
        out.push_back(id);
        return;
      }
    }
    word_ids(
        text, raw_, raw_whole_, max_raw_size_, raw_owner_,
        [this](std::string_view word, std::vector<Symbol>& symbols) {
          for (size_t i = 0; i < word.size(); ++i) {
            const int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
            if (id >= 0) symbols.push_back({id, static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
          }
        },
        out);
  }

  Json to_json() const override {
    const auto maybe = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
    Json model = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", maybe(options_.unk_token)},
                  {"continuing_subword_prefix", maybe(options_.continuing_subword_prefix)},
                  {"end_of_word_suffix", maybe(options_.end_of_word_suffix)},
                  {"fuse_unk", options_.fuse_unk},
                  {"byte_fallback", options_.byte_fallback},
                  {"ignore_merges", options_.ignore_merges},
                  {"vocab", vocab_json(vocab_)}};
    struct Row {
      uint32_t rank;
      int32_t left, right;
    };
    std::vector<Row> rows;
    rows.reserve(merges_.size());
    merges_.each([&rows](int32_t left, int32_t right, uint32_t rank, int32_t) {
      rows.push_back({rank, left, right});
    });
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.rank < b.rank; });
    Json merges = Json::array();
    for (const Row& row : rows) {
      merges.push_back(
          Json::array({std::string(vocab_.text_of(row.left)), std::string(vocab_.text_of(row.right))}));
    }
    model["merges"] = std::move(merges);
    return model;
  }

 private:
  template <class SymbolsOf>
  void word_ids(std::string_view word, const Vocab& vocab, const WholeMarks& marks, size_t max_size,
                uint32_t owner, SymbolsOf symbols_of, std::vector<int32_t>& out) const {
    ids_of_word<Symbol>(
        word, vocab, marks, max_size, owner,
        [&](std::string_view text, std::vector<Symbol>& symbols) {
          symbols_of(text, symbols);
          symbols.resize(merge(merges_, symbols.data(), symbols.size()));
        },
        out);
  }

  void char_symbols(std::string_view text, std::vector<Symbol>& symbols) const {
    int32_t unk = -1;
    uint32_t unk_begin = 0, unk_end = 0;
    std::string changed;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + unicode::char_bytes(text[at]);
      std::string_view piece = text.substr(at, end - at);
      if (!plain_) {
        changed.clear();
        if (at != 0 && options_.continuing_subword_prefix) changed += *options_.continuing_subword_prefix;
        changed += piece;
        if (end == text.size() && options_.end_of_word_suffix) changed += *options_.end_of_word_suffix;
        piece = changed;
      }
      const auto begin32 = static_cast<uint32_t>(at), end32 = static_cast<uint32_t>(end);
      const int32_t id =
          piece.size() == 1 ? ascii_ids_[static_cast<unsigned char>(piece[0])] : vocab_.find(piece);
      at = end;
      if (id >= 0) {
        if (unk >= 0) symbols.push_back({unk, unk_begin, unk_end});
        unk = -1;
        symbols.push_back({id, begin32, end32});
        continue;
      }
      if (options_.byte_fallback && std::all_of(piece.begin(), piece.end(), [this](char b) {
            return byte_tokens_[static_cast<unsigned char>(b)] >= 0;
          })) {
        // As in the package, an unknown character before stays pending and comes out behind these bytes.
        for (size_t i = 0; i < piece.size(); ++i) {
          const auto from = std::min(begin32 + static_cast<uint32_t>(i), end32 - 1);
          symbols.push_back({byte_tokens_[static_cast<unsigned char>(piece[i])], from, from + 1});
        }
        continue;
      }
      if (!options_.unk_token) continue;
      if (unk_id_ < 0) {
        throw invalid_argument(
            "[tokenizer] the text has a character outside the vocabulary, and unk_token \"" +
            *options_.unk_token + "\" is not in the vocabulary either");
      }
      if (unk >= 0 && options_.fuse_unk) {
        unk_end = end32;
        continue;
      }
      if (unk >= 0) symbols.push_back({unk, unk_begin, unk_end});
      unk = unk_id_;
      unk_begin = begin32;
      unk_end = end32;
    }
    if (unk >= 0) symbols.push_back({unk, unk_begin, unk_end});
  }

  // When no merge joins a marker to what is left of it (unless that is markers only), texts fall apart into
  // words at markers without changing the result: merges never cross those places.
  void find_marker_cuts(bool never_unknown) {
    if (!plain_ || !never_unknown || options_.ignore_merges || vocab_.find(kSpaceMarker) < 0) return;
    bool safe = true;
    merges_.each([&](int32_t left, int32_t right, uint32_t, int32_t) {
      if (vocab_.text_of(right).starts_with(kSpaceMarker) && !vocab_.text_of(left).ends_with(kSpaceMarker))
        safe = false;
    });
    marker_cuts_ = safe;
  }

  void make_raw() {
    bool all = true;
    for (int b = 0; b < 256; ++b) {
      byte_ids_[static_cast<size_t>(b)] = vocab_.find(byte_char(static_cast<unsigned char>(b)));
      all = all && byte_ids_[static_cast<size_t>(b)] >= 0;
    }
    // Bytes that the vocabulary lacks are left out, as the characters that stand for them would be.
    takes_bytes_ = plain_ && !options_.byte_fallback && (all || !options_.unk_token);
    if (!takes_bytes_) return;
    size_t total = 0;
    for (const auto& e : vocab_.entries()) total += e.size;
    raw_.reserve(vocab_.size(), total);
    std::string raw;
    for (const auto& e : vocab_.entries()) {
      raw.clear();
      if (std::binary_search(options_.unmatched.begin(), options_.unmatched.end(), e.id)) continue;
      if (unmap_bytes(vocab_.text(e), raw) && !raw.empty()) {
        raw_.add(raw, e.id);
        max_raw_size_ = std::max(max_raw_size_, raw.size());
      }
    }
    raw_whole_.resize(raw_.size());
  }

  BpeOptions options_;
  MergeTable merges_;
  const uint32_t owner_ = WordCache::new_owner(), raw_owner_ = WordCache::new_owner();
  int32_t unk_id_ = -1;
  bool plain_ = true;  // neither prefix nor suffix on parts of words
  bool marker_cuts_ = false;
  bool takes_bytes_ = false;
  std::array<int32_t, 256> byte_tokens_{};
  std::array<int32_t, 128> ascii_ids_{};
  std::array<int32_t, 256> byte_ids_{};
  size_t max_size_ = 0, max_raw_size_ = 0;
  WholeMarks whole_;
  Vocab raw_;  // the vocabulary with bytes in place of the characters that stand for them
  WholeMarks raw_whole_;
};

}  // namespace

void Model::ids(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<Token> tokens;
  tokenize(text, tokens);
  for (const Token& t : tokens) out.push_back(t.id);
}

std::unique_ptr<const Model> make_bpe(Vocab vocab, const std::vector<Merge>& merges, BpeOptions options,
                                      const std::string& path) {
  return std::make_unique<Bpe>(std::move(vocab), merges, std::move(options), path);
}

namespace {

// "left right". A few old files have tokens that contain spaces themselves: then the one space counts that
// leaves parts, and a whole, of the vocabulary.
std::optional<Merge> part_line(std::string_view line, const Vocab& vocab) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  if (line.find(' ', space + 1) == std::string_view::npos)
    return Merge{line.substr(0, space), line.substr(space + 1)};
  std::optional<Merge> found;
  for (size_t at = space; at != std::string_view::npos; at = line.find(' ', at + 1)) {
    const std::string_view left = line.substr(0, at), right = line.substr(at + 1);
    if (vocab.find(left) < 0 || vocab.find(right) < 0) continue;
    if (vocab.find(std::string(left) + std::string(right)) < 0) continue;
    if (found) return std::nullopt;
    found = {left, right};
  }
  return found;
}

std::vector<Merge> parse_merges(const Json& list, const Vocab& vocab, const std::string& path) {
  std::vector<Merge> merges;
  merges.reserve(list.size());
  size_t i = 0;
  for (const Json& item : list) {
    const auto where = [&] { return path + "[" + std::to_string(i) + "]"; };
    if (item.is_string()) {
      const std::string_view line = item.get_ref<const std::string&>();
      if (!line.starts_with("#version")) {
        const auto merge = part_line(line, vocab);
        if (!merge) {
          throw invalid_argument(where() + ": needs two parts with one space between, got \"" +
                                 std::string(line.substr(0, 60)) + "\"");
        }
        merges.push_back(*merge);
      }
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get_ref<const std::string&>(), item[1].get_ref<const std::string&>());
    } else {
      throw invalid_argument(where() + ": needs \"left right\" or [\"left\", \"right\"], got " +
                             item.dump().substr(0, 60));
    }
    ++i;
  }
  return merges;
}

}  // namespace

Vocab parse_vocab(const Json& value, const std::string& path) {
  if (!value.is_object()) throw invalid_argument(path + ": needs an object of text and id");
  Vocab vocab;
  size_t bytes = 0;
  for (const auto& [text, id] : value.items()) bytes += text.size();
  vocab.reserve(value.size(), bytes);
  for (const auto& [text, id] : value.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxId)) {
      integer_value(id, 0, kMaxId, path + "[\"" + text + "\"]");
    }
    vocab.add(text, static_cast<int32_t>(id.get<int64_t>()));
  }
  return vocab;
}

void append_key(Json& object, std::string_view key, Json value) {
  auto& members =
      static_cast<std::vector<std::pair<const std::string, Json>>&>(object.get_ref<Json::object_t&>());
  members.emplace_back(std::string(key), std::move(value));
}

Json vocab_json(const Vocab& vocab) {
  std::vector<Vocab::Entry> entries = vocab.entries();
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  Json object = Json::object();
  for (const auto& e : entries) append_key(object, vocab.text(e), Json(e.id));
  return object;
}

std::unique_ptr<const Model> parse_model(const Json& value, const std::string& path) {
  if (!value.is_object())
    throw invalid_argument(path + ": needs an object, got " + std::string(json_type_name(value)));
  // Old files have no type: a list of merges is BPE, a list as vocabulary Unigram, as the package tries them.
  std::string type;
  if (value.contains("type")) {
    type = component_type(value, path);
  } else if (value.contains("merges")) {
    type = "BPE";
  } else if (value.contains("continuing_subword_prefix")) {
    type = "WordPiece";
  } else if (value.contains("vocab") && value["vocab"].is_array()) {
    type = "Unigram";
  } else {
    throw invalid_argument(path + ".type: is missing, and the other keys do not tell the model");
  }
  if (type == "Unigram") return parse_unigram(value, path);
  if (type == "WordPiece" || type == "WordLevel") return parse_wordpiece(value, path);
  if (type != "BPE") throw invalid_argument(path + ".type: unknown model \"" + type + "\"");
  Fields fields(value, path);
  fields.ignore("type");
  if (const Json* dropout = fields.find("dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0.0) {
      throw invalid_argument(
          path + ".dropout: BPE dropout makes ids random and is not supported; set it to null, got " +
          dropout->dump());
    }
  }
  BpeOptions options;
  const auto text = [&fields](std::string_view key) {
    return fields.has(key) ? std::optional<std::string>(fields.string(key)) : std::nullopt;
  };
  options.unk_token = text("unk_token");
  options.continuing_subword_prefix = text("continuing_subword_prefix");
  options.end_of_word_suffix = text("end_of_word_suffix");
  if (options.continuing_subword_prefix && options.continuing_subword_prefix->empty())
    options.continuing_subword_prefix.reset();
  if (options.end_of_word_suffix && options.end_of_word_suffix->empty()) options.end_of_word_suffix.reset();
  options.fuse_unk = fields.boolean_or("fuse_unk", false);
  options.byte_fallback = fields.boolean_or("byte_fallback", false);
  options.ignore_merges = fields.boolean_or("ignore_merges", false);
  Vocab vocab = parse_vocab(fields.need("vocab"), fields.at("vocab"));
  const std::vector<Merge> merges = parse_merges(fields.list("merges"), vocab, fields.at("merges"));
  fields.done();
  return make_bpe(std::move(vocab), merges, std::move(options), path);
}

}  // namespace twinkle::tokenizer
