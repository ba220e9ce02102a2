// Filters by what a row says of itself, and by how many tokens its answers have.
#include "twinkle/core/error.h"
#include "twinkle/data/quality_filter.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

// Families of models with open weights, whatever organisation stands before the name.
const Json& open_families() {
  static const Json patterns =
      Json::array({R"((.+/)?deepseek[-_.].+)", R"((.+/)?glm[-_.]?\d.*)", R"((.+/)?gpt-oss.*)",
                   R"((.+/)?internvl.+)", R"((.+/)?kimi[-_.].+)", R"((.+/)?mimo[-_.].+)",
                   R"((.+/)?minimax[-_.]m\d.*)", R"((.+/)?qwen\d.*)", R"((.+/)?step[-_.]?\d.*)"});
  return patterns;
}

class ModelFilter : public QualityFilter {
 public:
  explicit ModelFilter(const Options& o) : field_(o.get_string("field")) {
    for (const Json& pattern : o.get("patterns")) {
      const std::string& text = pattern.get_ref<const std::string&>();
      patterns_.push_back(
          tokenizer::pcre_pattern("(?i)\\A(?:" + text + ")\\z", "[ModelFilter] patterns '" + text + "'"));
    }
    if (patterns_.empty())
      throw invalid_argument("[ModelFilter] patterns: an empty list allows no model; leave the filter out");
  }
  std::string row_drop_reason(const Row& row) const override {
    const auto found = row.find(field_);
    if (found != row.end() && found->is_string()) {
      const std::string name = unicode::replace_invalid(found->get<std::string>());
      std::vector<tokenizer::Range> matches;
      for (const auto& pattern : patterns_) {
        pattern->matches(name, matches);
        if (!matches.empty()) return "";
      }
    }
    return "model_not_allowed";
  }

 private:
  std::string field_;
  std::vector<std::shared_ptr<const tokenizer::Pattern>> patterns_;
};

class TokenNumFilter : public QualityFilter {
 public:
  explicit TokenNumFilter(const Options& o)
      : min_(o.get_int("min_num")), max_(o.get_int("max_num")), role_(o.get_string("role")) {
    if (!o.has("hf_tokenizer")) {
      throw invalid_argument(
          "[TokenNumFilter] needs 'hf_tokenizer': a folder or file with a tokenizer (nothing is downloaded)");
    }
    if (max_ < min_) {
      throw invalid_argument("[TokenNumFilter] max_num " + std::to_string(max_) + " is less than min_num " +
                             std::to_string(min_));
    }
    tokenizer_ = Tokenizer::load(o.get_string("hf_tokenizer"));
  }
  std::string drop_reason(const Trajectory& conversation) const override {
    const auto ids = tokenizer_->encode(texts_of(conversation, role_), {.parse_special = false});
    const auto size = static_cast<int64_t>(ids.size());
    return size < min_ || size > max_ ? "token_num" : "";
  }

 private:
  int64_t min_, max_;
  std::string role_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

const auto kModel =
    add_filter<ModelFilter>("ModelFilter",
                            "Keeps rows whose column says that a model of the list wrote them; others, and "
                            "rows that do not say, are model_not_allowed.",
                            {{.name = "patterns",
                              .type = ParamType::kStringList,
                              .default_value = open_families(),
                              .help = "Expressions, of which one matches the whole name, in either case; by "
                                      "default families with open weights."},
                             string_option("field", "model_id", "The column with the name of the model.")});
const auto kTokenNum = add_filter<TokenNumFilter>(
    "TokenNumFilter",
    "Drops conversations whose answers together have too few or too many tokens: token_num.",
    {{.name = "hf_tokenizer",
      .help = "Folder or file of the tokenizer that counts; on the command line the run's own by default."},
     count("min_num", 10, "The fewest tokens."),
     count("max_num", 8192, "The most tokens."),
     string_option("role", "assistant", "Whose messages are counted.")});

}  // namespace
}  // namespace twinkle
