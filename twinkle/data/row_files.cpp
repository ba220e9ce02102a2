#include "twinkle/data/row_files.h"

#include <glob.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/data/csv.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

enum class FileKind { kJsonLines, kJson, kText, kCsv, kTsv, kTable, kOther };
constexpr const char* kKnown =
    ".jsonl, .json, .csv, .tsv, .txt (also .gz and .zst of these), .parquet, .arrow";

std::string extension_of(const std::string& path) {
  std::string ext = std::filesystem::path(path).extension().string();
  for (char& c : ext) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ext;
}

FileKind kind_of(const std::string& path) {
  const std::string inner = without_compression(path), ext = extension_of(inner);
  if (ext == ".jsonl" || ext == ".ndjson") return FileKind::kJsonLines;
  if (ext == ".json") return FileKind::kJson;
  if (ext == ".txt") return FileKind::kText;
  if (ext == ".csv") return FileKind::kCsv;
  if (ext == ".tsv") return FileKind::kTsv;
  const bool packed = inner.size() != path.size();
  if (!packed && (ext == ".parquet" || ext == ".arrow" || ext == ".feather" || ext == ".ipc"))
    return FileKind::kTable;
  return FileKind::kOther;
}

bool holds_rows_we_cannot_read(const std::string& path) {
  static constexpr std::string_view kPacked[] = {".gz", ".zst", ".xz", ".bz2", ".zip", ".7z", ".tar", ".lz4"};
  return std::find(std::begin(kPacked), std::end(kPacked), extension_of(path)) != std::end(kPacked);
}

// What is known of a row's form beside its bytes: they are another row under other columns, and as text. JSON
// says all itself.
std::string form_of(std::string_view kind, char separator, const std::vector<std::string>& columns) {
  std::string out(kind);
  out.push_back(separator);
  for (const auto& column : columns) out += std::to_string(column.size()) + ":" + column;
  return out;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }

// Ends of lines in [begin, end); in .csv a CR without LF is one too.
int64_t count_lines(std::string_view text, int64_t begin, int64_t end, bool csv) {
  int64_t lines = std::count(text.begin() + begin, text.begin() + end, '\n');
  for (auto at = static_cast<size_t>(begin); csv && at < static_cast<size_t>(end); ++at)
    lines += text[at] == '\r' && (at + 1 == text.size() || text[at + 1] != '\n') ? 1 : 0;
  return lines;
}

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

bool is_hidden(const std::filesystem::path& path) { return path.filename().string().starts_with('.'); }

// The folders in and below `path` that are not hidden, each once: links to folders are followed when the
// folders that are there themselves are known.
std::vector<std::string> folders_below(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  std::deque<std::string> open = {path}, links;
  std::set<std::string> seen;
  for (std::error_code code; !open.empty() || !links.empty();) {
    std::deque<std::string>& from = open.empty() ? links : open;
    const std::string folder = std::move(from.front());
    from.pop_front();
    const std::string real = fs::canonical(folder, code).string();
    if (!code && !seen.insert(real).second) continue;
    auto it = code ? fs::directory_iterator() : fs::directory_iterator(folder, code);
    if (code) throw unavailable("[dataset] cannot list '" + folder + "': " + code.message());
    out.push_back(folder);
    std::vector<std::string> found, linked;
    for (; it != fs::directory_iterator(); it.increment(code)) {
      std::error_code ignored;  // of a link to nothing
      if (is_hidden(it->path()) || !it->is_directory(ignored)) continue;
      (it->is_symlink(ignored) ? linked : found).push_back(it->path().string());
    }
    if (code) throw unavailable("[dataset] cannot list '" + folder + "': " + code.message());
    std::sort(found.begin(), found.end());
    std::sort(linked.begin(), linked.end());
    open.insert(open.end(), found.begin(), found.end());
    links.insert(links.end(), linked.begin(), linked.end());
  }
  return out;
}

// A path as a pattern that matches it alone.
std::string literally(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::set<std::string> matches_of(const std::string& pattern) {
  std::set<std::string> out;
  // A part "**" stands for any folders, also for none; last of all, for all that is in them.
  size_t at = 0;
  while ((at = pattern.find("**", at)) != std::string::npos) {
    const bool begins = at == 0 || pattern[at - 1] == '/';
    const bool ends = at + 2 == pattern.size() || pattern[at + 2] == '/';
    if (begins && ends) break;
    at = pattern.find_first_not_of('*', at);
    if (at == std::string::npos) break;
  }
  if (at == std::string::npos) {
    ::glob_t found{};
    const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
    for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) out.insert(found.gl_pathv[i]);
    ::globfree(&found);
    return out;
  }
  const std::string rest = at + 3 < pattern.size() ? pattern.substr(at + 3) : "*";
  const auto roots =
      at == 0 ? std::set<std::string>{""} : matches_of(pattern.substr(0, at == 1 ? 1 : at - 1));
  for (const auto& root : roots) {
    if (!root.empty() && !is_directory(root)) continue;
    for (std::string folder : folders_below(root.empty() ? "." : root)) {
      if (root.empty()) folder = folder == "." ? "" : folder.substr(2);
      if (!folder.empty() && !folder.ends_with('/')) folder += '/';
      out.merge(matches_of(literally(folder) + rest));
    }
  }
  return out;
}

