// Tokenizers in vocab.json with merges.txt (GPT-2, Qwen2) and in vocab.txt (BERT), made into the parts of a
// tokenizer.json.
#include <algorithm>
#include <map>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    at = end + 1;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::shared_ptr<const Tokenizer> from_vocab_and_merges(const std::string& folder, Json config) {
  const std::string root = "[" + folder + "] ";
  Vocab vocab = parse_vocab(read_json_file(folder + "/vocab.json"), root + "vocab.json");
  const std::vector<std::string> lines = lines_of(folder + "/merges.txt");
  std::vector<Merge> merges;
  for (const std::string& line : lines) {
    const std::string_view view = line;
    if (view.empty() || (merges.empty() && view.starts_with("#version"))) continue;
    const size_t space = view.find(' ');
    if (space == std::string_view::npos || view.find(' ', space + 1) != std::string_view::npos) {
      throw invalid_argument(root + "merges.txt: needs \"left right\" on a line, got \"" + line + "\"");
    }
    merges.emplace_back(view.substr(0, space), view.substr(space + 1));
  }
  std::string kind = "GPT2Tokenizer";
  if (const auto it = config.find("tokenizer_class"); it != config.end() && it->is_string())
    kind = it->get<std::string>();
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  Json parts = Json::object();
  if (kind == "Qwen2Tokenizer") {
    parts["normalizer"] = {{"type", "NFC"}};
    parts["pre_tokenizer"] = after_splits({split_regex(kQwen2Expression)});
    parts["post_processor"] = byte_level(false, false);
    parts["decoder"] = byte_level(false, false);
  } else if (kind == "GPT2Tokenizer") {
    bool prefix = false;
    if (const auto it = config.find("add_prefix_space"); it != config.end() && it->is_boolean())
      prefix = it->get<bool>();
    parts["pre_tokenizer"] = byte_level(true, true);
    parts["pre_tokenizer"]["add_prefix_space"] = prefix;
    parts["post_processor"] = byte_level(false, true);
    parts["decoder"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  } else {
    throw invalid_argument(
        root + "tokenizer_config.json tokenizer_class: vocab.json with merges.txt is read for " +
        "Qwen2Tokenizer and GPT2Tokenizer, got \"" + kind + "\"; a tokenizer.json is needed");
  }
  Json added = Json::array();
  if (Json listed = added_tokens_of(config, root); !listed.is_null()) {
    added = std::move(listed);
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

// BERT's vocabulary: one token a line, its id the number of the line. Settings as transformers' BertTokenizer
// has them.
std::shared_ptr<const Tokenizer> from_bert_vocab(const std::string& path, Json config) {
  return from_bert_tokens(lines_of(path), std::move(config), path);
}

std::shared_ptr<const Tokenizer> from_bert_tokens(const std::vector<std::string>& lines, Json config,
                                                  const std::string& path) {
  const std::string root = "[" + path + "] ";
  if (lines.size() > static_cast<size_t>(kMaxId)) throw invalid_argument(root + "has too many lines");
  Json vocab = Json::object();
  std::set<std::string_view> seen;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!unicode::is_valid(lines[i]))
      throw invalid_argument(root + "line " + std::to_string(i + 1) + ": is not UTF-8");
    if (!seen.insert(lines[i]).second)
      throw invalid_argument(root + "line " + std::to_string(i + 1) + ": \"" + lines[i] +
                             "\" stands there twice");
    append_key(vocab, lines[i], Json(static_cast<int64_t>(i)));
  }
  const std::pair<const char*, const char*> names[] = {{"unk_token", "[UNK]"},
                                                       {"sep_token", "[SEP]"},
                                                       {"pad_token", "[PAD]"},
                                                       {"cls_token", "[CLS]"},
                                                       {"mask_token", "[MASK]"}};
  Json added = added_tokens_of(config, root);
  const bool listed = !added.is_null();
  if (!listed) added = Json::array();
  std::map<std::string, int32_t> ids;
  for (const auto& [name, text] : names) {
    if (!config.contains(name) || config[name].is_null()) config[name] = text;
    const Json& given = config[name];
    const std::string token = given.is_object()   ? given.value("content", "")
                              : given.is_string() ? given.get<std::string>()
                                                  : "";
    const auto found = vocab.find(token);
    if (found == vocab.end())
      throw invalid_argument(root + name + " \"" + token + "\" is not in the vocabulary");
    ids[name] = found->get<int32_t>();
    config[name] = token;
    if (!listed) added.push_back(added_token(ids[name], token, true));
  }
  const bool lowercase = config_flag(config, "do_lower_case", true, root);
  const auto accents = config.find("strip_accents");
  const std::string cls = config["cls_token"].get<std::string>(),
                    sep = config["sep_token"].get<std::string>();
  Json model = {{"type", "WordPiece"},
                {"unk_token", config["unk_token"]},
                {"continuing_subword_prefix", "##"},
                {"max_input_chars_per_word", 100},
                {"vocab", std::move(vocab)}};
  Json parts = {{"added_tokens", std::move(added)},
                {"normalizer",
                 {{"type", "BertNormalizer"},
                  {"clean_text", true},
                  {"handle_chinese_chars", config_flag(config, "tokenize_chinese_chars", true, root)},
                  {"strip_accents", accents == config.end() ? Json() : *accents},
                  {"lowercase", lowercase}}},
                {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                {"post_processor", template_processor({{cls, ids["cls_token"]}}, {{sep, ids["sep_token"]}})},
                {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}};
  return make_tokenizer(std::move(parts), parse_model(model, root + "vocab"), std::move(config), path);
}

}  // namespace twinkle::tokenizer
