// Legend: T packed tokens, H rows that go through the head, S targets, K hidden.
#include "twinkle/model/causal_lm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/core/read_ahead.h"
#include "twinkle/kernels/packed_rows.h"
#include "twinkle/model/causal_lm_impl.h"
#include "twinkle/nn/embedding_lora.h"

namespace twinkle {
namespace {

at::ScalarType storage_dtype(const std::string& wanted, const std::string& stored) {
  if (wanted == "fp32") return at::kFloat;
  if (wanted == "bf16") return at::kBFloat16;
  if (wanted == "fp16") return at::kHalf;
  if (wanted != "auto") {
    throw invalid_argument("[model] dtype: must be one of auto, fp32, bf16, fp16, got '" + wanted + "'");
  }
  if (stored == "BF16") return at::kBFloat16;
  if (stored == "F16") return at::kHalf;
  return at::kFloat;
}

bool is_aligned(const void* at, size_t bytes) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; }

}  // namespace

at::Tensor index_tensor(const std::vector<int32_t>& values, at::Device device) {
  at::Tensor view =
      at::from_blob(const_cast<int32_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kInt);
  return device.is_cpu() ? view.clone() : view.to(device);
}

void CausalLM::Impl::load_parameter(const WeightSource& source, const WeightInfo& expected,
                                    const LoadOptions& options, Parameter& parameter) {
  const WeightInfo* found = source.find(expected.name);
  TW_CHECK(found != nullptr, "weight " + expected.name + " was checked before");
  parameter.name = expected.name;
  if (expected.shape.size() != 2) {
    at::Tensor vector = at::empty({expected.shape[0]}, at::kFloat);
    source.read_rows(expected.name, 0, 1, vector.data_ptr<float>());
    parameter.vector = vector.to(options.device);
    return;
  }
  const int64_t rows = expected.shape[0], cols = expected.shape[1];
  const at::ScalarType type = storage_dtype(options.dtype, found->dtype);
  const auto bytes = source.bytes(expected.name);
  ops::PackedMatrix::FillRows fill = [&](int64_t begin, int64_t end, float* out) {
    source.read_rows(expected.name, begin, end, out);
  };
  const std::string own = type == at::kBFloat16 ? "BF16" : type == at::kHalf ? "F16" : "F32";
  if (!bytes.empty() && found->dtype == own && is_aligned(bytes.data(), c10::elementSize(type))) {
    fill = ops::StoredRows{bytes.data(), cols, type};
  }
  parameter.matrix = ops::PackedMatrix::build(rows, cols, type, options.device, fill);
}

