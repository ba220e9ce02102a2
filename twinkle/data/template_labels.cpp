#include "twinkle/data/template_labels.h"

#include <algorithm>
#include <map>
#include <optional>

#include "twinkle/core/error.h"

namespace twinkle {

std::vector<std::optional<TextSpan>> message_spans(const Rendered& rendered, size_t messages) {
  std::map<int64_t, int64_t> written;
  for (const MessageSpan& span : rendered.messages) written[span.loop] += span.span.end - span.span.begin;
  std::vector<std::optional<TextSpan>> out(messages);
  if (written.empty()) return out;
  const int64_t loop = std::max_element(written.begin(), written.end(), [](const auto& a, const auto& b) {
                         return a.second < b.second;
                       })->first;
  for (const MessageSpan& span : rendered.messages) {
    if (span.loop == loop && span.message < static_cast<int64_t>(messages))
      out[static_cast<size_t>(span.message)] = span.span;
  }
  return out;
}

namespace {

Json first_messages(const Json& messages, size_t count) {
  Json out = Json::array();
  for (size_t i = 0; i < count; ++i) out.push_back(messages[i]);
  return out;
}

bool is_assistant(const Json& message) { return message.at("role") == "assistant"; }

bool has_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

bool has_content(const Json& message) {
  const auto content = message.find("content");
  const bool text =
      content != message.end() && content->is_string() && !content->get_ref<const std::string&>().empty();
  return text || has_calls(message);
}

// The text of a message, or of its first block that has some, without blanks around.
std::string_view words_of(const Json& message) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto content = message.find("content");
  std::string_view text;
  if (content != message.end() && content->is_string()) text = content->get_ref<const std::string&>();
  if (content != message.end() && content->is_array()) {
    for (const Json& block : *content) {
      const auto part = block.is_object() ? block.find("text") : block.end();
      if (!text.empty() || !block.is_object() || part == block.end() || !part->is_string()) continue;
      text = part->get_ref<const std::string&>();
    }
  }
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

class RoundFinder {
 public:
  RoundFinder(const ChatTemplate& chat, const Json& messages, const Json& tools,
              const ChatRenderOptions& options, const Rendered& rendered)
      : chat_(chat), messages_(messages), tools_(tools), options_(options), rendered_(rendered) {
    options_.add_generation_prompt = false;
    segments_ = message_spans(rendered, messages.size());
  }

  /// One span, or two where what the message says stands behind the results of its calls.
  void find(size_t i, std::vector<TurnSpan>* out) {
    const auto& segment = segments_[i];
    if (!segment || (segment->begin == segment->end && has_content(messages_[i]))) {
      out->push_back(by_prefix(i));
      return;
    }
    const TextSpan whole = {segment->begin, i + 1 == messages_.size() ? size() : segment->end};
    const bool alone =
        i + 1 == messages_.size() || (segments_[i + 1] && segments_[i + 1]->begin != segments_[i + 1]->end);
    const Own own = alone ? Own{whole.end, std::nullopt} : without_results(i, whole);
    out->push_back(find_begin(i, {whole.begin, own.end}));
    if (own.behind) out->push_back({static_cast<int64_t>(i), *own.behind, true});
  }

 private:
  // Where a turn begins that ends where `turn` does.
  TurnSpan find_begin(size_t i, TextSpan turn) {
    // What the template writes after its loop ends the last turn of a conversation; where the whole goes on
    // with the same text, it ends this one too.
    const std::string& closing = closing_text(i);
    if (text().substr(static_cast<size_t>(turn.end), closing.size()) == closing) {
      turn.end += static_cast<int64_t>(closing.size());
    }
    // The prompt's tail after the last turn depends on what stands before; one rendering a kind is enough as
    // long as the turn begins with it, and where turns begin otherwise, once it has come out the same twice
    // more.
    Tail& tail = tails_[kind_before(i)];
    const auto fits = [&] {
      return text().substr(static_cast<size_t>(turn.begin), tail.text.size()) == tail.text;
    };
    if (tail.seen == 0 || (tail.seen < 3 && !fits())) {
      std::string fresh = prompt_tail(i, turn);
      tail.seen = fresh == tail.text ? tail.seen + 1 : 1;
      tail.text = std::move(fresh);
    }
    if (!fits()) return partly(i, turn, tail.text);
    return {static_cast<int64_t>(i),
            {std::min(turn.begin + static_cast<int64_t>(tail.text.size()), turn.end), turn.end},
            true};
  }

