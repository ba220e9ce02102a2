// MessageSanityFilter: conversations whose messages do not fit together, and those with words that nobody
// wants.
#include <set>

#include "twinkle/core/files.h"
#include "twinkle/data/quality_filter.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

// Words of a list, one a line; blank lines and those that begin with # are none.
void add_words_of_file(const std::string& path, std::vector<std::string>* words) {
  const std::string all = read_file(path);
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view line = std::string_view(all).substr(at, end - at);
    at = end + 1;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    words->push_back(lower(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first)));
  }
}

// Whether the text has the word: anywhere when it is written without spaces between words, else as a whole
// word. The text is valid UTF-8 in lower case.
bool has_word(const std::string& text, const std::string& word) {
  const bool anywhere = cjk_share(word) > 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (anywhere) return true;
    const size_t end = at + word.size();
    const bool before = at > 0 && unicode::is_word(unicode::char_at(text, unicode::previous(text, at)));
    const bool behind = end < text.size() && unicode::is_word(unicode::char_at(text, end));
    if (!before && !behind) return true;
  }
  return false;
}

bool is_identifier(const std::string& name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name[0])) return false;
  for (const char c : name) {
    if (!letter(c) && !(c >= '0' && c <= '9') && c != '.' && c != '-') return false;
  }
  return true;
}

bool is_sound_call(const Json& call) {
  const auto function = call.is_object() ? call.find("function") : call.end();
  if (!call.is_object() || function == call.end() || !function->is_object()) return false;
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || !is_identifier(name->get<std::string>())) return false;
  const auto arguments = function->find("arguments");
  return arguments == function->end() || !arguments->is_string() ||
         Json::accept(arguments->get_ref<const std::string&>());
}

class MessageSanityFilter : public QualityFilter {
 public:
  explicit MessageSanityFilter(const Options& o)
      : order_(o.get_bool("check_role_order")),
        tools_(o.get_bool("check_tool_matching")),
        integrity_(o.get_bool("check_content_integrity")),
        language_(o.get_bool("check_lang_match")),
        visible_(o.get_bool("check_agent_min_visible")),
        trim_(o.get_bool("trim_to_assistant")),
        min_turns_(o.get_int("min_turns")),
        max_chars_(o.get_int("max_msg_chars")),
        min_visible_(o.get_int("min_agent_visible_chars")) {
    if (!o.get_bool("filter_sensitive")) return;
    words_ = lowered(o, "extra_sensitive_words");
    if (o.has("sensitive_words_file")) add_words_of_file(o.get_string("sensitive_words_file"), &words_);
    std::erase(words_, "");
  }

  void edit(Trajectory* conversation) const override {
    Json& messages = conversation->messages;
    if (!trim_) return;
    size_t keep = messages.size();
    while (keep > 0 && role_of(messages[keep - 1]) != "assistant") --keep;
    while (keep > 0 && messages.size() > keep) messages.erase(messages.size() - 1);
  }

  std::string drop_reason(const Trajectory& conversation) const override {
    if (conversation.messages.empty()) return "invalid_messages";
    bool assistant = false;
    for (const Json& message : conversation.messages)
      assistant = assistant || role_of(message) == "assistant";
    if (!assistant) return "no_assistant";
    if (order_ && !is_ordered(conversation)) return "check_role_order";
    if (tools_ && !results_match(conversation)) return "check_tool_matching";
    if (integrity_ && !is_whole(conversation)) return "check_content_integrity";
    if (language_ && !speaks_alike(conversation)) return "check_lang_match";
    if (visible_ && uses_tools(conversation) && said_chars(conversation) < min_visible_)
      return "check_agent_min_visible";
    return has_sensitive_word(conversation) ? "filter_sensitive" : "";
  }

