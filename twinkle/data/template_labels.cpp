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

bool has_content(const Json& message) {
  const auto content = message.find("content");
  const bool text =
      content != message.end() && content->is_string() && !content->get_ref<const std::string&>().empty();
  const auto calls = message.find("tool_calls");
  return text || (calls != message.end() && calls->is_array() && !calls->empty());
}

class RoundFinder {
 public:
  RoundFinder(const ChatTemplate& chat, const Json& messages, const Json& tools,
              const ChatRenderOptions& options, const Rendered& rendered)
      : chat_(chat), messages_(messages), tools_(tools), options_(options), rendered_(rendered) {
    options_.add_generation_prompt = false;
    segments_ = message_spans(rendered, messages.size());
  }

  TurnSpan find(size_t i) {
    const auto& segment = segments_[i];
    if (!segment || (segment->begin == segment->end && has_content(messages_[i]))) return by_prefix(i);
    TextSpan turn = {segment->begin, i + 1 == messages_.size() ? size() : segment->end};
    if (i + 1 < messages_.size() && (!segments_[i + 1] || segments_[i + 1]->begin == segments_[i + 1]->end)) {
      turn.end = end_alone(i, turn);
    }
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

 private:
  struct Tail {
    std::string text;
    int seen = 0;
  };

  struct Trust {
    int agreed = 0;
    bool differs = false, goes_on = false;  // the whole rendering begins with the one up to the turn
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

  // The end of a turn when the next message has no turn of its own in the loop: some templates write the
  // results of tools behind the call, and those are not the model's words. What the turn is without them
  // shows a rendering that ends with it. Most templates look no further back than to the last question: where
  // the rendering from there on says the same three times, it is believed, so that long conversations are not
  // rendered again for every call.
  int64_t end_alone(size_t i, const TextSpan& turn) {
    Trust& trust = trust_[kind_before(i)];
    std::optional<std::string> own;
    if (!trust.differs) own = last_turn_of(from_last_question(i));
    if (!own || trust.agreed < 3) {
      const Rendered out = chat_.render(first_messages(messages_, i + 1), tools_, options_);
      trust.goes_on = text().starts_with(out.text) && static_cast<int64_t>(out.text.size()) >= turn.begin;
      std::optional<std::string> whole = own_text(out, i);
      if (trust.goes_on) whole = out.text.substr(static_cast<size_t>(turn.begin));
      trust.differs = trust.differs || (own && own != whole);
      ++trust.agreed;
      own = std::move(whole);
    }
    if (!own) return turn.end;
    const std::string_view rest = text().substr(static_cast<size_t>(turn.begin));
    if (trust.goes_on && rest.starts_with(*own)) return turn.begin + static_cast<int64_t>(own->size());
    const std::string_view body = rest.substr(0, static_cast<size_t>(turn.end - turn.begin));
    return turn.begin +
           (std::mismatch(body.begin(), body.end(), own->begin(), own->end()).first - body.begin());
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

  std::optional<std::string> last_turn_of(const Json& messages) const {
    try {
      return own_text(chat_.render(messages, tools_, options_), messages.size() - 1);
    } catch (const Error&) {  // it may not begin like this
      return std::nullopt;
    }
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
    const std::string_view body =
        text().substr(static_cast<size_t>(turn.begin), static_cast<size_t>(turn.end - turn.begin));
    const auto parting = std::mismatch(body.begin(), body.end(), tail.begin(), tail.end()).first;
    int64_t begin = turn.begin + (parting - body.begin());
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
    if (is_assistant(messages[i])) out.push_back(finder.find(i));
  }
  return out;
}

}  // namespace twinkle
