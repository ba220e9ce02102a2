// For the parity scripts: tokenize_tool TOKENIZER [--special] [--plain] [--brief] reads JSON strings (or
// {"hex": bytes}), one a line, and writes for each {"ids", "offsets", "decoded", "skipped", "streamed"}, with
// --brief only the ids (made with and without offsets); --save FILE writes the tokenizer.json.
#include <cstdio>
#include <iostream>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tokenizer_save.h"

namespace {

using twinkle::EncodeOptions;
using twinkle::Json;
using twinkle::Tokenizer;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

Json row(const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& text,
         const EncodeOptions& options, bool brief) {
  const auto ids = tokenizer->encode(text, options);
  const auto with_offsets = tokenizer->encode_with_offsets(text, options);
  if (ids != with_offsets.ids) throw twinkle::internal_error("encode and encode_with_offsets differ");
  if (brief) return {{"ids", ids}};
  twinkle::StreamDecoder stream(tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  Json out = {{"ids", ids}, {"offsets", Json::array()}};
  for (const auto& [begin, end] : with_offsets.offsets) out["offsets"].push_back({begin, end});
  out["decoded"] = tokenizer->decode(ids);
  out["skipped"] = tokenizer->decode(ids, true);
  out["streamed"] = streamed;
  return out;
}

int run(int argc, char** argv) {
  if (argc < 2)
    throw twinkle::invalid_argument(
        "usage: tokenize_tool TOKENIZER [--special] [--plain] [--brief] [--save F]");
  const auto tokenizer = Tokenizer::load(argv[1]);
  EncodeOptions options;
  bool brief = false;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--special") {
      options.add_special_tokens = true;
    } else if (flag == "--plain") {
      options.parse_special = false;
    } else if (flag == "--save" && i + 1 < argc) {
      twinkle::write_file_atomic(argv[++i], twinkle::tokenizer_file_text(*tokenizer));
      return 0;
    } else if (flag == "--brief") {
      brief = true;
    } else {
      throw twinkle::invalid_argument("unknown flag " + flag);
    }
  }
  for (std::string line; std::getline(std::cin, line);) {
    const Json value = twinkle::parse_json(line, "input");
    const std::string text =
        value.is_string() ? value.get<std::string>() : from_hex(value.at("hex").get<std::string>());
    std::cout << row(tokenizer, text, options, brief).dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
