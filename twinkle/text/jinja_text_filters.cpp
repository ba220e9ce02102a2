// Jinja's filters that make or change text.
#include <algorithm>
#include <cmath>

#include "twinkle/text/jinja_runtime.h"

namespace twinkle::jinja {

FilterFunction find_text_filter(std::string_view name);

namespace {

Value call_method(Runtime& runtime, const Value& value, std::string_view method, const CallArgs& args) {
  const Value text = Value::string(to_text(value));
  return runtime.call(*builtin_attribute(text, method), args);
}

// A change of case looks every character up.
TextPtr text_to_map(const Value& value) {
  TextPtr text = to_text(value);
  charge(static_cast<int64_t>(text->bytes.size()) / 16);
  return text;
}

Value filter_upper(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("upper", args, {});
  return Value::string(upper_text(*text_to_map(value)));
}
Value filter_lower(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("lower", args, {});
  return Value::string(lower_text(*text_to_map(value)));
}
Value filter_capitalize(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("capitalize", args, {});
  return call_method(runtime, value, "capitalize", {});
}
Value filter_trim(Runtime& runtime, const Value& value, const CallArgs& args) {
  return call_method(runtime, value, "strip", args);
}
Value filter_center(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("center", args, {"width"});
  return call_method(runtime, value, "center", {{Value::integer(bound.integer(0, 80))}, {}});
}
Value filter_string(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("string", args, {});
  return Value::string(to_text(value));
}

Value filter_escape(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("escape", args, {});
  return Value::string(escape_html(value));
}
Value filter_forceescape(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("forceescape", args, {});
  Text plain = *to_text(value);
  plain.markup = false;
  return Value::string(escape_html(Value::string(std::move(plain))));
}
Value filter_safe(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("safe", args, {});
  Text text = *to_text(value);
  text.markup = true;
  return Value::string(std::move(text));
}

Value filter_replace(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("replace", args, {"old", "new", "count"}, 2);
  Text text = *to_text(value), to = *to_text(*bound.get(1));
  text.markup = false;
  const bool all = !bound.has(2) || bound.get(2)->is_none();
  return Value::string(
      replace_text(runtime, text, to_bytes(*bound.get(0)), to, all ? -1 : bound.integer(2, -1)));
}

// Words begin after white space, '-' and opening brackets.
Value filter_title(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("title", args, {});
  const TextPtr text = text_to_map(value);
  TextBuilder out;
  bool begin = true;
  const std::string& bytes = text->bytes;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    const bool separator =
        is_space(c.code) || c.code == '-' || c.code == '(' || c.code == '{' || c.code == '[' || c.code == '<';
    const std::string mapped =
        c.code < 0 ? bytes.substr(i, 1) : map_case(c.code, begin ? Case::kUpper : Case::kLower);
    out.append_as(*text, static_cast<int64_t>(i), mapped);
    begin = separator;
    i += c.length;
  }
  return Value::string(out.finish());
}

Value filter_indent(Runtime& runtime, const Value& value, const CallArgs& args) {
  const BoundArgs bound("indent", args, {"width", "first", "blank"});
  if (value.is_undefined()) throw Fault(value.undefined_message());
  if (!value.is_string()) throw Fault("indent needs a string, got " + type_name(value));
  TextBuilder unit;
  if (bound.has(0) && bound.get(0)->is_string()) {
    unit.append(bound.get(0)->text());
  } else {
    const Int width = bound.integer(0, 4);
    if (width > 100'000) throw Fault("an indent this wide is not supported");
    unit.append(std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' '));
  }
  Text with_end = value.text();
  with_end.bytes += "\n";
  const std::vector<Value> lines = split_lines(with_end, false);
  runtime.charge_bytes(static_cast<int64_t>(value.bytes().size()) +
                       unit.size() * static_cast<int64_t>(lines.size()));
  TextBuilder out;
  if (bound.flag(1, false)) out.append(unit.text());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n");
      if (bound.flag(2, false) || !lines[i].bytes().empty()) out.append(unit.text());
    }
    out.append(lines[i].text());
  }
  out.set_markup(value.text().markup);
  return Value::string(out.finish());
}

Value filter_truncate(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!value.is_string()) throw Fault("truncate needs a string, got " + type_name(value));
  const Int length = bound.integer(0, 255);
  const Value end = bound.value(2, Value::string(std::string("...")));
  const Int leeway = bound.has(3) && !bound.get(3)->is_none() ? bound.integer(3, 5) : 5;
  if (!end.is_string()) throw Fault("truncate: 'end' must be a string");
  const Int end_size = count_chars(end.bytes());
  if (length < end_size)
    throw Fault("expected length >= " + int_repr(end_size) + ", got " + int_repr(length));
  if (leeway < 0) throw Fault("expected leeway >= 0, got " + int_repr(leeway));
  const CharIndex chars(value.bytes());
  if (chars.count() <= length + leeway) return value;
  int64_t keep = chars.at(static_cast<int64_t>(length - end_size));
  if (!bound.flag(1, false)) {
    const size_t space = std::string_view(value.bytes()).substr(0, static_cast<size_t>(keep)).rfind(' ');
    if (space != std::string_view::npos) keep = static_cast<int64_t>(space);
  }
  TextBuilder out;
  charge_append(out, keep + text_weight(end.text()));
  out.append_slice(value.text(), 0, keep);
  out.append(end.text());
  return Value::string(out.finish());
}

