// For the parity scripts: tokenize_tool TOKENIZER [--special] [--plain] reads JSON strings (or {"hex":
// bytes}), one a line, and writes for each {"ids", "offsets", "decoded", "skipped", "streamed"}; --save FILE
// writes the tokenizer.json; --bench FILE prints MB/s.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer.h"

namespace {

using twinkle::EncodeOptions;
using twinkle::Json;
using twinkle::Tokenizer;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void bench(const Tokenizer& tokenizer, const std::string& file) {
  const std::string text = twinkle::read_file(file);
  for (int round = 0; round < 3; ++round) {
    auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer.encode(text, {});
    const double encode = seconds_since(start);
    start = std::chrono::steady_clock::now();
    const std::string back = tokenizer.decode(ids);
    const double decode = seconds_since(start);
    std::printf("%zu bytes, %zu ids: encode %.2f MB/s, decode %.2f MB/s\n", text.size(), ids.size(),
                static_cast<double>(text.size()) / encode / 1e6,
                static_cast<double>(back.size()) / decode / 1e6);
  }
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

Json row(const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& text,
         const EncodeOptions& options) {
  const auto ids = tokenizer->encode(text, options);
  const auto with_offsets = tokenizer->encode_with_offsets(text, options);
  if (ids != with_offsets.ids) throw twinkle::internal_error("encode and encode_with_offsets differ");
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
        "usage: tokenize_tool TOKENIZER [--special] [--plain] [--save F] [--bench F]");
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::load(argv[1]);
  const double load = seconds_since(start);
  EncodeOptions options;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--special") {
      options.add_special_tokens = true;
    } else if (flag == "--plain") {
      options.parse_special = false;
    } else if (flag == "--save" && i + 1 < argc) {
      twinkle::write_file_atomic(argv[++i], tokenizer->to_json().dump(2));
      return 0;
    } else if (flag == "--bench" && i + 1 < argc) {
      std::printf("load %.3f s\n", load);
      bench(*tokenizer, argv[++i]);
      return 0;
    } else {
      throw twinkle::invalid_argument("unknown flag " + flag);
    }
  }
  for (std::string line; std::getline(std::cin, line);) {
    const Json value = twinkle::parse_json(line, "input");
    const std::string text =
        value.is_string() ? value.get<std::string>() : from_hex(value.at("hex").get<std::string>());
    std::cout << row(tokenizer, text, options).dump() << '\n';
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
