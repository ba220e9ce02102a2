// Tokenizers in vocab.json with merges.txt (GPT-2, Qwen2) and in tiktoken files (Llama 3, Qwen), made into
// the parts of a tokenizer.json.
#include <algorithm>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_pattern.h"

namespace twinkle::tokenizer {
namespace {

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

namespace {

// Bytes of each token -> its rank, in the order of ranks.
Vocab parse_ranks(const std::string& text, const std::string& root) {
  Vocab ranks;
  size_t line_number = 0;
  std::vector<std::pair<int64_t, std::string>> rows;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = root + "line " + std::to_string(line_number);
    const size_t space = line.find(' ');
    const std::string_view number =
        space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    const bool digits =
        !number.empty() && number.size() < 8 &&
        std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) throw invalid_argument(where + ": needs base64 and a rank");
    const int64_t rank = std::stoll(std::string(number));
    if (rank > kMaxId) throw invalid_argument(where + ": rank " + std::to_string(rank) + " is too large");
    rows.emplace_back(rank, decode_base64(std::string(line.substr(0, space)), where));
  }
  if (rows.empty()) throw invalid_argument(root + "has no tokens");
  std::sort(rows.begin(), rows.end());
  ranks.reserve(rows.size(), text.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].first == rows[i - 1].first) {
      throw invalid_argument(root + "rank " + std::to_string(rows[i].first) + " stands there twice");
    }
    ranks.add(rows[i].second, static_cast<int32_t>(rows[i].first));
  }
  if (ranks.size() != rows.size()) throw invalid_argument(root + "has a token twice");
  return ranks;
}

constexpr size_t kLongestToken = 512;

}  // namespace

std::shared_ptr<const Tokenizer> from_tiktoken(const std::string& path, Json config) {
  const std::string root = "[" + path + "] ";
  const Vocab ranks = parse_ranks(read_file(path), root);
  const auto spelled = [](std::string_view bytes) {
    std::string out;
    for (const char b : bytes) out += byte_char(static_cast<unsigned char>(b));
    return out;
  };
  Vocab vocab;
  vocab.reserve(ranks.size(), 0);
  // tiktoken merges any two neighbours that are a token together, lowest rank first: written out as every way
  // to part each token, in the order that transformers writes.
  struct Row {
    int32_t left, right;
  };
  std::vector<Row> rows, local;
  for (const auto& e : ranks.entries()) {
    const std::string_view token = ranks.text(e);
    if (token.size() > kLongestToken) throw invalid_argument(root + "a token is longer than 512 bytes");
    vocab.add(spelled(token), e.id);
    local.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      const int32_t left = ranks.find(token.substr(0, at)), right = ranks.find(token.substr(at));
      if (left >= 0 && right >= 0) local.push_back({left, right});
    }
    std::sort(local.begin(), local.end(), [](const Row& a, const Row& b) {
      return a.left != b.left ? a.left < b.left : a.right < b.right;
    });
    rows.insert(rows.end(), local.begin(), local.end());
  }
  std::vector<Merge> merges;
  merges.reserve(rows.size());
  for (const Row& row : rows) merges.emplace_back(vocab.text_of(row.left), vocab.text_of(row.right));
  Json added = added_tokens_of(config, root);
  bool llama3 = false;
  if (added.is_array()) {
    for (const Json& token : added) llama3 = llama3 || token.value("content", "") == "<|begin_of_text|>";
  }
  if (added.is_null()) {
    // Qwen's own names, which its files do not hold.
    added = Json::array();
    int32_t id = ranks.end_id();
    for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
      added.push_back(added_token(id++, name, true));
    for (int i = 0; i < 205; ++i)
      added.push_back(added_token(id++, "<|extra_" + std::to_string(i) + "|>", true));
    if (!config.contains("eos_token")) config["eos_token"] = "<|endoftext|>";
    if (!config.contains("pad_token")) config["pad_token"] = "<|endoftext|>";
  }
  BytePreset preset = byte_preset(llama3 ? "llama-bpe" : "qwen2", root);
  Json parts = {{"added_tokens", added},
                {"normalizer", preset.normalizer},
                {"pre_tokenizer", preset.pre_tokenizer},
                {"post_processor", byte_level(false, false)},
                {"decoder", byte_level(false, false)}};
  BpeOptions options;
  options.ignore_merges = true;  // a piece that is a token is that token, whatever its merges
  if (llama3) {
    for (const Json& token : added) {
      if (token.value("content", "") != "<|begin_of_text|>") continue;
      const auto bos = template_processor({{"<|begin_of_text|>", token.at("id").get<int32_t>()}}, {});
      parts["post_processor"] = sequence("processors", Json::array({byte_level(false, true), bos}));
    }
    if (!config.contains("bos_token")) config["bos_token"] = "<|begin_of_text|>";
  }
  auto model = make_bpe(std::move(vocab), merges, options, root + "merges");
  return make_tokenizer(std::move(parts), std::move(model), std::move(config), path);
}

}  // namespace twinkle::tokenizer
