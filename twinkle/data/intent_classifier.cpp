// IntentClassifier: which rounds of a conversation are about something, by marks in their texts; the others
// are not trained on.
#include <algorithm>
#include <array>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/quality_filter.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

constexpr std::array<const char*, 6> kDetectors = {"tool_call",     "code",      "math",
                                                   "complex_logic", "reasoning", "user_dissatisfaction"};

// Signs of formulas: LaTeX commands and dollars, operators, sums with their result, values of variables.
constexpr const char* kMathMarks =
    R"(\\[A-Za-z]{2,}|\$[^$\n]{1,200}\$|[×÷±√∑∏∫∂∇∞≤≥≠≈≡∈∉⊂⊆∪∩⇒⇔]|)"
    R"([0-9]\s?[-+*/×÷]\s?[0-9][0-9.,]*\s?=\s?-?[0-9]|\b[A-Za-z]\s?=\s?-?[0-9]|[A-Za-z0-9)][_^]\{)";

// Words that join the steps of an argument, weigh, or tell cases apart.
constexpr const char* kLogic =
    R"((?i)\b(therefore|thus|hence|consequently|because|otherwise|suppose|assuming|moreover|furthermore|)"
    R"(firstly|secondly|thirdly|first of all|finally|on the (one|other) hand|as a result|in conclusion|)"
    R"(to summarize|trade-?offs?|pros and cons|(case|scenario) [0-9A-Z])\b|)"
    R"(首先|其次|最后|因此|所以|因为|由于|如果|那么|假设|综上|一方面|另一方面|总之|权衡|利弊|分情况)";

constexpr const char* kDissatisfied =
    R"((?i)\b(that('|’)?s|that is|this is|you('|’)?re|you are|it('|’)?s) (still |completely |totally )?)"
    R"((wrong|incorrect|not (right|correct|what i (asked|meant|wanted))|nonsense|useless)\b|)"
    R"(\b(try again|do it again|does(n('|’)t| not) work|did(n('|’)t| not) (work|help)|makes no sense|)"
    R"(wrong answer|you misunderstood|not what i (asked|meant|wanted))\b|)"
    R"(不对|错了|不正确|不准确|重新(回答|做|来|写|生成)|再试一次|答非所问|没用|不是我(问|要|说)的|你(没|不)(懂|理解))";

bool starts(std::string_view line, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view w) { return line.starts_with(w); });
}

// A line that hardly any language but those of programs writes.
bool is_code(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos) return false;
  line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
  if (line.ends_with(';') && line.find_first_of("=(") != std::string_view::npos) return true;
  if (line.ends_with("{") || line == "}" || line == "};" || line.ends_with("):")) return true;
  if (starts(line, {"#include ", "#define ", "import ", "using namespace ", "package "})) return true;
  return starts(line, {"def ", "class ", "fn ", "func ", "function ", "const ", "let ", "var ", "public ",
                       "private ", "return ", "async "}) &&
         line.find_first_of("(=:;{") != std::string_view::npos;
}

class IntentClassifier : public QualityFilter {
 public:
  explicit IntentClassifier(const Options& o)
      : field_(o.get_string("intent_field")),
        drop_(o.get_bool("drop_no_key_rounds")),
        code_(o.get_int("code_threshold")),
        math_(o.get_int("math_threshold")),
        logic_(o.get_int("complex_logic_threshold")),
        reasoning_(o.get_int("reasoning_min_chars")),
        math_marks_(tokenizer::pcre_pattern(kMathMarks, "[IntentClassifier] math")),
        logic_marks_(tokenizer::pcre_pattern(kLogic, "[IntentClassifier] complex_logic")),
        complaints_(tokenizer::pcre_pattern(kDissatisfied, "[IntentClassifier] user_dissatisfaction")) {
    const std::vector<std::string> known(kDetectors.begin(), kDetectors.end());
    for (const Json& name : o.get("detectors")) {
      detectors_.push_back(name.get<std::string>());
      if (std::find(known.begin(), known.end(), detectors_.back()) == known.end()) {
        throw invalid_argument("[IntentClassifier] detectors: unknown '" + detectors_.back() + "'" +
                               did_you_mean(detectors_.back(), known));
      }
    }
  }

  void edit(Trajectory* conversation) const override { mark(conversation, intents_of(*conversation)); }
  std::string drop_reason(const Trajectory& conversation) const override {
    return drop_ && intents_of(conversation).empty() ? kNoRounds : "";
  }
  // What it writes into user_data changes nothing of what it finds.
  std::string edit_and_judge(Trajectory* conversation) const override {
    const Intents intents = intents_of(*conversation);
    mark(conversation, intents);
    return drop_ && intents.empty() ? kNoRounds : "";
  }

