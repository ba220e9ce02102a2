// twinkle bench tenants: what training many adapters together costs, beside one adapter with as many tokens
// and beside one after another, taken in turn in one process; and the memory of many adapters beside one.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/clock.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/units.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/train/multi_lora_transformers_model.h"
#include "twinkle/train/planner.h"

namespace twinkle::cli {
namespace {

LoraConfig adapter_of(int64_t rank, uint64_t seed) {
  return {.r = rank,
          .lora_alpha = 2.0 * static_cast<double>(rank),
          .target_modules = {"all-linear"},
          .target_is_pattern = true,
          .seed = seed};
}

InputFeature random_sequence(int64_t tokens, int64_t vocab, uint64_t seed) {
  CounterRng rng(seed);
  InputFeature f;
  for (int64_t t = 0; t < tokens; ++t)
    f.input_ids.push_back(static_cast<int32_t>(rng.next_below(static_cast<uint64_t>(vocab))));
  f.labels.assign(f.input_ids.begin() + 1, f.input_ids.end());
  f.labels.push_back(kIgnoreIndex);
  return f;
}

struct Tenant {
  std::string name;
  int64_t rank = 0, steps = 0;
  double loss = 0;
};

// The table of tenants while they train, rewritten in place on a terminal.
class LiveTable {
 public:
  explicit LiveTable(bool quiet) : live_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~LiveTable() { clear(); }

  void show(const std::string& title, const std::vector<Tenant>& tenants) {
    if (!live_) return;
    clear();
    std::string text = title + "\n  tenant          rank   steps      loss\n";
    for (const auto& t : tenants) {
      char line[96];
      std::snprintf(line, sizeof(line), "  %-14s %5ld %7ld %9.4f\n", t.name.c_str(),
                    static_cast<long>(t.rank), static_cast<long>(t.steps), t.loss);
      text += line;
    }
    lines_ = std::count(text.begin(), text.end(), '\n');
    write_error(text);
  }
  void clear() {
    if (lines_ > 0) write_error("\x1b[" + std::to_string(lines_) + "A\x1b[J");
    lines_ = 0;
  }

 private:
  bool live_;
  int64_t lines_ = 0;
};

struct Times {
  std::vector<double> pass, step;  // seconds of forwards and backwards, and of optimizer steps, by round
  static double middle(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  }
  double pass_s() const { return middle(pass); }
  double whole_s() const {
    std::vector<double> sums;
    for (size_t i = 0; i < pass.size(); ++i) sums.push_back(pass[i] + step[i]);
    return middle(sums);
  }
};

class TenantsBench {
 public:
  explicit TenantsBench(const ParsedArgs& args) : args_(args), table_(args.get_bool("json")) {
    const at::Device device = apply_machine(args);
    const auto& ranks = args.get("ranks");
    int64_t most = kOneRank;
    for (int64_t i = 0; i < args.get_int("tenants"); ++i) {
      const auto rank = ranks[static_cast<size_t>(i) % ranks.size()].get<int64_t>();
      most = std::max(most, rank);
      tenants_.push_back({"tenant " + std::to_string(i + 1), rank});
    }
    const int64_t memory_tenants = args.get_int("memory_tenants");
    const int64_t all = std::max<int64_t>(memory_tenants, args.get_int("tenants") + 1);
    MultiLoraOptions options{.max_loras = args.has("max_loras") ? args.get_int("max_loras") : all,
                             .max_r = most,
                             .model = {.dtype = args.get_string("dtype"),
                                       .device = device,
                                       .load_weights = args.get_string("init") == "pretrained"}};
    if (args.has("recompute")) {
      options.model.gradient_checkpointing =
          args.get_bool("recompute") ? Recompute::kAlways : Recompute::kNever;
    }
    if (args.has("max_tokens_per_pass")) {
      options.model.micro_batch_tokens = args.get_int("max_tokens_per_pass");
    } else {  // all tenants in one pass
      for (const auto& n : args.get("tokens_each")) {
        options.model.micro_batch_tokens =
            std::max(options.model.micro_batch_tokens, n.get<int64_t>() * args.get_int("tenants"));
      }
    }
    model_ = std::make_unique<MultiLoraTransformersModel>(checked_model_path(args), options);
  }

