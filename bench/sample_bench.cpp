// deps: sample
// Sampling as bench/compare runs it beside transformers and llama.cpp:
//   sample_bench MODEL REQUESTS.jsonl [--dtype bf16] [--adapters N] [--rank R] [--decode N] [--rounds N]
// REQUESTS holds {"prompt": [...], "max_tokens": N, "adapter": K or -1}; every request makes all its tokens.
// The fastest of --rounds (1) counts; cpu_seconds is the time of all threads in it.
// Adapters are on every linear layer, with random weights. Then one request alone makes --decode tokens,
// greedy, and the bytes it reads for each (weights and keys and values, once) stand beside what this machine
// reads from memory; and the products of all requests beside the multiplications that it can do. Prints one
// JSON object.
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>

#include "bench/timing.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/sample/generate.h"
#include "twinkle/train/planner.h"

using namespace twinkle;

namespace {

using bench::Clock;
using bench::seconds_since;

double cpu_seconds_used() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The roof of decoding: all threads read a piece of memory far larger than the caches.
double measure_read_gbs() {
  constexpr int64_t kWords = int64_t{64} << 20;  // 512 MB
  const std::vector<uint64_t> memory(kWords, 1);
  double best = 0;
  std::vector<uint64_t> sums(kWords >> 16);
  for (int round = 0; round < 4; ++round) {
    const auto start = Clock::now();
    parallel_for(static_cast<int64_t>(sums.size()), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t* from = memory.data() + (i << 16);
        uint64_t s[8] = {};
        for (int64_t j = 0; j < 65536; j += 8) {
          for (int k = 0; k < 8; ++k) s[k] += from[j + k];
        }
        sums[static_cast<size_t>(i)] = std::accumulate(s, s + 8, uint64_t{0});
      }
    });
    best = std::max(best, static_cast<double>(kWords) * 8 / seconds_since(start) / 1e9);
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == kWords ? best : 0;
}

// What one decoding step reads: every matrix once (a tied head is the embedding), and the keys and values.
double bytes_of_step(const CausalLM& model, double positions) {
  double bytes = 0;
  for (const auto& p : model.parameters()) {
    if (!p.is_matrix()) continue;
    if (p.name == "model.embed_tokens.weight" && !model.config().tie_word_embeddings) continue;
    bytes += static_cast<double>(p.matrix.storage().nbytes());
  }
  return bytes +
         positions * static_cast<double>(CausalLM::kv_block_bytes(model.config())) / KvBlocks::kTokens;
}