// In the order of the file, so that the disk reads ahead of the packing; kept in the model's order.
void CausalLM::Impl::load_parameters(const WeightSource& source, const std::vector<WeightInfo>& expected,
                                     const LoadOptions& options) {
  parameters.resize(expected.size());
  std::vector<size_t> order(expected.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t i) { return source.bytes(expected[i].name).data(); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<std::span<const std::byte>> pieces;
  for (const size_t i : order) {
    if (const auto bytes = source.bytes(expected[i].name); !bytes.empty()) pieces.push_back(bytes);
  }
  ReadAhead ahead(std::move(pieces));
  for (const size_t i : order) {
    load_parameter(source, expected[i], options, parameters[i]);
    ahead.advance(source.bytes(expected[i].name).size());
  }
}

CausalLM::CausalLM() : impl_(std::make_unique<Impl>()) {}
CausalLM::~CausalLM() = default;

std::unique_ptr<CausalLM> CausalLM::load(const std::string& path, const LoadOptions& options) {
  const ModelFiles files = open_model_files(path);
  if (!files.weights) throw not_found("[model] '" + path + "' has a config but no weights");
  return build(model_config_from_json(files.config, path), *files.weights, options);
}

std::unique_ptr<CausalLM> CausalLM::build(const ModelConfig& config, const WeightSource& source,
                                          const LoadOptions& options) {
  storage_dtype(options.dtype, "");  // a wrong name fails before anything is read
  check_weights(config, source);
  std::unique_ptr<CausalLM> model(new CausalLM());
  Impl& m = *model->impl_;
  m.config = config;
  m.device = options.device;
  m.arena = std::make_unique<nn::Arena>(options.device);
  const std::vector<WeightInfo> expected = expected_weights(config);
  m.load_parameters(source, expected, options);
  std::map<std::string, Parameter*> by_name;  // layers keep these pointers
  for (Parameter& parameter : m.parameters) by_name[parameter.name] = &parameter;

  const auto get = [&](const std::string& name) -> Parameter* {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };
  const auto linear = [&](const std::string& name) {
    Parameter* weight = get(name + ".weight");
    TW_CHECK(weight != nullptr, "no weight for " + name);
    m.linears.push_back({name, weight->matrix.cols(), weight->matrix.rows()});
    return nn::Linear(weight, get(name + ".bias"), static_cast<int64_t>(m.linears.size()) - 1);
  };
  m.embedding = get("model.embed_tokens.weight");
  m.final_norm = get("model.norm.weight");
  m.head = config.tie_word_embeddings ? m.embedding : get("lm_head.weight");
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    nn::Linear q = linear(attention + "q_proj"), k = linear(attention + "k_proj"),
               v = linear(attention + "v_proj"), o = linear(attention + "o_proj"),
               gate = linear(mlp + "gate_proj"), up = linear(mlp + "up_proj"),
               down = linear(mlp + "down_proj");
    m.layers.emplace_back(
        nn::DecoderLayerConfig{.num_heads = config.num_heads,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim,
                               .rms_norm_eps = config.rms_norm_eps,
                               .window = config.window_of(l)},
        nn::DecoderLayer::Parts{.input_norm = get(prefix + "input_layernorm.weight"),
                                .post_norm = get(prefix + "post_attention_layernorm.weight"),
                                .q_norm = get(attention + "q_norm.weight"),
                                .k_norm = get(attention + "k_norm.weight"),
                                .q = q,
                                .k = k,
                                .v = v,
                                .o = o,
                                .gate = gate,
                                .up = up,
                                .down = down});
  }
  m.linears.push_back({"lm_head", config.hidden_size, config.vocab_size});
  m.head_module = static_cast<int64_t>(m.linears.size()) - 1;
  return model;
}

const ModelConfig& CausalLM::config() const { return impl_->config; }
at::Device CausalLM::device() const { return impl_->device; }
const std::vector<LinearInfo>& CausalLM::linears() const { return impl_->linears; }
std::vector<Parameter>& CausalLM::parameters() { return impl_->parameters; }
const std::vector<Parameter>& CausalLM::parameters() const { return impl_->parameters; }

bool CausalLM::holds_bf16() const {
  return std::any_of(impl_->parameters.begin(), impl_->parameters.end(),
                     [](const Parameter& p) { return p.is_matrix() && p.matrix.dtype() == at::kBFloat16; });
}
nn::Arena& CausalLM::arena() { return *impl_->arena; }

void CausalLM::make_trainable() {
  for (auto& parameter : impl_->parameters) parameter.make_trainable();
  Parameter& embedding = *impl_->embedding;
  if (impl_->config.tie_word_embeddings && !embedding.tied_grad.defined()) {
    embedding.tied_grad = ops::PackedMatrix::zeros_like(embedding.matrix);
  }
}

void CausalLM::zero_grad() {
  for (auto& parameter : impl_->parameters) parameter.zero_grad();
}

void CausalLM::finish() {
  impl_->state.reset();
  impl_->arena->release({});
}

// Forward.

RotaryRows CausalLM::Impl::rotary_rows(const std::vector<int32_t>& positions,
                                       const std::vector<int32_t>& cu_seqlens) {
  std::lock_guard lock(tables_mutex);
  int32_t last = 0;
  for (const int32_t p : positions) last = std::max(last, p);
  const int64_t needed = last + 1;
  const int64_t original = original_positions();
  if (config.rope.type != "dynamic" || needed <= original) {
    if (tables.positions < needed) {
      // Grow in powers of two so that the tables are rarely built; a row's values do not depend on the size.
      int64_t size = 256;
      while (size < needed) size *= 2;
      if (config.rope.type == "dynamic") size = original;
      set_tables(rope_tables(config, size));
    }
    return {index_tensor(positions, device), cos, sin};
  }
  // Dynamic scaling depends on the sequence's own length: each longer sequence gets tables of its own,
  // appended.
  RopeTables all = rope_tables(config, original);
  std::vector<int32_t> rows(positions.size());
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const auto begin = static_cast<size_t>(cu_seqlens[b]), end = static_cast<size_t>(cu_seqlens[b + 1]);
    const int64_t length = begin == end ? 0 : positions[end - 1] + 1;
    int64_t offset = 0;
    if (length > original) {
      const RopeTables own = rope_tables(config, length);
      offset = all.positions;
      all.cos.insert(all.cos.end(), own.cos.begin(), own.cos.end());
      all.sin.insert(all.sin.end(), own.sin.begin(), own.sin.end());
      all.positions += own.positions;
    }
    for (size_t t = begin; t < end; ++t) rows[t] = static_cast<int32_t>(offset + positions[t]);
  }
  const auto to_tensor = [&](std::vector<float>& values) {
    return at::from_blob(values.data(), {all.positions, all.half_dim}, at::kFloat).clone().to(device);
  };
  return {index_tensor(rows, device), to_tensor(all.cos), to_tensor(all.sin)};
}

