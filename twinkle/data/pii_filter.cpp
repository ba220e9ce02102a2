// PIIFilter: numbers and addresses that name a person, found by their shape and, where they have one, by
// their check digits, and rewritten. No model of language takes part, so names of people, places and
// companies stay.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/quality_filter.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

std::string alphanumerics(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) out.push_back(static_cast<char>(std::toupper(byte)));
  }
  return out;
}

bool all_same(std::string_view digits) {
  return digits.find_first_not_of(digits[0]) == std::string_view::npos;
}

// ISO/IEC 7812: from the right every second digit counts twice, its own digits added.
bool is_luhn(std::string_view raw) {
  const std::string digits = alphanumerics(raw);
  if (digits.size() < 13 || digits.size() > 19 || all_same(digits)) return false;
  int sum = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    const int digit = digits[digits.size() - 1 - i] - '0', counted = i % 2 == 1 ? 2 * digit : digit;
    sum += counted > 9 ? counted - 9 : counted;
  }
  return sum % 10 == 0;
}

// ISO 13616: the first four characters moved to the end, letters as 10 to 35, is 1 modulo 97.
bool is_iban(std::string_view raw) {
  const std::string text = alphanumerics(raw);
  if (text.size() < 15 || text.size() > 34) return false;
  int rest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[(i + 4) % text.size()];
    const int value = c >= '0' && c <= '9' ? c - '0' : c - 'A' + 10;
    rest = (rest * (value > 9 ? 100 : 10) + value) % 97;
  }
  return rest == 1;
}

// GB 11643: weights that are powers of two modulo 11; the check digit may be X.
bool is_cn_id(std::string_view raw) {
  const std::string text = alphanumerics(raw);
  int sum = 0, weight = 1;
  for (size_t i = 18; i-- > 0;) {
    const int digit = i == 17 && text[i] == 'X' ? 10 : text[i] - '0';
    sum += weight * digit;
    weight = 2 * weight % 11;
  }
  return sum % 11 == 1;
}

// The check digit of the NHS: weights 10 to 2, eleven less the rest.
bool is_nhs(std::string_view raw) {
  const std::string digits = alphanumerics(raw);
  int sum = 0;
  for (size_t i = 0; i < 9; ++i) sum += static_cast<int>(10 - i) * (digits[i] - '0');
  return !all_same(digits) && (11 - sum % 11) % 11 == digits[9] - '0';
}

// The letter of a Spanish number: its place is the number modulo 23; X, Y, Z before a foreigner's are 0,
// 1, 2.
bool is_nif(std::string_view raw) {
  std::string text = alphanumerics(raw);
  if (text[0] >= 'X') text[0] = static_cast<char>('0' + (text[0] - 'X'));
  int number = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) number = number * 10 + (text[i] - '0');
  return "TRWAGMYFPDXBNJZSQVHLCKE"[number % 23] == text.back();
}

// Never given out: areas 000, 666 and from 900, group 00, serial 0000.
bool is_ssn(std::string_view raw) {
  const std::string d = alphanumerics(raw);
  return d.substr(0, 3) != "000" && d.substr(0, 3) != "666" && d[0] != '9' && d.substr(3, 2) != "00" &&
         d.substr(5) != "0000";
}

bool is_phone(std::string_view raw) {
  const std::string digits = alphanumerics(raw);
  return digits.size() >= 8 && digits.size() <= 15;
}

