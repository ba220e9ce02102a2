// Splitting, joining and number parsing shared by methods and filters; how arguments are bound.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

Value piece(const Text& text, size_t begin, size_t end) {
  charge(4);  // a text of its own, however short
  return Value::string(slice_bytes(text, static_cast<int64_t>(begin), static_cast<int64_t>(end)));
}

std::vector<Value> split_spaces(const Text& text, Int limit) {
  const std::string& bytes = text.bytes;
  std::vector<Value> out;
  size_t i = 0;
  const auto skip = [&](bool spaces) {
    while (i < bytes.size()) {
      const Char c = char_at(bytes, i);
      if (is_space(c.code) != spaces) break;
      i += c.length;
    }
  };
  for (skip(true); i < bytes.size(); skip(true)) {
    const size_t begin = i;
    if (limit >= 0 && static_cast<Int>(out.size()) >= limit) {
      out.push_back(piece(text, begin, bytes.size()));
      return out;
    }
    skip(false);
    out.push_back(piece(text, begin, i));
  }
  return out;
}

std::vector<Value> rsplit_spaces(const Text& text, Int limit) {
  std::vector<TextSpan> words;
  const std::string& bytes = text.bytes;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    if (!is_space(c.code)) {
      if (words.empty() || words.back().end != static_cast<int64_t>(i)) {
        charge(1);
        words.push_back({static_cast<int64_t>(i), 0});
      }
      words.back().end = static_cast<int64_t>(i) + c.length;
    }
    i += c.length;
  }
  std::vector<Value> out;
  const size_t keep =
      limit < 0 ? words.size() : static_cast<size_t>(std::min<Int>(limit, static_cast<Int>(words.size())));
  const size_t first = words.size() - keep;
  // The rest keeps its leading white space.
  if (first > 0) out.push_back(Value::string(slice_bytes(text, 0, words[first - 1].end)));
  for (size_t i = first; i < words.size(); ++i) {
    out.push_back(piece(text, static_cast<size_t>(words[i].begin), static_cast<size_t>(words[i].end)));
  }
  return out;
}

// Removes underscores that stand between digits; false when one stands elsewhere.
bool drop_underscores(std::string* text, bool hex) {
  std::string out;
  const auto digit = [&](char c) {
    return (c >= '0' && c <= '9') || (hex && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
  };
  for (size_t i = 0; i < text->size(); ++i) {
    if ((*text)[i] != '_') {
      out += (*text)[i];
    } else if (i == 0 || i + 1 == text->size() || !digit((*text)[i - 1]) || !digit((*text)[i + 1])) {
      return false;
    }
  }
  *text = std::move(out);
  return true;
}

std::string stripped_ascii(std::string_view text) {
  const TextSpan span = strip_span(text, nullptr, true, true);
  return std::string(
      text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)));
}

}  // namespace

BoundArgs::BoundArgs(const char* function, const CallArgs& args, std::initializer_list<const char*> names,
                     size_t required)
    : function_(function), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    throw Fault(std::string(function) + "() takes at most " + std::to_string(names.size()) + " arguments (" +
                std::to_string(args.positional.size()) + " given)");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t at = 0;
    for (const char* known : names) {
      if (name == known) break;
      ++at;
    }
    if (at == names.size()) {
      throw Fault(std::string(function) + "() got an unexpected keyword argument '" + name + "'");
    }
    if (values_[at] != nullptr)
      throw Fault(std::string(function) + "() got multiple values for argument '" + name + "'");
    values_[at] = &value;
  }
  size_t at = 0;
  for (const char* known : names) {
    if (at < required && values_[at] == nullptr) {
      throw Fault(std::string(function) + "() missing required argument: '" + known + "'");
    }
    ++at;
  }
}

Int BoundArgs::integer(size_t i, Int otherwise) const {
  // Far beyond any size, and small enough to add to.
  constexpr Int kFar = Int{1} << 100;
  return has(i) ? std::clamp(to_integer(*values_[i], function_), -kFar, kFar) : otherwise;
}

std::string BoundArgs::bytes(size_t i, std::string otherwise) const {
  if (!has(i)) return otherwise;
  if (!values_[i]->is_string()) {
    throw Fault(std::string(function_) + "() argument " + std::to_string(i + 1) + " must be str, not " +
                type_name(*values_[i]));
  }
  return values_[i]->bytes();
}

std::vector<Value> split_text(const Text& text, const std::string* separator, Int limit, bool from_right) {
  if (separator == nullptr) return from_right ? rsplit_spaces(text, limit) : split_spaces(text, limit);
  if (separator->empty()) throw Fault("empty separator");
  const std::string& bytes = text.bytes;
  std::vector<Value> out;
  if (!from_right) {
    size_t begin = 0;
    while (limit < 0 || static_cast<Int>(out.size()) < limit) {
      const size_t at = find_text(bytes, *separator, begin);
      if (at == std::string::npos) break;
      out.push_back(piece(text, begin, at));
      begin = at + separator->size();
    }
    out.push_back(piece(text, begin, bytes.size()));
    return out;
  }
  size_t end = bytes.size();
  while ((limit < 0 || static_cast<Int>(out.size()) < limit) && end >= separator->size()) {
    const size_t at = find_last(std::string_view(bytes).substr(0, end), *separator);
    if (at == std::string::npos) break;
    out.push_back(piece(text, at + separator->size(), end));
    end = at;
  }
  out.push_back(piece(text, 0, end));
  std::reverse(out.begin(), out.end());
  return out;
}

