// deps: text
// A SentencePiece model in its protobuf form, two NULs, and a text: loading refuses with an Error, or
// encoding with and without offsets, decoding, streaming and saving agree.
#include <string_view>

#include "fuzz/fuzzing.h"
#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/unicode.h"

namespace {

using twinkle::fuzz::require;

void exercise(const twinkle::Tokenizer& tokenizer, std::string_view text) {
  using namespace twinkle;
  const TextSpan half[] = {{0, static_cast<int64_t>(text.size() / 2)}};
  const EncodeOptions literal{.literal = half};
  require(tokenizer.encode_with_offsets(text, literal).ids == tokenizer.encode(text, literal));
  for (const bool parse_special : {true, false}) {
    const EncodeOptions options{.add_special_tokens = parse_special, .parse_special = parse_special};
    const auto ids = tokenizer.encode(text, options);
    const Encoding encoding = tokenizer.encode_with_offsets(text, options);
    require(encoding.ids == ids && encoding.offsets.size() == ids.size());
    for (const auto& [begin, end] : encoding.offsets)
      require(0 <= begin && begin <= end && end <= static_cast<int64_t>(text.size()));
    const std::string decoded = tokenizer.decode(ids);
    require(unicode::is_valid(decoded));
    const auto stream = tokenizer.start_decoding(false);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += stream->push(id);
      require(unicode::is_valid(streamed));
    }
    require(streamed + stream->finish() == decoded);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace twinkle;
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t cut = input.rfind(std::string_view("\0\0", 2));
  const std::string_view text = cut == std::string_view::npos
                                    ? std::string_view(" Hello  w\xC3\xB6rld\xE2\x96\x81 ab")
                                    : input.substr(cut + 2);
  try {
    const auto tokenizer = Tokenizer::from_sentencepiece(input.substr(0, cut), Json(), "fuzz.model");
    exercise(*tokenizer, text);
    const auto saved = Tokenizer::from_json(tokenizer->to_json(), tokenizer->config(), "saved");
    exercise(*saved, text);
  } catch (const Error& e) {
    require(e.kind() != ErrorKind::kInternal);
  }
  return 0;
}
