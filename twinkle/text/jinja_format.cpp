// "%" formatting, str.format and strftime as Python does them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {
namespace {

constexpr Int kMaxWidth = 1 << 24;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool grouping = false;
  char separator = ',';
  Int width = 0;
  Int precision = -1;
  char type = 0;
};

std::string printf_double(const char* format, int precision, double value) {
  const int size = std::snprintf(nullptr, 0, format, precision, value);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, value);
  out.pop_back();
  return out;
}

std::string digits_in_base(unsigned __int128 value, int base, bool upper) {
  std::string out;
  do {
    const int digit = static_cast<int>(value % static_cast<unsigned>(base));
    out += static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10);
    value /= static_cast<unsigned>(base);
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

void group(std::string* digits, char separator, size_t every) {
  const size_t end = std::min(digits->find_first_of(".e"), digits->size());
  for (size_t at = end; at > every; at -= every) digits->insert(at - every, 1, separator);
}

// The digits of a float in format e, f, g, % or none, without a sign.
std::string float_digits(double value, const Spec& spec) {
  if (!std::isfinite(value)) {
    const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
    return std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
  }
  if (spec.precision > 2000) throw Fault("a precision of more than 2000 digits is not supported");
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const double size = std::abs(value);
  const bool alt = spec.alternate;
  switch (spec.type) {
    case 'e':
      return printf_double(alt ? "%#.*e" : "%.*e", precision, size);
    case 'E':
      return printf_double(alt ? "%#.*E" : "%.*E", precision, size);
    case 'f':
    case 'F':
      return printf_double(alt ? "%#.*f" : "%.*f", precision, size);
    case '%':
      return printf_double("%.*f", precision, size * 100) + "%";
    case 'g':
      return printf_double(alt ? "%#.*g" : "%.*g", std::max(precision, 1), size);
    case 'G':
      return printf_double(alt ? "%#.*G" : "%.*G", std::max(precision, 1), size);
    default:
      break;
  }
  if (spec.precision < 0) return float_repr(size);
  // No type: like g with at least one digit after the point and an exponent one earlier.
  std::string text = printf_double("%.*g", std::max(precision, 1), size);
  const size_t point = text.find_first_of(".e");
  if (point == std::string::npos) {
    if (static_cast<int>(text.size()) >= precision)
      return printf_double("%.*e", std::max(precision - 1, 0), size);
    text += ".0";
  }
  return text;
}

std::string pad_to(const std::string& sign, const std::string& body, const Spec& spec, char natural_align) {
  const Int size = count_chars(body) + static_cast<Int>(sign.size());
  if (spec.width > kMaxWidth) throw Fault("a width this large is not supported");
  if (spec.width <= size) return sign + body;
  const Int missing = spec.width - size;
  charge_text(static_cast<int64_t>(missing * static_cast<Int>(spec.fill.size())));
  const char align = spec.align != 0 ? spec.align : natural_align;
  const auto fill = [&](Int count) {
    std::string out;
    for (Int i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  if (align == '=') return sign + fill(missing) + body;
  const Int left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  return fill(left) + sign + body + fill(missing - left);
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '-' ? "" : std::string(1, sign);
}

std::string format_int(Int value, Spec spec) {
  const auto size =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const std::string sign = sign_of(value < 0, spec.sign);
  std::string prefix, digits;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      digits = digits_in_base(size, 10, false);
      break;
    case 'x':
    case 'X':
      digits = digits_in_base(size, 16, spec.type == 'X');
      break;
    case 'o':
      digits = digits_in_base(size, 8, false);
      break;
    case 'b':
      digits = digits_in_base(size, 2, false);
      break;
    case 'c': {
      std::string out;
      if (value < 0 || value > 0x10FFFF) throw Fault("%c arg not in range(0x110000)");
      append_utf8(out, static_cast<int32_t>(value));
      return pad_to("", out, spec, '<');
    }
    default:
      throw Fault("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'int'");
  }
  if (spec.precision >= 0) throw Fault("Precision not allowed in integer format specifier");
  if (spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b')) {
    prefix = {'0', spec.type};
  }
  if (spec.grouping)
    group(&digits, spec.separator, digits.empty() || spec.type == 0 || spec.type == 'd' ? 3 : 4);
  return pad_to(sign + prefix, digits, spec, '>');
}

std::string format_float(double value, Spec spec) {
  if (spec.type != 0 && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos) {
    throw Fault("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'float'");
  }
  if (spec.type == 'n') spec.type = 'g';
  std::string digits = float_digits(value, spec);
  if (spec.grouping) group(&digits, spec.separator, 3);
  return pad_to(sign_of(std::signbit(value) && !std::isnan(value), spec.sign), digits, spec, '>');
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t i = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto at = [&](size_t k) { return k < text.size() ? text[k] : '\0'; };
  if (!text.empty()) {
    const Char first = char_at(text, 0);
    const auto after = static_cast<size_t>(first.length);
    if (is_align(at(after))) {
      spec.fill = std::string(text.substr(0, after));
      spec.align = at(after);
      i = after + 1;
    } else if (is_align(at(0))) {
      spec.align = at(0);
      i = 1;
    }
  }
  if (at(i) == '+' || at(i) == '-' || at(i) == ' ') spec.sign = at(i++);
  if (at(i) == '#') spec.alternate = true, ++i;
  if (at(i) == '0') {
    if (spec.align == 0) spec.align = '=', spec.fill = "0";
    ++i;
  }
  const auto number = [&] {
    Int value = 0;
    for (; at(i) >= '0' && at(i) <= '9'; ++i)
      value = std::min<Int>(value * 10 + (at(i) - '0'), kMaxWidth + 1);
    return value;
  };
  spec.width = number();
  if (at(i) == ',' || at(i) == '_') spec.grouping = true, spec.separator = at(i++);
  if (at(i) == '.') {
    ++i;
    if (at(i) < '0' || at(i) > '9') throw Fault("Format specifier missing precision");
    spec.precision = number();
  }
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) throw Fault("Invalid format specifier");
  return spec;
}

void format_value(TextBuilder& out, const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return append_str(out, value);
  const Spec spec = parse_spec(spec_text);
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      if (value.kind() == Kind::kBool && spec.type == 0) {
        // str(True) only when there is no format at all; otherwise a bool is a number.
        return out.append(format_int(value.as_int(), spec));
      }
      if (spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos) {
        return out.append(format_float(value.as_double(), spec));
      }
      return out.append(format_int(value.as_int(), spec));
    case Kind::kFloat:
      return out.append(format_float(value.as_double(), spec));
    case Kind::kString: {
      if (spec.type != 0 && spec.type != 's') {
        throw Fault("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'str'");
      }
      if (spec.align == '=') throw Fault("'=' alignment not allowed in string format specifier");
      Text text = value.text();
      if (spec.precision >= 0) {
        const CharIndex chars(text.bytes);
        if (chars.count() >= spec.precision)
          text = slice_bytes(text, 0, chars.at(static_cast<int64_t>(spec.precision)));
      }
      const Int missing = spec.width - count_chars(text.bytes);
      if (spec.width > kMaxWidth) throw Fault("a width this large is not supported");
      const char align = spec.align == 0 ? '<' : spec.align;
      const Int left = missing <= 0 ? 0 : align == '>' ? missing : align == '^' ? missing / 2 : 0;
      charge_append(out, text_weight(text) + static_cast<int64_t>(std::max<Int>(missing, 0)));
      for (Int i = 0; i < left; ++i) out.append(spec.fill);
      out.append(text);
      for (Int i = left; i < missing; ++i) out.append(spec.fill);
      return;
    }
    default:
      throw Fault("unsupported format string passed to " + type_name(value) + ".__format__");
  }
}