  // What this machine can do at most in products with the weights as they are held.
  double limit_gflops() const { return measure_limit_gflops(model_->model().holds_bf16()); }

  Json run() {
    Json out = {{"program", "twinkle"},          {"isa", std::string(isa_name(active_isa()))},
                {"tenants", tenants_.size()},    {"ranks", Json::array()},
                {"one_rank", kOneRank},          {"limit_gflops", limit_gflops()},
                {"copy_gbs", measure_copy_gbs()}};
    for (const auto& t : tenants_) out["ranks"].push_back(t.rank);
    // Memory first: what is freed later stays with the process.
    if (args_.get_int("memory_tenants") > 0) out["memory"] = memory();
    for (size_t i = 0; i < tenants_.size(); ++i) add(tenants_[i].name, adapter_of(tenants_[i].rank, i + 1));
    add("one", adapter_of(kOneRank, 99));
    out["sizes"] = Json::array();
    for (const auto& n : args_.get("tokens_each")) out["sizes"].push_back(size(n.get<int64_t>()));
    return out;
  }

 private:
  static constexpr int64_t kOneRank = 24;  // of the adapter that has all tokens: a little above the mean

  void add(const std::string& name, const LoraConfig& config) {
    model_->add_adapter_to_model(name, config);
    model_->set_optimizer(
        "AdamW", {{"lr", 1e-4}, {"weight_decay", 0.0}, {"state_dtype", args_.get_string("state_dtype")}},
        name);
  }

  static void check(const std::vector<TenantResult>& results) {
    for (const auto& result : results) {
      if (result.error) throw *result.error;
    }
  }

  // One forward and backward and one step of the named adapters, in shared passes or one after another.
  void train(const std::vector<std::string>& names, const std::vector<std::vector<InputFeature>>& features,
             bool together, Times& times) {
    std::vector<TenantRequest> passes, steps;
    for (size_t i = 0; i < names.size(); ++i) {
      passes.push_back({.adapter_name = names[i], .features = features[i]});
      steps.push_back({.adapter_name = names[i], .kind = WorkKind::kStep, .max_grad_norm = 1.0});
    }
    double pass = 0, step = 0;
    const size_t group = together ? names.size() : 1;
    for (size_t i = 0; i < names.size(); i += group) {
      auto start = Clock::now();
      const auto results = model_->run(std::span(passes).subspan(i, group));
      pass += seconds_since(start);
      check(results);
      start = Clock::now();
      check(model_->run(std::span(steps).subspan(i, group)));
      step += seconds_since(start);
      for (size_t k = 0; k < group; ++k) {
        for (auto& tenant : tenants_) {
          if (tenant.name != names[i + k]) continue;
          ++tenant.steps;
          tenant.loss = *results[k].output.loss;
        }
      }
    }
    times.pass.push_back(pass);
    times.step.push_back(step);
  }

  Json size(int64_t tokens_each) {
    const int64_t vocab = model_->model().config().vocab_size;
    std::vector<std::string> names;
    std::vector<std::vector<InputFeature>> each;
    std::vector<InputFeature> all;
    for (size_t i = 0; i < tenants_.size(); ++i) {
      names.push_back(tenants_[i].name);
      each.push_back({random_sequence(tokens_each, vocab, 1000 + i)});
      all.push_back(each.back()[0]);
    }
    const std::string title = std::to_string(tokens_each) + " tokens of each tenant in a step";
    Times warm, fused, one, serial;
    const auto rounds = args_.get_int("rounds");
    for (int64_t round = -1; round < rounds; ++round) {  // one round outside the clock
      train(names, each, true, round < 0 ? warm : fused);
      table_.show(title + ", one pass for all", tenants_);
      train({"one"}, {all}, true, round < 0 ? warm : one);
      train(names, each, false, round < 0 ? warm : serial);
      table_.show(title + ", one after another", tenants_);
    }
    table_.clear();
    const auto tokens = static_cast<double>(tokens_each) * static_cast<double>(tenants_.size());
    const auto rates = [&](const Times& t) {
      return Json{{"pass_tokens_per_s", tokens / t.pass_s()}, {"step_tokens_per_s", tokens / t.whole_s()}};
    };
    return {{"tokens_each", tokens_each},
            {"together", rates(fused)},
            {"one_tenant", rates(one)},
            {"one_after_another", rates(serial)},
            {"pass_of_one_tenant", one.pass_s() / fused.pass_s()},
            {"step_of_one_tenant", one.whole_s() / fused.whole_s()},
            {"pass_of_one_after_another", serial.pass_s() / fused.pass_s()},
            {"step_of_one_after_another", serial.whole_s() / fused.whole_s()}};
  }