 private:
  using Intents = std::map<int64_t, std::string>;
  static constexpr const char* kNoRounds = "no_key_rounds";

  void mark(Trajectory* conversation, const Intents& intents) const {
    std::map<std::string, int64_t> counts;
    Json rounds = Json::array(), names = Json::object();
    for (const auto& [round, intent] : intents) {
      rounds.push_back(round);
      names[std::to_string(round)] = intent;
      ++counts[intent];
    }
    // The one of most rounds; of several the one that is looked for first.
    std::string most = "other";
    for (const std::string& name : detectors_) {
      if (counts.contains(name) && (most == "other" || counts[name] > counts[most])) most = name;
    }
    set_user_data(conversation, field_, most);
    // Without any, what was found before does not hold either.
    set_user_data(conversation, "key_rounds", intents.empty() ? Json() : rounds);
    set_user_data(conversation, "intents", intents.empty() ? Json() : names);
  }
  // Of each round that has one, by the place of its answer; what is looked for first counts.
  Intents intents_of(const Trajectory& conversation) const {
    struct Message {
      std::string role, text, thought;
    };
    std::vector<Message> messages;
    for (const Json& message : conversation.messages) {
      Message& next = messages.emplace_back();
      next.role = role_of(message);
      if (next.role == "user" || next.role == "assistant") next.thought = thinking_of(message, &next.text);
    }
    Intents out;
    for (const std::string& name : detectors_) {
      bool answered = false;
      size_t answer = 0;  // of the round that a message is in
      for (size_t i = 0; i < messages.size(); ++i) {
        const auto& [role, text, thought] = messages[i];
        for (answer = std::max(answer, i); answer < messages.size() && messages[answer].role != "assistant";)
          ++answer;
        if (answer == messages.size()) break;  // no answer follows
        const bool user = role == "user", assistant = role == "assistant";
        bool found = false;
        if (!out.contains(static_cast<int64_t>(answer)) && (user || assistant)) {
          if (name == "tool_call") {
            found = assistant && has_calls(conversation.messages[i]);
          } else if (name == "reasoning") {
            found = assistant && !is_blank(thought) && count_chars(thought) >= reasoning_;
          } else if (name == "code") {
            found = has_code(text);
          } else if (name == "math") {
            found = marks(*math_marks_, text) >= math_;
          } else if (name == "complex_logic") {
            found = assistant && marks(*logic_marks_, text) >= logic_;
          } else {
            found = user && answered && marks(*complaints_, text) > 0;
          }
        }
        answered = answered || assistant;
        if (found) out.emplace(static_cast<int64_t>(answer), name);
      }
      if (name == "tool_call" && !out.empty()) break;  // nothing else counts beside the work of tools
    }
    return out;
  }
  static int64_t marks(const tokenizer::Pattern& pattern, const std::string& text) {
    std::vector<tokenizer::Range> found;
    pattern.matches(unicode::replace_invalid(text), found);
    return static_cast<int64_t>(found.size());
  }
  bool has_code(std::string_view text) const {
    constexpr std::string_view kFence = "```";
    constexpr size_t kLeast = 10;
    const size_t open = text.find(kFence);
    if (open != std::string_view::npos &&
        text.find(kFence, open + kFence.size() + kLeast) != std::string_view::npos)
      return true;
    int64_t lines = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      lines += is_code(text.substr(at, end - at)) ? 1 : 0;
      at = end + 1;
    }
    return lines >= code_;
  }

  std::string field_;
  bool drop_;
  int64_t code_, math_, logic_, reasoning_;
  std::vector<std::string> detectors_;
  std::shared_ptr<const tokenizer::Pattern> math_marks_, logic_marks_, complaints_;
};

const auto kIntent = add_filter<IntentClassifier>(
    "IntentClassifier",
    "Finds the rounds that are about something (tool_call, code, math, complex_logic, reasoning, "
    "user_dissatisfaction) by marks in their texts, and trains on those: user_data gets key_rounds and "
    "intents. Drops conversations without any: no_key_rounds.",
    {{.name = "detectors",
      .type = ParamType::kStringList,
      .default_value = Json(kDetectors),
      .help = "What is looked for, in order. Where tools are called nothing else is looked for."},
     string_option("intent_field", "intent", "Name in user_data of what most rounds are about."),
     flag("drop_no_key_rounds", true, "Drop conversations without such a round; they are 'other'."),
     count("code_threshold", 3, "Lines of code that make it code; a fenced block does too."),
     count("math_threshold", 4, "Signs of formulas that make it mathematics."),
     count("complex_logic_threshold", 6, "Words of argument that make it complex logic."),
     count("reasoning_min_chars", 200, "Characters of thinking that make it reasoning.")});

}  // namespace
}  // namespace twinkle
