#include "twinkle/train/multi_lora_transformers_model.h"

#include <algorithm>
#include <optional>
#include <set>

#include "twinkle/core/caught.h"
#include "twinkle/core/suggest.h"

namespace twinkle {
namespace {

AdapterPoolOptions pool_options(const MultiLoraOptions& o) {
  return {.max_loras = o.max_loras,
          .max_r = o.max_r,
          .target_modules = o.target_modules,
          .attention = o.attention,
          .mlp = o.mlp,
          .unembedding = o.unembedding,
          .spill_dir = o.spill_dir};
}

int64_t rows_of(std::span<const FeatureRun> runs) {
  int64_t rows = 0;
  for (const FeatureRun& run : runs) rows += run.rows;
  return rows;
}

}  // namespace

MultiLoraTransformersModel::MultiLoraTransformersModel(const std::string& model_id,
                                                       const MultiLoraOptions& options)
    : TransformersModel(model_id, options.model),
      multi_(options),
      pool_(*shared_.model, pool_options(options)),
      base_(shared_, nullptr) {
  base_.passes() = {.micro_batch_tokens = options_.micro_batch_tokens,
                    .packing = options_.packing,
                    .sharing = options_.share_prefix};
  recompute_ = options.model.gradient_checkpointing == Recompute::kAlways;
}

MultiLoraTransformersModel::MultiLoraTransformersModel(std::unique_ptr<CausalLM> model, std::string model_id,
                                                       const MultiLoraOptions& options)
    : TransformersModel(std::move(model), std::move(model_id), options.model),
      multi_(options),
      pool_(*shared_.model, pool_options(options)),
      base_(shared_, nullptr) {
  base_.passes() = {.micro_batch_tokens = options_.micro_batch_tokens,
                    .packing = options_.packing,
                    .sharing = options_.share_prefix};
  recompute_ = options.model.gradient_checkpointing == Recompute::kAlways;
}

// The writer may still read what the pool holds.
MultiLoraTransformersModel::~MultiLoraTransformersModel() {
  try {
    writer_.wait();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
}

// Adapters.

void MultiLoraTransformersModel::add(const std::string& name, std::shared_ptr<Adapter> adapter) {
  shared_.live = nullptr;  // of an adapter that may have left
  try {
    TrainGroup& g = add_group(name, std::move(adapter));
    g.free_gradients_when_zero(true);
    g.set_before_update([this, name] {
      writer_.wait_read();
      pool_.before_update(name);
    });
    pool_.set_state(name,
                    {.get = [&g] { return g.optimizer_storage(); },
                     .set = [&g](std::vector<at::Tensor> x) { g.set_optimizer_storage(std::move(x)); }});
  } catch (...) {
    groups_.erase(name);
    pool_.remove(name);
    throw;
  }
}

void MultiLoraTransformersModel::add_adapter_to_model(const std::string& name, const LoraConfig& config) {
  LoraConfig own = config;
  if (own.base_model_name_or_path.empty()) own.base_model_name_or_path = model_id_;
  writer_.wait_read();  // another adapter may have to leave
  add(name, pool_.create(name, own));
}

void MultiLoraTransformersModel::add_adapter_to_model(const std::string& name, const std::string& directory,
                                                      uint64_t seed) {
  writer_.wait_read();
  auto adapter = pool_.load(name, directory);
  adapter->set_seed(seed);
  add(name, std::move(adapter));
}

void MultiLoraTransformersModel::remove_adapter(const std::string& name) {
  writer_.wait_read();
  pool_.remove(name);
  shared_.live = nullptr;
  groups_.erase(name);
}

TrainGroup& MultiLoraTransformersModel::group(const std::string& adapter_name) {
  if (adapter_name.empty())
    throw invalid_argument("[model] say which adapter by adapter_name; the base model is not trained");
  const auto found = groups_.find(adapter_name);
  if (found == groups_.end()) {
    throw not_found("[model] there is no adapter '" + adapter_name + "'" +
                    did_you_mean(adapter_name, pool_.names()));
  }
  writer_.wait_read();
  const int64_t written = pool_.times_written();
  pool_.use(adapter_name);
  // A pass that is held may be of an adapter whose tensors have moved: it is run again when it is asked for.
  if (pool_.times_written() != written) shared_.live = nullptr;
  return *found->second;
}

TrainGroup& MultiLoraTransformersModel::group_of(const TenantRequest& request) {
  return request.adapter_name.empty() ? base_ : *groups_.at(request.adapter_name);
}

std::shared_ptr<const AdapterSnapshot> MultiLoraTransformersModel::snapshot(const std::string& adapter_name) {
  writer_.wait_read();
  shared_.live = nullptr;  // of an adapter that may have left
  return pool_.snapshot(adapter_name);
}

// Checks.

void MultiLoraTransformersModel::check_lengths(std::span<const InputFeature> features) const {
  for (size_t i = 0; i < features.size(); ++i) {
    const auto length = static_cast<int64_t>(features[i].input_ids.size());
    if (length <= multi_.max_length) continue;
    throw invalid_argument("[model] " + sequence_place(features, static_cast<int64_t>(i)) + " has " +
                           std::to_string(length) + " tokens, at most " + std::to_string(multi_.max_length) +
                           " are allowed here (max_length)");
  }
}

std::vector<InputFeature> MultiLoraTransformersModel::features_of(const ModelInputs& inputs) const {
  auto features = TransformersModel::features_of(inputs);
  check_lengths(features);
  return features;
}

ModelOutput MultiLoraTransformersModel::forward_only(const ModelInputs& inputs, const ForwardArgs& args,
                                                     const std::string& adapter_name) {
  if (!adapter_name.empty()) return TransformersModel::forward_only(inputs, args, adapter_name);
  return base_.forward_only(features_of(inputs), args);
}

// Refuses what can not be carried out, before anything is.
PlannedRequest MultiLoraTransformersModel::planned(const TenantRequest& request,
                                                   std::vector<FeatureRun>& runs) {
  PlannedRequest out{.tenant = request.adapter_name, .kind = request.kind};
  if (request.adapter_name.empty()) {
    if (request.kind != WorkKind::kForward)
      throw invalid_argument("[run] the base model is not trained; name an adapter");
  } else if (!has_adapter(request.adapter_name)) {
    throw not_found("[run] there is no adapter '" + request.adapter_name + "'" +
                    did_you_mean(request.adapter_name, pool_.names()));
  }
  if (request.kind == WorkKind::kStep) {
    TrainGroup::check_clipping(request.max_grad_norm, request.norm_type);
    return out;
  }
  check_features(request.features, request.args.extras, shared_.model->config().vocab_size);
  check_lengths(request.features);
  TrainGroup& g = group_of(request);
  runs = feature_runs(request.features, options_.share_prefix, request.kind == WorkKind::kForwardBackward,
                      options_.micro_batch_tokens);
  for (const FeatureRun& run : runs) out.lengths.push_back(run.rows);
  out.whole = request.kind == WorkKind::kForwardBackward && g.loss().needs_whole_batch();
  out.alone = (g.adapter() != nullptr && !g.adapter()->saved_modules().empty()) ||
              (out.whole && rows_of(runs) > options_.micro_batch_tokens);
  return out;
}

// Room for such a pass.
void MultiLoraTransformersModel::plan_memory_for(const PassSize& size) {
  if (planned_.holds(size)) return;
  const PassSize both = planned_.with(size);
  const bool check = options_.check_memory && options_.device.is_cpu();
  const PassPlan plan = plan_shared_passes(*shared_.model, multi_.max_r, both, options_.share_prefix,
                                           options_.gradient_checkpointing, check);
  shared_.live = nullptr;
  shared_.model->finish();
  shared_.model->arena().reserve(plan.arena_bytes);
  recompute_ = plan.recompute;
  planned_ = both;
}

// Running.

// The requests of one run().
struct MultiLoraTransformersModel::Running {
  std::span<const TenantRequest> requests;
  std::vector<TenantResult> results;
  std::vector<std::shared_ptr<TrainGroup::Call>> calls;
  std::vector<std::vector<FeatureRun>> runs;  // what the planner plans of each

  const TenantRequest& request(int64_t id) const { return requests[static_cast<size_t>(id)]; }
  TenantResult& result(int64_t id) { return results[static_cast<size_t>(id)]; }
  std::shared_ptr<TrainGroup::Call>& call(int64_t id) { return calls[static_cast<size_t>(id)]; }
};

StepResult MultiLoraTransformersModel::carry_out_step(const TenantRequest& request) {
  TrainGroup& g = group(request.adapter_name);
  g.passes().recompute |= recompute_;  // the search for a sequence that broke the step runs passes
  if (request.max_grad_norm > 0) g.clip_grad_norm(request.max_grad_norm, request.norm_type);
  const StepResult result = g.step(request.optim_params);
  g.zero_grad();
  g.lr_step();
  return result;
}

// Most adapters of a pass: those that never leave memory (see AdapterPool) take room from the others.
int64_t MultiLoraTransformersModel::most_in_a_pass() const {
  int64_t pinned = 0;
  for (const auto& [name, g] : groups_) pinned += g->adapter()->saved_modules().empty() ? 0 : 1;
  return std::max<int64_t>(1, pool_.options().max_loras - pinned);
}

// The requests that can be carried out. Each of the others has its error: what nobody will run needs no
// memory, and a sequence that is too long for the memory is its owner's affair.
void MultiLoraTransformersModel::take_requests(Running& running, PassPlanner& planner) {
  const int64_t budget = options_.micro_batch_tokens;
  std::vector<std::optional<PlannedRequest>> accepted(running.requests.size());
  const auto for_accepted = [&](const auto& work) {
    for (size_t i = 0; i < accepted.size(); ++i) {
      if (!running.results[i].ok()) continue;
      try {
        work(i);
      } catch (...) {
        running.results[i].error = caught_error("run");
      }
    }
  };
  for_accepted([&](size_t i) { accepted[i] = planned(running.requests[i], running.runs[i]); });
  int64_t shared = 0;  // rows of sequences that can share a pass
  for_accepted([&](size_t i) {
    for (const int64_t length : accepted[i]->lengths) shared += length <= budget ? length : 0;
  });
  const double spread = most_tokens_of_a_row(running);
  const auto pass_of = [&](int64_t rows) {
    return PassSize{.rows = rows, .spread = static_cast<int64_t>(spread * static_cast<double>(rows))};
  };
  for_accepted([&](size_t i) {
    if (accepted[i]->kind == WorkKind::kStep) return;
    plan_memory_for(pass_of(std::min(shared, budget)));
    const auto& lengths = accepted[i]->lengths;
    // A longer sequence has a pass of its own.
    if (const int64_t longest = *std::max_element(lengths.begin(), lengths.end()); longest > budget)
      plan_memory_for(pass_of(longest));
  });
  for_accepted([&](size_t i) { planner.push(static_cast<int64_t>(i), std::move(*accepted[i])); });
}

// The most tokens that a row of a pass that goes backward may stand for; 0: no rows are shared there.
double MultiLoraTransformersModel::most_tokens_of_a_row(const Running& running) const {
  double most = 0;
  for (size_t i = 0; i < running.requests.size(); ++i) {
    const TenantRequest& request = running.requests[i];
    if (request.kind != WorkKind::kForwardBackward || !running.results[i].ok()) continue;
    if (options_.share_prefix == PrefixSharing::kExact && share_prefixes(request.features)) most = 1;
    if (options_.share_prefix != PrefixSharing::kGroups) continue;
    size_t begin = 0;
    for (const FeatureRun& run : running.runs[i]) {
      int64_t tokens = 0;
      for (; begin < static_cast<size_t>(run.end); ++begin)
        tokens += static_cast<int64_t>(request.features[begin].input_ids.size());
      most = std::max(most, static_cast<double>(tokens) / static_cast<double>(run.rows));
    }
  }
  return most;
}

std::vector<TenantResult> MultiLoraTransformersModel::run(std::span<const TenantRequest> requests) {
  Running running{.requests = requests,
                  .results = std::vector<TenantResult>(requests.size()),
                  .calls = std::vector<std::shared_ptr<TrainGroup::Call>>(requests.size()),
                  .runs = std::vector<std::vector<FeatureRun>>(requests.size())};
  PassPlanner planner({.token_budget = options_.micro_batch_tokens, .max_tenants = most_in_a_pass()});
  take_requests(running, planner);
  try {
    while (!planner.empty()) {
      const PassPlanner::Plan plan = planner.next();
      for (const int64_t id : plan.steps) {
        try {
          running.result(id).step = carry_out_step(running.request(id));
        } catch (...) {
          running.result(id).error = caught_error("run");
        }
      }
      if (!plan.pieces.empty()) run_pass(running, plan.pieces);
    }
  } catch (...) {
    // No half of a call may be left in the gradients.
    for (size_t i = 0; i < requests.size(); ++i) end_call(running, static_cast<int64_t>(i));
    throw;
  }
  return std::move(running.results);
}

// The error under way is that of request `id`; what its parts left in the gradients goes too.
void MultiLoraTransformersModel::fail_request(Running& running, int64_t id) {
  running.result(id).error = caught_error("run");
  end_call(running, id);
}

void MultiLoraTransformersModel::end_call(Running& running, int64_t id) {
  if (const auto call = std::move(running.call(id))) group_of(running.request(id)).fail(*call);
}

// The adapters of a pass into memory. One that can not be read fails its own requests only.
void MultiLoraTransformersModel::bring_in(Running& running, const std::vector<PassPlanner::Piece>& pieces) {
  writer_.wait_read();
  const auto names = [&] {
    std::vector<std::string> out;
    for (const auto& piece : pieces) {
      const std::string& name = running.request(piece.id).adapter_name;
      if (!name.empty() && running.result(piece.id).ok()) out.push_back(name);
    }
    return out;
  };
  try {
    return pool_.use(names());
  } catch (...) {
    for (const auto& piece : pieces) {
      const std::string& name = running.request(piece.id).adapter_name;
      if (name.empty() || !running.result(piece.id).ok()) continue;
      try {
        pool_.use(name);
      } catch (...) {
        fail_request(running, piece.id);
      }
    }
  }
  try {
    pool_.use(names());
  } catch (...) {
    for (const auto& piece : pieces) {
      if (!running.request(piece.id).adapter_name.empty() && running.result(piece.id).ok())
        fail_request(running, piece.id);
    }
  }
}

void MultiLoraTransformersModel::run_pass(Running& running, const std::vector<PassPlanner::Piece>& planned) {
  struct Item {
    PassPlanner::Piece place;
    std::unique_ptr<TrainGroup::Piece> piece;
  };
  std::vector<Item> items;
  std::vector<PassPart*> parts;
  bool backward = false;
  int64_t tokens = 0;
  bring_in(running, planned);
  for (const auto& work : planned) {
    if (!running.result(work.id).ok()) continue;
    const auto& runs = running.runs[static_cast<size_t>(work.id)];
    const auto end_of = [&](int64_t run) { return run == 0 ? 0 : runs[static_cast<size_t>(run) - 1].end; };
    const PassPlanner::Piece place = {work.id, end_of(work.begin), end_of(work.end)};
    const TenantRequest& request = running.request(place.id);
    TrainGroup& g = group_of(request);
    try {
      if (request.kind == WorkKind::kForwardBackward && g.loss().needs_whole_batch() &&
          rows_of(running.runs[static_cast<size_t>(place.id)]) > options_.micro_batch_tokens) {
        // A loss over more than a pass holds: alone, over passes that are repeated.
        g.passes().recompute = recompute_;
        running.result(place.id).output = g.forward_backward(request.features, request.args);
        continue;
      }
      auto& call = running.call(place.id);
      if (!call) call = g.open(request.features, request.args, request.kind == WorkKind::kForwardBackward);
      items.push_back({place, g.make_piece(*call, place.begin, place.end)});
    } catch (...) {
      fail_request(running, place.id);
      continue;
    }
    PassPart& part = items.back().piece->part;
    parts.push_back(&part);
    backward |= part.backward;
    tokens += part.micro->batch.num_tokens();
  }
  if (items.empty()) return;
  shared_.live = nullptr;
  std::set<int64_t> broken;
  try {
    shared_.fused().forward(parts, {recompute_, options_.share_prefix});
    num_computed_rows_ += shared_.fused().computed_rows();
    for (auto& item : items) {
      try {
        group_of(running.request(item.place.id)).take_forward(*running.call(item.place.id), *item.piece);
      } catch (...) {
        // Its gradients are taken back when the pass is over.
        running.result(item.place.id).error = caught_error("run");
        broken.insert(item.place.id);
      }
    }
    if (backward) shared_.fused().backward();
    shared_.fused().finish();
  } catch (...) {
    const Error error = caught_error("run");
    for (const auto& item : items) {
      if (running.result(item.place.id).ok()) running.result(item.place.id).error = error;
      broken.insert(item.place.id);
    }
  }
  ++num_passes_;
  num_pass_tokens_ += tokens;
  for (const int64_t id : broken) end_call(running, id);
  for (const auto& item : items) {
    const int64_t id = item.place.id;
    const TenantRequest& request = running.request(id);
    if (!running.result(id).ok() || item.place.end < static_cast<int64_t>(request.features.size())) continue;
    TrainGroup& g = group_of(request);
    try {
      running.result(id).output = g.close(running.call(id));
      if (request.kind == WorkKind::kForward && request.calculate_loss)
        running.result(id).output.loss = g.calculate_loss();
      running.call(id).reset();
    } catch (...) {
      fail_request(running, id);
    }
  }
}

}  // namespace twinkle
