// deps: core text
// Tokenizer speed on one thread: tokenize_bench TOKENIZER TEXTS.jsonl [--rounds 3] [--ids FILE]
// [--save FILE] encodes JSON strings, one a line, document by document; prints {"mb_per_s",
// "decode_mb_per_s", "bytes", "ids", "load_s"} for the fastest round, beside the rate at which this thread
// checks the same texts for valid UTF-8 (what any tokenizer does at least). Times are CPU time. --ids writes
// the ids of all texts as int32 and --save the tokenizer.json, for a peer.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer.h"
#include "twinkle/text/tokenizer_save.h"
#include "twinkle/text/unicode.h"

namespace {

using twinkle::Json;

// This thread's own CPU time: other programs on the machine then matter less.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Run>
double seconds(const Run& run) {
  const double start = now();
  run();
  return now() - start;
}

std::vector<std::string> read_texts(const std::string& path) {
  std::vector<std::string> texts;
  const std::string all = twinkle::read_file(path);
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    if (end > at)
      texts.push_back(
          twinkle::parse_json(std::string_view(all).substr(at, end - at), path).get<std::string>());
    at = end + 1;
  }
  return texts;
}

int run(int argc, char** argv) {
  if (argc < 3)
    throw twinkle::invalid_argument(
        "usage: tokenize_bench TOKENIZER TEXTS.jsonl [--rounds N] [--ids FILE] [--save FILE]");
  int rounds = 3;
  std::string ids_file, save_file;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--rounds") {
      rounds = std::max(1, std::atoi(argv[i + 1]));
    } else if (flag == "--ids") {
      ids_file = argv[i + 1];
    } else if (flag == "--save") {
      save_file = argv[i + 1];
    } else {
      throw twinkle::invalid_argument("unknown option " + flag);
    }
  }
  std::shared_ptr<const twinkle::Tokenizer> tokenizer;
  const double load = seconds([&] { tokenizer = twinkle::Tokenizer::load(argv[1]); });
  const auto texts = read_texts(argv[2]);
  size_t bytes = 0, count = 0;
  for (const auto& text : texts) bytes += text.size();
  double encode = 1e30, decode = 1e30, check = 1e30;
  std::vector<std::vector<int32_t>> rows(texts.size());
  for (int round = 0; round < rounds; ++round) {
    encode = std::min(encode, seconds([&] {
                        for (size_t i = 0; i < texts.size(); ++i) rows[i] = tokenizer->encode(texts[i]);
                      }));
    size_t out = 0;
    decode = std::min(decode, seconds([&] {
                        for (const auto& row : rows) out += tokenizer->decode(row).size();
                      }));
    size_t valid = 0;
    check = std::min(check, seconds([&] {
                       for (const auto& text : texts) valid += twinkle::unicode::is_valid(text) ? 1 : 0;
                     }));
    if (out == 0 || valid > texts.size()) throw twinkle::internal_error("nothing was decoded");
  }
  std::string packed;
  for (const auto& row : rows) {
    count += row.size();
    if (!ids_file.empty())
      packed.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(int32_t));
  }
  if (!ids_file.empty()) twinkle::write_file_atomic(ids_file, packed);
  if (!save_file.empty()) twinkle::write_file_atomic(save_file, twinkle::tokenizer_file_text(*tokenizer));
  const double mb = static_cast<double>(bytes) / 1e6;
  std::printf("%s\n", Json({{"mb_per_s", mb / encode},
                            {"decode_mb_per_s", mb / decode},
                            {"utf8_check_mb_per_s", mb / check},
                            {"bytes", bytes},
                            {"ids", count},
                            {"load_s", load}})
                          .dump()
                          .c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