  struct Tail {
    std::string text;
    int seen = 0;
  };

  struct Trust {
    int agreed = 0;
    bool differs = false, goes_on = false;  // the whole rendering begins with the one up to the turn
  };

  struct End {
    int64_t at = 0;
    bool whole = false;  // one of the two texts compared ends here
  };

  // What of a turn is the model's: up to `end`, and a part behind the results of tools.
  struct Own {
    int64_t end = 0;
    std::optional<TextSpan> behind;
  };

  std::string_view text() const { return rendered_.text; }
  int64_t size() const { return static_cast<int64_t>(rendered_.text.size()); }

  std::string kind_before(size_t i) const {
    if (i == 0) return "";
    const Json& before = messages_[i - 1];
    std::string kind = before.at("role").get<std::string>();
    if (before.contains("tool_calls") && !before.at("tool_calls").empty()) kind += "+calls";
    // What stands two turns back matters to templates that close a group of tool results late.
    if (i >= 2) kind += "<" + messages_[i - 2].at("role").get<std::string>();
    return kind;
  }

  static int64_t loop_end(const Rendered& rendered, size_t messages) {
    int64_t end = 0;
    for (const auto& segment : message_spans(rendered, messages)) {
      if (segment) end = std::max(end, segment->end);
    }
    return end;
  }

  // A turn whose next message has no turn of its own in the loop: some templates write the results of tools
  // behind the call, and those are not the model's words. What the turn is without them shows a rendering
  // that ends with it, or one that goes on with the next question, since thinking may be left out of turns
  // before it. Where neither begins the turn, the template may have put the message's words behind the
  // results.
  Own without_results(size_t i, const TextSpan& turn) {
    auto [end, whole] = end_alone(i, turn);
    if (whole) return {end, std::nullopt};
    const Json asked = from_last_question(i);
    const auto begins = [&](const Json& messages) {
      const std::optional<std::string> own = turn_in(messages, asked.size() - 1);
      const bool fits = own && body(turn).starts_with(*own);
      if (fits) end = std::max(end, turn.begin + static_cast<int64_t>(own->size()));
      return fits;
    };
    const Json then = with_next_question(asked, i);
    if (!then.is_null() && begins(then)) return {end, std::nullopt};
    const std::string_view words = words_of(messages_[i]);
    if (words.empty() || !has_calls(messages_[i])) return {end, std::nullopt};
    Json silent = asked;
    silent.back()["content"] = "";
    const Json silent_then = with_next_question(silent, i);
    if (!begins(silent) && (silent_then.is_null() || !begins(silent_then))) return {end, std::nullopt};
    const auto& input = rendered_.input;
    for (auto at = std::partition_point(input.begin(), input.end(),
                                        [&](const TextSpan& span) { return span.begin < turn.end; });
         at != input.begin() && (at - 1)->begin >= end; --at) {
      const int64_t begin = (at - 1)->begin;
      if (text().substr(static_cast<size_t>(begin)).starts_with(words))
        return {end, TextSpan{begin, turn.end}};
    }
    return {end, std::nullopt};
  }