int64_t CausalLM::max_shared_length() const {
  // Dynamic scaling turns the same token otherwise in a sequence of another length.
  return impl_->config.rope.type == "dynamic" ? impl_->original_positions() : INT64_MAX;
}

int64_t CausalLM::Impl::original_positions() const {
  return config.rope.original_max_position > 0 ? config.rope.original_max_position : config.max_position;
}

void CausalLM::Impl::set_tables(RopeTables fresh) {
  tables = std::move(fresh);
  const auto to_tensor = [&](std::vector<float>& values) {
    return at::from_blob(values.data(), {tables.positions, tables.half_dim}, at::kFloat).clone().to(device);
  };
  cos = to_tensor(tables.cos);
  sin = to_tensor(tables.sin);
}

void CausalLM::Impl::check_batch(const PackedBatch& batch) const {
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    for (int32_t t = batch.cu_seqlens[static_cast<size_t>(b)];
         t < batch.cu_seqlens[static_cast<size_t>(b) + 1]; ++t) {
      const auto i = static_cast<size_t>(t);
      const auto place = [&] {
        return "[batch] sequence " + std::to_string(b) + ", position " +
               std::to_string(t - batch.cu_seqlens[static_cast<size_t>(b)]) + ": ";
      };
      if (batch.tokens[i] < 0 || batch.tokens[i] >= config.vocab_size) {
        throw invalid_argument(place() + "token " + std::to_string(batch.tokens[i]) +
                               " is not in the vocabulary of " + std::to_string(config.vocab_size));
      }
      if (batch.targets[i] != kIgnoreIndex &&
          (batch.targets[i] < 0 || batch.targets[i] >= config.vocab_size)) {
        throw invalid_argument(place() + "label " + std::to_string(batch.targets[i]) +
                               " is not in the vocabulary of " + std::to_string(config.vocab_size));
      }
    }
  }
}

void CausalLM::Impl::embed(nn::Pass& pass, const at::Tensor& tokens, at::Tensor& x_TK) {
  const bool replaced = pass.lora != nullptr && pass.lora->replaced_embedding != nullptr;
  ops::embedding(replaced ? pass.lora->replaced_embedding->matrix : embedding->matrix, tokens, x_TK);
  nn::embedding_lora(pass, tokens, x_TK);
}

void CausalLM::Impl::embed_backward(nn::Pass& pass, const at::Tensor& tokens, const at::Tensor& dx_TK) {
  Parameter* weight = pass.lora != nullptr && pass.lora->replaced_embedding != nullptr
                          ? pass.lora->replaced_embedding
                          : embedding;
  if (weight->trainable) ops::embedding_grad(dx_TK, tokens, pass.order, weight->matrix_grad);
  nn::embedding_lora_backward(pass, tokens, dx_TK);
}

