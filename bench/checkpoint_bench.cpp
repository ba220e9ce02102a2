// deps: model
// Saving and loading a whole model beside what dd reaches for as many bytes in the same run. Loading starts
// with the file out of the page cache, for both. Usage: checkpoint_bench [FOLDER] [LAYERS] [ROUNDS]; prints
// medians and ratios.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bench/timing.h"
#include "twinkle/core/files.h"
#include "twinkle/model/save.h"

namespace {

using namespace twinkle;

using bench::median;
using bench::seconds_of;

void evict(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) std::exit(1);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = (argc > 1 ? std::string(argv[1]) : ".") + "/checkpoint_bench";
  const int64_t layers = argc > 2 ? std::atoll(argv[2]) : 24;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  std::filesystem::remove_all(folder);
  const Json raw = {{"architectures", {"LlamaForCausalLM"}},
                    {"hidden_size", 1024},
                    {"intermediate_size", 4096},
                    {"num_hidden_layers", layers},
                    {"num_attention_heads", 16},
                    {"num_key_value_heads", 4},
                    {"vocab_size", 49152},
                    {"tie_word_embeddings", true}};
  const ModelConfig config = model_config_from_json(raw, "bench");
  const auto model = CausalLM::build(config, *random_weights(config, 1), {.dtype = "bf16"});
  make_directories(folder + "/kept");
  save_model(*model, folder + "/kept");
  const std::string file = folder + "/kept/model.safetensors", copy = folder + "/copy";
  const double gigabytes = static_cast<double>(std::filesystem::file_size(file)) / (1 << 30);

  std::vector<double> dd_write, save, dd_read, load;
  for (int round = 0; round < rounds; ++round) {
    run("cat '" + file + "' > /dev/null");  // dd copies from the page cache
    dd_write.push_back(
        seconds_of([&] { run("dd if='" + file + "' of='" + copy + "' bs=4M conv=fsync 2>/dev/null"); }));
    std::filesystem::remove(copy);
    make_directories(folder + "/new");
    save.push_back(seconds_of([&] { save_model(*model, folder + "/new"); }));
    std::filesystem::remove_all(folder + "/new");
    evict(file);
    dd_read.push_back(seconds_of([&] { run("dd if='" + file + "' of=/dev/null bs=4M 2>/dev/null"); }));
    evict(file);
    load.push_back(seconds_of([&] { CausalLM::load(folder + "/kept"); }));
  }
  std::filesystem::remove_all(folder);
  std::printf("save %.2f GiB: dd %.2f GiB/s, ours %.2f GiB/s, ratio %.2f (medians of %d)\n", gigabytes,
              gigabytes / median(dd_write), gigabytes / median(save), median(dd_write) / median(save),
              rounds);
  std::printf("load %.2f GiB: dd %.2f GiB/s, ours %.2f GiB/s, ratio %.2f\n", gigabytes,
              gigabytes / median(dd_read), gigabytes / median(load), median(dd_read) / median(load));
  return 0;
}
