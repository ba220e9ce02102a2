// deps: text
// A tokenizer.json, a line break, and a text: loading refuses with an Error or encoding, streaming and saving
// agree.
#include <string_view>

#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace twinkle;
  using fuzz::require;
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t line = input.find('\n');
  const std::string_view text =
      line == std::string_view::npos ? std::string_view("Hello 12  world's") : input.substr(line + 1);
  try {
    const auto tokenizer = Tokenizer::from_json(parse_json(input.substr(0, line), "fuzz"), Json(), "fuzz");
    const TextSpan half[] = {{0, static_cast<int64_t>(text.size() / 2)}};
    const EncodeOptions literal{.literal = half};
    require(tokenizer->encode_with_offsets(text, literal).ids == tokenizer->encode(text, literal));
    for (const bool parse_special : {true, false}) {
      const EncodeOptions options{.add_special_tokens = parse_special, .parse_special = parse_special};
      const auto ids = tokenizer->encode(text, options);
      const Encoding encoding = tokenizer->encode_with_offsets(text, options);
      require(encoding.ids == ids && encoding.offsets.size() == ids.size());
      for (const auto& [begin, end] : encoding.offsets) {
        require(0 <= begin && begin <= end && end <= static_cast<int64_t>(text.size()));
      }
      const std::string decoded = tokenizer->decode(ids);
      require(unicode::is_valid(decoded));
      StreamDecoder stream(tokenizer, false);
      std::string streamed;
      for (const int32_t id : ids) {
        streamed += stream.push(id);
        require(unicode::is_valid(streamed));
      }
      streamed += stream.finish();
      require(streamed == decoded);
      for (const int32_t id : ids) tokenizer->token_bytes(id);
      const auto again = Tokenizer::from_json(tokenizer->to_json(), tokenizer->config(), "saved");
      require(again->encode(text, options) == ids);
    }
  } catch (const Error& e) {
    require(e.kind() != ErrorKind::kInternal);
  }
  return 0;
}
