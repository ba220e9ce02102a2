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
constexpr size_t kMostHoles = 16;  // special tokens among the ranks; OpenAI's p50k has one

// The ranks of a file, and the line of the last one, for messages.
struct Ranks {
  Vocab vocab;                          // bytes of each token -> its rank, in the order of ranks
  std::vector<int32_t> holes;           // ranks below the last that no line has
  size_t hole_line = 0, last_line = 0;  // behind the first hole; of the highest rank
};

std::string line_text(size_t line) { return "line " + std::to_string(line); }

Error hole_error(int32_t hole, size_t line, const std::string& root) {
  return invalid_argument(root + line_text(line) + ": rank " + std::to_string(hole) +
                          " is missing before it; lines were lost");
}

Ranks parse_ranks(std::string_view text, const std::string& root) {
  Ranks out;
  size_t line_number = 0;
  struct Row {
    int64_t rank;
    size_t line;
    std::string bytes;
  };
  std::vector<Row> rows;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = root + line_text(line_number);
    const size_t space = line.find(' ');
    const std::string_view number =
        space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    const bool digits =
        !number.empty() && number.size() < 8 &&
        std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) throw invalid_argument(where + ": needs base64 and a rank");
    const int64_t rank = std::stoll(std::string(number));
    if (rank > kMaxId) throw invalid_argument(where + ": rank " + std::to_string(rank) + " is too large");
    rows.push_back({rank, line_number, decode_base64(std::string(line.substr(0, space)), where)});
  }
  if (rows.empty()) throw invalid_argument(root + "has no tokens");
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.rank < b.rank; });
  out.vocab.reserve(rows.size(), text.size());
  int64_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.rank < next) {
      throw invalid_argument(root + line_text(row.line) + ": rank " + std::to_string(row.rank) +
                             " stands on " + line_text(rows[i - 1].line) + " too");
    }
    for (; next < row.rank && out.holes.size() <= kMostHoles; ++next)
      out.holes.push_back(static_cast<int32_t>(next));
    if (out.holes.size() > kMostHoles) throw hole_error(out.holes.front(), row.line, root);
    next = row.rank + 1;
    if (const int32_t other = out.vocab.find(row.bytes); other >= 0) {
      throw invalid_argument(root + line_text(row.line) + ": the token of rank " + std::to_string(row.rank) +
                             " has rank " + std::to_string(other) + " already");
    }
    out.vocab.add(row.bytes, static_cast<int32_t>(row.rank));
    if (out.hole_line == 0 && !out.holes.empty()) out.hole_line = row.line;
  }
  out.last_line = rows.back().line;
  return out;
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
  int32_t end = 0;  // of the ranks; 0: any
};

constexpr int32_t kQwenRanks = 151643;
// Where the ranks of published files end: cl100k's special tokens leave an id out behind it, o200k's too.
constexpr int32_t kPublishedEnds[] = {50256, 50281, 100256, 128000, kQwenRanks, 163584, 199998};

Known qwen() {
  Known out{kQwen2Expression, {{"type", "NFC"}}, {}, "", "<|endoftext|>", "<|endoftext|>"};
  int32_t end = out.end = kQwenRanks;
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

Known openai(const char* expression, int32_t end, std::vector<Special> special) {
  Known out{expression, nullptr, std::move(special), "", "<|endoftext|>", ""};
  out.end = end;
  return out;
}

std::optional<Known> by_name(std::string_view name) {
  const auto is = [name](std::string_view start) { return name.starts_with(start); };
  if (is("cl100k")) {
    return openai(kCl100kExpression, 100256,
                  {{"<|endoftext|>", 100257},
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
    return openai(kO200kExpression, 199998, std::move(special));
  }
  if (is("o200k"))
    return openai(kO200kExpression, 199998, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}});
  if (is("p50k_edit")) {
    return openai(kGpt2Expression, 50281,
                  {{"<|endoftext|>", 50256},
                   {"<|fim_prefix|>", 50281},
                   {"<|fim_middle|>", 50282},
                   {"<|fim_suffix|>", 50283}});
  }
  if (is("p50k")) return openai(kGpt2Expression, 50281, {{"<|endoftext|>", 50256}});
  if (is("r50k") || is("gpt2")) return openai(kGpt2Expression, 50256, {{"<|endoftext|>", 50256}});
  if (is("qwen")) return qwen();
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

// A rank may be missing only where a special token has its place, and the ranks end where the encoding or the
// ids of the special tokens say: whatever else is missing was lost, and would move the ids that follow.
void check_complete(const Ranks& ranks, const Known& known, const Json& added, const std::string& root) {
  for (const int32_t hole : ranks.holes) {
    const bool taken =
        std::any_of(added.begin(), added.end(), [&](const Json& token) { return token.at("id") == hole; });
    if (!taken) throw hole_error(hole, ranks.hole_line, root);
  }
  const int32_t end = ranks.vocab.end_id();
  const auto refuse = [&](const std::string& whose) {
    return invalid_argument(root + line_text(ranks.last_line) + " has the last rank, " +
                            std::to_string(end - 1) + ", but " + whose +
                            "; the file is cut short, or another encoding's");
  };
  if (known.end > 0) {
    if (end == known.end) return;
    throw refuse("this encoding's ranks end at " + std::to_string(known.end - 1));
  }
  if (std::find(std::begin(kPublishedEnds), std::end(kPublishedEnds), end) != std::end(kPublishedEnds))
    return;
  std::optional<int64_t> first;  // of the special tokens behind the ranks
  for (const Json& token : added) {
    const auto id = token.at("id").get<int64_t>();
    if (id >= end && (!first || id < *first)) first = id;
  }
  if (first && *first > end) throw refuse("the special tokens begin at " + std::to_string(*first));
}

Known choose(std::string_view where, const Json& config, const Json& added, const Vocab& ranks) {
  const std::string root = "[" + std::string(where) + "] ";
  const std::string file = std::filesystem::path(where).filename().string();
  const int32_t end = ranks.end_id();
  if (auto known = by_name(file)) return *known;
  for (const char* key : {"pat_str", "pattern"}) {
    if (const std::string given = text_in(config, key); !given.empty())
      return {ruby_form(given, root), nullptr, {}, "", "", ""};
  }
  const std::string kind = text_in(config, "tokenizer_class");
  if (kind.starts_with("QWenTokenizer")) return qwen();
  if (kind.starts_with("TikTokenTokenizer")) return {kKimiExpression, nullptr, {}, "", "", ""};
  if (added.is_array() && std::any_of(added.begin(), added.end(), [](const Json& token) {
        return token.value("content", "") == "<|begin_of_text|>";
      })) {
    return llama3(end);
  }
  if (end == 128000) return llama3(end);
  if (end == kQwenRanks) return qwen();
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
std::vector<int32_t> place_added(const Json& added, Vocab* vocab, const std::string& root) {
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
  const Ranks file = parse_ranks(text, root);
  const Vocab& ranks = file.vocab;
  Vocab vocab;
  vocab.reserve(ranks.size(), 0);
  for (const auto& e : ranks.entries()) vocab.add(spelled(ranks.text(e)), e.id);
  Json added = added_tokens_of(config, root);
  const Known known = choose(where, config, added, ranks);
  if (added.is_null()) {
    added = Json::array();
    for (const Special& token : known.special) added.push_back(added_token(token.id, token.text, true));
  }
  check_complete(file, known, added, root);
  BpeOptions options;
  options.ignore_merges = true;  // a piece that is a token is that token, whatever its merges
  options.unmatched = place_added(added, &vocab, root);
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