  // The end of what a rendering that ends with the turn has in common with it. Most templates look no further
  // back than to the last question: where the rendering from there on says the same three times, it is
  // believed, so that long conversations are not rendered again for every call.
  End end_alone(size_t i, const TextSpan& turn) {
    Trust& trust = trust_[kind_before(i)];
    std::optional<std::string> own;
    if (!trust.differs) {
      const Json asked = from_last_question(i);
      own = turn_in(asked, asked.size() - 1);
    }
    if (!own || trust.agreed < 3) {
      const Rendered out = chat_.render(first_messages(messages_, i + 1), tools_, options_);
      trust.goes_on = text().starts_with(out.text) && static_cast<int64_t>(out.text.size()) >= turn.begin;
      std::optional<std::string> whole = own_text(out, i);
      if (trust.goes_on) whole = out.text.substr(static_cast<size_t>(turn.begin));
      trust.differs = trust.differs || (own && own != whole);
      ++trust.agreed;
      own = std::move(whole);
    }
    if (!own) return {turn.end, true};
    const std::string_view rest = text().substr(static_cast<size_t>(turn.begin));
    if (trust.goes_on && rest.starts_with(*own))
      return {turn.begin + static_cast<int64_t>(own->size()), true};
    const std::string_view whole = body(turn);
    const auto [mine, theirs] = std::mismatch(whole.begin(), whole.end(), own->begin(), own->end());
    return {turn.begin + (mine - whole.begin()), mine == whole.end() || theirs == own->end()};
  }

  std::string_view body(const TextSpan& turn) const {
    return text().substr(static_cast<size_t>(turn.begin), static_cast<size_t>(turn.end - turn.begin));
  }

  // Messages that end with message i, followed by the next one of the user; null when there is none.
  Json with_next_question(Json messages, size_t i) const {
    for (size_t k = i + 1; k < messages_.size(); ++k) {
      if (messages_[k].at("role") != "user") continue;
      messages.push_back(messages_[k]);
      return messages;
    }
    return nullptr;
  }

  // What message `at` wrote in a rendering: up to its end in the loop, or up to the end of all when it is
  // last.
  std::optional<std::string> turn_in(const Json& messages, size_t at) const {
    try {
      const Rendered out = chat_.render(messages, tools_, options_);
      if (at + 1 == messages.size()) return own_text(out, at);
      const auto span = message_spans(out, messages.size())[at];
      if (!span) return std::nullopt;
      return out.text.substr(static_cast<size_t>(span->begin), static_cast<size_t>(span->end - span->begin));
    } catch (const Error&) {  // it may not begin or go on like this
      return std::nullopt;
    }
  }

  Json from_last_question(size_t i) const {
    size_t begin = i;
    while (begin > 0 && messages_[begin].at("role") != "user") --begin;
    Json out = Json::array();
    for (size_t k = begin; k <= i; ++k) out.push_back(messages_[k]);
    return out;
  }

  // From the beginning of message i to the end.
  static std::optional<std::string> own_text(const Rendered& out, size_t i) {
    const auto span = message_spans(out, i + 1)[i];
    if (!span) return std::nullopt;
    return out.text.substr(static_cast<size_t>(span->begin));
  }

  // The text after the loop of a conversation that ends with an assistant turn, here turn i.
  const std::string& closing_text(size_t i) {
    if (!closing_) {
      const bool last = is_assistant(messages_[messages_.size() - 1]);
      const size_t count = last ? messages_.size() : i + 1;
      Rendered alone;
      if (!last) alone = chat_.render(first_messages(messages_, count), tools_, options_);
      const Rendered& out = last ? rendered_ : alone;
      closing_ = out.text.substr(static_cast<size_t>(loop_end(out, count)));
    }
    return *closing_;
  }