  Json memory() {
    const int64_t count = args_.get_int("memory_tenants"), vocab = model_->model().config().vocab_size;
    std::vector<std::string> names;
    int64_t one = 0;
    for (int64_t i = 0; i < count; ++i) {
      names.push_back("memory " + std::to_string(i + 1));
      add(names.back(), adapter_of(16, static_cast<uint64_t>(i)));
      Times ignored;
      train({names.back()}, {{random_sequence(64, vocab, static_cast<uint64_t>(i))}}, true, ignored);
      if (i == 0) one = resident_bytes();
    }
    const int64_t many = resident_bytes(), adapters = model_->pool().resident_bytes(),
                  in_memory = model_->pool().num_resident();
    for (const auto& name : names) model_->remove_adapter(name);
    return {{"tenants", count},
            {"rank", 16},
            {"in_memory", in_memory},
            {"rss_of_one", one},
            {"rss_of_all", many},
            {"ratio", static_cast<double>(many) / static_cast<double>(one)},
            {"bytes_of_an_adapter", adapters / in_memory}};
  }

  const ParsedArgs& args_;
  LiveTable table_;
  std::vector<Tenant> tenants_;
  std::unique_ptr<MultiLoraTransformersModel> model_;
};

void print(const Json& out) {
  char line[160];
  std::snprintf(line, sizeof(line), "%ld tenants, %s, limit %.0f GFLOP/s, copy %.0f GB/s; tokens/s\n",
                out["tenants"].get<long>(), out["isa"].get<std::string>().c_str(),
                out["limit_gflops"].get<double>(), out["copy_gbs"].get<double>());
  std::string text = line;
  text += "  tokens each            one pass   one tenant   one by one   of one tenant   of one by one\n";
  for (const auto& size : out["sizes"]) {
    for (const char* kind : {"pass", "step"}) {
      const std::string rate = std::string(kind) + "_tokens_per_s";
      std::snprintf(line, sizeof(line), "  %6ld, %-12s %10.0f   %10.0f   %10.0f   %12.2fx   %12.2fx\n",
                    size["tokens_each"].get<long>(),
                    std::string_view(kind) == "pass" ? "passes" : "whole steps",
                    size["together"][rate].get<double>(), size["one_tenant"][rate].get<double>(),
                    size["one_after_another"][rate].get<double>(),
                    size[std::string(kind) + "_of_one_tenant"].get<double>(),
                    size[std::string(kind) + "_of_one_after_another"].get<double>());
      text += line;
    }
  }
  if (out.contains("memory")) {
    const Json& m = out["memory"];
    std::snprintf(
        line, sizeof(line),
        "memory: %ld tenants of rank 16 with Adam, %ld in memory, take %.2fx of one (%s, %s; %s each)\n",
        m["tenants"].get<long>(), m["in_memory"].get<long>(), m["ratio"].get<double>(),
        bytes_text(m["rss_of_all"].get<int64_t>()).c_str(),
        bytes_text(m["rss_of_one"].get<int64_t>()).c_str(),
        bytes_text(m["bytes_of_an_adapter"].get<int64_t>()).c_str());
    text += line;
  }
  write_out(text);
}

int bench(const ParsedArgs& args) {
  const Json out = TenantsBench(args).run();
  if (args.get_bool("json")) {
    write_json(out);
  } else {
    print(out);
  }
  return 0;
}

const AddRun run_bench("bench", bench);

}  // namespace
}  // namespace twinkle::cli