std::unique_ptr<CausalLM::Impl::SharedPass> CausalLM::Impl::shared_pass(const State& state,
                                                                        int64_t num_sequences) const {
  const PackedBatch& batch = state.batch;
  auto out = std::make_unique<SharedPass>(*arena, share_rows(batch, num_sequences), device);
  const SharedRows& rows = out->rows;
  nn::Pass& pass = out->pass;
  const at::Tensor first = at::tensor(rows.first, at::kLong).to(device);
  pass.keep = state.pass.keep;
  pass.rope_rows_T = state.pass.rope_rows_T.index_select(0, first);
  pass.cos = state.pass.cos;
  pass.sin = state.pass.sin;
  out->tokens = state.tokens.index_select(0, first);
  for (const int64_t row : rows.first) {
    pass.row_position.push_back(state.pass.row_position[static_cast<size_t>(row)]);
    pass.row_sequence_key.push_back(state.pass.row_sequence_key[static_cast<size_t>(row)]);
  }
  pass.key_copies = rows.key_copies;
  pass.copied_keys = rows.copied_keys;
  if (state.options.share_backward) pass.keys = &out->map;
  for (int64_t b = 0; b < num_sequences; ++b) {
    const auto i = static_cast<size_t>(b);
    const ops::RowRange own = rows.own[i];
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    if (own.begin == own.end) {
      pass.unread_keys.push_back({begin, begin + length});
      continue;
    }
    ops::AttentionSequence one{.q_begin = own.begin, .q_len = own.end - own.begin, .kv_len = length};
    one.kv_begin = begin;
    pass.attention_backward.push_back(one);
    one.kv_begin = rows.copied_keys + own.begin;
    one.block_rows = rows.block_rows[i];
    pass.attention.push_back(one);
  }
  // Sequences that share rows are one in sums.
  const auto extends = [&](size_t b, int64_t end) {
    return batch.prefix[b].length > 0 && rows.own[b].begin == end;
  };
  for (const int64_t b : batch.reduction_order()) {
    const auto i = static_cast<size_t>(b);
    if (b >= num_sequences || rows.own[i].begin == rows.own[i].end) continue;
    if (!pass.order.empty() && extends(i, pass.order.back().end)) {
      pass.order.back().end = rows.own[i].end;
    } else {
      pass.order.push_back(rows.own[i]);
    }
  }
  if (state.pass.lora == nullptr) return out;
  out->lora = *state.pass.lora;
  auto& spans = out->lora.spans;
  spans.clear();
  for (const auto& span : state.pass.lora->spans) {
    const auto next = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), span.begin);
    const auto i = static_cast<size_t>(next - batch.cu_seqlens.begin()) - 1;
    const ops::RowRange own = rows.own[i];
    if (own.begin == own.end) continue;
    if (!spans.empty() && spans.back().slot == span.slot && extends(i, spans.back().end)) {
      spans.back().end = own.end;
    } else {
      spans.push_back({own.begin, own.end, span.slot});
    }
  }
  pass.lora = &out->lora;
  return out;
}

at::Tensor CausalLM::forward(const PackedBatch& batch, const nn::LoraBinding* lora,
                             const ForwardOptions& options) {
  Impl& m = *impl_;
  m.check_batch(batch);
  finish();
  m.state = std::make_unique<Impl::State>(*m.arena);
  Impl::State& state = *m.state;
  nn::Pass& pass = state.pass;
  pass.lora = lora;
  pass.keep = options.for_backward;
  state.options = options;
  const int64_t K = m.config.hidden_size;
  const auto order = batch.reduction_order();
  for (const int64_t b : order) {
    pass.order.push_back(
        {batch.cu_seqlens[static_cast<size_t>(b)], batch.cu_seqlens[static_cast<size_t>(b) + 1]});
  }
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    const int64_t begin = batch.cu_seqlens[static_cast<size_t>(b)],
                  end = batch.cu_seqlens[static_cast<size_t>(b) + 1];
    pass.attention.push_back(
        {.q_begin = begin, .q_len = end - begin, .kv_begin = begin, .kv_len = end - begin, .blocks = {}});
    pass.row_sequence_key.insert(pass.row_sequence_key.end(), static_cast<size_t>(end - begin),
                                 batch.sequence_key[static_cast<size_t>(b)]);
  }
  pass.row_position = batch.positions;
  const RotaryRows rotary = m.rotary_rows(batch.positions, batch.cu_seqlens);
  pass.rope_rows_T = rotary.rows;
  pass.cos = rotary.cos;
  pass.sin = rotary.sin;
  state.tokens = index_tensor(batch.tokens, m.device);
  const auto shares = [](const CommonPrefix& prefix) { return prefix.length > 0; };
  if (std::any_of(batch.prefix.begin(), batch.prefix.end(), shares)) {
    state.batch = batch;
    state.shared = m.shared_pass(state, batch.num_sequences());
  }
  nn::Pass& body = state.body();
  const int64_t T = state.body_tokens().size(0);

  at::Tensor x_TK = m.arena->take({T, K});
  m.embed(body, state.body_tokens(), x_TK);
  if (options.for_backward) state.saved.resize(options.recompute ? 0 : m.layers.size());
  for (size_t l = 0; l < m.layers.size(); ++l) {
    if (!options.for_backward) {
      m.layers[l].forward(body, x_TK, x_TK, nullptr);
      continue;
    }
    at::Tensor out_TK = m.arena->take({T, K});
    m.layers[l].forward(body, x_TK, out_TK, options.recompute ? nullptr : &state.saved[l]);
    state.inputs.push_back(x_TK);
    x_TK = out_TK;
  }
  state.last_TK = x_TK;
  state.rstd_T = m.arena->take({T});
  state.hidden_TK = m.arena->take({T, K});
  ops::rms_norm(x_TK, pass.norm(*m.final_norm).vector, m.config.rms_norm_eps, state.hidden_TK, state.rstd_T);
  return state.hidden_TK;
}

