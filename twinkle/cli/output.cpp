#include "twinkle/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "twinkle/core/file_errors.h"

namespace twinkle::cli {

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw file_error("[output] cannot write", errno);
  }
}

void write_error(std::string_view text) {
  // Nothing is left to tell if this fails.
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), stderr);
}

void flush_out() {
  if (std::fflush(stdout) != 0) throw file_error("[output] cannot write", errno);
}

void write_json(const Json& value, int indent) {
  write_out(value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool use_color(std::string_view choice) {
  if (choice == "always") return true;
  if (choice == "never") return false;
  return ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string table_text(const std::vector<std::pair<std::string, std::string>>& rows, int indent) {
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : rows) {
    out += std::string(static_cast<size_t>(indent), ' ') + name + std::string(width + 2 - name.size(), ' ') +
           value + "\n";
  }
  return out;
}

namespace {

// Characters of UTF-8 text.
size_t length_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The bytes of the first `count` characters.
size_t bytes_of(std::string_view text, size_t count) {
  size_t at = 0;
  while (at < text.size()) {
    if ((text[at] & 0xC0) != 0x80 && count-- == 0) break;
    ++at;
  }
  return at;
}

// Lines of at most `width` characters; words that are longer are cut.
std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines = {""};
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      lines.emplace_back();
      ++at;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \n", text[at] == ' ' ? at + 1 : at), text.size());
    std::string_view word = text.substr(at, end - at);
    at = end;
    if (length_of(lines.back()) + length_of(word) > width && !lines.back().empty()) {
      lines.emplace_back();
      if (word.front() == ' ') word.remove_prefix(1);
    }
    while (length_of(word) > width) {
      const size_t cut = bytes_of(word, width);
      lines.back() = word.substr(0, cut);
      lines.emplace_back();
      word.remove_prefix(cut);
    }
    lines.back() += word;
  }
  return lines;
}

}  // namespace

std::string columns_text(const std::vector<std::pair<std::string, std::string>>& columns, int width) {
  constexpr size_t kGap = 3, kLeast = 16;
  const size_t n = columns.size();
  const size_t with_gap = (static_cast<size_t>(width) + kGap) / std::max<size_t>(n, 1);
  const size_t share = std::max(kLeast + kGap, with_gap) - kGap;
  std::vector<std::vector<std::string>> cells;
  size_t height = 0;
  for (const auto& [title, text] : columns) {
    std::vector<std::string> lines = wrapped(title, share);
    lines.emplace_back(share, '-');
    for (auto& line : wrapped(text, share)) lines.push_back(std::move(line));
    cells.push_back(std::move(lines));
    height = std::max(height, cells.back().size());
  }
  std::string out;
  for (size_t row = 0; row < height; ++row) {
    std::string line;
    for (size_t i = 0; i < n; ++i) {
      const std::string cell = row < cells[i].size() ? cells[i][row] : "";
      line += cell;
      if (i + 1 < n) line += std::string(share - length_of(cell) + kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace twinkle::cli
