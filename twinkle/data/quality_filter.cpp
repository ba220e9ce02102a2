// What filters share, and those by the size of a conversation and by its likeness to others.
#include "twinkle/data/quality_filter.h"

#include <algorithm>

#include "twinkle/core/files.h"
#include "twinkle/data/preprocessor_columns.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace quality {

std::string text_of(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string out;
  if (!content->is_array()) return out;
  for (const Json& block : *content) {
    if (block.is_object() && block.contains("text") && block.at("text").is_string())
      out += block.at("text").get<std::string>();
  }
  return out;
}

std::string thinking_of(const Json& message, std::string* rest) {
  std::string text = text_of(message);
  const auto given = message.find("reasoning_content");
  if (given != message.end() && given->is_string()) {
    *rest = std::move(text);
    return given->get<std::string>();
  }
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t begin = text.find(kOpen), end = text.find(kClose);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    *rest = std::move(text);
    return "";
  }
  std::string out = text.substr(begin + kOpen.size(), end - begin - kOpen.size());
  *rest = text.erase(begin, end + kClose.size() - begin);
  return out;
}

bool has_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

std::string role_of(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

int64_t count_chars(std::string_view text) {
  return static_cast<int64_t>(unicode::count_chars(unicode::replace_invalid(text)));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::vector<std::string> lowered(const Options& options, const char* name) {
  std::vector<std::string> out;
  for (const Json& word : options.get(name)) out.push_back(lower(word.get<std::string>()));
  return out;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

double cjk_share(std::string_view raw) {
  const std::string text = unicode::replace_invalid(raw);
  int64_t cjk = 0, all = 0;
  for (size_t at = 0; at < text.size(); at += unicode::char_bytes(text[at])) {
    const char32_t c = unicode::char_at(text, at);
    if ((unicode::char_class(c) & unicode::kLetter) == 0) continue;
    ++all;
    cjk += unicode::is_cjk(c) || (c >= 0x3040 && c <= 0x30FF) || (c >= 0xAC00 && c <= 0xD7A3) ? 1 : 0;
  }
  return all == 0 ? 0.0 : static_cast<double>(cjk) / static_cast<double>(all);
}

std::string texts_of(const Trajectory& conversation, std::string_view role) {
  std::string out;
  bool first = true;
  for (const Json& message : conversation.messages) {
    if (role_of(message) != role) continue;
    if (!first) out += " ";
    out += text_of(message);
    first = false;
  }
  return out;
}

Json user_data_of(const Trajectory& conversation, const std::string& key) {
  for (const Json& pair : conversation.user_data) {
    if (!pair.is_array() || pair.size() != 2 || pair[0] != key) continue;
    if (!pair[1].is_string()) return pair[1];
    const Json value = Json::parse(pair[1].get_ref<const std::string&>(), nullptr, false);
    return value.is_discarded() ? Json() : value;
  }
  return nullptr;
}

void set_user_data(Trajectory* conversation, const std::string& key, const Json& value) {
  Json pairs = Json::array();
  for (const Json& pair : conversation->user_data) {
    if (!pair.is_array() || pair.empty() || pair[0] != key) pairs.push_back(pair);
  }
  if (!value.is_null()) pairs.push_back(columns::user_data_pair(key, value));
  conversation->user_data = std::move(pairs);
}

bool uses_tools(const Trajectory& conversation) {
  for (const Json& message : conversation.messages) {
    if (role_of(message) == "tool" || has_calls(message)) return true;
  }
  return false;
}

}  // namespace quality

namespace {

using namespace quality;  // NOLINT: the helpers of every filter

class HardFilter : public QualityFilter {
 public:
  explicit HardFilter(const Options& o)
      : min_user_(o.get_int("min_user_chars")),
        min_user_cjk_(o.get_int("min_user_chars_cjk")),
        min_assistant_(o.get_int("min_assistant_chars_2turn")),
        min_thinking_(o.get_int("min_thinking_chars")),
        max_round_(o.get_int("max_chars_per_round")),
        max_total_(o.get_int("max_total_chars")),
        max_rounds_(o.get_int("max_rounds")),
        incomplete_(o.get_bool("allow_incomplete_role")),
        denied_(lowered(o, "system_deny_keywords")) {}

  std::string drop_reason(const Trajectory& conversation) const override {
    int64_t users = 0, assistants = 0, total = 0, round = 0, longest_round = 0, answer = 0, thinking = 0;
    bool answered = false;
    std::string question;
    for (const Json& message : conversation.messages) {
      const std::string role = role_of(message);
      std::string rest;
      const std::string thought = thinking_of(message, &rest);
      const int64_t size = count_chars(rest) + count_chars(thought);
      if (role == "system") {
        const std::string system = lower(rest);
        for (const std::string& word : denied_) {
          if (system.find(word) != std::string::npos) return "system_deny_keyword";
        }
      } else if (role == "user") {
        if (!is_blank(rest)) ++users, question = rest;
        round = 0;
      } else if (role == "assistant") {
        ++assistants;
        answered = answered || !is_blank(rest) || !is_blank(thought) || has_calls(message);
        answer = count_chars(rest);
        thinking = count_chars(thought);
      }
      total += size;
      round += size;
      longest_round = std::max(longest_round, round);
    }
    if (users == 0 && !incomplete_) return "no_user";
    if (!answered && (assistants > 0 || !incomplete_)) return "all_empty_assistant";
    if (max_round_ > 0 && longest_round > max_round_) return "round_too_long";
    if (max_total_ > 0 && total > max_total_) return "total_too_long";
    if (max_rounds_ > 0 && users > max_rounds_) return "too_many_rounds";
    if (users != 1 || assistants != 1 || uses_tools(conversation)) return "";
    if (count_chars(question) < (cjk_share(question) > 0.5 ? min_user_cjk_ : min_user_))
      return "trivial_single_turn";
    return answer < min_assistant_ && thinking < min_thinking_ ? "shallow_reply" : "";
  }

 private:
  int64_t min_user_, min_user_cjk_, min_assistant_, min_thinking_, max_round_, max_total_, max_rounds_;
  bool incomplete_;
  std::vector<std::string> denied_;
};

class DedupFilter : public QualityFilter {
 public:
  explicit DedupFilter(const Options& o)
      : prefix_(static_cast<size_t>(o.get_int("prefix_chars"))),
        answer_(static_cast<size_t>(o.get_int("asst_chars"))) {}
  std::string key(const Trajectory& conversation) const override {
    std::string question, answer;
    for (const Json& message : conversation.messages) {
      const std::string role = role_of(message), text = text_of(message);
      if (role == "user" && question.empty()) question = text;
      if (role == "assistant" && answer.empty()) answer = text;
    }
    if (question.empty() && answer.empty()) return "";
    return sha256_hex(ends(question, prefix_) + std::string(1, '\0') + ends(answer, answer_));
  }

 private:
  // The first and the last characters of a text, whatever its spaces and case.
  static std::string ends(const std::string& raw, size_t most) {
    const std::string text = unicode::replace_invalid(raw);
    std::vector<std::string> kept;
    for (size_t at = 0; at < text.size();) {
      const size_t n = unicode::char_bytes(text[at]);
      const char32_t c = unicode::char_at(text, at);
      if (!unicode::is_space(c)) {
        kept.emplace_back();
        unicode::append_lower(kept.back(), c);
      }
      at += n;
    }
    std::string out;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (i < most || i + most >= kept.size()) out += kept[i];
    }
    return out;
  }
  size_t prefix_, answer_;
};

const auto kHard = add_filter<HardFilter>(
    "HardFilter",
    "Drops conversations that are too short or too long to learn from: no_user, all_empty_assistant, "
    "trivial_single_turn, shallow_reply, system_deny_keyword, round_too_long, total_too_long, "
    "too_many_rounds.",
    {count("min_user_chars", 10, "Characters of the only question of a conversation."),
     count("min_user_chars_cjk", 6, "The same for Chinese, Japanese and Korean."),
     count("min_assistant_chars_2turn", 80, "Characters of the only answer, unless it was thought about."),
     count("min_thinking_chars", 200, "Characters of thinking that make up for a short answer."),
     flag("allow_incomplete_role", false, "Keep conversations without a question or without an answer."),
     words("system_deny_keywords", "Words that no system message may have."),
     count("max_chars_per_round", 0, "Characters of a question and its answers; 0: any."),
     count("max_total_chars", 0, "Characters of a conversation; 0: any."),
     count("max_rounds", 0, "Questions of a conversation; 0: any.")});
const auto kDedup = add_filter<DedupFilter>(
    "DedupFilter", "Of conversations with the same first question and answer keeps the longest: duplicate.",
    {count("prefix_chars", 100, "Characters of the question that are compared, from each end."),
     count("asst_chars", 100, "Characters of the answer that are compared, from each end.")});

}  // namespace
}  // namespace twinkle