// Head.

const ops::PackedMatrix& CausalLM::Impl::head_matrix(const nn::LoraBinding* lora) const {
  return lora != nullptr && lora->replaced_head != nullptr ? lora->replaced_head->matrix : head->matrix;
}

ops::PackedMatrix* CausalLM::Impl::head_grad(const nn::LoraBinding* lora) const {
  Parameter* weight = lora != nullptr && lora->replaced_head != nullptr ? lora->replaced_head : head;
  if (!weight->trainable) return nullptr;
  return weight == embedding ? &weight->tied_grad : &weight->matrix_grad;
}

void CausalLM::Impl::bind_head(const nn::Pass& pass, const std::vector<int32_t>& rows, Scored& scored) const {
  const auto place = [&](int64_t row) {
    return std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
  };
  for (const auto& range : pass.order) {
    const int64_t begin = place(range.begin), end = place(range.end);
    if (begin < end) scored.order.push_back({begin, end});
  }
  const auto lora = pass.module_lora(head_module);
  if (!lora) return;
  if (lora->dropout) {
    throw invalid_argument(
        "[lora] lora_dropout cannot be used with an adapter on lm_head; set lora_dropout to 0 or leave "
        "lm_head out of target_modules");
  }
  for (const auto& span : lora->batch.spans) {
    const int64_t begin = place(span.begin), end = place(span.end);
    if (begin < end) scored.spans.push_back({begin, end, span.slot});
  }
  scored.lora.slots = lora->batch.slots;
  scored.lora.spans = scored.spans;
}

void CausalLM::score(const std::vector<int32_t>& rows, const std::vector<int32_t>& targets,
                     double inv_temperature, ops::HeadOutputs& out, const at::Tensor& known_dlogprob_S) {
  ScorePart part{.rows = rows,
                 .targets = targets,
                 .inv_temperature = inv_temperature,
                 .out = out,
                 .known_dlogprob_S = known_dlogprob_S};
  score(std::span(&part, 1));
  out = part.out;
}

namespace {

// Of the rows instead of their targets: what the head fills where a row may have several.
ops::HeadOutputs outputs_of_rows(const ops::HeadOutputs& wanted, int64_t rows) {
  const auto like = [&](const at::Tensor& x) {
    if (!x.defined()) return at::Tensor();
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[0] = rows;
    return at::empty(sizes, x.options());
  };
  return {.logprob_S = wanted.logprob_S,
          .lse_S = like(wanted.lse_S),
          .entropy_S = like(wanted.entropy_S),
          .argmax_S = like(wanted.argmax_S),
          .topk_logprob_SJ = like(wanted.topk_logprob_SJ),
          .topk_id_SJ = like(wanted.topk_id_SJ)};
}

void spread_to_targets(const ops::HeadOutputs& of_rows, const at::Tensor& row_of_S, ops::HeadOutputs& out) {
  const auto spread = [&](const at::Tensor& from, at::Tensor& to) {
    if (to.defined()) at::index_select_out(to, from, 0, row_of_S);
  };
  spread(of_rows.lse_S, out.lse_S);
  spread(of_rows.entropy_S, out.entropy_S);
  spread(of_rows.argmax_S, out.argmax_S);
  spread(of_rows.topk_logprob_SJ, out.topk_logprob_SJ);
  spread(of_rows.topk_id_SJ, out.topk_id_SJ);
}

// One sum a row, its targets in order.
at::Tensor sum_over_targets(const at::Tensor& values_S, const std::vector<int64_t>& first) {
  const at::Tensor host = values_S.cpu().contiguous();
  at::Tensor sums = at::zeros({static_cast<int64_t>(first.size()) - 1}, at::kFloat);
  float* to = sums.mutable_data_ptr<float>();
  for (size_t row = 0; row + 1 < first.size(); ++row) {
    for (int64_t s = first[row]; s < first[row + 1]; ++s) to[row] += host.const_data_ptr<float>()[s];
  }
  return sums.to(values_S.device());
}

}  // namespace

