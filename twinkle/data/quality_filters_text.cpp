// Filters by what a text looks like: refusals, loops, broken text; and two that mend it.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "twinkle/core/error.h"
#include "twinkle/data/quality_filter.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

// Calls fn(message, text) for each message of the assistant.
template <class Fn>
void each_answer(const Trajectory& conversation, const Fn& fn) {
  for (const Json& message : conversation.messages) {
    if (role_of(message) == "assistant") fn(message);
  }
}

std::string straight_quotes(const std::string& text) {
  constexpr std::string_view kCurly = "\xE2\x80\x99";
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(kCurly); at != std::string::npos; at = text.find(kCurly, done)) {
    out.append(text, done, at - done).push_back('\'');
    done = at + kCurly.size();
  }
  return out.append(text, done);
}

class RefuseFilter : public QualityFilter {
 public:
  explicit RefuseFilter(const Options& o) : window_(static_cast<size_t>(o.get_int("check_window"))) {}
  std::string drop_reason(const Trajectory& conversation) const override {
    static constexpr std::array<std::string_view, 33> kPhrases = {"i can't help with",
                                                                  "i cannot help with",
                                                                  "i can't assist",
                                                                  "i cannot assist",
                                                                  "i can't provide",
                                                                  "i cannot provide",
                                                                  "i can't fulfill",
                                                                  "i cannot fulfill",
                                                                  "i'm unable to",
                                                                  "i am unable to",
                                                                  "i'm not able to help",
                                                                  "i am not able to help",
                                                                  "i won't be able to",
                                                                  "i'm sorry, but i can",
                                                                  "i am sorry, but i can",
                                                                  "sorry, i can't",
                                                                  "sorry, i cannot",
                                                                  "i must decline",
                                                                  "as an ai, i can",
                                                                  "as an ai language model, i can",
                                                                  "抱歉，我不能",
                                                                  "抱歉，我无法",
                                                                  "对不起，我不能",
                                                                  "对不起，我无法",
                                                                  "我不能提供",
                                                                  "我无法提供",
                                                                  "我无法协助",
                                                                  "作为一个人工智能",
                                                                  "申し訳ありませんが",
                                                                  "お手伝いできません",
                                                                  "お答えできません",
                                                                  "죄송하지만",
                                                                  "도와드릴 수 없"};
    std::string first;
    each_answer(conversation, [&](const Json& message) {
      std::string rest;
      thinking_of(message, &rest);
      if (first.empty()) first = rest;
    });
    const std::string text =
        straight_quotes(lower(std::string_view(first).substr(0, std::min(first.size(), 4 * window_))));
    const std::string whole = unicode::replace_invalid(text);
    size_t end = 0;
    for (size_t i = 0; i < window_ && end < whole.size(); ++i) end += unicode::char_bytes(whole[end]);
    const std::string_view seen = std::string_view(whole).substr(0, end);
    for (const std::string_view phrase : kPhrases) {
      if (seen.find(phrase) != std::string_view::npos) return "refusal";
    }
    return "";
  }

 private:
  size_t window_;
};

class DeadLoopFilter : public QualityFilter {
 public:
  explicit DeadLoopFilter(const Options& o)
      : plain_{o.get_float("hesitation_density_threshold"), o.get_int("cascade_threshold"),
               o.get_float("repetition_threshold")},
        think_{o.get_float("think_hesitation_density_threshold"), o.get_int("think_cascade_threshold"),
               o.get_float("think_repetition_threshold")},
        window_(o.get_int("cascade_window")),
        ngram_(static_cast<size_t>(o.get_int("ngram_size"))),
        min_words_(static_cast<size_t>(o.get_int("ngram_min_words"))) {}
  std::string drop_reason(const Trajectory& conversation) const override {
    bool loops = false;
    if (uses_tools(conversation)) return "";
    each_answer(conversation, [&](const Json& message) {
      std::string rest;
      const std::string thought = thinking_of(message, &rest);
      loops = loops || is_loop(rest, plain_) || is_loop(thought, think_);
    });
    return loops ? "dead_loop" : "";
  }