Value filter_wordcount(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("wordcount", args, {});
  const std::string bytes = to_bytes(value);
  Int count = 0;
  bool inside = false;
  for (size_t i = 0; i < bytes.size();) {
    const Char c = char_at(bytes, i);
    const bool word = c.code == '_' || is_alpha(c.code) || is_numeric(c.code);
    count += word && !inside;
    inside = word;
    i += c.length;
  }
  return Value::integer(count);
}

Value filter_format(Runtime& runtime, const Value& value, const CallArgs& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    throw Fault("can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) return percent_format(runtime, *to_text(value), Value::tuple(args.positional));
  auto dict = std::make_shared<DictObject>();
  for (const auto& [name, item] : args.named) dict->put(Value::string(name), item);
  return percent_format(runtime, *to_text(value), Value::object(Kind::kDict, std::move(dict)));
}

Value filter_filesizeformat(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("filesizeformat", args, {"binary"});
  const bool binary = bound.flag(0, false);
  std::optional<double> size;
  if (value.is_number()) size = value.as_double();
  if (value.is_string()) size = parse_float(value.bytes());
  if (!size) throw Fault("filesizeformat needs a number, got " + type_name(value));
  if (*size == 1) return Value::string(std::string("1 Byte"));
  const double base = binary ? 1024 : 1000;
  if (!(std::abs(*size) < 1e38)) throw Fault("a size of " + float_repr(*size) + " is not supported");
  if (*size < base) return Value::string(int_repr(static_cast<Int>(*size)) + " Bytes");
  constexpr const char* kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  constexpr const char* kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  double unit = base;
  int i = 0;
  do {
    unit *= base;
    ++i;
  } while (i < 8 && *size >= unit);
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, "%.1f %s", base * *size / unit, (binary ? kBinary : kDecimal)[i - 1]);
  return Value::string(std::string(buffer));
}

void quote_url(std::string* out, const Value& value, bool query) {
  constexpr char kHex[] = "0123456789ABCDEF";
  const std::string bytes = to_bytes(value);
  charge(1);
  charge_text(3 * static_cast<int64_t>(bytes.size()));
  for (const char c : bytes) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      *out += c;
    } else if (c == ' ' && query) {
      *out += '+';
    } else {
      *out += {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    }
  }
}

Value filter_urlencode(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("urlencode", args, {});
  std::string out;
  if (value.is_string() || !is_iterable(value)) {
    quote_url(&out, value, false);
    return Value::string(std::move(out));
  }
  const auto pair = [&](const Value& key, const Value& item) {
    if (!out.empty()) out += '&';
    quote_url(&out, key, true);
    out += '=';
    quote_url(&out, item, true);
  };
  if (value.kind() == Kind::kDict) {
    for (const auto& [key, item] : value.dict().entries) pair(key, item);
  } else {
    for (const Value& item : iterate(value)) {
      const std::vector<Value> both = iterate(item);
      if (both.size() != 2) throw Fault("urlencode needs pairs");
      pair(both[0], both[1]);
    }
  }
  return Value::string(std::move(out));
}

Value filter_xmlattr(Runtime&, const Value& value, const CallArgs& args) {
  const BoundArgs bound("xmlattr", args, {"autospace"});
  if (value.kind() != Kind::kDict) throw Fault("xmlattr needs a mapping, got " + type_name(value));
  TextBuilder out;
  for (const auto& [key, item] : value.dict().entries) {
    if (item.is_none() || item.is_undefined()) continue;
    if (!key.is_string() || key.bytes().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      throw Fault("Invalid character in attribute name");
    }
    charge_append(out, 0);
    if (out.size() > 0 || bound.flag(0, true)) out.append(" ");
    out.append(escape_html(key));
    out.append("=\"");
    out.append(escape_html(item));
    out.append("\"");
  }
  return Value::string(out.finish());
}

constexpr std::pair<std::string_view, FilterFunction> kTextFilters[] = {
    {"trim", filter_trim},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"string", filter_string},
    {"replace", filter_replace},
    {"safe", filter_safe},
    {"indent", filter_indent},
    {"title", filter_title},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"forceescape", filter_forceescape},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
    {"wordwrap", filter_wordwrap},
    {"format", filter_format},
    {"filesizeformat", filter_filesizeformat},
    {"urlencode", filter_urlencode},
    {"xmlattr", filter_xmlattr}};

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  for (const auto& [known, filter] : kTextFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace twinkle::jinja
