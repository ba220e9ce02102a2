#include "twinkle/text/tokenizer_save.h"

#include <charconv>

#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

void write_number(double value, std::string* out) {
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  *out += text;
  if (text.find_first_of(".e") == std::string_view::npos) *out += ".0";
}

void write_value(const Json& value, int depth, std::string* out) {
  if (value.is_number_float()) return write_number(value.get<double>(), out);
  if (!value.is_structured() || value.empty()) {
    *out += value.dump();
    return;
  }
  const auto new_line = [&](int indent) { out->append("\n").append(2 * static_cast<size_t>(indent), ' '); };
  *out += value.is_array() ? '[' : '{';
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (item != value.begin()) *out += ',';
    new_line(depth + 1);
    if (value.is_object()) *out += Json(item.key()).dump() + ": ";
    write_value(*item, depth + 1, out);
  }
  new_line(depth);
  *out += value.is_array() ? ']' : '}';
}

}  // namespace

std::string tokenizer_file_text(const Tokenizer& tokenizer) {
  std::string out;
  write_value(tokenizer.to_json(), 0, &out);
  return out + "\n";
}

void save_tokenizer_files(const std::string& source, const std::string& directory) {
  bool whole = false, configured = false;
  if (is_directory(source)) {
    for (const std::string name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
          "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model"}) {
      if (!file_exists(source + "/" + name)) continue;
      copy_file(source + "/" + name, directory + "/" + name);
      whole |= name == "tokenizer.json";
      configured |= name == "tokenizer_config.json";
    }
  }
  if (whole && configured) return;
  const auto tokenizer = Tokenizer::load(source);
  if (!whole) write_file_atomic(directory + "/tokenizer.json", tokenizer_file_text(*tokenizer));
  if (!configured) write_file_atomic(directory + "/tokenizer_config.json", tokenizer->config().dump(2));
}

}  // namespace twinkle
