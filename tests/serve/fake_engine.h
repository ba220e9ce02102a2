// An engine of plain numbers, whose every result shows the order of what came before: a model's gradient is a
// chain g = g * 3 + (sum of tokens), a step adds it to the weight. Enough to see whether an operation was
// carried out twice, never, or out of order.
#pragma once

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/disk.h"
#include "twinkle/serve/engine.h"

namespace twinkle::serve {

class FakeEngine : public Engine {
 public:
  /// What tests look at after the fact; shared by all engines of a test.
  struct Seen {
    std::mutex mutex;
    std::vector<std::string> train;  // "model:kind"
    std::atomic<int> step_delay_ms{0}, failures{0};
    std::string weights = "base", isa = "plain";
    std::atomic<bool> hold_samples{false};             // they stay under way
    std::function<void(const char* moment)> on_write;  // of a snapshot: "begin", "end"; null: nobody asks
    Disk disk;
  };
  explicit FakeEngine(std::shared_ptr<Seen> seen = std::make_shared<Seen>()) : seen_(std::move(seen)) {
    info_ = {.context = 64, .max_rank = 64, .weights = seen_->weights, .isa = seen_->isa};
  }

  const EngineInfo& info() const override { return info_; }
  bool has_model(const std::string& model) const override { return models_.contains(model); }
  void create_model(const std::string& model, const LoraShape& shape) override {
    if (shape.rank > info_.max_rank) throw invalid_argument("[create_model] the rank is too large");
    models_[model] = {.weight = static_cast<double>(shape.seed % 1000)};
  }
  void load_model(const std::string& model, const std::string& folder, bool optimizer) override {
    const Json j = read_json_file(folder + "/weights.json");
    models_[model] = {.weight = j.at("weight"), .steps = optimizer ? j.at("steps").get<int64_t>() : 0};
  }
  void remove_model(const std::string& model) override { models_.erase(model); }
  void save_model(const std::string& model, const std::string& folder, bool optimizer) override {
    const Model& m = models_.at(model);
    if (optimizer && m.calls > 0) throw conflict("[save] there are gradients");
    write(m, folder, seen_->disk);
  }
  std::function<void()> capture_model(const std::string& model, const std::string& folder) override {
    const Model& m = models_.at(model);
    if (m.calls > 0) throw conflict("[save] there are gradients");
    return [m, folder, seen = seen_] {
      if (seen->on_write) seen->on_write("begin");
      write(m, folder, seen->disk);
      if (seen->on_write) seen->on_write("end");
    };
  }
  std::vector<TrainDone> train(std::span<const TrainWork> work) override {
    if (seen_->failures > 0) {
      --seen_->failures;
      throw exhausted("[train] no memory");
    }
    std::vector<TrainDone> out;
    for (const auto& w : work) {
      Model& m = models_.at(w.model);
      TrainDone done;
      if (w.kind == TrainWork::Kind::kDiscard) {
        m.gradient = 0;
        m.calls = 0;
      } else if (w.kind == TrainWork::Kind::kStep) {
        if (m.calls == 0) done.error = invalid_argument("[optim_step] nothing has been accumulated");
        if (!done.error) m.weight = m.weight * 0.5 + w.adam.learning_rate * m.gradient;
        m.gradient = 0;
        m.calls = 0;
        done.step = done.error ? m.steps : ++m.steps;
        if (seen_->step_delay_ms > 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(seen_->step_delay_ms));
      } else {
        double sum = 0;
        for (const auto& datum : w.call->data) {
          if (datum.tokens.empty() || datum.tokens[0] == 666)
            done.error = invalid_argument("[forward_backward] token 666");
          for (const int32_t t : datum.tokens) sum += t;
          done.logprobs.emplace_back(datum.targets.size(), static_cast<float>(-m.weight));
        }
        done.loss = m.weight + sum;
        if (!done.error && !w.call->forward_only) {
          m.gradient = m.gradient * 3 + sum;
          ++m.calls;
        }
      }
      {
        const std::lock_guard lock(seen_->mutex);
        seen_->train.push_back(w.model + ":" + "csd"[static_cast<int>(w.kind)]);
      }
      out.push_back(std::move(done));
    }
    return out;
  }
  void add_weights(const std::string& name, const std::string& folder) override {
    weights_[name] = read_json_file(folder + "/weights.json").at("weight");
  }
  void remove_weights(const std::string& name) override { weights_.erase(name); }
  uint64_t sample(const SampleCall& call) override {
    if (call.prompt.empty()) throw invalid_argument("[sample] no tokens");
    SampleDone done{.ticket = ++ticket_};
    const double weight = call.weights.empty() ? 0 : weights_.at(call.weights);
    for (int64_t i = 0; i < call.num_samples; ++i) {
      done.sequences.push_back({.tokens = {static_cast<int32_t>(call.seed % 1000 + static_cast<uint64_t>(i))},
                                .logprobs = {static_cast<float>(weight)}});
    }
    queued_.push_back(std::move(done));
    return ticket_;
  }
  void cancel_sample(uint64_t ticket) override {
    std::erase_if(queued_, [&](const SampleDone& done) { return done.ticket == ticket; });
  }
  bool sample_pass() override {
    if (queued_.empty()) return false;
    if (seen_->hold_samples) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return true;
    }
    answered_.push_back(std::move(queued_.front()));
    queued_.erase(queued_.begin());
    return true;
  }
  std::vector<SampleDone> take_samples() override { return std::exchange(answered_, {}); }

 private:
  struct Model {
    double weight = 0, gradient = 0;
    int64_t calls = 0, steps = 0;
  };
  // Whole or not at all, and durable.
  static void write(const Model& m, const std::string& folder, const Disk& disk) {
    const std::string parent = std::filesystem::path(folder).parent_path().string(), fresh = folder + ".new";
    make_directories(parent);
    const auto rename = [&] { return disk.rename(fresh.c_str(), folder.c_str()) == 0; };
    try {
      remove_tree(disk, fresh);
      if (disk.make_folder(fresh.c_str()) != 0) throw file_error("[fake] cannot make a folder", errno);
      write_file(disk, fresh + "/weights.json", Json{{"weight", m.weight}, {"steps", m.steps}}.dump());
      if (!rename()) {
        if (errno != ENOTEMPTY && errno != EEXIST) throw file_error("[fake] cannot name a folder", errno);
        remove_tree(disk, folder);
        if (!rename()) throw file_error("[fake] cannot name a folder", errno);
      }
      sync_folder(disk, parent);
    } catch (...) {
      remove_tree(disk, fresh);
      throw;
    }
  }
  std::shared_ptr<Seen> seen_;
  EngineInfo info_;
  std::map<std::string, Model> models_;
  std::map<std::string, double> weights_;
  std::vector<SampleDone> queued_, answered_;
  uint64_t ticket_ = 0;
};

}  // namespace twinkle::serve