// The machine itself and no machine name nobody.
bool is_address(std::string_view raw) {
  const std::string text(raw);
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return bytes[0] != 127 && bytes[0] != 0;
  return std::count(text.begin(), text.end(), ':') >= 3 &&
         inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

struct Entity {
  const char* name;
  const char* expression;
  bool (*valid)(std::string_view);
};

// What stands first wins where two overlap.
constexpr std::array<Entity, 12> kEntities = {{
    {"EMAIL_ADDRESS",
     R"((?<![A-Za-z0-9_.%+-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9_-]))",
     nullptr},
    {"IBAN_CODE",
     R"((?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9]))", is_iban},
    {"CN_ID", R"((?<![A-Za-z0-9])[1-9][0-9]{16}[0-9Xx](?![A-Za-z0-9]))", is_cn_id},
    {"CREDIT_CARD", R"((?<![A-Za-z0-9.-])[2-6][0-9](?:[ -]?[0-9]){11,17}(?![A-Za-z0-9-]))", is_luhn},
    {"US_SSN", R"((?<![A-Za-z0-9.-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![A-Za-z0-9-]))", is_ssn},
    {"UK_NHS", R"((?<![A-Za-z0-9.-])[0-9]{3} [0-9]{3} [0-9]{4}(?![A-Za-z0-9-]))", is_nhs},
    {"ES_NIF", R"((?<![A-Za-z0-9.-])(?:[0-9]{8}|[XYZ][0-9]{7})-?[A-HJ-NP-TV-Z](?![A-Za-z0-9-]))", is_nif},
    {"CN_PHONE", R"((?<![A-Za-z0-9.-])(?:\+?86[ -]?)?1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}(?![A-Za-z0-9-]))",
     nullptr},
    {"CN_LANDLINE", R"((?<![A-Za-z0-9.-])0[1-9][0-9]{1,2}-[0-9]{7,8}(?![A-Za-z0-9-]))", nullptr},
    {"PHONE_NUMBER", R"((?<![A-Za-z0-9.+-])\+[1-9][0-9]{0,3}(?:[ .-]?\(?[0-9]{1,5}\)?){2,6}(?![A-Za-z0-9]))",
     is_phone},
    {"PHONE_NUMBER",
     R"((?<![A-Za-z0-9.-])(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-.])[2-9][0-9]{2}[-.][0-9]{4}(?![A-Za-z0-9-]))",
     nullptr},
    {"IP_ADDRESS",
     R"((?<![A-Za-z0-9_.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){3,7})(?![A-Za-z0-9_:]|\.[0-9]))",
     is_address},
}};

constexpr std::array<const char*, 4> kPiiStrategies = {"mask", "replace", "redact", "hash"};

struct Hit {
  tokenizer::Range range;
  const Entity* entity;
};

class PIIFilter : public QualityFilter {
 public:
  explicit PIIFilter(const Options& o)
      : salt_(o.get_string("hash_salt")), record_(o.get_bool("record_counts")) {
    std::vector<std::string> names;
    for (const Entity& entity : kEntities) {
      patterns_.push_back(
          tokenizer::pcre_pattern(entity.expression, std::string("[PIIFilter] ") + entity.name));
      names.emplace_back(entity.name);
      strategy_[entity.name] = o.get_string("default_strategy");
    }
    strategy_["EMAIL_ADDRESS"] = "replace";
    const std::vector<std::string> strategies(kPiiStrategies.begin(), kPiiStrategies.end());
    const Json& given = o.get("entity_strategy");
    if (!given.is_object())
      throw invalid_argument("[PIIFilter] entity_strategy: expected an object {\"CREDIT_CARD\": \"redact\"}");
    for (const auto& [name, strategy] : given.items()) {
      if (!strategy_.contains(name)) {
        throw invalid_argument("[PIIFilter] entity_strategy: no entity '" + name + "'" +
                               did_you_mean(name, names));
      }
      const std::string value = strategy.is_string() ? strategy.get<std::string>() : strategy.dump();
      if (std::find(strategies.begin(), strategies.end(), value) == strategies.end()) {
        throw invalid_argument("[PIIFilter] entity_strategy: '" + value + "' of " + name +
                               " is none of mask, replace, redact, hash");
      }
      strategy_[name] = value;
    }
    for (const Json& role : o.get("roles")) roles_.push_back(role.get<std::string>());
  }

  void edit(Trajectory* conversation) const override {
    Names names;
    for (Json& message : conversation->messages) {
      if (std::find(roles_.begin(), roles_.end(), role_of(message)) == roles_.end()) continue;
      const auto change = [&](const std::string& text) { return cleaned(text, &names); };
      edit_texts(&message, change);
      if (!has_calls(message)) continue;
      for (Json& call : message["tool_calls"]) {
        const auto function = call.is_object() ? call.find("function") : call.end();
        if (!call.is_object() || function == call.end() || !function->is_object()) continue;
        if (const auto arguments = function->find("arguments"); arguments != function->end())
          edit_arguments(&*arguments, change);
      }
    }
    if (record_ && !names.counts.empty()) set_user_data(conversation, "pii_counts", Json(names.counts));
  }

 private:
  // Of one conversation: which values got which number, and how many were found.
  struct Names {
    std::map<std::string, std::map<std::string, size_t>> numbers;
    std::map<std::string, int64_t> counts;
  };

  template <class Fn>
  static void edit_strings(Json* value, const Fn& fn) {
    if (value->is_string()) {
      *value = fn(value->template get_ref<const std::string&>());
    } else if (value->is_structured()) {
      for (Json& item : *value) edit_strings(&item, fn);
    }
  }
  // Strings within, so that arguments stay JSON.
  template <class Fn>
  static void edit_arguments(Json* arguments, const Fn& fn) {
    if (!arguments->is_string()) return edit_strings(arguments, fn);
    Json inside = Json::parse(arguments->get_ref<const std::string&>(), nullptr, false);
    if (!inside.is_structured()) return edit_strings(arguments, fn);
    const Json before = inside;
    edit_strings(&inside, fn);
    if (inside != before) *arguments = inside.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::string cleaned(const std::string& raw, Names* names) const {
    const std::string text = unicode::replace_invalid(raw);
    std::vector<Hit> hits;
    for (size_t e = 0; e < kEntities.size(); ++e) {
      std::vector<tokenizer::Range> found;
      patterns_[e]->matches(text, found);
      for (const tokenizer::Range& range : found) {
        const std::string_view value = std::string_view(text).substr(range.begin, range.end - range.begin);
        if (kEntities[e].valid != nullptr && !kEntities[e].valid(value)) continue;
        const bool taken = std::any_of(hits.begin(), hits.end(), [&](const Hit& hit) {
          return range.begin < hit.range.end && hit.range.begin < range.end;
        });
        if (!taken) hits.push_back({range, &kEntities[e]});
      }
    }
    if (hits.empty()) return raw;
    std::sort(hits.begin(), hits.end(),
              [](const Hit& a, const Hit& b) { return a.range.begin < b.range.begin; });
    std::string out;
    size_t done = 0;
    for (const Hit& hit : hits) {
      out.append(text, done, hit.range.begin - done);
      out += written(hit.entity->name, text.substr(hit.range.begin, hit.range.end - hit.range.begin), names);
      done = hit.range.end;
    }
    return out.append(text, done);
  }

  std::string written(const std::string& entity, const std::string& value, Names* names) const {
    constexpr size_t kHead = 3, kTail = 4;  // upstream's
    ++names->counts[entity];
    const std::string& strategy = strategy_.at(entity);
    if (strategy == "redact") return "";
    if (strategy == "hash") return "<" + entity + ":" + sha256_hex(salt_ + value).substr(0, 12) + ">";
    if (strategy == "mask") {
      if (value.size() <= kHead + kTail) return std::string(value.size(), '*');
      return value.substr(0, kHead) + std::string(value.size() - kHead - kTail, '*') +
             value.substr(value.size() - kTail);
    }
    auto& numbers = names->numbers[entity];
    const size_t number = numbers.emplace(value, numbers.size() + 1).first->second;
    return "<" + entity + "_" + std::to_string(number) + ">";
  }

  std::string salt_;
  bool record_;
  std::vector<std::string> roles_;
  std::map<std::string, std::string> strategy_;
  std::vector<std::shared_ptr<const tokenizer::Pattern>> patterns_;
};

// It would promise to find names.
class PIIPresidioFilter : public QualityFilter {
 public:
  explicit PIIPresidioFilter(const Options&) {
    throw invalid_argument(
        "[PIIPresidioFilter] needs presidio and the language models of spaCy, which are no part of this "
        "program; PIIFilter finds addresses and numbers by their shape and check digits, but no names");
  }
};

const auto kPii = add_filter<PIIFilter>(
    "PIIFilter",
    "Drops nothing: rewrites what names a person by its shape and check digits: EMAIL_ADDRESS, "
    "PHONE_NUMBER, CN_PHONE, CN_LANDLINE, CREDIT_CARD, IBAN_CODE, CN_ID, US_SSN, UK_NHS, ES_NIF, IP_ADDRESS. "
    "Names of people and places stay.",
    {{.name = "entity_strategy",
      .type = ParamType::kJson,
      .default_value = Json::object(),
      .help =
          "How each is rewritten, where not by default: {\"CREDIT_CARD\": \"redact\"}; e-mail addresses are "
          "replaced."},
     {.name = "default_strategy",
      .default_value = "mask",
      .help = "mask leaves three characters and the last four, replace writes <PHONE_NUMBER_1>, the same for "
              "the same value within a conversation, redact nothing, hash the beginning of a SHA-256.",
      .choices = {kPiiStrategies.begin(), kPiiStrategies.end()}},
     {.name = "roles",
      .type = ParamType::kStringList,
      .default_value = {"user", "assistant", "system"},
      .help = "Whose messages are rewritten; arguments of calls are among them."},
     string_option("hash_salt", "", "Put before a value that is hashed."),
     flag("record_counts", false, "Write into user_data, as pii_counts, how many of each were found.")});
const auto kPresidio = add_filter<PIIPresidioFilter>(
    "PIIPresidioFilter", "Refused: it needs language models of other programs; see PIIFilter.", {});

}  // namespace
}  // namespace twinkle