 private:
  struct Limits {
    double density;
    int64_t cascade;
    double repetition;
  };
  bool is_loop(const std::string& text, const Limits& limits) const {
    const std::string plain = lower(text);
    const int64_t chars = count_chars(plain);
    // Places of words of hesitation: in bytes, then in characters.
    std::vector<int64_t> places;
    static constexpr std::array<std::string_view, 12> kWords = {"wait",
                                                                "hmm",
                                                                "hold on",
                                                                "on second thought",
                                                                "let me reconsider",
                                                                "let me re-check",
                                                                "actually, no",
                                                                "等等",
                                                                "等一下",
                                                                "不对",
                                                                "让我再想",
                                                                "重新考虑"};
    for (const std::string_view word : kWords) {
      for (size_t at = plain.find(word); at != std::string::npos; at = plain.find(word, at + word.size()))
        places.push_back(static_cast<int64_t>(at));
    }
    std::sort(places.begin(), places.end());
    size_t bytes = 0;
    int64_t counted = 0;
    for (int64_t& at : places) {
      const auto to = static_cast<size_t>(at);
      counted += count_chars(std::string_view(plain).substr(bytes, to - bytes));
      bytes = to;
      at = counted;
    }
    constexpr int64_t kShort = 200;  // where a word or two say nothing
    if (chars >= kShort &&
        static_cast<double>(places.size()) * 1000 > limits.density * static_cast<double>(chars))
      return true;
    const auto most = static_cast<size_t>(limits.cascade);
    for (size_t i = 0; i + most < places.size(); ++i) {
      if (places[i + most] - places[i] < window_) return true;
    }
    return repeats(plain) > limits.repetition;
  }
  // The share of runs of words that were there before.
  double repeats(const std::string& text) const {
    std::vector<std::string_view> words;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = text.find_first_not_of(" \t\r\n", at);
      if (begin == std::string::npos) break;
      const size_t end = std::min(text.find_first_of(" \t\r\n", begin), text.size());
      words.push_back(std::string_view(text).substr(begin, end - begin));
      at = end;
    }
    if (words.size() < min_words_ || words.size() < ngram_ || ngram_ == 0) return 0;
    std::unordered_set<std::string> seen;
    const size_t count = words.size() - ngram_ + 1;
    for (size_t i = 0; i < count; ++i) {
      std::string run;
      for (size_t k = 0; k < ngram_; ++k) run.append(words[i + k]).push_back(' ');
      seen.insert(std::move(run));
    }
    return 1 - static_cast<double>(seen.size()) / static_cast<double>(count);
  }
  Limits plain_, think_;
  int64_t window_;
  size_t ngram_, min_words_;
};

// Writing systems, coarsely: Japanese mixes three of them, so those of East Asia are one.
int script_of(char32_t c) {
  if ((unicode::char_class(c) & unicode::kLetter) == 0) return 0;
  struct Block {
    char32_t begin, end;
    int script;
  };
  static constexpr std::array<Block, 12> kBlocks = {{{0x41, 0x24F, 1},
                                                     {0x370, 0x3FF, 2},
                                                     {0x400, 0x52F, 3},
                                                     {0x530, 0x58F, 4},
                                                     {0x590, 0x5FF, 5},
                                                     {0x600, 0x77F, 6},
                                                     {0x900, 0xDFF, 7},
                                                     {0xE00, 0xEFF, 8},
                                                     {0x10A0, 0x10FF, 9},
                                                     {0x1E00, 0x1EFF, 1},
                                                     {0x3040, 0x9FFF, 10},
                                                     {0xAC00, 0xD7A3, 10}}};
  for (const Block& block : kBlocks) {
    if (c >= block.begin && c <= block.end) return block.script;
  }
  return 11;
}

