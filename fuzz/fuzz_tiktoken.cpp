// deps: text
// A tiktoken file (lines of base64 and rank), two NULs, and a text: loading refuses with an Error, or
// encoding with and without offsets, decoding and the saved tokenizer agree. The first byte picks the
// encoding's name.
#include <string_view>

#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace twinkle;
  using fuzz::require;
  if (size == 0) return 0;
  const char* const names[] = {"cl100k_base.tiktoken", "o200k_base.tiktoken", "p50k_base.tiktoken",
                               "qwen.tiktoken", "tiktoken.model"};
  const std::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const size_t cut = input.rfind(std::string_view("\0\0", 2));
  const std::string_view text = cut == std::string_view::npos
                                    ? std::string_view("Hello 123's  w\xC3\xB6rld\n \xF0\x9F\x98\x8A")
                                    : input.substr(cut + 2);
  try {
    const auto tokenizer = Tokenizer::from_tiktoken(
        input.substr(0, cut), {{"tokenizer_class", "TikTokenTokenizer"}}, names[bytes[0] % std::size(names)]);
    for (const bool parse_special : {true, false}) {
      const EncodeOptions options{.add_special_tokens = parse_special, .parse_special = parse_special};
      const auto ids = tokenizer->encode(text, options);
      const Encoding encoding = tokenizer->encode_with_offsets(text, options);
      require(encoding.ids == ids && encoding.offsets.size() == ids.size());
      const std::string decoded = tokenizer->decode(ids);
      require(unicode::is_valid(decoded));
      const auto stream = tokenizer->start_decoding(false);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream->push(id);
      require(streamed + stream->finish() == decoded);
      const auto again = Tokenizer::from_json(tokenizer->to_json(), tokenizer->config(), "saved");
      require(again->encode(text, options) == ids);
    }
  } catch (const Error& e) {
    require(e.kind() != ErrorKind::kInternal);
  }
  return 0;
}
