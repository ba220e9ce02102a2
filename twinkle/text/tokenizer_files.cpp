// Tokenizers that come in other files than tokenizer.json: vocab.json with merges.txt, and a GGUF file's metadata.
// Both become the parts of a tokenizer.json, so that the engine and what is saved are the same for all.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace tokenizer {
namespace {

Json byte_level(bool trim, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trim}, {"use_regex", regex}};
}
Json split_regex(std::string_view expression) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(expression)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}
Json sequence(const char* key, Json steps) { return {{"type", "Sequence"}, {key, std::move(steps)}}; }
Json after_splits(std::vector<Json> steps) {
  steps.push_back(byte_level(false, false));
  return sequence("pretokenizers", Json(std::move(steps)));
}

struct BytePreset {
  Json normalizer, pre_tokenizer;
  bool ignore_merges = false;
};

constexpr const char* kGpt4oExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCjkRun = "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+";
constexpr const char* kDeepseekV3Cjk = "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
constexpr const char* kDeepseekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pre-tokenizers that GGUF files name, as the tokenizer.json of the model has them.
BytePreset byte_preset(const std::string& name, const std::string& path) {
  const auto one_of = [&name](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  if (one_of({"default", "gpt-2", "gpt2", "phi-2", "roberta-bpe", "mpt", "olmo", "jais", "trillion", "exaone4"})) {
    return {Json(), byte_level(true, true)};
  }
  if (one_of({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})) {
    return {Json(), sequence("pretokenizers", Json::array({digits, byte_level(true, true)}))};
  }
  if (one_of({"llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe"})) {
    const bool ignore_merges = !one_of({"dbrx", "smaug-bpe"});
    return {Json(), after_splits({split_regex(kLlama3Expression)}), ignore_merges};
  }
  if (one_of({"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"})) {
    return {{{"type", "NFC"}}, after_splits({split_regex(kQwen2Expression)})};
  }
  if (name == "qwen35") return {{{"type", "NFC"}}, after_splits({split_regex(kQwen35Expression)})};
  if (name == "gpt-4o" || name == "llama4") return {Json(), after_splits({split_regex(kGpt4oExpression)})};
  if (name == "tekken") return {Json(), after_splits({split_regex(kTekkenExpression)}), true};
  if (name == "deepseek-coder") {
    return {Json(), after_splits({split_regex("[\r\n]"), split_regex("\\s?\\p{L}+"), split_regex("\\s?\\p{P}+"),
                                  split_regex(kCjkRun), digits})};
  }
  if (name == "deepseek-v3" || name == "deepseek3") {
    return {Json(), after_splits({split_regex("\\p{N}{1,3}"), split_regex(kDeepseekV3Cjk), split_regex(kDeepseekV3Words)})};
  }
  throw invalid_argument(path + ": unknown pre-tokenizer \"" + name +
                         "\" (gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, tekken, deepseek-coder, deepseek-v3, ...)");
}

Json template_processor(const std::vector<std::pair<std::string, int32_t>>& before,
                        const std::vector<std::pair<std::string, int32_t>>& after) {
  Json single = Json::array(), pair = Json::array(), special = Json::object();
  for (int type = 0; type < 2; ++type) {
    const auto put = [&](const auto& tokens) {
      for (const auto& [text, id] : tokens) {
        const Json item = {{"SpecialToken", {{"id", text}, {"type_id", type}}}};
        if (type == 0) single.push_back(item);
        pair.push_back(item);
        special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
      }
    };
    put(before);
    const Json item = {{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}};
    if (type == 0) single.push_back(item);
    pair.push_back(item);
    put(after);
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

Json added_token(int32_t id, std::string_view content, bool special, bool rstrip = false) {
  return {{"id", id},          {"content", std::string(content)}, {"single_word", false}, {"lstrip", false},
          {"rstrip", rstrip},  {"normalized", false},             {"special", special}};
}

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
  if (!it->is_boolean()) throw invalid_argument("[" + std::string(where) + "] " + key + ": needs true or false");
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
    std::unique_ptr<const Model> model;
    if (kind == "gpt2") {
      model = make_byte_level();
    } else if (kind == "llama") {
      model = make_scored();
    } else {
      throw invalid_argument("[" + where_ + "] tokenizer.ggml.model: unknown model \"" + kind + "\" (gpt2, llama)");
    }
    make_added(kind == "llama");
    make_special();
    return make_tokenizer(std::move(parts_), std::move(model), std::move(config_), where_);
  }

 private:
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  void read_tokens() {
    const Json& tokens = need(metadata_, "tokenizer.ggml.tokens", where_);
    if (!tokens.is_array() || tokens.empty()) fail("tokenizer.ggml.tokens", "needs a list with at least one token");
    if (tokens.size() > static_cast<size_t>(kMaxId)) fail("tokenizer.ggml.tokens", "is too long");
    size_t bytes = 0;
    for (const Json& token : tokens) {
      if (!token.is_string()) fail("tokenizer.ggml.tokens", "needs strings, got " + token.dump().substr(0, 40));
      tokens_.push_back(token.get_ref<const std::string&>());
      bytes += tokens_.back().size();
    }
    vocab_.reserve(tokens_.size(), bytes);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (vocab_.find(tokens_[i]) >= 0) {
        fail("tokenizer.ggml.tokens", "\"" + std::string(tokens_[i]) + "\" stands there twice, the second time at " + std::to_string(i));
      }
      vocab_.add(tokens_[i], static_cast<int32_t>(i));
    }
    types_.assign(tokens_.size(), kNormal);
    if (const auto it = metadata_.find("tokenizer.ggml.token_type"); it != metadata_.end()) {
      if (!it->is_array() || it->size() != tokens_.size()) {
        fail("tokenizer.ggml.token_type", "needs a list of " + std::to_string(tokens_.size()) + " numbers");
      }
      for (size_t i = 0; i < types_.size(); ++i) {
        types_[i] = integer_value((*it)[i], 0, 6, "[" + where_ + "] tokenizer.ggml.token_type[" + std::to_string(i) + "]");
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
      // A part may itself begin with a space in no alphabet of ours, so the first space from the second byte on parts them.
      const std::string_view line = item.is_string() ? std::string_view(item.get_ref<const std::string&>()) : std::string_view();
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos) fail("tokenizer.ggml.merges", "needs \"left right\", got " + item.dump().substr(0, 60));
      merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
    parts_["normalizer"] = std::move(preset.normalizer);
    parts_["pre_tokenizer"] = std::move(preset.pre_tokenizer);
    post_.push_back(byte_level(true, true));
    parts_["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    BpeOptions options;
    options.ignore_merges = preset.ignore_merges;
    default_bos_ = pre == "llama3" || pre == "llama-v3" || pre == "llama-bpe" || pre == "falcon3" || pre == "tekken";
    return make_bpe(vocab_, merges, options, "[" + where_ + "] tokenizer.ggml");
  }

  // SentencePiece merges the pair whose whole has the highest score: written out as a list of merges, every way to
  // part a token, best score first (and, as the reference conversion, longer parts first among equals).
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
      if (!scores[i].is_number()) fail("tokenizer.ggml.scores", "needs numbers, got " + scores[i].dump().substr(0, 40));
      if (types_[i] != kNormal && types_[i] != kUserDefined) continue;
      const std::string_view token = tokens_[i];
      const size_t chars = unicode::count_chars(token);
      local.clear();
      size_t left_chars = 1;
      for (size_t at = token.empty() ? 0 : unicode::char_bytes(token[0]); at < token.size(); at += unicode::char_bytes(token[at])) {
        const int32_t left = vocab_.find(token.substr(0, at)), right = vocab_.find(token.substr(at));
        if (left >= 0 && right >= 0) local.push_back({scores[i].get<double>(), left_chars, chars - left_chars, left, right, 0});
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
    options.unk_token = unknown == types_.end() ? std::string(tokens_[static_cast<size_t>(token_id("unknown_token_id", 0))])
                                                : std::string(tokens_[static_cast<size_t>(unknown - types_.begin())]);
    const Json space = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
    const bool prefix = flag_or(metadata_, "tokenizer.ggml.add_space_prefix", true, where_);
    Json normalizers = Json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}});
    normalizers.push_back(space);
    parts_["normalizer"] = sequence("normalizers", std::move(normalizers));
    parts_["pre_tokenizer"] = nullptr;
    Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
                                 {{"type", "ByteFallback"}},
                                 {{"type", "Fuse"}}});
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    parts_["decoder"] = sequence("decoders", std::move(decoders));
    default_bos_ = true;
    return make_bpe(vocab_, merges, options, "[" + where_ + "] tokenizer.ggml");
  }

  void make_added(bool scored) {
    // Phi-3's special tokens take the blanks behind them; GGUF has no place to say so.
    std::string name = text_or(metadata_, "general.name", "", where_) + " " + text_or(metadata_, "general.architecture", "", where_);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool phi3 = scored && (name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos);
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
    const std::pair<const char*, const char*> kinds[] = {{"bos_token", "bos_token_id"}, {"eos_token", "eos_token_id"},
                                                         {"unk_token", "unknown_token_id"}, {"pad_token", "padding_token_id"}};
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
    parts_["post_processor"] = post_.empty() ? Json() : post_.size() == 1 ? post_[0] : sequence("processors", Json(post_));
    const std::string chat = text_or(metadata_, "tokenizer.chat_template", "", where_);
    if (!chat.empty()) config_["chat_template"] = chat;
  }

  int32_t token_id(const char* name, int32_t fallback) const {
    const std::string key = std::string("tokenizer.ggml.") + name;
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) return fallback;
    return static_cast<int32_t>(integer_value(*it, 0, static_cast<int64_t>(tokens_.size()) - 1, "[" + where_ + "] " + key));
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

