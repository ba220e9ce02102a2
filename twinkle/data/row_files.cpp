#include "twinkle/data/row_files.h"

#include <algorithm>
#include <filesystem>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

enum class FileKind { kJsonLines, kJson, kText, kOther };

std::string extension_of(const std::string& path) {
  std::string ext = std::filesystem::path(path).extension().string();
  for (char& c : ext) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ext;
}

FileKind kind_of(const std::string& path) {
  const std::string ext = extension_of(path);
  if (ext == ".jsonl" || ext == ".ndjson") return FileKind::kJsonLines;
  if (ext == ".json") return FileKind::kJson;
  if (ext == ".txt") return FileKind::kText;
  return FileKind::kOther;
}

bool holds_rows_we_cannot_read(const std::string& path) {
  static constexpr std::string_view kKnown[] = {".csv", ".tsv", ".parquet", ".arrow", ".gz",
                                                ".zst", ".xz",  ".bz2",     ".zip"};
  return std::find(std::begin(kKnown), std::end(kKnown), extension_of(path)) != std::end(kKnown);
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

// End of the JSON value that begins at `at`, by brackets and strings alone: what is in between is checked
// when the row is parsed. `in_list`: an open list surrounds the value, so ',' and ']' end it.
size_t value_end(std::string_view text, size_t at, bool in_list) {
  int64_t depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (depth == 0 && in_list && (c == ',' || c == ']')) return at;
    if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
      if (depth == 0 && !in_list) return at + 1;
    } else if (depth == 0 && !in_list && is_space(c)) {
      return at;
    }
  }
  return text.size();
}

// Length of the valid UTF-8 sequence at `at`, 0 when there is none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80u) return 1;
  if (lead >= 0xC2u && lead <= 0xDFu) return tail(1) ? 2 : 0;
  if (lead >= 0xE0u && lead <= 0xEFu) {
    if (lead == 0xE0u && byte(1) < 0xA0u) return 0;
    if (lead == 0xEDu && byte(1) > 0x9Fu) return 0;
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0u && lead <= 0xF4u) {
    if (lead == 0xF0u && byte(1) < 0x90u) return 0;
    if (lead == 0xF4u && byte(1) > 0x8Fu) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::shared_ptr<const RowFiles> RowFiles::open(const std::string& path, const std::string& text_split) {
  if (text_split != "file" && text_split != "paragraph" && text_split != "line") {
    throw invalid_argument("[dataset] text_split must be one of file, paragraph, line, got '" + text_split +
                           "'");
  }
  if (!file_exists(path)) {
    throw not_found("[dataset] no file or folder '" + path +
                    "'; give the path of a .jsonl, .json or .txt file or of a folder of them");
  }
  auto files = std::make_shared<RowFiles>();
  if (is_directory(path)) {
    files->add_folder(path, text_split);
  } else {
    files->add_file(path, text_split);
  }
  if (files->rows_.empty()) throw invalid_argument("[dataset] '" + path + "' has no rows");
  files->rows_.shrink_to_fit();
  return files;
}

void RowFiles::add_folder(const std::string& path, const std::string& text_split) {
  std::vector<std::string> paths, unreadable;
  int64_t skipped = 0;
  std::error_code code;
  auto it = std::filesystem::recursive_directory_iterator(path, code);
  if (code) throw unavailable("[dataset] cannot list '" + path + "': " + code.message());
  for (; it != std::filesystem::recursive_directory_iterator(); it.increment(code)) {
    if (code) throw unavailable("[dataset] cannot list '" + path + "': " + code.message());
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) {
      if (it->is_directory(code)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(code)) continue;
    const std::string file = it->path().string();
    if (kind_of(file) != FileKind::kOther) {
      paths.push_back(file);
    } else if (holds_rows_we_cannot_read(file)) {
      unreadable.push_back(file);
    } else {
      ++skipped;
    }
  }
  std::sort(paths.begin(), paths.end());
  std::sort(unreadable.begin(), unreadable.end());
  if (!unreadable.empty()) {
    throw invalid_argument("[dataset] '" + unreadable.front() + "': " + extension_of(unreadable.front()) +
                           " files are not read; convert to .jsonl, or give the path of one file");
  }
  if (paths.empty())
    throw invalid_argument("[dataset] the folder '" + path + "' has no .jsonl, .json or .txt file");
  const auto is_text = [](const std::string& p) { return kind_of(p) == FileKind::kText; };
  const auto text = std::find_if(paths.begin(), paths.end(), is_text);
  const auto rows = std::find_if_not(paths.begin(), paths.end(), is_text);
  if (text != paths.end() && rows != paths.end()) {
    throw invalid_argument("[dataset] the folder '" + path + "' mixes text ('" + *text + "') and rows ('" +
                           *rows + "'); give the path of one file or move one kind away");
  }
  for (const auto& file : paths) add_file(file, text_split);
  if (skipped > 0)
    notes_.push_back("skipped " + std::to_string(skipped) + " files of other kinds in '" + path + "'");
}

void RowFiles::add_file(const std::string& path, const std::string& text_split) {
  const FileKind kind = kind_of(path);
  if (kind == FileKind::kOther) {
    const std::string ext = extension_of(path);
    throw invalid_argument("[dataset] '" + path + "': cannot read a " +
                           (ext.empty() ? "file without extension" : ext + " file") +
                           "; known: .jsonl, .json, .txt, or a folder of them");
  }
  if (files_.size() >= INT32_MAX) throw invalid_argument("[dataset] too many files");
  files_.push_back({MappedFile(path), kind == FileKind::kText});
  const std::string_view text = files_.back().map.text();
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw invalid_argument("[dataset] '" + path + "' is UTF-16; save it as UTF-8");
  }
  const size_t start = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  if (kind == FileKind::kJsonLines) {
    cut_lines(text, start);
  } else if (kind == FileKind::kJson) {
    cut_values(text, start);
  } else {
    cut_text(text, start, text_split);
  }
}