class TokenSoupFilter : public QualityFilter {
 public:
  explicit TokenSoupFilter(const Options& o)
      : replacement_(o.get_float("replacement_char_ratio")),
        control_(o.get_float("control_char_ratio")),
        private_(o.get_float("private_use_ratio")),
        chaos_(o.get_float("script_chaos_threshold")),
        special_(o.get_int("special_token_count")),
        chaos_min_(o.get_int("script_chaos_min_chars")),
        max_chars_(o.get_int("max_chars")) {}
  std::string drop_reason(const Trajectory& conversation) const override {
    bool soup = false;
    each_answer(conversation, [&](const Json& message) { soup = soup || is_soup(text_of(message)); });
    return soup ? "token_soup" : "";
  }

 private:
  bool is_soup(const std::string& raw) const {
    const std::string text = unicode::replace_invalid(raw);
    int64_t chars = 0, replaced = 0, control = 0, own = 0, letters = 0, changes = 0, run = 0, special = 0;
    char32_t before = 0;
    int script = 0;
    for (size_t at = 0; at < text.size(); at += unicode::char_bytes(text[at])) {
      const char32_t c = unicode::char_at(text, at);
      if (max_chars_ > 0 && chars == max_chars_) break;
      ++chars;
      replaced += c == 0xFFFD ? 1 : 0;
      control += c < 0x20 && c != '\t' && c != '\n' && c != '\r' ? 1 : 0;
      own += (c >= 0xE000 && c <= 0xF8FF) || c >= 0xF0000 ? 1 : 0;
      special += c == '<' && text.compare(at, 2, "<|") == 0 ? 1 : 0;
      const int here = script_of(c);
      run = c == before && here != 0 ? run + 1 : 1;
      if (run >= 20) return true;
      before = c;
      if (here == 0) continue;
      changes += script != 0 && here != script ? 1 : 0;
      ++letters;
      script = here;
    }
    const auto above = [](int64_t part, int64_t whole, double ratio) {
      return whole > 0 && static_cast<double>(part) > ratio * static_cast<double>(whole);
    };
    return above(replaced, chars, replacement_) || above(control, chars, control_) ||
           above(own, chars, private_) || special >= special_ ||
           (letters >= chaos_min_ && above(changes, letters, chaos_));
  }
  double replacement_, control_, private_, chaos_;
  int64_t special_, chaos_min_, max_chars_;
};

class SpecialCharsFilter : public QualityFilter {
 public:
  explicit SpecialCharsFilter(const Options& o) : most_(o.get_float("max_ratio")) {}
  std::string drop_reason(const Trajectory& conversation) const override {
    int64_t special = 0, all = 0;
    each_answer(conversation, [&](const Json& message) {
      const std::string text = unicode::replace_invalid(text_of(message));
      for (size_t at = 0; at < text.size(); at += unicode::char_bytes(text[at])) {
        const uint8_t kind = unicode::char_class(unicode::char_at(text, at));
        ++all;
        special += (kind & (unicode::kLetter | unicode::kNumber | unicode::kMark | unicode::kSpace)) == 0;
      }
    });
    return static_cast<double>(special) > most_ * static_cast<double>(all) ? "special_chars" : "";
  }

 private:
  double most_;
};

class FixUnicodeFilter : public QualityFilter {
 public:
  explicit FixUnicodeFilter(const Options& o) {
    static const std::map<std::string, unicode::Form> kForms = {{"NFC", unicode::Form::kNfc},
                                                                {"NFD", unicode::Form::kNfd},
                                                                {"NFKC", unicode::Form::kNfkc},
                                                                {"NFKD", unicode::Form::kNfkd}};
    form_ = kForms.at(o.get_string("normalization"));
  }
  void edit(Trajectory* conversation) const override {
    for (Json& message : conversation->messages) {
      edit_texts(&message, [&](const std::string& raw) {
        const std::string text = unicode::replace_invalid(raw);
        std::string out;
        size_t done = 0;
        for (const unicode::Rewrite& change : unicode::normalize(text, form_)) {
          out.append(text, done, change.begin - done).append(change.out);
          done = change.end;
        }
        return out.append(text, done);
      });
    }
  }

 private:
  unicode::Form form_;
};

