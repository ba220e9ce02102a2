// Patterns that tokenizer.json gives as {"String": ...} or {"Regex": ...}. Literals and the pre-token
// patterns of the known model families run as hand-written matchers in linear time; every other expression
// runs in PCRE2 (JIT, with match limits) after its Oniguruma syntax has been brought to PCRE2's. Immutable:
// safe from many threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer_text.h"

namespace twinkle::tokenizer {

class Pattern {
 public:
  virtual ~Pattern() = default;
  /// All matches in order, apart from each other. invalid_argument when a match limit is hit.
  virtual void matches(std::string_view text, std::vector<Range>& out) const = 0;
  /// True when every text is covered by matches that are never empty: splitting off matches is all of it.
  virtual bool covers() const { return false; }
};

/// `value` is {"String": s} or {"Regex": r}; errors name `path`.
std::shared_ptr<const Pattern> parse_pattern(const Json& value, const std::string& path);
std::shared_ptr<const Pattern> literal_pattern(std::string text);
std::shared_ptr<const Pattern> regex_pattern(const std::string& expression, const std::string& path);
/// GPT-2's expression, which the ByteLevel pre-tokenizer uses.
const Pattern& gpt2_pattern();

/// The hand-written matcher of a known expression, or null.
std::shared_ptr<const Pattern> known_pattern(std::string_view expression);
/// PCRE2 for any expression (tests hold the hand-written matchers against it).
std::shared_ptr<const Pattern> pcre_pattern(const std::string& expression, const std::string& path);

/// Expressions of model families and of OpenAI's encodings.
extern const char* const kGpt2Expression;
extern const char* const kLlama3Expression;
extern const char* const kQwen2Expression;
extern const char* const kQwen35Expression;
extern const char* const kCl100kExpression;  // as tiktoken has it; Llama 3 has an older form
extern const char* const kO200kExpression;
extern const char* const kTekkenExpression;
extern const char* const kKimiExpression;

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
Behavior parse_behavior(const std::string& name, const std::string& path);

/// Cuts text of `size` bytes at `matches` (the rest when `invert`); empty parts are left out.
void split(size_t size, const std::vector<Range>& matches, Behavior behavior, bool invert,
           std::vector<Range>& out);

}  // namespace twinkle::tokenizer
