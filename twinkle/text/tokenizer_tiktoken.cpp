// tiktoken's files: lines of base64 and rank, with an expression and special tokens that the file itself does
// not hold: those of a known encoding, of a model family, or of the config.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/tokenizer_engine.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_pattern.h"

namespace twinkle {
namespace tokenizer {
namespace {

constexpr size_t kLongestToken = 512;

// Bytes of each token -> its rank, in the order of ranks.
Vocab parse_ranks(std::string_view text, const std::string& root) {
  Vocab ranks;
  size_t line_number = 0;
  std::vector<std::pair<int64_t, std::string>> rows;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view line = text.substr(at, end - at);
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

struct Special {
  std::string text;
  int32_t id;
};

struct Known {
  std::string expression;
  Json normalizer;  // null: none
  std::vector<Special> special;
  std::string bos, eos, pad;
  bool add_bos = false;
};

Known qwen(int32_t end) {
  Known out{kQwen2Expression, {{"type", "NFC"}}, {}, "", "<|endoftext|>", "<|endoftext|>"};
  for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
    out.special.push_back({name, end++});
  for (int i = 0; i < 205; ++i) out.special.push_back({"<|extra_" + std::to_string(i) + "|>", end++});
  return out;
}

// Names of Llama 3.1; those of 3.0 differ only among the reserved ones.
Known llama3(int32_t end) {
  Known out{kLlama3Expression, nullptr, {}, "<|begin_of_text|>", "<|end_of_text|>", "", true};
  for (const char* name :
       {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"}) {
    out.special.push_back({name, end++});
  }
  for (int i = 3; out.special.size() < 256; ++i)
    out.special.push_back({"<|reserved_special_token_" + std::to_string(i) + "|>", end++});
  return out;
}

Known openai(const char* expression, std::vector<Special> special) {
  return {expression, nullptr, std::move(special), "", "<|endoftext|>", ""};
}

std::optional<Known> by_name(std::string_view name, int32_t end) {
  const auto is = [name](std::string_view start) { return name.starts_with(start); };
  if (is("cl100k")) {
    return openai(kCl100kExpression, {{"<|endoftext|>", 100257},
                                      {"<|fim_prefix|>", 100258},
                                      {"<|fim_middle|>", 100259},
                                      {"<|fim_suffix|>", 100260},
                                      {"<|endofprompt|>", 100276}});
  }
  if (is("o200k_harmony")) {
    std::vector<Special> special = {{"<|startoftext|>", 199998}, {"<|endoftext|>", 199999}};
    for (int32_t id = 200000; id < 201088; ++id)
      special.push_back({"<|reserved_" + std::to_string(id) + "|>", id});
    for (const Special& s : std::initializer_list<Special>{{"<|return|>", 200002},
                                                           {"<|constrain|>", 200003},
                                                           {"<|channel|>", 200005},
                                                           {"<|start|>", 200006},
                                                           {"<|end|>", 200007},
                                                           {"<|message|>", 200008},
                                                           {"<|call|>", 200012},
                                                           {"<|endofprompt|>", 200018}}) {
      special[static_cast<size_t>(s.id - 199998)].text = s.text;
    }
    return openai(kO200kExpression, std::move(special));
  }
  if (is("o200k")) return openai(kO200kExpression, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}});
  if (is("p50k_edit")) {
    return openai(kGpt2Expression, {{"<|endoftext|>", 50256},
                                    {"<|fim_prefix|>", 50281},
                                    {"<|fim_middle|>", 50282},
                                    {"<|fim_suffix|>", 50283}});
  }
  if (is("p50k") || is("r50k") || is("gpt2")) return openai(kGpt2Expression, {{"<|endoftext|>", 50256}});
  if (is("qwen")) return qwen(end);
  return std::nullopt;
}

std::string text_in(const Json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// tiktoken's regex engine holds on to {n,m}+, Ruby's repeats it: at the end of an alternative {n,m} is what
// is meant.
std::string ruby_form(std::string expression, const std::string& root) {
  for (size_t at = expression.find("}+"); at != std::string::npos; at = expression.find("}+", at + 1)) {
    const size_t open = expression.rfind('{', at);
    const bool interval =
        open != std::string::npos && open > 0 && expression[open - 1] != 'p' && expression[open - 1] != 'P';
    if (!interval) continue;
    if (at + 2 < expression.size() && expression[at + 2] != '|') {
      throw invalid_argument(
          root + "tokenizer_config.json pat_str: {n,m}+ within an alternative is not read, in \"" +
          expression + "\"");
    }
    expression.erase(at + 1, 1);
  }
  return expression;
}

Known choose(std::string_view where, const Json& config, const Json& added, const Vocab& ranks) {
  const std::string root = "[" + std::string(where) + "] ";
  const std::string file = std::filesystem::path(where).filename().string();
  const int32_t end = ranks.end_id();
  if (auto known = by_name(file, end)) return *known;
  for (const char* key : {"pat_str", "pattern"}) {
    if (const std::string given = text_in(config, key); !given.empty())
      return {ruby_form(given, root), nullptr, {}, "", "", ""};
  }
  const std::string kind = text_in(config, "tokenizer_class");
  if (kind.starts_with("QWenTokenizer")) return qwen(end);
  if (kind.starts_with("TikTokenTokenizer")) return {kKimiExpression, nullptr, {}, "", "", ""};
  if (added.is_array() && std::any_of(added.begin(), added.end(), [](const Json& token) {
        return token.value("content", "") == "<|begin_of_text|>";
      })) {
    return llama3(end);
  }
  if (end == 128000) return llama3(end);
  if (end == 151643) return qwen(end);
  throw invalid_argument(root +
                         "the file does not tell how text is cut before merging: name it after its encoding "
                         "(cl100k_base, o200k_base, p50k_base, r50k_base, qwen), or give pat_str in "
                         "tokenizer_config.json");
}

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) out += byte_char(static_cast<unsigned char>(b));
  return out;
}

// tiktoken merges any two neighbours that are a token together, lowest rank first: written out as every way
// to part each token, in the order that transformers writes.
std::vector<Merge> merges_of(const Vocab& ranks, const Vocab& vocab, const std::string& root) {
  struct Row {
    int32_t left, right;
  };
  std::vector<Row> rows, local;
  for (const auto& e : ranks.entries()) {
    const std::string_view token = ranks.text(e);
    if (token.size() > kLongestToken) throw invalid_argument(root + "a token is longer than 512 bytes");
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
  return merges;
}

// The engine gives tokens outside the vocabulary the next free ids; those that need others go into it.
std::vector<int32_t> place(const Json& added, Vocab* vocab, const std::string& root) {
  auto next = static_cast<int64_t>(vocab->size());
  bool in_order = true;
  for (const Json& token : added) {
    const std::string text = token.value("content", "");
    if (text.empty() || vocab->find(text) >= 0) continue;
    in_order = in_order && token.at("id").get<int64_t>() == next++;
  }
  std::vector<int32_t> placed;
  if (in_order) return placed;
  for (const Json& token : added) {
    const std::string text = token.value("content", "");
    const auto id = token.at("id").get<int32_t>();
    if (text.empty() || vocab->find(text) >= 0) continue;
    if (id > kMaxId) throw invalid_argument(root + "the id of \"" + text + "\" is too large");
    if (vocab->has(id))
      throw invalid_argument(root + "id " + std::to_string(id) + " is a rank and the special token " + text);
    vocab->add(text, id);
    placed.push_back(id);
  }
  std::sort(placed.begin(), placed.end());
  return placed;
}

}  // namespace
}  // namespace tokenizer

std::shared_ptr<const Tokenizer> Tokenizer::from_tiktoken(std::string_view text, const Json& tokenizer_config,
                                                          std::string_view where) {
  using namespace tokenizer;
  const std::string root = "[" + std::string(where) + "] ";
  Json config = tokenizer_config.is_object() ? tokenizer_config : Json::object();
  const Vocab ranks = parse_ranks(text, root);
  Vocab vocab;
  vocab.reserve(ranks.size(), 0);
  for (const auto& e : ranks.entries()) vocab.add(spelled(ranks.text(e)), e.id);
  Json added = added_tokens_of(config, root);
  const Known known = choose(where, config, added, ranks);
  if (added.is_null()) {
    added = Json::array();
    for (const Special& token : known.special) added.push_back(added_token(token.id, token.text, true));
  }
  BpeOptions options;
  options.ignore_merges = true;  // a piece that is a token is that token, whatever its merges
  options.unmatched = place(added, &vocab, root);
  const std::pair<const char*, const std::string&> names[] = {
      {"bos_token", known.bos}, {"eos_token", known.eos}, {"pad_token", known.pad}};
  for (const auto& [key, name] : names) {
    if (!name.empty() && !config.contains(key)) config[key] = name;
  }
  Json parts = {{"added_tokens", added},
                {"normalizer", known.normalizer},
                {"pre_tokenizer", after_splits({split_regex(known.expression)})},
                {"post_processor", byte_level(false, false)},
                {"decoder", byte_level(false, false)}};
  if (known.add_bos) {
    for (const Json& token : added) {
      if (token.value("content", "") != known.bos) continue;
      const auto bos = template_processor({{known.bos, token.at("id").get<int32_t>()}}, {});
      parts["post_processor"] = sequence("processors", Json::array({byte_level(false, true), bos}));
    }
  }
  const std::vector<Merge> merges = merges_of(ranks, vocab, root);
  auto model = make_bpe(std::move(vocab), merges, options, root + "merges");
  return make_tokenizer(std::move(parts), std::move(model), std::move(config), where);
}

}  // namespace twinkle