class RemoveRepeatSentencesFilter : public QualityFilter {
 public:
  explicit RemoveRepeatSentencesFilter(const Options& o) : shortest_(o.get_int("min_sentence_chars")) {}
  void edit(Trajectory* conversation) const override {
    for (Json& message : conversation->messages)
      edit_texts(&message, [&](const std::string& text) { return without_repeats(text); });
  }

 private:
  // A sentence ends with its line or with a mark of its end; what comes again is left out with it.
  std::string without_repeats(const std::string& text) const {
    std::unordered_set<std::string> seen;
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      for (bool ends = false; end < text.size() && !ends;) {
        const size_t n = std::min(unicode::char_bytes(text[end]), text.size() - end);
        const std::string_view one = std::string_view(text).substr(end, n);
        const bool mark = one == "." || one == "!" || one == "?";
        end += n;
        ends = one == "\n" || one == "。" || one == "！" || one == "？" ||
               (mark && (end == text.size() || text[end] == ' ' || text[end] == '\n'));
      }
      const std::string_view sentence = std::string_view(text).substr(begin, end - begin);
      const size_t first = sentence.find_first_not_of(" \t\r\n");
      std::string bare;
      if (first != std::string_view::npos)
        bare = lower(sentence.substr(first, sentence.find_last_not_of(" \t\r\n") + 1 - first));
      if (count_chars(bare) < shortest_ || seen.insert(bare).second) out.append(sentence);
      begin = end;
    }
    return out;
  }
  int64_t shortest_;
};

const auto kRefuse = add_filter<RefuseFilter>(
    "RefuseFilter",
    "Drops conversations whose first answer refuses, in English, Chinese, Japanese or Korean: "
    "refusal.",
    {count("check_window", 600, "Characters at the beginning of the answer that are looked at.")});
const auto kLoop = add_filter<DeadLoopFilter>(
    "DeadLoopFilter",
    "Drops answers without tools that hesitate again and again or repeat themselves: dead_loop.",
    {number("hesitation_density_threshold", 7.0, "Words of hesitation in 1000 characters."),
     count("cascade_window", 800, "Characters in which such words may not crowd."),
     count("cascade_threshold", 5, "Such words within the window."),
     number("repetition_threshold", 0.45, "Share of runs of words that were there before."),
     number("think_hesitation_density_threshold", 15.0, "The first of them for thinking."),
     count("think_cascade_threshold", 20, "The same for thinking."),
     number("think_repetition_threshold", 0.65, "The same for thinking."),
     count("ngram_size", 8, "Words of a run."),
     count("ngram_min_words", 30, "Words that a text has before runs are counted.")});
const auto kSoup = add_filter<TokenSoupFilter>(
    "TokenSoupFilter", "Drops answers that are no text: token_soup.",
    {number("replacement_char_ratio", 0.02, "Share of U+FFFD, ill-formed bytes among them."),
     number("control_char_ratio", 0.01, "Share of control characters."),
     number("private_use_ratio", 0.03, "Share of characters for private use."),
     count("special_token_count", 20, "Openings <| of special tokens."),
     number("script_chaos_threshold", 0.55, "Share of letters of another script than the one before."),
     count("script_chaos_min_chars", 40, "Letters that a text has before scripts are compared."),
     count("max_chars", 0, "Characters that are looked at; 0: all.")});
const auto kSpecial = add_filter<SpecialCharsFilter>(
    "SpecialCharsFilter",
    "Drops conversations whose answers are mostly signs, neither letters nor numbers: special_chars.",
    {number("max_ratio", 0.25, "Share of such characters.")});
const auto kUnicode = add_filter<FixUnicodeFilter>("FixUnicodeFilter",
                                                   "Drops nothing: brings texts to a normal form of Unicode.",
                                                   {{.name = "normalization",
                                                     .default_value = "NFC",
                                                     .help = "The form.",
                                                     .choices = {"NFC", "NFD", "NFKC", "NFKD"}}});
const auto kRepeats = add_filter<RemoveRepeatSentencesFilter>(
    "RemoveRepeatSentencesFilter", "Drops nothing: leaves out sentences that a text had before.",
    {count("min_sentence_chars", 2, "Shorter ones may come again.")});

}  // namespace
}  // namespace twinkle
