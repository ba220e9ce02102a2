#include "twinkle/core/number_lists.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "twinkle/core/json_builder.h"

namespace twinkle {
namespace {

enum PackedKind : uint8_t { kIntegers = 1, kReals = 2 };

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

constexpr int64_t kMostExact = int64_t{1} << 53;  // whole numbers up to here are doubles
constexpr std::array<double, 16> kPowersOfTen = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

// A text whose long lists of numbers are taken out. In each one's place stands a number whose text begins
// with kMark, so nlohmann's parser reads and checks all the rest.
class Lifted {
 public:
  static constexpr std::string_view kMark = "-0e";

  // False: the text has no such list, or something about it is for the plain parser.
  bool lift(std::string_view text, int max_depth) {
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    if (text.empty() || (text.back() != ']' && text.back() != '}')) return false;
    int depth = 0;
    size_t copied = 0;
    for (size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '"') {
        i = end_of_string(text, i + 1);
        continue;
      }
      if (c == '-' && i + 2 < text.size() && text[i + 1] == '0' && (text[i + 2] | 0x20) == 'e') return false;
      if (c == ']' || c == '}') --depth;
      if (c != '[' && c != '{') {
        ++i;
        continue;
      }
      if (++depth > max_depth) return false;
      const size_t end = c == '[' ? read_list(text, i + 1) : 0;
      if (end == 0) {
        ++i;
        continue;
      }
      skeleton_.append(text.substr(copied, i - copied)).append(" ").append(kMark);
      skeleton_.append(std::to_string(lists_.size())).append(" ");  // apart from what is beside it
      lists_.push_back(pack());
      --depth;
      copied = i = end;
    }
    skeleton_.append(text.substr(copied));
    return !lists_.empty();
  }

  const std::string& skeleton() const { return skeleton_; }
  std::vector<Json>& lists() { return lists_; }

 private:
  static size_t end_of_string(std::string_view text, size_t i) {
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    return i + 1;
  }

  // Where the list ends, 0 when it is not to be packed. `i`: behind its '['. The text ends with a bracket, at
  // which every loop over digits and spaces stops.
  size_t read_list(std::string_view text, size_t i) {
    integers_.clear();
    reals_.clear();
    exact_ = true;
    const char* p = text.data() + i;
    for (;;) {
      // Mostly a short whole number and a comma.
      const char* const first = p;
      uint64_t digits = 0;
      while (is_digit(*p)) digits = digits * 10 + static_cast<uint64_t>(*p++ - '0');
      if (*p == ',' && p > first && p - first <= 18 && (*first != '0' || p - first == 1)) {
        add(static_cast<int64_t>(digits));
        ++p;
        continue;
      }
      p = first;
      while (is_space(*p)) ++p;
      if (!read_number(p)) return 0;
      while (is_space(*p)) ++p;
      if (*p != ',' && *p != ']') return 0;
      if (*p++ == ']') break;
    }
    // Whole numbers beside others become doubles, which must be them.
    if (!reals_.empty() && !exact_) return 0;
    if (std::max(integers_.size(), reals_.size()) < kLeastPacked) return 0;
    return static_cast<size_t>(p - text.data());
  }

  bool read_number(const char*& p) {
    const char* const begin = p;
    const bool negative = *p == '-';
    if (negative) ++p;
    const char* const first = p;
    uint64_t digits = 0;
    while (is_digit(*p)) digits = digits * 10 + static_cast<uint64_t>(*p++ - '0');
    const auto whole = p - first;
    if (whole == 0 || whole > 18 || (*first == '0' && whole > 1)) return false;
    if (*p != '.' && (*p | 0x20) != 'e') {
      add(negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits));
      return true;
    }
    size_t places = 0;
    if (*p == '.') {
      const char* const fraction = ++p;
      while (is_digit(*p)) digits = digits * 10 + static_cast<uint64_t>(*p++ - '0');
      places = static_cast<size_t>(p - fraction);
      if (places == 0) return false;
      if ((*p | 0x20) != 'e' && p - first <= 16) {
        // Both are doubles, so their quotient is the double nearest to the number.
        const double value = static_cast<double>(digits) / kPowersOfTen[places];
        add(negative ? -value : value);
        return true;
      }
    }
    if ((*p | 0x20) == 'e') {
      ++p;
      if (*p == '-' || *p == '+') ++p;
      const char* const power = p;
      while (is_digit(*p)) ++p;
      if (p == power) return false;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(begin, p, value);
    if (error != std::errc() || end != p) return false;  // none that a double holds
    add(value);
    return true;
  }

  void add(int64_t value) {
    if (reals_.empty()) {
      integers_.push_back(value);
    } else {
      reals_.push_back(static_cast<double>(value));
    }
    exact_ = exact_ && value >= -kMostExact && value <= kMostExact;
  }
  void add(double value) {
    if (reals_.empty()) reals_.assign(integers_.begin(), integers_.end());
    reals_.push_back(value);
  }

  Json pack() const {
    const auto bytes = [](const auto& values) {
      const auto* data = reinterpret_cast<const uint8_t*>(values.data());
      return std::vector<uint8_t>(data, data + values.size() * sizeof(values[0]));
    };
    return reals_.empty() ? Json::binary(bytes(integers_), kIntegers) : Json::binary(bytes(reals_), kReals);
  }

  std::string skeleton_;
  std::vector<Json> lists_;
  std::vector<int64_t> integers_;  // of the list that is read, up to its first that is not whole
  std::vector<double> reals_;
  bool exact_ = true;
};

// Puts the lists back.
class PackedBuilder : public JsonBuilder {
 public:
  PackedBuilder(Json* root, std::vector<Json>& lists)
      : JsonBuilder(root, WideIntegers::kRound), lists_(lists) {}
  bool number_float(Json::number_float_t value, const std::string& text) {
    if (!text.starts_with(Lifted::kMark)) return JsonBuilder::number_float(value, text);
    return put(std::move(lists_.at(std::strtoull(text.c_str() + Lifted::kMark.size(), nullptr, 10))));
  }

 private:
  std::vector<Json>& lists_;
};

template <class T>
std::vector<T> unpacked(const Json::binary_t& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

Json parse_json_packed(std::string_view text, std::string_view where, int max_depth) {
  Lifted lifted;
  if (lifted.lift(text, max_depth)) {
    try {
      Json value;
      PackedBuilder builder(&value, lifted.lists());
      Json::sax_parse(lifted.skeleton(), &builder);
      return value;
    } catch (const nlohmann::json::exception&) {  // the plain parser says what is wrong, and where
    } catch (const JsonNumberTooLarge&) {
    }
  }
  return parse_json(text, where, max_depth);
}

bool is_packed(const Json& value) { return value.is_binary(); }

std::optional<std::vector<int64_t>> packed_integers(const Json& value) {
  const Json::binary_t& bytes = value.get_binary();
  if (bytes.subtype() != kIntegers) return std::nullopt;
  return unpacked<int64_t>(bytes);
}

std::vector<float> packed_floats(const Json& value) {
  const Json::binary_t& bytes = value.get_binary();
  if (bytes.subtype() == kIntegers) {
    const auto integers = unpacked<int64_t>(bytes);
    return {integers.begin(), integers.end()};
  }
  const auto reals = unpacked<double>(bytes);
  return {reals.begin(), reals.end()};
}

}  // namespace twinkle
