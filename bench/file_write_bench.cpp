// deps: core
// How fast write_safetensors reaches the disk, beside `dd bs=4M conv=fsync` of as many bytes in the same run.
// Usage: file_write_bench [FOLDER] [MEGABYTES] [ROUNDS]; prints medians and the ratio.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "bench/timing.h"
#include "twinkle/core/safetensors.h"

using twinkle::bench::median;
using twinkle::bench::seconds_of;

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int64_t megabytes = argc > 2 ? std::atoll(argv[2]) : 1024;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const std::string ours = folder + "/file_write_bench.safetensors", theirs = folder + "/file_write_bench.dd";
  std::vector<std::byte> source(1 << 20);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 2654435761u >> 11);
  std::vector<twinkle::TensorToWrite> tensors;
  for (int i = 0; i < 32; ++i) {
    tensors.push_back({"layer." + std::to_string(i),
                       "F32",
                       {megabytes * (1 << 20) / 32 / 4},
                       [&](int64_t, std::span<std::byte> out) {
                         for (size_t at = 0; at < out.size(); at += source.size()) {
                           std::memcpy(out.data() + at, source.data(),
                                       std::min(source.size(), out.size() - at));
                         }
                       }});
  }
  // dd copies a file that lies in the page cache, so that both write real bytes.
  twinkle::write_safetensors(ours, tensors, {});
  const std::string warm = "cat '" + ours + "' > /dev/null";
  const std::string dd = "dd if='" + ours + "' of='" + theirs + "' bs=4M conv=fsync 2>/dev/null";
  if (std::system(warm.c_str()) != 0) return 1;
  std::vector<double> dd_s, our_s;
  for (int round = 0; round < rounds; ++round) {
    std::filesystem::remove(theirs);
    dd_s.push_back(seconds_of([&] {
      if (std::system(dd.c_str()) != 0) std::exit(1);
    }));
    const std::string fresh = folder + "/file_write_bench.new";
    our_s.push_back(seconds_of([&] { twinkle::write_safetensors(fresh, tensors, {}); }));
    std::filesystem::remove(fresh);
  }
  std::filesystem::remove(ours);
  std::filesystem::remove(theirs);
  const double gigabytes = static_cast<double>(megabytes) / 1024;
  std::printf("write %lld MB: dd %.2f GiB/s, ours %.2f GiB/s, ratio %.2f (medians of %d)\n",
              static_cast<long long>(megabytes), gigabytes / median(dd_s), gigabytes / median(our_s),
              median(dd_s) / median(our_s), rounds);
  return 0;
}