  // What the prompt for turn i has after its last message, which is where the turn begins in the whole.
  std::string prompt_tail(size_t i, const TextSpan& turn) {
    ChatRenderOptions prompt = options_;
    prompt.add_generation_prompt = true;
    // A conversation that begins with the assistant is prompted as if after an empty question.
    const Json start = Json::array({{{"role", "user"}, {"content", ""}}});
    const Rendered out = chat_.render(i == 0 ? start : first_messages(messages_, i), tools_, prompt);
    if (text().starts_with(out.text) && static_cast<int64_t>(out.text.size()) >= turn.begin) {
      return out.text.substr(static_cast<size_t>(turn.begin));
    }
    return out.text.substr(static_cast<size_t>(loop_end(out, std::max<size_t>(i, 1))));
  }

  // The turn begins otherwise than the prompt ends, as when old thinking is dropped: it is trained from where
  // they part, but not from inside of what the message itself says.
  TurnSpan partly(size_t i, const TextSpan& turn, const std::string& tail) const {
    const std::string_view whole = body(turn);
    const auto parting = std::mismatch(whole.begin(), whole.end(), tail.begin(), tail.end()).first;
    int64_t begin = turn.begin + (parting - whole.begin());
    for (const TextSpan& span : rendered_.input) {
      if (span.begin < begin && begin < span.end) begin = std::max(span.begin, turn.begin);
    }
    return {static_cast<int64_t>(i), {begin, turn.end}, false};
  }

  // Without a loop to go by: the renderings of the conversation so far must be the beginnings of the whole
  // one.
  TurnSpan by_prefix(size_t i) {
    ChatRenderOptions prompt = options_;
    prompt.add_generation_prompt = true;
    std::string before;
    try {
      before = chat_.render(first_messages(messages_, i), tools_, prompt).text;
    } catch (const Error&) {
      if (i > 0) throw;  // a conversation that begins with the assistant may have no prompt
    }
    const std::string after = i + 1 == messages_.size()
                                  ? rendered_.text
                                  : chat_.render(first_messages(messages_, i + 1), tools_, options_).text;
    if (!text().starts_with(before) || !text().starts_with(after) || after.size() < before.size()) {
      throw invalid_argument(
          "[template] message " + std::to_string(i) +
          ": the chat template renders the conversation up to this assistant turn differently when more "
          "follows, and has no loop over messages or generation block to find the turn by");
    }
    return {static_cast<int64_t>(i),
            {static_cast<int64_t>(before.size()), static_cast<int64_t>(after.size())},
            true};
  }

  const ChatTemplate& chat_;
  const Json& messages_;
  const Json& tools_;
  ChatRenderOptions options_;
  const Rendered& rendered_;
  std::vector<std::optional<TextSpan>> segments_;
  std::map<std::string, Tail> tails_;
  std::map<std::string, Trust> trust_;
  std::optional<std::string> closing_;
};

std::vector<TurnSpan> generation_spans(const Json& messages, const Rendered& rendered) {
  std::vector<int64_t> assistants;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (is_assistant(messages[i])) assistants.push_back(static_cast<int64_t>(i));
  }
  const auto segments = message_spans(rendered, messages.size());
  std::vector<TurnSpan> out;
  for (size_t k = 0; k < rendered.generation.size(); ++k) {
    const TextSpan span = rendered.generation[k];
    int64_t message = -1;
    for (const int64_t i : assistants) {
      const auto& segment = segments[static_cast<size_t>(i)];
      if (segment && segment->begin <= span.begin && span.end <= segment->end) message = i;
    }
    if (message < 0 && rendered.generation.size() == assistants.size()) message = assistants[k];
    out.push_back({message, span, false});
  }
  return out;
}

}  // namespace

std::vector<TurnSpan> assistant_spans(const ChatTemplate& chat, const Json& messages, const Json& tools,
                                      const ChatRenderOptions& options, const Rendered& rendered) {
  if (chat.has_generation_blocks(tools.is_array() && !tools.empty()))
    return generation_spans(messages, rendered);
  RoundFinder finder(chat, messages, tools, options, rendered);
  std::vector<TurnSpan> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (is_assistant(messages[i])) finder.find(i, &out);
  }
  return out;
}

}  // namespace twinkle