std::vector<std::string> files_of_folder(const std::string& path, std::vector<std::string>* notes) {
  std::vector<std::string> all, paths, unreadable;
  int64_t skipped = 0;
  for (const auto& folder : folders_below(path)) {
    std::error_code code;
    auto it = std::filesystem::directory_iterator(folder, code);
    for (; !code && it != std::filesystem::directory_iterator(); it.increment(code)) {
      std::error_code ignored;
      if (!is_hidden(it->path()) && it->is_regular_file(ignored)) all.push_back(it->path().string());
    }
    if (code) throw unavailable("[dataset] cannot list '" + folder + "': " + code.message());
  }
  for (const std::string& file : all) {
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
    throw invalid_argument("[dataset] the folder '" + path + "' has no data file (" + kKnown + ")");
  const auto is_text = [](const std::string& p) { return kind_of(p) == FileKind::kText; };
  const auto text = std::find_if(paths.begin(), paths.end(), is_text);
  const auto rows = std::find_if_not(paths.begin(), paths.end(), is_text);
  if (text != paths.end() && rows != paths.end()) {
    throw invalid_argument("[dataset] the folder '" + path + "' mixes text ('" + *text + "') and rows ('" +
                           *rows + "'); give the path of one file or move one kind away");
  }
  if (skipped > 0)
    notes->push_back("skipped " + std::to_string(skipped) + " files of other kinds in '" + path + "'");
  return paths;
}

}  // namespace

std::shared_ptr<const RowFiles> RowFiles::open(const std::string& path, const RowFileOptions& options) {
  const std::string& text_split = options.text_split;
  if (text_split != "file" && text_split != "paragraph" && text_split != "line") {
    throw invalid_argument("[dataset] text_split must be one of file, paragraph, line, got '" + text_split +
                           "'");
  }
  auto files = std::make_shared<RowFiles>();
  for (const auto& file : paths_of(path, &files->notes_)) files->add_file(file, options);
  if (!options.may_be_empty) files->refuse_unused(path, options);
  if (files->rows_.empty() && !options.may_be_empty)
    throw invalid_argument("[dataset] '" + path + "' has no rows");
  files->rows_.shrink_to_fit();
  return files;
}

// Options that no file of the data set heeds.
void RowFiles::refuse_unused(const std::string& path, const RowFileOptions& options) const {
  const auto any = [&](Kind kind) {
    return std::any_of(files_.begin(), files_.end(), [&](const File& file) { return file.kind == kind; });
  };
  if (!options.columns.empty() && !any(Kind::kCsv))
    throw invalid_argument("[dataset] '" + path + "': names of columns are for .csv and .tsv files");
  if (options.text_split != "file" && !any(Kind::kText))
    throw invalid_argument("[dataset] '" + path + "': text_split is for .txt files");
}

std::vector<std::string> RowFiles::paths_of(const std::string& path, std::vector<std::string>* notes) {
  if (file_exists(path)) {
    if (is_directory(path)) return files_of_folder(path, notes);
    return {path};
  }
  if (path.find_first_of("*?[") != std::string::npos) {
    std::vector<std::string> paths;
    for (const auto& file : matches_of(path)) {
      if (!is_directory(file)) paths.push_back(file);
    }
    if (paths.empty()) throw not_found("[dataset] no file matches '" + path + "'");
    return paths;
  }
  throw not_found("[dataset] no file or folder '" + path + "'; give the path of a file (" + kKnown +
                  "), of a folder of them or a pattern");
}

