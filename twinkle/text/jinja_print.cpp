// str(), repr() and json.dumps of template values, byte for byte as Python writes them.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "twinkle/text/jinja_value.h"

namespace twinkle::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kHex[value >> shift & 15];
}

char repr_quote(std::string_view bytes) {
  const bool single = bytes.find('\'') != std::string_view::npos;
  return single && bytes.find('"') == std::string_view::npos ? '"' : '\'';
}

// One character inside quotes; empty when it stands as it is.
std::string repr_char(const Char& c, char byte, char quote) {
  std::string out;
  if (c.code == '\\' || c.code == quote) {
    out = {'\\', static_cast<char>(c.code)};
  } else if (c.code == '\n') {
    out = "\\n";
  } else if (c.code == '\r') {
    out = "\\r";
  } else if (c.code == '\t') {
    out = "\\t";
  } else if (c.code < 0) {
    out = "\\x";
    append_hex(out, static_cast<unsigned char>(byte), 2);
  } else if (c.code < 0x20 || c.code == 0x7f) {
    out = "\\x";
    append_hex(out, static_cast<uint32_t>(c.code), 2);
  } else if (c.code >= 0x80 && !is_printable(c.code)) {
    out = c.code < 0x100 ? "\\x" : c.code < 0x10000 ? "\\u" : "\\U";
    append_hex(out, static_cast<uint32_t>(c.code), c.code < 0x100 ? 2 : c.code < 0x10000 ? 4 : 8);
  }
  return out;
}

// A character of a JSON string; empty when it stands as it is.
std::string json_char(const Char& c, bool ensure_ascii) {
  switch (c.code) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      break;
  }
  std::string out;
  const auto unit = [&](uint32_t code) {
    out += "\\u";
    append_hex(out, code, 4);
  };
  if ((c.code >= 0 && c.code < 0x20) || (ensure_ascii && c.code >= 0x7f && c.code < 0x10000)) {
    unit(static_cast<uint32_t>(c.code));
  } else if (ensure_ascii && c.code >= 0x10000) {
    const auto code = static_cast<uint32_t>(c.code) - 0x10000;
    unit(0xD800 | code >> 10);
    unit(0xDC00 | (code & 0x3FF));
  }
  return out;
}

// Copies a string, replacing the characters that `escape` names, with origins kept.
template <class Escape>
void append_escaped(TextBuilder& out, const Text& text, const Escape& escape) {
  const std::string_view bytes = text.bytes;
  charge_append(out, static_cast<int64_t>(bytes.size()));
  size_t plain = 0;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    const std::string replacement = escape(c, bytes[i]);
    if (!replacement.empty()) {
      out.append_slice(text, static_cast<int64_t>(plain), static_cast<int64_t>(i));
      out.append_as(text, static_cast<int64_t>(i), replacement);
      plain = i + c.length;
    }
    i += c.length;
  }
  out.append_slice(text, static_cast<int64_t>(plain), static_cast<int64_t>(bytes.size()));
}

void append_json_string(TextBuilder& out, const Text& text, const JsonStyle& style) {
  out.append("\"");
  append_escaped(out, text, [&](const Char& c, char) { return json_char(c, style.ensure_ascii); });
  out.append("\"");
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

void append_json_key(TextBuilder& out, const Value& key, const JsonStyle& style) {
  Text text;
  switch (key.kind()) {
    case Kind::kString:
      append_json_string(out, key.text(), style);
      return;
    case Kind::kBool:
      text.bytes = key.as_bool() ? "true" : "false";
      break;
    case Kind::kNone:
      text.bytes = "null";
      break;
    case Kind::kInt:
      text.bytes = int_repr(key.as_int());
      break;
    case Kind::kFloat:
      text.bytes = json_float(key.as_double());
      break;
    default:
      throw Fault("keys must be str, int, float, bool or None, not " + type_name(key));
  }
  append_json_string(out, text, style);
}

void json_line(TextBuilder& out, const JsonStyle& style, int level) {
  if (!style.indent) return;
  charge_append(out, level * static_cast<int64_t>(style.indent->size()));
  out.append("\n");
  for (int i = 0; i < level; ++i) out.append(*style.indent);
}

}  // namespace

