// A tokenizer beside a model's weights.
#pragma once

#include <string>

#include "twinkle/text/tokenizer.h"

namespace twinkle {

/// The text of a tokenizer.json. Scores have the shortest digits that mean them and of these the nearest, as
/// the files that `tokenizers` writes: its reader takes others for a neighbouring number, and then another of
/// two equally good ways to cut a text may win.
std::string tokenizer_file_text(const Tokenizer& tokenizer);

/// Writes the tokenizer of `source` (what Tokenizer::load takes) into `directory`, as transformers loads it.
/// The files of a folder are copied as they are; a tokenizer.json is made where there is none.
void save_tokenizer_files(const std::string& source, const std::string& directory);

}  // namespace twinkle
