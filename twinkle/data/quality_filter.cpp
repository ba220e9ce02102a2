// Filters by the shape of a conversation: lengths, roles, tools, likeness.
#include "twinkle/data/quality_filter.h"

#include <algorithm>
#include <set>

#include "twinkle/core/files.h"
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

}  // namespace quality

namespace {

using namespace quality;  // NOLINT: the helpers of every filter

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

bool is_mostly_cjk(std::string_view raw) {
  const std::string text = unicode::replace_invalid(raw);
  int64_t cjk = 0, all = 0;
  for (size_t at = 0; at < text.size(); at += unicode::char_bytes(text[at])) {
    const char32_t c = unicode::char_at(text, at);
    if ((unicode::char_class(c) & unicode::kLetter) == 0) continue;
    ++all;
    cjk += unicode::is_cjk(c) || (c >= 0x3040 && c <= 0x30FF) || (c >= 0xAC00 && c <= 0xD7A3) ? 1 : 0;
  }
  return 2 * cjk > all;
}

std::vector<std::string> lowered(const Options& options, const char* name) {
  std::vector<std::string> out;
  for (const Json& word : options.get(name)) out.push_back(lower(word.get<std::string>()));
  return out;
}

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
    bool answered = false, agent = false;
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
        agent = agent || has_calls(message);
        answered = answered || !is_blank(rest) || !is_blank(thought) || has_calls(message);
        answer = count_chars(rest);
        thinking = count_chars(thought);
      }
      agent = agent || role == "tool";
      total += size;
      round += size;
      longest_round = std::max(longest_round, round);
    }
    if (users == 0 && !incomplete_) return "no_user";
    if (!answered && (assistants > 0 || !incomplete_)) return "all_empty_assistant";
    if (max_round_ > 0 && longest_round > max_round_) return "round_too_long";
    if (max_total_ > 0 && total > max_total_) return "total_too_long";
    if (max_rounds_ > 0 && users > max_rounds_) return "too_many_rounds";
    if (users != 1 || assistants != 1 || agent) return "";
    if (count_chars(question) < (is_mostly_cjk(question) ? min_user_cjk_ : min_user_))
      return "trivial_single_turn";
    return answer < min_assistant_ && thinking < min_thinking_ ? "shallow_reply" : "";
  }

 private:
  int64_t min_user_, min_user_cjk_, min_assistant_, min_thinking_, max_round_, max_total_, max_rounds_;
  bool incomplete_;
  std::vector<std::string> denied_;
};

class MessageSanityFilter : public QualityFilter {
 public:
  explicit MessageSanityFilter(const Options& o)
      : order_(o.get_bool("check_role_order")),
        tools_(o.get_bool("check_tool_matching")),
        trim_(o.get_bool("trim_to_assistant")),
        min_turns_(o.get_int("min_turns")),
        max_chars_(o.get_int("max_msg_chars")),
        words_(lowered(o, "extra_sensitive_words")) {}

  void edit(Trajectory* conversation) const override {
    Json& messages = conversation->messages;
    if (!trim_) return;
    size_t keep = messages.size();
    while (keep > 0 && role_of(messages[keep - 1]) != "assistant") --keep;
    while (keep > 0 && messages.size() > keep) messages.erase(messages.size() - 1);
  }

  std::string drop_reason(const Trajectory& conversation) const override {
    const Json& messages = conversation.messages;
    int64_t turns = 0;
    bool assistant = false;
    std::set<std::string> open;  // ids of calls without a result
    std::string before;
    for (const Json& message : messages) {
      const std::string role = role_of(message), text = text_of(message);
      if (role == "user" || role == "assistant") ++turns;
      assistant = assistant || role == "assistant";
      if (count_chars(text) > max_chars_) return "invalid_messages";
      if (order_ && !follows(role, before)) return "check_role_order";
      const std::string plain = lower(text);
      for (const std::string& word : words_) {
        if (plain.find(word) != std::string::npos) return "filter_sensitive";
      }
      if (tools_ && role == "tool") {
        const auto id = message.find("tool_call_id");
        if (id != message.end() && id->is_string() && open.erase(id->get<std::string>()) == 0)
          return "check_tool_matching";
      }
      if (has_calls(message)) {
        open.clear();
        for (const Json& call : message.at("tool_calls")) {
          const auto id = call.is_object() ? call.find("id") : call.end();
          if (id != call.end() && id->is_string()) open.insert(id->get<std::string>());
        }
      }
      before = has_calls(message) ? "calls" : role;
    }
    if (!assistant) return "no_assistant";
    return turns < min_turns_ ? "invalid_messages" : "";
  }

 private:
  static bool follows(const std::string& role, const std::string& before) {
    if (role == "system") return before.empty();
    if (role == "user") return before != "user" && before != "calls";
    if (role == "assistant") return before == "user" || before == "tool";
    return role == "tool" && (before == "calls" || before == "tool");
  }
  bool order_, tools_, trim_;
  int64_t min_turns_, max_chars_;
  std::vector<std::string> words_;
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
const auto kSanity = add_filter<MessageSanityFilter>(
    "MessageSanityFilter",
    "Cuts conversations behind their last answer and drops those that are none: invalid_messages, "
    "no_assistant, check_role_order, check_tool_matching, filter_sensitive.",
    {flag("check_role_order", true, "Questions and answers in turn, results behind calls, system first."),
     flag("check_tool_matching", true, "Results with an id belong to a call before them."),
     flag("trim_to_assistant", true, "Cut what follows the last answer."),
     words("extra_sensitive_words", "Words that no message may have."),
     count("min_turns", 2, "Questions and answers together."),
     count("max_msg_chars", 80000, "Characters of a message.")});
const auto kDedup = add_filter<DedupFilter>(
    "DedupFilter", "Of conversations with the same first question and answer keeps the longest: duplicate.",
    {count("prefix_chars", 100, "Characters of the question that are compared, from each end."),
     count("asst_chars", 100, "Characters of the answer that are compared, from each end.")});

}  // namespace
}  // namespace twinkle