// Multiplications and additions of the base products: every matrix for each token that goes in, the head for
// each that comes out.
double flops_of(const CausalLM& model, int64_t tokens_in, int64_t tokens_out) {
  double body = 0;
  const double head =
      static_cast<double>(model.config().vocab_size) * static_cast<double>(model.config().hidden_size);
  for (const auto& p : model.parameters()) {
    if (!p.is_matrix() || p.name == "model.embed_tokens.weight" || p.name == "lm_head.weight") continue;
    body += static_cast<double>(p.matrix.rows()) * static_cast<double>(p.matrix.cols());
  }
  return 2 * (body * static_cast<double>(tokens_in) + head * static_cast<double>(tokens_out));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: sample_bench MODEL REQUESTS.jsonl [options]\n"), 2;
  LoadOptions load{.dtype = "bf16"};
  int64_t adapters = 0, rank = 8, decode = 128, rounds = 1;
  for (int i = 3; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--dtype") == 0)
      load.dtype = argv[i + 1];
    else if (std::strcmp(argv[i], "--adapters") == 0)
      adapters = std::atoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--rank") == 0)
      rank = std::atoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--decode") == 0)
      decode = std::atoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--rounds") == 0)
      rounds = std::atoll(argv[i + 1]);
    else
      return std::fprintf(stderr, "sample_bench: unknown option %s\n", argv[i]), 2;
  }
  const auto model = CausalLM::load(argv[1], load);
  SampleEngine engine(*model, nullptr, {.prefix_cache = false, .own_thread = false});
  for (int64_t a = 0; a < adapters; ++a) {
    std::shared_ptr<Adapter> adapter = Adapter::create(*model, LoraConfig{.r = rank,
                                                                          .lora_alpha = 32,
                                                                          .target_modules = {"all-linear"},
                                                                          .target_is_pattern = true,
                                                                          .seed = static_cast<uint64_t>(a)});
    for (auto& m : adapter->modules())
      fill_normal(m.slot.b_Nr.mutable_data_ptr<float>(), m.slot.b_Nr.numel(), static_cast<uint64_t>(a),
                  0.01f);
    engine.add_version(std::to_string(a), std::shared_ptr<const Adapter>(adapter));
  }
  std::vector<SampleRequest> requests;
  std::ifstream in(argv[2]);
  int64_t prompt_tokens = 0, tokens = 0;
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line, argv[2]);
    SampleRequest r{
        .prompt = row.at("prompt").get<std::vector<int32_t>>(),
        .params = {.max_tokens = row.at("max_tokens").get<int64_t>(), .temperature = 0, .ignore_eos = true}};
    const auto adapter = row.value("adapter", int64_t{-1});
    if (adapter >= 0) r.version = std::to_string(adapter);
    prompt_tokens += static_cast<int64_t>(r.prompt.size());
    tokens += r.params.max_tokens;
    requests.push_back(std::move(r));
  }
  generate(engine,
           {{.prompt = {1, 2, 3}, .params = {.max_tokens = 4, .temperature = 0, .ignore_eos = true}}});
  double seconds = 0, cpu_seconds = 0;
  EngineStats stats;
  for (int64_t round = 0; round < rounds; ++round) {
    const EngineStats before = engine.stats();
    const double cpu = cpu_seconds_used();
    const auto start = Clock::now();
    generate(engine, requests);
    const double now = seconds_since(start);
    if (round > 0 && now >= seconds) continue;
    seconds = now;
    cpu_seconds = cpu_seconds_used() - cpu;
    stats = engine.stats();
    stats.passes -= before.passes;
    stats.computed_tokens -= before.computed_tokens;
  }

  const int64_t length = 64;
  double decode_seconds = 0;
  {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    std::iota(prompt.begin(), prompt.end(), 100);
    const auto job = engine.submit(
        {.prompt = prompt, .params = {.max_tokens = decode + 1, .temperature = 0, .ignore_eos = true}});
    engine.step();  // the prompt and the first token
    const auto start = Clock::now();
    while (engine.step()) {
    }
    decode_seconds = seconds_since(start);
  }
  const double step_bytes =
      bytes_of_step(*model, static_cast<double>(length) + static_cast<double>(decode) / 2);
  const double read = measure_read_gbs();
  const double rate = step_bytes * static_cast<double>(decode) / decode_seconds / 1e9;
  const double limit = measure_limit_gflops(model->holds_bf16()),
               gflops = flops_of(*model, stats.computed_tokens, tokens) / seconds / 1e9;
  const Json out = {{"program", "twinkle"},
                    {"isa", std::string(isa_name(active_isa()))},
                    {"requests", requests.size()},
                    {"prompt_tokens", prompt_tokens},
                    {"tokens", tokens},
                    {"seconds", seconds},
                    {"cpu_seconds", cpu_seconds},
                    {"tokens_per_s", static_cast<double>(tokens) / seconds},
                    {"passes", stats.passes},
                    {"product_gflops", gflops},
                    {"limit_gflops", limit},
                    {"share_of_limit", gflops / limit},
                    {"decode_tokens_per_s", static_cast<double>(decode) / decode_seconds},
                    {"decode_gbs", rate},
                    {"read_gbs", read},
                    {"share_of_roof", rate / read},
                    {"copy_gbs", measure_copy_gbs()},
                    {"peak_rss_mb", static_cast<double>(peak_resident_bytes()) / (1 << 20)}};
  std::printf("%s\n", out.dump().c_str());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