size_t find_last(std::string_view bytes, std::string_view wanted) {
  charge(static_cast<int64_t>(bytes.size() / 1024 * std::max<size_t>(wanted.size(), 16)));
  return bytes.rfind(wanted);
}

std::vector<Value> split_lines(const Text& text, bool keep_ends) {
  std::vector<Value> out;
  const std::string& bytes = text.bytes;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    size_t next = i + c.length;
    if (is_line_break(c.code)) {
      if (c.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      out.push_back(piece(text, begin, keep_ends ? next : i));
      begin = next;
    }
    i = next;
  }
  if (begin < bytes.size()) out.push_back(piece(text, begin, bytes.size()));
  return out;
}

Text replace_text(Runtime& runtime, const Text& text, const std::string& from, const Text& to, Int count) {
  TextBuilder out;
  out.set_markup(text.markup);
  const auto size = static_cast<int64_t>(text.bytes.size());
  const int64_t weight = text_weight(to);
  runtime.charge(text_weight(text) / kBytesPerStep);
  const auto put = [&] {
    charge_append(out, weight);
    out.append(to);
  };
  if (from.empty()) {
    // Between all characters and at both ends.
    const CharIndex chars(text.bytes);
    for (int64_t i = 0; i <= chars.count(); ++i) {
      if (count < 0 || i < count) put();
      if (i < chars.count()) out.append_slice(text, chars.at(i), chars.at(i + 1));
    }
    return out.take();
  }
  size_t begin = 0;
  for (Int done = 0; count < 0 || done < count; ++done) {
    const size_t at = find_text(text.bytes, from, begin);
    if (at == std::string::npos) break;
    out.append_slice(text, static_cast<int64_t>(begin), static_cast<int64_t>(at));
    put();
    begin = at + from.size();
  }
  out.append_slice(text, static_cast<int64_t>(begin), size);
  return out.take();
}

Text join_texts(Runtime& runtime, const Text& separator, const std::vector<TextPtr>& parts) {
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += text_weight(*part) + text_weight(separator);
  runtime.charge_bytes(bytes);
  TextBuilder out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(*parts[i]);
  }
  out.set_markup(separator.markup);
  return out.take();
}

Text escape_html(const Value& value) {
  const TextPtr text = to_text(value);
  charge(static_cast<int64_t>(text->bytes.size()) / 16);
  if (text->markup) return *text;
  TextBuilder out;
  for (size_t i = 0; i < text->bytes.size(); ++i) {
    const char c = text->bytes[i];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                         : c == '"'  ? "&#34;"
                                     : nullptr;
    if (entity != nullptr) {
      out.append_as(*text, static_cast<int64_t>(i), entity);
    } else {
      out.append_slice(*text, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    }
  }
  out.set_markup(true);
  return out.take();
}

std::optional<double> parse_float(std::string_view raw) {
  std::string text = stripped_ascii(raw);
  if (!drop_underscores(&text, false)) return std::nullopt;
  std::string_view digits = text;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  const std::string lower = lower_bytes(digits);
  double value;
  if (lower == "inf" || lower == "infinity") {
    value = INFINITY;
  } else if (lower == "nan") {
    value = NAN;
  } else {
    if (digits.empty() || (digits[0] != '.' && !(digits[0] >= '0' && digits[0] <= '9'))) return std::nullopt;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (end != digits.data() + digits.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range)
      value = std::strtod(std::string(digits).c_str(), nullptr);
    else if (error != std::errc())
      return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<Int> parse_int(std::string_view raw, int base) {
  std::string text = stripped_ascii(raw);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.erase(0, 1);
  }
  const auto prefix = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter;
  };
  bool prefixed = true;
  if ((base == 16 || base == 0) && prefix('x')) {
    base = 16;
  } else if ((base == 8 || base == 0) && prefix('o')) {
    base = 8;
  } else if ((base == 2 || base == 0) && prefix('b')) {
    base = 2;
  } else {
    prefixed = false;
    if (base == 0) {
      base = 10;
      if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string::npos)
        return std::nullopt;
    }
  }
  if (prefixed) text.erase(0, text[2] == '_' ? 3 : 2);
  if (!drop_underscores(&text, base > 10) || text.empty()) return std::nullopt;
  Int value = 0;
  for (const char c : text) {
    const int low = c | 0x20;
    const int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Int>(digit), &value)) {
      throw Fault("integers of more than 127 bits are not supported");
    }
  }
  return negative ? -value : value;
}

double round_half_even(double value, int digits) {
  if (!std::isfinite(value)) return value;
  if (digits > 22 + 300 || digits < -310) return digits < 0 ? 0.0 * value : value;
  // The shortest correctly rounded decimal of that many places, as CPython rounds.
  char buffer[700];
  if (digits >= 0) {
    const auto end =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits).ptr;
    double out = value;
    std::from_chars(buffer, end, out);
    return out;
  }
  const double scale = std::pow(10.0, -digits);
  return std::nearbyint(value / scale) * scale;
}

}  // namespace twinkle::jinja