void CausalLM::score(std::span<ScorePart> parts) {
  Impl& m = *impl_;
  TW_CHECK(m.state != nullptr, "score() needs a forward() before it");
  Impl::State& state = *m.state;
  state.scored.clear();
  state.scored.reserve(parts.size());  // the adapters of a part point into it
  for (ScorePart& part : parts) {
    TW_CHECK(part.rows.size() == part.targets.size() && std::is_sorted(part.rows.begin(), part.rows.end()),
             "rows ascend, one target each");
    Impl::Scored& scored = state.scored.emplace_back();
    std::vector<int32_t> rows, row_of;
    for (size_t s = 0; s < part.rows.size(); ++s) {
      if (s == 0 || part.rows[s] != part.rows[s - 1]) {
        scored.targets.first.push_back(static_cast<int64_t>(s));
        rows.push_back(part.rows[s]);
      }
      row_of.push_back(static_cast<int32_t>(rows.size()) - 1);
    }
    scored.targets.first.push_back(static_cast<int64_t>(part.rows.size()));
    const bool several = rows.size() < part.rows.size();
    const auto H = static_cast<int64_t>(rows.size());
    scored.rows = index_tensor(rows, m.device);
    scored.targets.ids_S = index_tensor(part.targets, m.device);
    if (several) scored.row_of_S = index_tensor(row_of, m.device);
    if (!several) scored.targets.first.clear();
    scored.inv_temperature = part.inv_temperature;
    scored.for_backward = part.for_backward && state.options.for_backward;
    m.bind_head(state.pass, rows, scored);
    scored.scored_HK = m.arena->take({H, m.config.hidden_size});
    at::index_select_out(
        scored.scored_HK, state.hidden_TK, 0,
        state.shared ? state.shared->map.row_of().index_select(0, scored.rows) : scored.rows);
    const ops::LoraBatch* lora = scored.adapters();
    if (lora != nullptr) {
      scored.low_HR = m.arena->take({H, lora->max_rank()});
      ops::lora_shrink(scored.scored_HK, *lora, scored.low_HR);
    }
    const auto& head = m.head_matrix(state.pass.lora);
    ops::HeadOutputs out = several ? outputs_of_rows(part.out, H) : part.out;
    if (part.known_dlogprob_S.defined() && scored.for_backward) {
      scored.dscored_HK = m.arena->take({H, m.config.hidden_size});
      ops::head_forward_backward_of(scored.scored_HK, head, lora, scored.low_HR, scored.targets,
                                    part.inv_temperature, part.known_dlogprob_S, scored.order, out,
                                    scored.dscored_HK, m.head_grad(state.pass.lora));
    } else {
      ops::head_logprobs_of(scored.scored_HK, head, lora, scored.low_HR, scored.targets, part.inv_temperature,
                            out);
      scored.out = out;
    }
    if (several) spread_to_targets(out, scored.row_of_S, part.out);
  }
}

void CausalLM::backward(const at::Tensor& dlogprob_S, const at::Tensor& dentropy_S) {
  const ScoreGradient gradient{dlogprob_S, dentropy_S};
  backward(std::span(&gradient, 1));
}

void CausalLM::backward(std::span<const ScoreGradient> gradients) {
  Impl& m = *impl_;
  TW_CHECK(m.state != nullptr && m.state->options.for_backward && !m.state->scored.empty(),
           "backward() needs forward(for_backward) and score() before it");
  Impl::State& state = *m.state;
  TW_CHECK(gradients.size() == state.scored.size(), "one gradient for each part");
  at::Tensor dhidden_TK = m.arena->take({state.tokens.size(0), m.config.hidden_size});
  dhidden_TK.zero_();
  for (size_t i = 0; i < gradients.size(); ++i) {
    Impl::Scored& scored = state.scored[i];
    if (!scored.for_backward) continue;
    if (!scored.dscored_HK.defined()) {
      at::Tensor dentropy = gradients[i].dentropy_S;
      if (dentropy.defined() && scored.row_of_S.defined())
        dentropy = sum_over_targets(dentropy, scored.targets.first);
      scored.dscored_HK = m.arena->take(scored.scored_HK.sizes());
      ops::head_backward_of(scored.scored_HK, m.head_matrix(state.pass.lora), scored.adapters(),
                            scored.low_HR, scored.targets, scored.inv_temperature, scored.out,
                            gradients[i].dlogprob_S, dentropy, scored.order, scored.dscored_HK,
                            m.head_grad(state.pass.lora));
    }
    dhidden_TK.index_copy_(0, scored.rows.to(at::kLong), scored.dscored_HK);
  }
  m.backward_body(dhidden_TK);
}

