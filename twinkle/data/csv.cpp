#include "twinkle/data/csv.h"

#include <algorithm>

#include "twinkle/core/error.h"

namespace twinkle::csv {

size_t record_end(std::string_view text, size_t at, char separator, bool* closed) {
  *closed = true;
  bool field_start = true;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"' && field_start) {
      // To the quote that is not doubled.
      ++at;
      for (;;) {
        at = text.find('"', at);
        if (at == std::string_view::npos) {
          *closed = false;
          return text.size();
        }
        if (at + 1 < text.size() && text[at + 1] == '"') {
          at += 2;
          continue;
        }
        ++at;
        break;
      }
      field_start = false;
      continue;
    }
    if (c == '\n') return at + 1;
    if (c == '\r') return at + (at + 1 < text.size() && text[at + 1] == '\n' ? 2 : 1);
    field_start = c == separator;
    ++at;
  }
  return at;
}

std::vector<std::string> fields(std::string_view record, char separator) {
  if (record.ends_with('\n')) record.remove_suffix(1);
  if (record.ends_with('\r')) record.remove_suffix(1);
  std::vector<std::string> out;
  size_t at = 0;
  for (;;) {
    std::string field;
    if (at < record.size() && record[at] == '"') {
      for (++at;;) {
        const size_t quote = record.find('"', at);
        if (quote == std::string_view::npos)
          throw invalid_argument("field " + std::to_string(out.size() + 1) + ": its quote is never closed");
        field += record.substr(at, quote - at);
        at = quote + 1;
        if (at >= record.size() || record[at] != '"') break;
        field.push_back('"');
        ++at;
      }
      if (at < record.size() && record[at] != separator) {
        throw invalid_argument("field " + std::to_string(out.size() + 1) +
                               ": text follows its closing quote; a quote inside of quotes is doubled");
      }
    } else {
      const size_t end = std::min(record.find(separator, at), record.size());
      field = record.substr(at, end - at);
      at = end;
    }
    out.push_back(std::move(field));
    if (at >= record.size()) return out;
    ++at;
  }
}

std::string write(const std::vector<std::string>& fields, char separator) {
  std::string out;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out.push_back(separator);
    const std::string& field = fields[i];
    const bool quoted = field.find_first_of("\"\r\n") != std::string::npos ||
                        field.find(separator) != std::string::npos || (fields.size() == 1 && field.empty());
    if (!quoted) {
      out += field;
      continue;
    }
    out.push_back('"');
    for (const char c : field) {
      if (c == '"') out.push_back('"');
      out.push_back(c);
    }
    out.push_back('"');
  }
  out.push_back('\n');
  return out;
}

}  // namespace twinkle::csv
