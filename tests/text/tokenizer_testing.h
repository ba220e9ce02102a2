// What the tokenizer tests share.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/needs.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle::testing_tokenizers {

inline std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
  return Tokenizer::load(test::test_data("tokenizers/" + name));
}

inline std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t hit; (hit = text.find(separator, at)) != std::string::npos; at = hit + separator.size()) {
    parts.push_back(text.substr(at, hit - at));
  }
  parts.push_back(text.substr(at));
  return parts;
}

inline std::vector<int32_t> ids_in(const std::string& line) {
  std::vector<int32_t> ids;
  const char* p = line.c_str();
  while (*p != 0) {
    char* end = nullptr;
    const long id = std::strtol(p, &end, 10);
    if (end == p) {
      ++p;
    } else {
      ids.push_back(static_cast<int32_t>(id));
      p = end;
    }
  }
  return ids;
}

inline std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer,
                            const std::vector<int32_t>& ids, bool skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

/// An entry of added_tokens; `flags` stand over those of a special token.
inline Json added_token(int id, const char* text, const Json& flags = Json::object()) {
  Json token = {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(flags);
  return token;
}

}  // namespace twinkle::testing_tokenizers
