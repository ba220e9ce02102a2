// An engine for the server's benches, in the place of the one that computes (libtwinkle_server_engine.so), so
// that what the server itself does is measured. HELD_ENGINE says how it behaves:
//   never: it does not get ready. Everything is accepted, nothing carried out.
//
//   FILE: ready at once. Samples are held until the file exists; each is then answered with its prompt.
//
// bench/compare serve starts twinkle-server with it.
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <thread>

#include "twinkle/core/clock.h"
#include "twinkle/serve/engine.h"

namespace twinkle::serve {
namespace {

class HeldEngine : public Engine {
 public:
  explicit HeldEngine(std::string file) : file_(std::move(file)) {}
  const EngineInfo& info() const override { return info_; }
  bool has_model(const std::string&) const override { return false; }
  void create_model(const std::string&, const LoraShape&) override { throw no_training(); }
  void load_model(const std::string&, const std::string&, bool) override { throw no_training(); }
  void remove_model(const std::string&) override {}
  void save_model(const std::string&, const std::string&, bool) override { throw no_training(); }
  std::function<void()> capture_model(const std::string&, const std::string&) override {
    throw no_training();
  }
  std::vector<TrainDone> train(std::span<const TrainWork>) override { throw no_training(); }
  void add_weights(const std::string&, const std::string&) override {}
  void remove_weights(const std::string&) override {}

  uint64_t sample(const SampleCall& call) override {
    waiting_.push_back({++last_, call.prompt});
    return last_;
  }
  void cancel_sample(uint64_t) override {}
  bool sample_pass() override {
    open_ = open_ || std::filesystem::exists(file_);
    if (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return !waiting_.empty();
  }
  std::vector<SampleDone> take_samples() override {
    std::vector<SampleDone> out;
    if (!open_) return out;
    for (auto& [ticket, prompt] : waiting_) {
      SampleDone done{.ticket = ticket};
      done.sequences.push_back({.tokens = prompt, .logprobs = std::vector<float>(prompt.size(), -1.0f)});
      out.push_back(std::move(done));
    }
    waiting_.clear();
    return out;
  }

 private:
  static Error no_training() { return invalid_argument("[bench] this engine does not train"); }

  std::string file_;
  EngineInfo info_;
  std::deque<std::pair<uint64_t, std::vector<int32_t>>> waiting_;
  uint64_t last_ = 0;
  bool open_ = false;
};

}  // namespace
}  // namespace twinkle::serve

extern "C" __attribute__((visibility("default"))) twinkle::serve::Engine* twinkle_make_server_engine(
    const twinkle::serve::EngineOptions&) {
  const char* how = std::getenv("HELD_ENGINE");
  while (how == nullptr || std::string(how) == "never") ::pause();
  return new twinkle::serve::HeldEngine(how);
}
