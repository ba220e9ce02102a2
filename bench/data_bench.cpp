// deps: data
// Rows to features, and packing, beside Hugging Face datasets and binpacking (bench/compare data runs both).
//   data_bench encode FILE TOKENIZER [template] [repeats]
//     rows/s of map and encode on all cores; template: a Jinja file, or - for the tokenizer's own
//   data_bench pack [items] [max_length]
//     a million lengths into bins
// Figures are the best of several runs.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/timing.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/packing.h"

namespace {

using twinkle::bench::Clock;
using twinkle::bench::seconds_since;

// The lengths of bench/peers/hf_data.py: a linear congruential generator, chat-like.
std::vector<int64_t> lengths_of(int64_t count, int64_t most) {
  std::vector<int64_t> out;
  uint64_t state = 12345;
  for (int64_t i = 0; i < count; ++i) {
    state = (state * 6364136223846793005ull + 1442695040888963407ull);
    const double u = static_cast<double>(state >> 40) / static_cast<double>(1 << 24);
    // Many short, few long ones.
    out.push_back(1 + static_cast<int64_t>(u * u * u * static_cast<double>(most - 1)));
  }
  return out;
}

int encode(int argc, char** argv) {
  const std::string file = argv[2];
  const std::string source = argc > 4 && std::string(argv[4]) != "-" ? twinkle::read_file(argv[4]) : "";
  const auto tmpl = twinkle::make_template("", twinkle::Tokenizer::load(argv[3]),
                                           {.max_length = 1 << 20, .chat_template = source});
  const int repeats = argc > 5 ? std::atoi(argv[5]) : 5;
  double best = 1e9;
  int64_t rows = 0, tokens = 0, trained = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    twinkle::Dataset data({.dataset_id = file});
    data.map("");
    data.encode(*tmpl);
    best = std::min(best, seconds_since(start));
    rows = data.size();
    tokens = trained = 0;
    for (const auto& f : data.features()) {
      tokens += static_cast<int64_t>(f.input_ids.size());
      trained += f.num_trained();
    }
  }
  std::printf(
      "{\"what\": \"encode\", \"rows\": %lld, \"tokens\": %lld, \"trained\": %lld, \"seconds\": %.4f, "
      "\"rows_per_s\": %.0f, \"threads\": %d}\n",
      static_cast<long long>(rows), static_cast<long long>(tokens), static_cast<long long>(trained), best,
      static_cast<double>(rows) / best, twinkle::num_threads());
  return 0;
}

int pack(int argc, char** argv) {
  const int64_t items = argc > 2 ? std::atoll(argv[2]) : 1'000'000,
                most = argc > 3 ? std::atoll(argv[3]) : 4096;
  const auto lengths = lengths_of(items, most);
  double best = 1e9, fill = 0;
  size_t count = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    const auto bins = twinkle::pack_best_fit(lengths, most);
    best = std::min(best, seconds_since(start));
    count = bins.size();
    fill = twinkle::packing_fill(lengths, bins, most);
  }
  std::printf("{\"what\": \"pack\", \"items\": %lld, \"bins\": %zu, \"fill\": %.5f, \"seconds\": %.4f}\n",
              static_cast<long long>(items), count, fill, best);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "encode" && argc >= 4) return encode(argc, argv);
    if (mode == "pack") return pack(argc, argv);
  } catch (const twinkle::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  std::fprintf(stderr,
               "usage: data_bench encode FILE TOKENIZER [template] [repeats] | data_bench pack [items] "
               "[max_length]\n");
  return 2;
}