void CausalLM::keep_rows(int64_t rows, const nn::LoraBinding* lora) {
  Impl& m = *impl_;
  TW_CHECK(m.state != nullptr && m.state->options.for_backward, "keep_rows() needs forward(for_backward)");
  Impl::State& state = *m.state;
  nn::Pass& pass = state.pass;
  pass.lora = lora;
  std::erase_if(pass.order, [&](const ops::RowRange& range) { return range.end > rows; });
  std::erase_if(pass.attention,
                [&](const ops::AttentionSequence& one) { return one.q_begin + one.q_len > rows; });
  pass.row_position.resize(static_cast<size_t>(rows));
  pass.row_sequence_key.resize(static_cast<size_t>(rows));
  for (at::Tensor* x : {&pass.rope_rows_T, &state.tokens}) *x = x->narrow(0, 0, rows);
  int64_t computed = rows;
  if (state.shared) {
    const auto& bounds = state.batch.cu_seqlens;
    const auto end = std::lower_bound(bounds.begin(), bounds.end(), rows);
    TW_CHECK(end != bounds.end() && *end == rows, "keep_rows() keeps whole sequences");
    state.shared = m.shared_pass(state, end - bounds.begin());
    computed = state.shared->map.rows();
    if (computed == rows) state.shared.reset();  // only rows that are gone were shared
  }
  const auto cut = [&](at::Tensor& x) { x = x.narrow(0, 0, computed); };
  for (at::Tensor* x : {&state.last_TK, &state.rstd_T, &state.hidden_TK}) cut(*x);
  for (at::Tensor& x : state.inputs) cut(x);
  for (auto& saved : state.saved) saved.keep_rows(computed);
}

void CausalLM::Impl::backward_body(const at::Tensor& given_TK) {
  State& s = *state;
  // Rows that are shared go backward either as those of each sequence or, added up, as one.
  const nn::RowMap* map = s.shared ? &s.shared->map : nullptr;
  const bool together = map != nullptr && s.options.share_backward;
  nn::Pass& pass = together ? s.body() : s.pass;
  at::Tensor dhidden_TK = given_TK, last_TK = s.last_TK, rstd_T = s.rstd_T;
  if (together) {
    dhidden_TK = arena->take(s.last_TK.sizes());
    map->fold(given_TK, dhidden_TK);
  } else if (map != nullptr) {
    last_TK = map->expand(*arena, last_TK);
    rstd_T = map->expand(*arena, rstd_T);
  }
  Parameter& last_norm = pass.norm(*final_norm);
  if (last_norm.trainable) {
    ops::rms_norm_weight_grad(dhidden_TK, last_TK, rstd_T, pass.order, last_norm.vector_grad);
  }
  at::Tensor dx_TK = arena->take(dhidden_TK.sizes());
  ops::rms_norm_backward(dhidden_TK, last_TK, last_norm.vector, rstd_T, dx_TK, false);
  const bool embedding_trained =
      embedding->trainable ||
      (pass.lora != nullptr && (!pass.lora->embedding.empty() || (pass.lora->replaced_embedding != nullptr &&
                                                                  pass.lora->replaced_embedding->trainable)));
  for (size_t l = layers.size(); l-- > 0;) {
    nn::Scratch scratch(*arena);
    nn::DecoderLayer::Saved again;
    nn::DecoderLayer::Saved* saved = s.options.recompute ? &again : &s.saved[l];
    if (s.options.recompute) layers[l].forward(s.body(), s.inputs[l], {}, &again);
    if (map != nullptr && !together) {
      again = saved->expanded(*arena, *map);
      saved = &again;
    }
    layers[l].backward(pass, *saved, dx_TK, l > 0 || embedding_trained);
  }
  if (embedding_trained) embed_backward(pass, together ? s.body_tokens() : s.tokens, dx_TK);
}

}  // namespace twinkle