 private:
  static bool follows(const std::string& role, const std::string& before) {
    if (role == "system") return before.empty();
    if (role == "user") return before != "user" && before != "calls";
    if (role == "assistant") return before == "user" || before == "tool";
    return role == "tool" && (before == "calls" || before == "tool");
  }
  static bool is_ordered(const Trajectory& conversation) {
    std::string before;
    for (const Json& message : conversation.messages) {
      const std::string role = role_of(message);
      if (!follows(role, before)) return false;
      before = has_calls(message) ? "calls" : role;
    }
    return true;
  }
  static bool results_match(const Trajectory& conversation) {
    std::set<std::string> open;  // ids of calls without a result
    for (const Json& message : conversation.messages) {
      if (role_of(message) == "tool") {
        const auto id = message.find("tool_call_id");
        if (id != message.end() && id->is_string() && open.erase(id->get<std::string>()) == 0) return false;
      }
      if (!has_calls(message)) continue;
      open.clear();
      for (const Json& call : message.at("tool_calls")) {
        const auto id = call.is_object() ? call.find("id") : call.end();
        if (id != call.end() && id->is_string()) open.insert(id->get<std::string>());
      }
    }
    return true;
  }
  bool is_whole(const Trajectory& conversation) const {
    int64_t turns = 0;
    std::string role_before, text_before;
    for (const Json& message : conversation.messages) {
      const std::string role = role_of(message), text = text_of(message);
      if (role == "user" || role == "assistant") ++turns;
      if (count_chars(text) > max_chars_) return false;
      if (role == "system" && is_blank(text)) return false;
      std::string rest;
      if (role == "assistant" && is_blank(text) && !has_calls(message) &&
          is_blank(thinking_of(message, &rest)))
        return false;
      if (has_calls(message)) {
        for (const Json& call : message.at("tool_calls")) {
          if (!is_sound_call(call)) return false;
        }
      }
      if (role != "tool" && role == role_before && !text.empty() && text == text_before) return false;
      role_before = role;
      text_before = text;
    }
    return turns >= min_turns_;
  }
  static bool speaks_alike(const Trajectory& conversation) {
    constexpr int64_t kShort = 50;  // such answers say little of their language
    constexpr double kSpoken = 0.3, kNot = 0.02;
    const std::string answers = texts_of(conversation, "assistant");
    if (count_chars(answers) < kShort) return true;
    const double asked = cjk_share(texts_of(conversation, "user")), answered = cjk_share(answers);
    return !(asked >= kSpoken && answered < kNot) && !(asked < kNot && answered >= kSpoken);
  }
  static int64_t said_chars(const Trajectory& conversation) {
    int64_t chars = 0;
    for (const Json& message : conversation.messages) {
      if (role_of(message) != "assistant") continue;
      std::string rest;
      const std::string thought = thinking_of(message, &rest);
      chars += count_chars(rest) + count_chars(thought);
    }
    return chars;
  }
  bool has_sensitive_word(const Trajectory& conversation) const {
    if (words_.empty()) return false;
    for (const Json& message : conversation.messages) {
      const std::string plain = unicode::replace_invalid(lower(text_of(message)));
      for (const std::string& word : words_) {
        if (has_word(plain, word)) return true;
      }
    }
    return false;
  }

  bool order_, tools_, integrity_, language_, visible_, trim_;
  int64_t min_turns_, max_chars_, min_visible_;
  std::vector<std::string> words_;
};

const auto kSanity = add_filter<MessageSanityFilter>(
    "MessageSanityFilter",
    "Cuts conversations behind their last answer and drops those that are none: invalid_messages, "
    "no_assistant, check_role_order, check_tool_matching, check_content_integrity, check_lang_match, "
    "check_agent_min_visible, filter_sensitive.",
    {flag("check_role_order", true, "Questions and answers in turn, results behind calls, system first."),
     flag("check_tool_matching", true, "Results with an id belong to a call before them."),
     flag("check_content_integrity", true,
          "Enough turns, no message too long, no empty answer or system message, none said twice in a row, "
          "calls with a name and with arguments that are JSON."),
     flag("check_lang_match", true,
          "Answers of 50 characters or more are Chinese, Japanese or Korean when the questions are, and not "
          "when they are not. Turn it off for translations."),
     flag("check_agent_min_visible", true, "Conversations with tools say something besides."),
     flag("trim_to_assistant", true, "Cut what follows the last answer."),
     flag("filter_sensitive", true, "Look for the words of the two lists."),
     {.name = "sensitive_words_file",
      .help = "File of words that no message may have, one a line; lines that begin with # are none."},
     words("extra_sensitive_words", "Words that no message may have."),
     count("min_turns", 2, "Questions and answers together."),
     count("max_msg_chars", 80000, "Characters of a message."),
     count("min_agent_visible_chars", 50,
           "Characters that the answers of a conversation with tools have, thinking among them.")});

}  // namespace
}  // namespace twinkle
