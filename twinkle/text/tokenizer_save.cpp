#include "twinkle/text/tokenizer_save.h"

#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle {

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
  if (!whole) write_file_atomic(directory + "/tokenizer.json", tokenizer->to_json().dump(2));
  if (!configured) write_file_atomic(directory + "/tokenizer_config.json", tokenizer->config().dump(2));
}

}  // namespace twinkle