std::vector<std::string> merge_lines(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    at = end + 1;
    if (line.empty() || (lines.empty() && line.starts_with("#version"))) continue;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::shared_ptr<const Tokenizer> from_vocab_and_merges(const std::string& folder, Json config) {
  const std::string root = "[" + folder + "] ";
  Vocab vocab = parse_vocab(read_json_file(folder + "/vocab.json"), root + "vocab.json");
  const std::vector<std::string> lines = merge_lines(folder + "/merges.txt");
  std::vector<Merge> merges;
  for (const std::string& line : lines) {
    const std::string_view view = line;
    const size_t space = view.find(' ');
    if (space == std::string_view::npos || view.find(' ', space + 1) != std::string_view::npos) {
      throw invalid_argument(root + "merges.txt: needs \"left right\" on a line, got \"" + line + "\"");
    }
    merges.emplace_back(view.substr(0, space), view.substr(space + 1));
  }
  std::string kind = "GPT2Tokenizer";
  if (const auto it = config.find("tokenizer_class"); it != config.end() && it->is_string()) kind = it->get<std::string>();
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  Json parts = Json::object();
  if (kind == "Qwen2Tokenizer") {
    parts["normalizer"] = {{"type", "NFC"}};
    parts["pre_tokenizer"] = after_splits({split_regex(kQwen2Expression)});
    parts["post_processor"] = byte_level(false, false);
    parts["decoder"] = byte_level(false, false);
  } else if (kind == "GPT2Tokenizer") {
    bool prefix = false;
    if (const auto it = config.find("add_prefix_space"); it != config.end() && it->is_boolean()) prefix = it->get<bool>();
    parts["pre_tokenizer"] = byte_level(true, true);
    parts["pre_tokenizer"]["add_prefix_space"] = prefix;
    parts["post_processor"] = byte_level(false, true);
    parts["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  } else {
    throw invalid_argument(root + "tokenizer_config.json tokenizer_class: vocab.json with merges.txt is read for " +
                           "Qwen2Tokenizer and GPT2Tokenizer, got \"" + kind + "\"; a tokenizer.json is needed");
  }
  Json added = Json::array();
  if (const auto it = config.find("added_tokens_decoder"); it != config.end() && it->is_object()) {
    std::map<int64_t, Json> ordered;
    for (const auto& [id, value] : it->items()) {
      Fields fields(value, root + "tokenizer_config.json added_tokens_decoder[\"" + id + "\"]");
      const bool digits = !id.empty() && id.size() < 8 && std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!digits) fields.fail("id", "needs a number as key");
      Json token = value;
      token["id"] = std::stoll(id);
      ordered[std::stoll(id)] = std::move(token);
    }
    for (auto& [id, token] : ordered) added.push_back(std::move(token));
  } else if (const int32_t id = vocab.find("<|endoftext|>"); id >= 0) {
    added.push_back(added_token(id, "<|endoftext|>", true));
    for (const char* key : {"bos_token", "eos_token", "unk_token"}) {
      if (!config.contains(key)) config[key] = "<|endoftext|>";
    }
  }
  parts["added_tokens"] = std::move(added);
  auto model = make_bpe(std::move(vocab), merges, {}, root + "merges.txt");
  return make_tokenizer(std::move(parts), std::move(model), std::move(config), folder);
}

}  // namespace tokenizer

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf_metadata(const Json& metadata, std::string_view where) {
  return tokenizer::Gguf(metadata, where).make();
}

}  // namespace twinkle