void RowFiles::add_file(const std::string& path, const RowFileOptions& options) {
  const FileKind kind = kind_of(path);
  if (kind == FileKind::kOther) {
    const std::string ext = extension_of(path);
    throw invalid_argument("[dataset] '" + path + "': cannot read a " +
                           (ext.empty() ? "file without extension" : ext + " file") + "; known: " + kKnown +
                           ", or a folder of them");
  }
  if (files_.size() >= INT32_MAX) throw invalid_argument("[dataset] too many files");
  files_.push_back({});
  File& file = files_.back();
  file.path = path;
  if (kind == FileKind::kTable) {
    file.kind = Kind::kTable;
    file.table = open_table_file(path);
    file.bytes = FileBytes(path);
    file.table_hash = sha256_hex(file.bytes.text());
    const int64_t count = file.table->num_rows();
    if (count >= INT32_MAX) throw invalid_argument("[dataset] '" + path + "' has more than 2^31 rows");
    const auto number = static_cast<int32_t>(files_.size()) - 1;
    for (int64_t i = 0; i < count; ++i) rows_.push_back({number, static_cast<int32_t>(i + 1), i, 0, i + 1});
    return;
  }
  file.bytes = FileBytes(path);
  const std::string_view text = file.bytes.text();
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw invalid_argument("[dataset] '" + path + "' is UTF-16; save it as UTF-8");
  }
  const size_t start = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  if (kind == FileKind::kJsonLines) {
    cut_lines(text, start, /*keep_blanks=*/false);
  } else if (kind == FileKind::kJson) {
    cut_values(text, start);
  } else if (kind == FileKind::kText) {
    file.kind = Kind::kText;
    file.form = form_of("text", ' ', {});
    cut_text(text, start, options.text_split);
  } else {
    file.kind = Kind::kCsv;
    file.separator = kind == FileKind::kTsv ? '\t' : ',';
    cut_records(text, start, options.columns);
  }
}

void RowFiles::add_row(int64_t begin, int64_t end) {
  const auto file = static_cast<int32_t>(files_.size()) - 1;
  const int32_t number = rows_.empty() || rows_.back().file != file ? 1 : rows_.back().number + 1;
  if (number == INT32_MAX)
    throw invalid_argument("[dataset] '" + files_.back().path + "' has more than 2^31 rows");
  const std::string_view text = files_.back().bytes.text();
  const int64_t counted = number == 1 ? 0 : rows_.back().begin;
  const int64_t line = (number == 1 ? 1 : rows_.back().line) +
                       count_lines(text, counted, begin, files_.back().kind == Kind::kCsv);
  rows_.push_back({file, number, begin, end - begin, line});
}

void RowFiles::cut_lines(std::string_view text, size_t start, bool keep_blanks) {
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    size_t last = end;
    while (last > start && is_space(text[last - 1])) --last;
    const bool is_row = last > start;
    if (keep_blanks) last = end > start && text[end - 1] == '\r' ? end - 1 : end;
    if (is_row) add_row(static_cast<int64_t>(start), static_cast<int64_t>(last));
    start = end + 1;
  }
}

void RowFiles::cut_values(std::string_view text, size_t start) {
  const std::string& path = files_.back().path;
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
  if (const size_t bad = unicode::first_invalid(text.substr(start)); bad < text.size() - start) {
    const size_t at = start + bad;
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw invalid_argument("[dataset] '" + files_.back().path + "' line " + std::to_string(line) + ", byte " +
                           std::to_string(at + 1) + ": not valid UTF-8");
  }
  if (text_split == "line") {
    cut_lines(text, start, /*keep_blanks=*/true);
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

void RowFiles::cut_records(std::string_view text, size_t start, const std::vector<std::string>& columns) {
  File& file = files_.back();
  size_t at = start;
  const auto is_empty_line = [&](size_t begin, size_t end) {
    return text.substr(begin, end - begin).find_first_not_of("\r\n") == std::string_view::npos;
  };
  const auto next = [&](size_t begin) {
    bool closed = true;
    const size_t end = csv::record_end(text, begin, file.separator, &closed);
    if (closed) return end;
    const int64_t line = 1 + count_lines(text, 0, static_cast<int64_t>(begin), true);
    throw invalid_argument("[dataset] '" + file.path + "' line " + std::to_string(line) +
                           ": a quote of this record is never closed");
  };
  file.columns = columns;
  while (file.columns.empty() && at < text.size()) {
    const size_t end = next(at);
    if (!is_empty_line(at, end)) file.columns = csv::fields(text.substr(at, end - at), file.separator);
    at = end;
  }
  for (size_t i = 0; i < file.columns.size(); ++i) {
    const bool twice = std::find(file.columns.begin(), file.columns.begin() + static_cast<std::ptrdiff_t>(i),
                                 file.columns[i]) != file.columns.begin() + static_cast<std::ptrdiff_t>(i);
    if (file.columns[i].empty() || twice) {
      throw invalid_argument(
          "[dataset] '" + file.path + "': column " + std::to_string(i + 1) +
          (twice ? " has the name of another, '" + file.columns[i] + "'" : " has no name") +
          "; where the first record is no header, name the columns");
    }
  }
  file.form = form_of("csv", file.separator, file.columns);
  while (at < text.size()) {
    const size_t end = next(at);
    if (!is_empty_line(at, end)) add_row(static_cast<int64_t>(at), static_cast<int64_t>(end));
    at = end;
  }
}

Row RowFiles::parse_csv(const File& file, const RowRef& ref) const {
  std::vector<std::string> values;
  try {
    values = csv::fields(bytes(ref), file.separator);
  } catch (const Error& e) {
    throw invalid_argument("[dataset] " + place(ref) + ": " + e.what());
  }
  if (values.size() != file.columns.size()) {
    throw invalid_argument("[dataset] " + place(ref) + ": has " + std::to_string(values.size()) +
                           " fields, there are " + std::to_string(file.columns.size()) + " columns");
  }
  Row row = Row::object();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!unicode::is_valid(values[i])) {
      throw invalid_argument("[dataset] " + place(ref) + ": column '" + file.columns[i] +
                             "' is not valid UTF-8");
    }
    row[file.columns[i]] = std::move(values[i]);
  }
  return row;
}