std::string int_repr(Int value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  unsigned __int128 rest =
      negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  for (; rest != 0; rest /= 10) digits += static_cast<char>('0' + static_cast<int>(rest % 10));
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const std::string_view power = text.substr(e + 1 + (text[e + 1] == '+'));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const int size = std::abs(exponent);
    return out + (size < 10 ? "0" : "") + std::to_string(size);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string string_repr(std::string_view bytes) {
  Text text;
  text.bytes = bytes;
  TextBuilder out;
  append_repr(out, Value::string(std::move(text)));
  return out.text().bytes;
}

void append_repr(TextBuilder& out, const Value& value) {
  charge_append(out, 0);
  const auto list = [&](const char* open, const std::vector<Value>& items, const char* close) {
    out.append(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(out, items[i]);
    }
    out.append(close);
  };
  switch (value.kind()) {
    case Kind::kString: {
      const char quote = repr_quote(value.bytes());
      if (value.text().markup) out.append("Markup(");
      out.append(std::string_view(&quote, 1));
      append_escaped(out, value.text(), [&](const Char& c, char byte) { return repr_char(c, byte, quote); });
      out.append(std::string_view(&quote, 1));
      if (value.text().markup) out.append(")");
      return;
    }
    case Kind::kList:
      return list("[", value.items(), "]");
    case Kind::kTuple:
      return list("(", value.items(), value.items().size() == 1 ? ",)" : ")");
    case Kind::kView:
      out.append(type_name(value));
      return list("([", value.items(), "])");
    case Kind::kDict: {
      out.append("{");
      bool first = true;
      for (const auto& [key, item] : value.dict().entries) {
        if (!first) out.append(", ");
        first = false;
        append_repr(out, key);
        out.append(": ");
        append_repr(out, item);
      }
      out.append("}");
      return;
    }
    case Kind::kUndefined:
      return out.append("Undefined");
    default:
      return append_str(out, value);
  }
}

void append_str(TextBuilder& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      return out.append("None");
    case Kind::kBool:
      return out.append(value.as_bool() ? "True" : "False");
    case Kind::kInt:
      return out.append(int_repr(value.as_int()));
    case Kind::kFloat:
      return out.append(float_repr(value.as_double()));
    case Kind::kString:
      charge_append(out, text_weight(value.text()));
      return out.append(value.text());
    case Kind::kRange: {
      const RangeObject& range = value.range();
      out.append("range(" + int_repr(range.start) + ", " + int_repr(range.stop) +
                 (range.step == 1 ? "" : ", " + int_repr(range.step)) + ")");
      return;
    }
    case Kind::kGenerator:
      return out.append("<generator object " + value.generator().name + ">");
    case Kind::kNative:
      return out.append(value.native().repr());
    default:
      return append_repr(out, value);
  }
}

TextPtr to_text(const Value& value) {
  if (value.is_string()) return value.text_ptr();
  TextBuilder out;
  append_str(out, value);
  return out.finish();
}

std::string to_bytes(const Value& value) { return to_text(value)->bytes; }

void append_json(TextBuilder& out, const Value& value, const JsonStyle& style, int level) {
  charge_append(out, static_cast<int64_t>(style.item_separator.size() + style.key_separator.size()));
  switch (value.kind()) {
    case Kind::kNone:
      return out.append("null");
    case Kind::kBool:
      return out.append(value.as_bool() ? "true" : "false");
    case Kind::kInt:
      return out.append(int_repr(value.as_int()));
    case Kind::kFloat:
      return out.append(json_float(value.as_double()));
    case Kind::kString:
      return append_json_string(out, value.text(), style);
    case Kind::kList:
    case Kind::kTuple: {
      const auto& items = value.items();
      if (items.empty()) return out.append("[]");
      out.append("[");
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.append(style.item_separator);
        json_line(out, style, level + 1);
        append_json(out, items[i], style, level + 1);
      }
      json_line(out, style, level);
      return out.append("]");
    }
    case Kind::kDict: {
      charge_items(2 * static_cast<int64_t>(value.dict().entries.size()));
      auto entries = value.dict().entries;
      if (entries.empty()) return out.append("{}");
      if (style.sort_keys) {
        std::stable_sort(entries.begin(), entries.end(),
                         [](const auto& a, const auto& b) { return less(a.first, b.first); });
      }
      out.append("{");
      for (size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) out.append(style.item_separator);
        json_line(out, style, level + 1);
        append_json_key(out, entries[i].first, style);
        out.append(style.key_separator);
        append_json(out, entries[i].second, style, level + 1);
      }
      json_line(out, style, level);
      return out.append("}");
    }
    default:
      throw Fault("Object of type " + type_name(value) + " is not JSON serializable");
  }
}

}  // namespace twinkle::jinja