Value quote(const Value& value) {
  TextBuilder out;
  append_repr(out, value);
  return Value::string(out.finish());
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Text& format, const CallArgs& args)
      : runtime_(runtime), format_(format), args_(args) {}

  void run(size_t begin, size_t end, TextBuilder& out, int level) {
    const std::string& bytes = format_.bytes;
    size_t plain = begin;
    const auto flush = [&](size_t upto) {
      out.append_slice(format_, static_cast<int64_t>(plain), static_cast<int64_t>(upto));
    };
    for (size_t i = begin; i < end; ++i) {
      const char c = bytes[i];
      if (c != '{' && c != '}') continue;
      if (i + 1 < end && bytes[i + 1] == c) {
        flush(i + 1);
        plain = i + 2;
        ++i;
        continue;
      }
      if (c == '}') throw Fault("Single '}' encountered in format string");
      flush(i);
      const size_t close = matching(i, end);
      field(i + 1, close, out, level);
      charge_append(out, 0);
      i = close;
      plain = close + 1;
    }
    flush(end);
  }

 private:
  size_t matching(size_t open, size_t end) const {
    int depth = 0;
    for (size_t i = open; i < end; ++i) {
      if (format_.bytes[i] == '{') ++depth;
      if (format_.bytes[i] == '}' && --depth == 0) return i;
    }
    throw Fault("Single '{' encountered in format string");
  }

  void field(size_t begin, size_t end, TextBuilder& out, int level) {
    if (level > 1) throw Fault("Max string recursion exceeded");
    const std::string_view body = std::string_view(format_.bytes).substr(begin, end - begin);
    size_t stop = 0;
    for (int brackets = 0; stop < body.size(); ++stop) {
      if (body[stop] == '[') ++brackets;
      if (body[stop] == ']') --brackets;
      if (brackets == 0 && (body[stop] == '!' || body[stop] == ':')) break;
    }
    Value value = lookup(body.substr(0, stop));
    if (stop < body.size() && body[stop] == '!') {
      const char conversion = stop + 1 < body.size() ? body[stop + 1] : '\0';
      if (conversion == 'r') {
        value = quote(value);
      } else if (conversion == 's') {
        value = Value::string(to_text(value));
      } else {
        throw Fault("Unknown conversion specifier in format string");
      }
      stop += 2;
      if (stop < body.size() && body[stop] != ':') throw Fault("expected ':' after conversion specifier");
    }
    std::string spec;
    if (stop < body.size()) {
      TextBuilder built;
      run(begin + stop + 1, end, built, level + 1);
      spec = built.text().bytes;
    }
    format_value(out, value, spec);
  }

  Value lookup(std::string_view path) {
    const size_t name_end = std::min(path.find_first_of(".["), path.size());
    const std::string name(path.substr(0, name_end));
    Value value = argument(name);
    for (size_t i = name_end; i < path.size();) {
      if (path[i] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", i + 1), path.size());
        value = get_attribute(runtime_, value, path.substr(i + 1, stop - i - 1));
        i = stop;
      } else if (path[i] == '[') {
        const size_t stop = path.find(']', i);
        if (stop == std::string_view::npos) throw Fault("expected '}' before end of string");
        const std::string key(path.substr(i + 1, stop - i - 1));
        const auto index = parse_int(key, 10);
        value = get_item(runtime_, value, index ? Value::integer(*index) : Value::string(key));
        i = stop + 1;
      } else {
        throw Fault("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value argument(const std::string& name) {
    const auto index = name.empty() ? std::optional<Int>(next_++) : parse_int(name, 10);
    if (index) {
      if (*index < 0 || *index >= static_cast<Int>(args_.positional.size())) {
        throw Fault("Replacement index " + int_repr(*index) + " out of range for positional args tuple");
      }
      return args_.positional[static_cast<size_t>(*index)];
    }
    for (const auto& [known, value] : args_.named) {
      if (known == name) return value;
    }
    throw Fault("format() has no argument named " + string_repr(name));
  }

  Runtime& runtime_;
  const Text& format_;
  const CallArgs& args_;
  Int next_ = 0;
};

}  // namespace

Value brace_format(Runtime& runtime, const Text& format, const CallArgs& args) {
  TextBuilder out;
  BraceFormatter(runtime, format, args).run(0, format.bytes.size(), out, 0);
  out.set_markup(format.markup);
  return Value::string(out.finish());
}

Value percent_format(Runtime& runtime, const Text& format, const Value& args) {
  runtime.charge(text_weight(format) / kBytesPerStep);
  const bool tuple = args.kind() == Kind::kTuple;
  size_t next = 0;
  bool mapped = false;
  const auto take = [&]() -> Value {
    if (!tuple) {
      if (next++ == 0) return args;
    } else if (next < args.items().size()) {
      return args.items()[next++];
    }
    throw Fault("not enough arguments for format string");
  };
  TextBuilder out;
  const std::string& bytes = format.bytes;
  size_t plain = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '%') continue;
    out.append_slice(format, static_cast<int64_t>(plain), static_cast<int64_t>(i));
    const auto at = [&](size_t k) { return k < bytes.size() ? bytes[k] : '\0'; };
    ++i;
    std::optional<Value> keyed;
    if (at(i) == '(') {
      const size_t close = bytes.find(')', i);
      if (close == std::string::npos) throw Fault("incomplete format key");
      if (args.kind() != Kind::kDict) throw Fault("format requires a mapping");
      const std::string key = bytes.substr(i + 1, close - i - 1);
      const Value* value = args.dict().find(std::string_view(key));
      if (value == nullptr) throw Fault("KeyError: " + string_repr(key));
      keyed = *value;
      mapped = true;
      i = close + 1;
    }
    Spec spec;
    bool left = false, zero = false;
    for (;; ++i) {
      const char c = at(i);
      if (c == '-')
        left = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        zero = true;
      else
        break;
    }
    const auto number = [&]() -> Int {
      if (at(i) == '*') {
        ++i;
        return std::clamp<Int>(to_integer(take(), "* wants int"), -kMaxWidth - 1, kMaxWidth + 1);
      }
      Int value = 0;
      for (; at(i) >= '0' && at(i) <= '9'; ++i)
        value = std::min<Int>(value * 10 + (at(i) - '0'), kMaxWidth + 1);
      return value;
    };
    spec.width = number();
    if (spec.width < 0) left = true, spec.width = -spec.width;
    if (at(i) == '.') {
      ++i;
      spec.precision = std::max<Int>(number(), 0);
    }
    while (at(i) == 'l' || at(i) == 'h' || at(i) == 'L') ++i;
    const char type = at(i);
    plain = i + 1;
    if (type == '%') {
      out.append("%");
      continue;
    }
    if (type == '\0') throw Fault("incomplete format");
    const Value value = keyed ? *keyed : take();
    spec.type = type;
    if (type == 's' || type == 'r' || type == 'a') {
      spec.type = 's';
      spec.align = left ? '<' : '>';
      Value shown = type == 's' ? Value::string(to_text(value)) : quote(value);
      if (format.markup) shown = Value::string(escape_html(shown));
      if (spec.width > 0 || spec.precision >= 0) {
        std::string text_spec = std::string(1, spec.align) + int_repr(spec.width);
        if (spec.width == 0) text_spec = spec.align;
        if (spec.precision >= 0) text_spec += "." + int_repr(spec.precision);
        format_value(out, shown, text_spec);
      } else {
        append_str(out, shown);
      }
    } else {
      if (value.is_undefined()) throw Fault(value.undefined_message());
      spec.align = left ? '<' : zero ? '=' : '>';
      if (zero && !left) spec.fill = "0";
      if (type == 'c' && value.is_string()) {
        if (count_chars(value.bytes()) != 1) throw Fault("%c requires int or char");
        append_str(out, value);
      } else if (!value.is_number()) {
        throw Fault("%" + std::string(1, type) + " format: a real number is required, not " +
                    type_name(value));
      } else if (std::string_view("diuxXoc").find(type) != std::string_view::npos) {
        const bool whole = type == 'd' || type == 'i' || type == 'u';
        if (!whole && !value.is_integral()) {
          throw Fault("%" + std::string(1, type) + " format: an integer is required, not " +
                      type_name(value));
        }
        if (!value.is_integral() && !(std::abs(value.as_double()) < 1e38))
          throw Fault("cannot convert float to integer");
        Int integer = value.is_integral() ? value.as_int() : static_cast<Int>(value.as_double());
        if (whole) spec.type = 'd';
        const Int digits = spec.precision;
        spec.precision = -1;
        if (digits > 0) {
          if (integer < -(Int{1} << 126))
            throw Fault("integers of more than 126 bits are not supported here");
          // The precision of an integer is its least number of digits.
          Spec inner = spec;
          inner.width = 0, inner.sign = '-', inner.alternate = false;
          std::string body = format_int(integer < 0 ? -integer : integer, inner);
          if (digits > kMaxWidth) throw Fault("a precision this large is not supported");
          charge_text(static_cast<int64_t>(digits));
          if (static_cast<Int>(body.size()) < digits)
            body.insert(0, static_cast<size_t>(digits) - body.size(), '0');
          out.append(pad_to(sign_of(integer < 0, spec.sign), body, spec, '>'));
        } else {
          out.append(format_int(integer, spec));
        }
      } else if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
        out.append(format_float(value.as_double(), spec));
      } else {
        throw Fault("unsupported format character '" + std::string(1, type) + "'");
      }
    }
    charge_append(out, 0);
  }
  out.append_slice(format, static_cast<int64_t>(std::min(plain, bytes.size())),
                   static_cast<int64_t>(bytes.size()));
  const bool all_used = tuple
                            ? next == args.items().size()
                            : mapped || next > 0 || args.kind() == Kind::kDict || args.kind() == Kind::kList;
  if (!all_used) throw Fault("not all arguments converted during string formatting");
  out.set_markup(format.markup);
  return Value::string(out.finish());
}

std::string format_time(std::string_view format, int64_t local_seconds) {
  std::tm time{};
  const auto clock = static_cast<std::time_t>(local_seconds);
  if (gmtime_r(&clock, &time) == nullptr) throw Fault("strftime_now: the time is out of range");
  if (format.size() > 4096) throw Fault("strftime_now: the format is too long");
  std::string out;
  // Piece by piece, so that an empty result is not taken for a full buffer.
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out += format[i++];
      continue;
    }
    size_t length = 2;
    if (format[i + 1] == '-' || format[i + 1] == '_' || format[i + 1] == '0' || format[i + 1] == '^' ||
        format[i + 1] == '#')
      ++length;
    if (format[i + 1] == 'f') {
      out += "000000";
    } else if (format[i + 1] != 'z' && format[i + 1] != 'Z') {  // empty for naive times
      const std::string piece(format.substr(i, length));
      char buffer[256];
      out.append(buffer, std::strftime(buffer, sizeof buffer, piece.c_str(), &time));
    }
    i += length;
  }
  return out;
}

}  // namespace twinkle::jinja