void RowFiles::add_row(int64_t begin, int64_t end) {
  const auto file = static_cast<int32_t>(files_.size()) - 1;
  const int32_t number = rows_.empty() || rows_.back().file != file ? 1 : rows_.back().number + 1;
  if (number == INT32_MAX)
    throw invalid_argument("[dataset] '" + files_.back().map.path() + "' has more than 2^31 rows");
  const std::string_view text = files_.back().map.text();
  const int64_t counted = number == 1 ? 0 : rows_.back().begin;
  const int64_t line =
      (number == 1 ? 1 : rows_.back().line) + std::count(text.begin() + counted, text.begin() + begin, '\n');
  rows_.push_back({file, number, begin, end - begin, line});
}

void RowFiles::cut_lines(std::string_view text, size_t start) {
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    size_t last = end;
    while (last > start && is_space(text[last - 1])) --last;
    if (last > start) add_row(static_cast<int64_t>(start), static_cast<int64_t>(last));
    start = end + 1;
  }
}

void RowFiles::cut_values(std::string_view text, size_t start) {
  const std::string& path = files_.back().map.path();
  const auto trimmed = [&](size_t begin, size_t end) {
    while (end > begin && is_space(text[end - 1])) --end;
    add_row(static_cast<int64_t>(begin), static_cast<int64_t>(end));
  };
  size_t at = skip_space(text, start);
  if (at == text.size()) return;
  if (text[at] != '[') {
    while (at < text.size()) {
      const size_t end = value_end(text, at, /*in_list=*/false);
      trimmed(at, end);
      at = skip_space(text, end);
    }
    return;
  }
  at = skip_space(text, at + 1);
  if (at < text.size() && text[at] == ']') {
    at = skip_space(text, at + 1);
    if (at < text.size())
      throw invalid_argument("[dataset] '" + path + "': text follows the end of the list");
    return;
  }
  for (;;) {
    const size_t end = value_end(text, at, /*in_list=*/true);
    if (end >= text.size())
      throw invalid_argument("[dataset] '" + path +
                             "': the list of rows is never closed; is the file cut short?");
    trimmed(at, end);
    at = skip_space(text, end + 1);
    if (text[end] == ']') break;
  }
  if (at < text.size()) throw invalid_argument("[dataset] '" + path + "': text follows the end of the list");
}

void RowFiles::cut_text(std::string_view text, size_t start, const std::string& text_split) {
  for (size_t at = start; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) {
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      throw invalid_argument("[dataset] '" + files_.back().map.path() + "' line " + std::to_string(line) +
                             ", byte " + std::to_string(at + 1) + ": not valid UTF-8");
    }
    at += length;
  }
  if (text_split == "line") {
    cut_lines(text, start);
  } else if (text_split == "file") {
    if (!is_blank(text.substr(start)))
      add_row(static_cast<int64_t>(start), static_cast<int64_t>(text.size()));
  } else {
    size_t begin = std::string_view::npos, last = start;
    while (start < text.size()) {
      const size_t end = std::min(text.find('\n', start), text.size());
      if (is_blank(text.substr(start, end - start))) {
        if (begin != std::string_view::npos) add_row(static_cast<int64_t>(begin), static_cast<int64_t>(last));
        begin = std::string_view::npos;
      } else {
        if (begin == std::string_view::npos) begin = start;
        last = end > start && text[end - 1] == '\r' ? end - 1 : end;
      }
      start = end + 1;
    }
    if (begin != std::string_view::npos) add_row(static_cast<int64_t>(begin), static_cast<int64_t>(last));
  }
}

std::string_view RowFiles::bytes(const RowRef& ref) const {
  return files_[static_cast<size_t>(ref.file)].map.text().substr(static_cast<size_t>(ref.begin),
                                                                 static_cast<size_t>(ref.length));
}

std::string RowFiles::place(const RowRef& ref) const {
  std::string out = files_[static_cast<size_t>(ref.file)].map.path() + " row " + std::to_string(ref.number);
  if (ref.line != ref.number) out += " (line " + std::to_string(ref.line) + ")";
  return out;
}

Row RowFiles::parse(const RowRef& ref) const {
  const std::string_view text = bytes(ref);
  if (files_[static_cast<size_t>(ref.file)].text) {
    std::string clean;
    clean.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') clean.push_back(text[i]);
    }
    return Row{{"text", std::move(clean)}};
  }
  Row row;
  if (const auto problem = try_parse_json(text, row)) {
    std::string where =
        files_[static_cast<size_t>(ref.file)].map.path() + " row " + std::to_string(ref.number);
    if (problem->line > 0) {
      const std::string_view all = files_[static_cast<size_t>(ref.file)].map.text();
      const size_t previous =
          ref.begin == 0 ? std::string_view::npos : all.rfind('\n', static_cast<size_t>(ref.begin) - 1);
      const int64_t indent =
          ref.begin - (previous == std::string_view::npos ? 0 : static_cast<int64_t>(previous) + 1);
      where += " (line " + std::to_string(ref.line + problem->line - 1) + ", column " +
               std::to_string(problem->column + (problem->line == 1 ? indent : 0)) + ")";
    }
    throw invalid_argument("[dataset] " + where + ": " + problem->reason);
  }
  if (!row.is_object()) {
    throw invalid_argument("[dataset] " + place(ref) + ": expected an object of columns, got " +
                           std::string(json_type_name(row)) +
                           (row.is_array() ? "; a list of rows belongs in a .json file" : ""));
  }
  return row;
}

}  // namespace twinkle
