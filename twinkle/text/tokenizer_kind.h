// Which files are tokenizers, by their names.
#pragma once

#include <string>
#include <string_view>

namespace twinkle {

/// A file that Tokenizer::load reads by itself: tokenizer.json, vocab.txt, SentencePiece and tiktoken files.
bool is_tokenizer_file(std::string_view name);
/// The file of `folder` that Tokenizer::load begins with; "" when the folder holds no tokenizer.
std::string tokenizer_file_of(const std::string& folder);

}  // namespace twinkle
