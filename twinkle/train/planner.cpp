#include "twinkle/train/planner.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <optional>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/units.h"
#include "twinkle/model/weight_source.h"
#include "twinkle/train/train_group.h"

namespace twinkle {
namespace {

int64_t rounded(int64_t elements) { return (elements * 4 + 63) / 64 * 64; }

// A matrix in panels of 16 rows.
int64_t packed_elements(const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return shape[0];
  return (shape[0] + 15) / 16 * 16 * shape[1];
}

// Bytes that a pass takes from the arena at its fullest: in backward, at the layer that comes first there.
int64_t arena_peak(const PlanInput& in) {
  const ModelConfig& c = in.config;
  const int64_t T = in.tokens, S = in.scored, K = c.hidden_size, F = c.intermediate_size, L = c.num_layers;
  const int64_t Q = c.num_heads * c.head_dim, KV = c.num_kv_heads * c.head_dim, R = in.lora_rank;
  const auto rows = [&](int64_t width) { return rounded(T * width); };

  int64_t saved = 2 * rows(1) + 2 * rows(Q) + 2 * rows(KV) + rows(c.num_heads) + rows(K) + 2 * rows(F) +
                  in.lora_modules_per_layer * rows(R);
  if (c.qk_norm) saved += rows(Q) + rows(c.num_heads) + rows(KV) + rows(c.num_kv_heads);

  const int64_t low = in.lora_modules_per_layer > 0 ? rows(R) : 0;
  const int64_t drop_k = in.lora_dropout ? rows(K) : 0, drop_f = in.lora_dropout ? rows(F) : 0,
                drop_q = in.lora_dropout ? rows(Q) : 0;
  const int64_t forward_scratch = std::max(rows(K) + drop_k, rows(F) + drop_f);
  const int64_t mlp = rows(F) + std::max(rows(F) + low + drop_f, 2 * rows(K) + low + drop_k);
  const int64_t attention =
      rows(Q) + std::max(low + drop_q, rows(Q) + 2 * rows(KV) + 2 * rows(K) + low + drop_k);
  const int64_t backward_scratch = std::max(mlp, attention) + (in.recompute ? saved : 0);

  // Shared rows are spread out again: all that a layer kept, or what goes into and comes out of it.
  int64_t spread = 0;
  if (in.spread > 0 && in.share_backward)
    spread = rounded(in.spread * K) + 4 * rounded(in.spread * KV);
  else if (in.spread > 0)
    spread = rows(K) + (in.recompute || L < 8 ? saved : 0);

  const int64_t inputs = rows(K) * (L + 1);
  const int64_t top =
      rows(1) + rows(K) + 2 * rounded(S * K);  // last norm, hidden, scored rows and their gradient
  const int64_t kept = inputs + (in.recompute ? 0 : L * saved);
  const int64_t in_backward = kept + top + 2 * rows(K) + spread +
                              std::max(backward_scratch, in.recompute ? saved + forward_scratch : 0);
  const int64_t in_forward = kept + forward_scratch + (in.recompute ? saved : 0);
  return std::max(in_backward, in_forward);
}

// What kernels keep for themselves during a pass, per thread or per token.
int64_t kernel_scratch(const PlanInput& in) {
  const int64_t head_block = 64 << 20;  // logits of a block of rows, at most
  const int64_t logits = std::min<int64_t>(head_block, in.scored * in.config.vocab_size * 4);
  const int64_t attention_delta = in.tokens * in.config.num_heads * 4;
  return logits + attention_delta + in.tokens * 64 + num_threads() * (int64_t{4} << 20);
}

std::optional<int64_t> number_of(const std::string& path) {
  if (!file_exists(path)) return std::nullopt;
  const std::string text = read_file(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;  // "max"
  return value;
}

// Value in bytes of a "Key:  123 kB" line.
std::optional<int64_t> kilobytes_line(const std::string& text, const std::string& key) {
  size_t at = text.find(key);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_of("0123456789", at);
  int64_t value = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value * 1024;
}

// The path of this process's group in a hierarchy ("memory" for version 1, "" for version 2).
std::string group_path(const std::string& controller) {
  if (!file_exists("/proc/self/cgroup")) return "";
  const std::string text = read_file("/proc/self/cgroup");
  const std::string key = ":" + controller + ":";
  const size_t at = text.find(key);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

// What the control groups above this process still allow; a page cache that can be dropped counts as free.
std::optional<int64_t> group_memory_left() {
  std::optional<int64_t> left;
  const auto look = [&](std::string path, const std::string& root, const char* limit, const char* used,
                        const char* cache) {
    for (;;) {
      const std::string folder = root + path;
      const auto max = number_of(folder + "/" + limit), now = number_of(folder + "/" + used);
      if (max && now && *max < (int64_t{1} << 60)) {
        int64_t droppable = 0;
        if (file_exists(folder + "/memory.stat")) {
          const std::string stat = read_file(folder + "/memory.stat");
          const size_t at = stat.find(std::string(cache) + " ");
          if (at != std::string::npos) {
            std::from_chars(stat.data() + at + std::string(cache).size() + 1, stat.data() + stat.size(),
                            droppable);
          }
        }
        const int64_t here = *max - *now + droppable;
        left = left ? std::min(*left, here) : here;
      }
      if (path.empty() || path == "/") return;
      path = path.substr(0, path.find_last_of('/'));
    }
  };
  look(group_path(""), "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file");
  look(group_path("memory"), "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
       "total_inactive_file");
  return left;
}

}  // namespace

int64_t available_memory_bytes() {
  const int64_t system = kilobytes_line(read_file("/proc/meminfo"), "MemAvailable:").value_or(0);
  const auto group = group_memory_left();
  return std::max<int64_t>(0, group ? std::min(system, *group) : system);
}

int64_t resident_bytes() { return kilobytes_line(read_file("/proc/self/status"), "VmRSS:").value_or(0); }
int64_t peak_resident_bytes() { return kilobytes_line(read_file("/proc/self/status"), "VmHWM:").value_or(0); }

MemoryPlan plan_memory(const PlanInput& in) {
  int64_t matrices = 0, vectors = 0, largest = 0, head = 0;
  for (const auto& weight : expected_weights(in.config)) {
    const int64_t elements = packed_elements(weight.shape);
    (weight.shape.size() == 2 ? matrices : vectors) += elements;
    if (weight.shape.size() == 2) largest = std::max(largest, elements);
    if (weight.name == "model.embed_tokens.weight") head = elements;
  }
  const int64_t all = matrices + vectors;
  MemoryPlan plan;
  const auto add = [&](const char* name, int64_t bytes) {
    if (bytes > 0) plan.items.push_back({name, bytes});
    plan.peak_bytes += std::max<int64_t>(bytes, 0);
  };
  add("program", in.process_bytes > 0 ? in.process_bytes : resident_bytes());
  add("tokenizer and data", in.data_bytes);
  if (in.full) {
    add("weights (fp32)", all * 4);
    add("gradients", all * 4 + (in.config.tie_word_embeddings ? head * 4 : 0));
    add("optimizer state", all * in.optimizer_bytes);
  } else {
    add("frozen weights", matrices * in.weight_bytes + vectors * 4);
    add("adapter and its gradients", in.lora_parameters * 8);
    add("optimizer state", in.lora_parameters * in.optimizer_bytes);
    add("copy for a checkpoint being written", in.lora_parameters * (4 + in.optimizer_bytes));
  }
  plan.arena_bytes = arena_peak(in);
  add("activations", plan.arena_bytes);
  add("kernels", kernel_scratch(in));
  return plan;
}

Json MemoryPlan::to_json() const {
  Json list = Json::object();
  for (const auto& item : items) list[item.name] = item.bytes;
  return {{"peak_bytes", peak_bytes}, {"items", list}};
}

std::string MemoryPlan::to_text() const {
  std::string text;
  const auto line = [&](const std::string& name, int64_t bytes) {
    const std::string value = bytes_text(bytes);
    text += "  " + name + std::string(name.size() < 38 ? 38 - name.size() : 1, ' ') +
            std::string(value.size() < 12 ? 12 - value.size() : 0, ' ') + value + "\n";
  };
  for (const auto& item : items) line(item.name, item.bytes);
  line("peak", peak_bytes);
  return text;
}

namespace {

PlanInput input_of(const CausalLM& model, const PassSize& size, PrefixSharing sharing) {
  PlanInput in;
  in.config = model.config();
  in.tokens = in.scored = size.rows;
  in.spread = size.spread;
  in.share_backward = sharing == PrefixSharing::kGroups;
  in.process_bytes = 1;  // what runs already is not asked for again
  for (const auto& parameter : model.parameters()) {
    if (parameter.is_matrix())
      in.weight_bytes = static_cast<int64_t>(c10::elementSize(parameter.matrix.dtype()));
  }
  return in;
}

// The first way that the policy allows and that fits. `there(items)`: bytes of the plan that are there
// already.
PassPlan first_that_fits(CausalLM& model, PlanInput in, Recompute policy, bool check,
                         const std::string& advice, const std::function<int64_t(const MemoryPlan&)>& there) {
  const int64_t available = available_memory_bytes();
  MemoryPlan plan;
  for (const bool recompute : {false, true}) {
    if ((recompute && policy == Recompute::kNever) || (!recompute && policy == Recompute::kAlways)) continue;
    in.recompute = recompute;
    plan = plan_memory(in);
    const int64_t needed = plan.peak_bytes - model.arena().reserved_bytes() - there(plan);
    if (!check || needed <= available) return {recompute, plan.arena_bytes};
  }
  throw exhausted("[memory] training with passes of " + std::to_string(in.tokens) +
                  " tokens does not fit: " + bytes_text(available) + " are available\n" + plan.to_text() +
                  "Shorter sequences (max_length), a smaller micro_batch_tokens" +
                  (policy == Recompute::kNever ? ", recomputation (gradient_checkpointing)" : "") + advice +
                  " or more memory would help.");
}

}  // namespace

PassSize largest_pass(std::span<const InputFeature> features, PrefixSharing sharing, int64_t max_rows) {
  const auto runs = feature_runs(features, sharing, true, max_rows);
  PassSize out;
  int64_t all = 0;
  for (const FeatureRun& run : runs) {
    out.rows = std::max(out.rows, run.rows);
    all += run.rows;
  }
  out.rows = std::max(out.rows, std::min(all, max_rows));
  if (sharing == PrefixSharing::kExact && share_prefixes(features)) out.spread = out.rows;
  if (sharing != PrefixSharing::kGroups) return out;
  size_t begin = 0;
  for (const int64_t end : split_runs(runs, max_rows)) {
    int64_t tokens = 0;
    for (; begin < static_cast<size_t>(end); ++begin)
      tokens += static_cast<int64_t>(features[begin].input_ids.size());
    out.spread = std::max(out.spread, tokens);
  }
  return out;
}

PassPlan plan_passes(CausalLM& model, TrainGroup& group, const PassSize& size, Recompute policy, bool check) {
  PlanInput in = input_of(model, size, group.passes().sharing);
  in.optimizer_bytes = group.optimizer().state_bytes_per_element();
  in.full = group.adapter() == nullptr;
  if (Adapter* adapter = group.adapter()) {
    in.lora_parameters = adapter->num_parameters();
    in.lora_dropout = adapter->config().lora_dropout > 0;
    for (const auto& module : adapter->modules())
      in.lora_rank = std::max(in.lora_rank, module.slot.a_rK.size(0));
    const int64_t layers = std::max<int64_t>(1, in.config.num_layers);
    in.lora_modules_per_layer =
        std::min<int64_t>(7, (static_cast<int64_t>(adapter->modules().size()) + layers - 1) / layers);
  }
  return first_that_fits(
      model, in, policy, check, in.full ? ", LoRA instead of full training" : ", a smaller rank",
      [&](const MemoryPlan& plan) {
        int64_t there = 0;
        for (const auto& item : plan.items) {
          if (item.name == "frozen weights") there += item.bytes;
          if (item.name == "weights (fp32)")
            there += group.prepared() ? item.bytes : item.bytes / 4 * in.weight_bytes;
          if (group.prepared() &&
              (item.name.find("gradients") != std::string::npos || item.name == "optimizer state"))
            there += item.bytes;
        }
        return there;
      });
}

PassPlan plan_shared_passes(CausalLM& model, int64_t max_rank, const PassSize& size, PrefixSharing sharing,
                            Recompute policy, bool check) {
  PlanInput in = input_of(model, size, sharing);
  in.lora_rank = max_rank;
  in.lora_modules_per_layer = 7;
  in.lora_dropout = true;
  return first_that_fits(model, in, policy, check, ", a smaller max_r", [](const MemoryPlan& plan) {
    int64_t there = 0;
    for (const auto& item : plan.items) {
      if (item.name == "frozen weights") there += item.bytes;
    }
    return there;
  });
}

}  // namespace twinkle