std::string RowFiles::hash(const RowRef& ref) const {
  const File& file = files_[static_cast<size_t>(ref.file)];
  if (file.kind == Kind::kTable) return sha256_hex(file.table_hash + "\n" + std::to_string(ref.begin));
  const std::string own = sha256_hex(bytes(ref));
  return file.form.empty() ? own : sha256_hex(file.form + own);
}

std::string RowFiles::hash_of_file(const std::string& path, const RowFileOptions& options) {
  const std::string own = sha256_hex(MappedFile(path).text());
  const FileKind kind = kind_of(path);
  if (kind == FileKind::kText) return sha256_hex(form_of("text", ' ', {options.text_split}) + own);
  if (kind == FileKind::kCsv || kind == FileKind::kTsv)
    return sha256_hex(form_of("csv", kind == FileKind::kTsv ? '\t' : ',', options.columns) + own);
  return own;
}

std::string_view RowFiles::bytes(const RowRef& ref) const {
  return files_[static_cast<size_t>(ref.file)].bytes.text().substr(static_cast<size_t>(ref.begin),
                                                                   static_cast<size_t>(ref.length));
}

std::vector<std::string> RowFiles::paths() const {
  std::vector<std::string> out;
  for (const File& file : files_) out.push_back(file.path);
  return out;
}

std::string RowFiles::place(const RowRef& ref) const {
  std::string out = files_[static_cast<size_t>(ref.file)].path + " row " + std::to_string(ref.number);
  if (ref.line != ref.number) out += " (line " + std::to_string(ref.line) + ")";
  return out;
}

Row RowFiles::parse(const RowRef& ref) const {
  const File& file = files_[static_cast<size_t>(ref.file)];
  file.bytes.check_whole();
  if (file.kind == Kind::kTable) {
    try {
      return file.table->row(ref.begin);
    } catch (const Error& e) {
      if (std::string_view(e.what()).starts_with("[dataset] ")) throw;
      throw invalid_argument("[dataset] " + place(ref) + ": " + e.what());
    }
  }
  if (file.kind == Kind::kCsv) return parse_csv(file, ref);
  const std::string_view text = bytes(ref);
  if (files_[static_cast<size_t>(ref.file)].kind == Kind::kText) {
    std::string clean;
    clean.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') clean.push_back(text[i]);
    }
    return Row{{"text", std::move(clean)}};
  }
  Row row;
  if (const auto problem = try_parse_json(text, row, kMaxJsonDepth, WideIntegers::kRefuse)) {
    std::string where = files_[static_cast<size_t>(ref.file)].path + " row " + std::to_string(ref.number);
    if (problem->line > 0) {
      const std::string_view all = files_[static_cast<size_t>(ref.file)].bytes.text();
      const size_t previous =
          ref.begin == 0 ? std::string_view::npos : all.rfind('\n', static_cast<size_t>(ref.begin) - 1);
      const int64_t indent =
          ref.begin - (previous == std::string_view::npos ? 0 : static_cast<int64_t>(previous) + 1);
      where += " (line " + std::to_string(ref.line + problem->line - 1) + ", column " +
               std::to_string(problem->column + (problem->line == 1 ? indent : 0)) + ")";
    }
    const bool carriage = text.find('\r') != text.npos && text.find('\n') == text.npos;
    throw invalid_argument(
        "[dataset] " + where + ": " + problem->reason +
        (carriage ? "; the lines end with CR, as old Macs wrote them: save it with LF" : ""));
  }
  if (!row.is_object()) {
    throw invalid_argument("[dataset] " + place(ref) + ": expected an object of columns, got " +
                           std::string(json_type_name(row)) +
                           (row.is_array() ? "; a list of rows belongs in a .json file" : ""));
  }
  return row;
}

}  // namespace twinkle
