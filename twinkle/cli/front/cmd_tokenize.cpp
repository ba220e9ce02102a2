// twinkle tokenize: text to ids and back.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_save.h"

namespace twinkle::cli {
namespace {

// A token's bytes so that a line holds them: control characters and parts of characters are spelled out.
std::string visible(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC0 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF8 ? 4
                                        : 0;
    bool whole = length > 0 && i + length <= bytes.size() && lead >= 0x20 && lead != 0x7F;
    for (size_t j = 1; whole && j < length; ++j)
      whole = (static_cast<unsigned char>(bytes[i + j]) & 0xC0) == 0x80;
    if (whole) {
      out += bytes.substr(i, length);
      i += length;
      continue;
    }
    char text[8];
    std::snprintf(text, sizeof(text), "\\x%02X", lead);
    out += lead == '\n' ? "\\n" : lead == '\t' ? "\\t" : lead == '\r' ? "\\r" : text;
    ++i;
  }
  return out;
}

int decode_ids(const ParsedArgs& args, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const auto& value : args.get("ids")) {
    const auto id = value.get<int64_t>();
    if (id < 0 || id >= tokenizer.vocab_size()) {
      throw invalid_argument("[tokenize] id " + std::to_string(id) + " is not in the vocabulary of " +
                             std::to_string(tokenizer.vocab_size()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  const std::string text = tokenizer.decode(ids);
  if (args.get_bool("json")) {
    write_json({{"ids", ids}, {"text", text}});
  } else {
    write_out(text + "\n");
  }
  return 0;
}

int tokenize(const ParsedArgs& args) {
  const auto tokenizer = load_tokenizer(args);
  if (args.has("save")) {
    write_file_atomic(args.get_string("save"), tokenizer_file_text(*tokenizer));
    if (!args.has("text") && !args.has("input") && !args.has("ids")) return 0;
  }
  if (args.has("ids")) return decode_ids(args, *tokenizer);
  std::string text;
  if (args.has("text")) {
    text = args.get_string("text");
  } else if (args.has("input")) {
    text = read_file(args.get_string("input"));
  } else {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  const Encoding encoding =
      tokenizer->encode_with_offsets(text, {.add_special_tokens = args.get_bool("add_special_tokens"),
                                            .parse_special = args.get_bool("parse_special")});
  std::vector<std::string> pieces;
  for (const int32_t id : encoding.ids) {
    pieces.push_back(tokenizer->is_special(id) ? tokenizer->id_to_token(id) : tokenizer->token_bytes(id));
  }
  if (args.get_bool("json")) {
    Json offsets = Json::array();
    for (const auto& [begin, end] : encoding.offsets) offsets.push_back({begin, end});
    std::vector<std::string> names;
    for (const int32_t id : encoding.ids) names.push_back(tokenizer->id_to_token(id));
    write_json({{"ids", encoding.ids},
                {"tokens", names},
                {"pieces", pieces},
                {"offsets", offsets},
                {"count", encoding.ids.size()}});
    return 0;
  }
  const bool color = use_color(args.get_string("color"));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool special = tokenizer->is_special(encoding.ids[i]);
    char id[24];
    std::snprintf(id, sizeof(id), "%8d  ", encoding.ids[i]);
    write_out(id + (color && special ? std::string(kDim) : std::string()) + visible(pieces[i]) +
              (color && special ? std::string(kReset) : std::string()) + "\n");
  }
  write_out(with_commas(static_cast<int64_t>(pieces.size())) + " tokens, " +
            with_commas(static_cast<int64_t>(text.size())) + " bytes\n");
  return 0;
}

const AddRun run_tokenize("tokenize", tokenize);

}  // namespace
}  // namespace twinkle::cli
