// A tokenizer beside a model's weights.
#pragma once

#include <string>

namespace twinkle {

/// Writes the tokenizer of `source` (what Tokenizer::load takes) into `directory`, as transformers loads it.
/// The files of a folder are copied as they are; a tokenizer.json is made where there is none.
void save_tokenizer_files(const std::string& source, const std::string& directory);

}  // namespace twinkle
