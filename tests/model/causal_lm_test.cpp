// labels: quick bits
// The decoder against an independent formula: the same model written with plain ATen and differentiated by
// torch's autograd. Then the law: bits do not depend on neighbours, splits, places, threads or recomputation.
#include "twinkle/model/causal_lm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <map>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

// Random weights that are not as tame as an initialiser's, so that every term of a gradient matters.
class LoudWeights : public WeightSource {
 public:
  LoudWeights(const ModelConfig& config, uint64_t seed) : infos_(expected_weights(config)), seed_(seed) {
    for (auto& info : infos_) info.dtype = "F32";
  }
  std::vector<WeightInfo> tensors() const override { return infos_; }
  const WeightInfo* find(const std::string& name) const override {
    for (const auto& info : infos_) {
      if (info.name == name) return &info;
    }
    return nullptr;
  }
  void read_rows(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    const at::Tensor w = values(name);
    const int64_t width = w.dim() == 2 ? w.size(1) : w.size(0);
    std::copy_n(w.data_ptr<float>() + (w.dim() == 2 ? begin * width : 0), (end - begin) * width, out);
  }
  std::string where() const override { return "test"; }
  at::Tensor values(const std::string& name) const {
    const WeightInfo& info = *find(name);
    at::Tensor w = at::empty(info.shape, at::kFloat);
    fill_normal(w.data_ptr<float>(), w.numel(), mix_key(seed_, hash_name(name)), w.dim() == 2 ? 0.2f : 0.1f);
    return name.find("norm") != std::string::npos ? w + 1.0 : w;
  }

 private:
  std::vector<WeightInfo> infos_;
  uint64_t seed_;
};

Json base_config() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "vocab_size": 53, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": true})");
}

Json variant(const std::string& which) {
  Json config = base_config();
  if (which == "untied") config["tie_word_embeddings"] = false;
  if (which == "qwen2") {
    config["architectures"] = {"Qwen2ForCausalLM"};
    config["model_type"] = "qwen2";
  }
  if (which == "qwen3") {
    config["architectures"] = {"Qwen3ForCausalLM"};
    config["model_type"] = "qwen3";
  }
  if (which == "mistral") {
    config["architectures"] = {"MistralForCausalLM"};
    config["model_type"] = "mistral";
    config["sliding_window"] = 3;
  }
  return config;
}

struct TestAdapter {
  std::vector<at::Tensor> a, b, da, db;  // by module
  nn::LoraBinding binding;
};

// One adapter of rank 3 on every linear, the head included.
std::unique_ptr<TestAdapter> make_adapter(const CausalLM& model, const PackedBatch& batch,
                                          double dropout = 0) {
  auto out = std::make_unique<TestAdapter>();
  for (size_t m = 0; m < model.linears().size(); ++m) {
    const auto& info = model.linears()[m];
    const bool head = info.name == "lm_head";
    at::Tensor a = at::empty({3, info.in_features}), b = at::empty({info.out_features, 3});
    fill_normal(a.data_ptr<float>(), a.numel(), 100 + m, 0.3f);
    fill_normal(b.data_ptr<float>(), b.numel(), 900 + m, 0.3f);
    out->a.push_back(a);
    out->b.push_back(b);
    out->da.push_back(at::zeros_like(a));
    out->db.push_back(at::zeros_like(b));
    ops::LoraSlot slot{a, b, 0.7f, out->da.back(), out->db.back()};
    if (head && dropout > 0) {
      out->binding.slots.emplace_back();
    } else {
      out->binding.slots.push_back({slot});
    }
  }
  for (const int64_t s : batch.reduction_order()) {
    out->binding.spans.push_back(
        {batch.cu_seqlens[static_cast<size_t>(s)], batch.cu_seqlens[static_cast<size_t>(s) + 1], 0});
  }
  out->binding.dropout = {dropout};
  out->binding.dropout_seed = {77};
  return out;
}

InputFeature feature(int64_t length, uint64_t seed) {
  CounterRng rng(seed);
  InputFeature f;
  for (int64_t i = 0; i < length; ++i) f.input_ids.push_back(static_cast<int32_t>(rng.next_below(53)));
  for (int64_t i = 0; i + 1 < length; ++i)
    f.labels.push_back(i % 3 == 1 ? kIgnoreIndex : f.input_ids[static_cast<size_t>(i) + 1]);
  f.labels.push_back(kIgnoreIndex);
  return f;
}

// The model by its formula, one sequence, differentiable.
struct Oracle {
  const ModelConfig& config;
  std::map<std::string, at::Tensor> w;
  std::vector<at::Tensor> a, b;  // adapters by module

  at::Tensor linear(const at::Tensor& x, const std::string& name, size_t module) const {
    const std::string weight =
        name == "lm_head" && config.tie_word_embeddings ? "model.embed_tokens.weight" : name + ".weight";
    at::Tensor y = x.matmul(w.at(weight).t());
    if (w.count(name + ".bias") > 0) y = y + w.at(name + ".bias");
    if (!a.empty()) y = y + 0.7 * x.matmul(a[module].t()).matmul(b[module].t());
    return y;
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x * at::rsqrt((x * x).mean(-1, true) + config.rms_norm_eps) * w.at(name);
  }
  at::Tensor rotate(const at::Tensor& x) const {  // [T, H, D]
    const int64_t T = x.size(0), half = config.head_dim / 2;
    const at::Tensor freq =
        at::pow(config.rope.theta, -at::arange(half, at::kFloat) / static_cast<double>(half));
    const at::Tensor angle = at::arange(T, at::kFloat).unsqueeze(1) * freq;
    const at::Tensor cos = at::cat({angle.cos(), angle.cos()}, 1).unsqueeze(1),
                     sin = at::cat({angle.sin(), angle.sin()}, 1).unsqueeze(1);
    const at::Tensor turned = at::cat({-x.narrow(2, half, half), x.narrow(2, 0, half)}, 2);
    return x * cos + turned * sin;
  }
  at::Tensor logprobs(const InputFeature& f) const {
    const auto T = static_cast<int64_t>(f.input_ids.size());
    const int64_t H = config.num_heads, G = config.num_kv_heads, D = config.head_dim;
    at::Tensor ids = at::empty({T}, at::kLong), rows = at::empty({0}, at::kLong);
    std::vector<int64_t> scored, targets;
    for (int64_t t = 0; t < T; ++t) {
      ids[t] = f.input_ids[static_cast<size_t>(t)];
      if (f.labels[static_cast<size_t>(t)] != kIgnoreIndex) {
        scored.push_back(t);
        targets.push_back(f.labels[static_cast<size_t>(t)]);
      }
    }
    at::Tensor x = w.at("model.embed_tokens.weight").index_select(0, ids);
    size_t module = 0;
    for (int64_t l = 0; l < config.num_layers; ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      at::Tensor n = norm(x, p + "input_layernorm.weight");
      at::Tensor q = linear(n, p + "self_attn.q_proj", module++).view({T, H, D});
      at::Tensor k = linear(n, p + "self_attn.k_proj", module++).view({T, G, D});
      at::Tensor v = linear(n, p + "self_attn.v_proj", module++).view({T, G, D});
      if (config.qk_norm)
        q = norm(q, p + "self_attn.q_norm.weight"), k = norm(k, p + "self_attn.k_norm.weight");
      q = rotate(q).transpose(0, 1);
      k = rotate(k).repeat_interleave(H / G, 1).transpose(0, 1);
      v = v.repeat_interleave(H / G, 1).transpose(0, 1);
      at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(D));
      const at::Tensor distance = at::arange(T).unsqueeze(1) - at::arange(T).unsqueeze(0);
      at::Tensor hidden = distance < 0;
      if (config.window_of(l) > 0) hidden = hidden.logical_or(distance >= config.window_of(l));
      scores = scores.masked_fill(hidden, -INFINITY);
      const at::Tensor o = scores.softmax(-1).matmul(v).transpose(0, 1).reshape({T, H * D});
      x = x + linear(o, p + "self_attn.o_proj", module++);
      n = norm(x, p + "post_attention_layernorm.weight");
      const at::Tensor gate = linear(n, p + "mlp.gate_proj", module),
                       up = linear(n, p + "mlp.up_proj", module + 1);
      x = x + linear(at::silu(gate) * up, p + "mlp.down_proj", module + 2);
      module += 3;
    }
    x = norm(x, "model.norm.weight");
    const at::Tensor logits = linear(x, "lm_head", module).index_select(0, at::tensor(scored));
    return logits.log_softmax(-1).gather(1, at::tensor(targets).unsqueeze(1)).squeeze(1);
  }
};

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).abs().max() / (want.abs().max() + 1e-12)).item<double>();
}

struct RunOptions {
  bool recompute = false;
  bool known = false;
  double dropout = 0;
};

// Forward and backward of sum(logprob * (0.5 + row / 16)); returns the logprobs.
at::Tensor run(CausalLM& model, const PackedBatch& batch, const nn::LoraBinding* lora,
               const RunOptions& options = {}) {
  model.forward(batch, lora, {.for_backward = true, .recompute = options.recompute});
  const auto rows = batch.scored_rows();
  std::vector<int32_t> targets;
  at::Tensor d = at::empty({static_cast<int64_t>(rows.size())});
  for (size_t i = 0; i < rows.size(); ++i) {
    targets.push_back(batch.targets[static_cast<size_t>(rows[i])]);
    d[static_cast<int64_t>(i)] = 0.5 + batch.positions[static_cast<size_t>(rows[i])] / 16.0;
  }
  ops::HeadOutputs out;
  out.logprob_S = at::empty_like(d);
  out.lse_S = at::empty_like(d);
  model.score(rows, targets, 1.0, out, options.known ? d : at::Tensor());
  model.backward(d);
  at::Tensor logprobs = out.logprob_S.clone();
  model.finish();
  return logprobs;
}

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, GradientsEqualAutograd) {
  const ModelConfig config = model_config_from_json(variant(GetParam()), "test");
  const LoudWeights source(config, 5);
  auto model = CausalLM::build(config, source);
  model->make_trainable();
  const std::vector<InputFeature> features = {feature(7, 1), feature(1, 2), feature(12, 3)};
  const PackedBatch batch = pack(features);
  const auto adapter = make_adapter(*model, batch);
  const at::Tensor logprobs = run(*model, batch, &adapter->binding);

  Oracle oracle{config, {}, {}, {}};
  for (const auto& info : source.tensors())
    oracle.w[info.name] = source.values(info.name).requires_grad_(true);
  for (const auto& a : adapter->a) oracle.a.push_back(a.clone().requires_grad_(true));
  for (const auto& b : adapter->b) oracle.b.push_back(b.clone().requires_grad_(true));
  std::vector<at::Tensor> expected;
  for (const auto& f : features) {
    if (f.num_trained() == 0) continue;
    const at::Tensor lp = oracle.logprobs(f);
    std::vector<float> coefficients;
    for (size_t t = 0; t < f.labels.size(); ++t) {
      if (f.labels[t] != kIgnoreIndex) coefficients.push_back(0.5f + static_cast<float>(t) / 16.0f);
    }
    const at::Tensor loss = (lp * at::tensor(coefficients)).sum();
    torch::autograd::backward({loss}, {});
    expected.push_back(lp.detach());
  }
  EXPECT_LT(relative_error(logprobs, at::cat(expected)), 2e-6);
  for (auto& parameter : model->parameters()) {
    const at::Tensor want = oracle.w.at(parameter.name).grad();
    parameter.flat_grad();  // folds a tied head in
    const at::Tensor got = parameter.is_matrix() ? parameter.matrix_grad.unpack() : parameter.vector_grad;
    EXPECT_LT(relative_error(got, want), 2e-5) << parameter.name;
  }
  for (size_t m = 0; m < adapter->a.size(); ++m) {
    EXPECT_LT(relative_error(adapter->da[m], oracle.a[m].grad()), 2e-5) << model->linears()[m].name;
    EXPECT_LT(relative_error(adapter->db[m], oracle.b[m].grad()), 2e-5) << model->linears()[m].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values("tied", "untied", "qwen2", "qwen3", "mistral"));

// Everything a step leaves behind, as bytes.
std::vector<at::Tensor> all_gradients(CausalLM& model, const TestAdapter& adapter) {
  std::vector<at::Tensor> out;
  for (auto& parameter : model.parameters()) out.push_back(parameter.flat_grad().clone());
  for (const auto& g : adapter.da) out.push_back(g.clone());
  for (const auto& g : adapter.db) out.push_back(g.clone());
  return out;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].contiguous().view(at::kInt).equal(b[i].contiguous().view(at::kInt)))
        << what << ", gradient " << i << ", largest difference " << (a[i] - b[i]).abs().max().item<float>();
  }
}

struct Case {
  std::string family;
  double dropout;
};

std::vector<at::Tensor> gradients_of(const Case& c, const std::vector<PackedBatch>& batches,
                                     const RunOptions& options, std::vector<at::Tensor>* logprobs = nullptr) {
  const ModelConfig config = model_config_from_json(variant(c.family), "test");
  auto model = CausalLM::build(config, LoudWeights(config, 5));
  model->make_trainable();
  auto adapter = make_adapter(*model, batches[0], c.dropout);
  for (const auto& batch : batches) {
    adapter->binding.spans.clear();
    for (const int64_t s : batch.reduction_order()) {
      adapter->binding.spans.push_back(
          {batch.cu_seqlens[static_cast<size_t>(s)], batch.cu_seqlens[static_cast<size_t>(s) + 1], 0});
    }
    const at::Tensor lp = run(*model, batch, &adapter->binding, options);
    if (logprobs != nullptr) logprobs->push_back(lp);
  }
  return all_gradients(*model, *adapter);
}

TEST(CausalLmBits, SplitsOrderThreadsAndRecomputationLeaveTheBits) {
  for (const Case& c : {Case{"tied", 0}, Case{"qwen3", 0}, Case{"mistral", 0.3}}) {
    const std::vector<InputFeature> f = {feature(9, 1), feature(70, 2), feature(1, 3), feature(13, 4)};
    const PackedBatch whole = pack(f);
    std::vector<at::Tensor> logprobs, split_logprobs;
    const auto want = gradients_of(c, {whole}, {}, &logprobs);
    expect_same_bits(want, gradients_of(c, {whole}, {}), c.family + " again");
    expect_same_bits(want, gradients_of(c, {whole}, {.recompute = true}), c.family + " recomputed");
    expect_same_bits(want, gradients_of(c, {whole}, {.known = true}), c.family + " one walk over the head");
    const std::span all(f);
    expect_same_bits(
        want,
        gradients_of(c, {pack(all.subspan(0, 1), 0), pack(all.subspan(1, 2), 1), pack(all.subspan(3), 3)}, {},
                     &split_logprobs),
        c.family + " split");
    expect_same_bits({logprobs[0]}, {at::cat(split_logprobs)}, c.family + " logprobs");
    // The same sequences laid out in another order, each keeping its place in the reduction.
    const std::vector<InputFeature> shuffled = {f[2], f[3], f[0], f[1]};
    PackedBatch moved = pack(shuffled);
    moved.order = {2, 3, 0, 1};
    moved.sequence_key = {2, 3, 0, 1};
    expect_same_bits(want, gradients_of(c, {moved}, {}), c.family + " moved");
    const int threads = num_threads();
    for (const int n : {1, 2, 3}) {
      set_num_threads(n);
      expect_same_bits(want, gradients_of(c, {whole}, {}),
                       c.family + " with " + std::to_string(n) + " threads");
    }
    set_num_threads(threads);
  }
}

TEST(CausalLmBits, DropoutChangesTheGradientAndDependsOnTheKey) {
  const std::vector<InputFeature> f = {feature(9, 1)};
  PackedBatch batch = pack(f);
  const auto with = gradients_of({"tied", 0.3}, {batch}, {});
  batch.sequence_key[0] = 99;
  const auto other = gradients_of({"tied", 0.3}, {batch}, {});
  EXPECT_FALSE(with.back().equal(other.back()) && with[with.size() / 2].equal(other[other.size() / 2]));
}

TEST(CausalLmBits, PagedForwardEqualsTheWhole) {
  for (const std::string family : {"tied", "qwen3", "mistral"}) {
    const ModelConfig config = model_config_from_json(variant(family), "test");
    auto model = CausalLM::build(config, LoudWeights(config, 5));
    const std::vector<InputFeature> f = {feature(150, 1), feature(9, 2)};
    const PackedBatch batch = pack(f);
    auto adapter = make_adapter(*model, batch);
    const at::Tensor want = model->forward(batch, &adapter->binding, {}).clone();
    // Keys and values of a training pass stay what they were while others are sampled.
    const std::vector<int32_t> rows = batch.scored_rows();
    std::vector<int32_t> targets;
    for (const int32_t row : rows) targets.push_back(batch.targets[static_cast<size_t>(row)]);
    const auto S = static_cast<int64_t>(rows.size());
    ops::HeadOutputs scored{.logprob_S = at::empty({S}), .lse_S = at::empty({S})};

    nn::Arena arena;
    auto kv = model->make_kv_storage(6);
    for (auto& k : kv.k) k.fill_(NAN);  // what was never written must never be read
    for (auto& v : kv.v) v.fill_(NAN);
    const std::vector<int32_t> places[] = {{4, 0, 5}, {2}};
    std::vector<at::Tensor> first, second;
    nn::LoraBinding binding = adapter->binding;
    struct Piece {
      size_t sequence;
      int64_t begin, end;
    };
    const auto step = [&](const std::vector<Piece>& pieces) {
      binding.spans.clear();
      std::vector<CausalLM::PagedRows> paged;
      int64_t at = 0;
      for (const auto& p : pieces) {
        const int64_t n = p.end - p.begin;
        binding.spans.push_back({at, at + n, 0});
        at += n;
        paged.push_back({std::span(f[p.sequence].input_ids).subspan(static_cast<size_t>(p.begin), n), p.begin,
                         places[p.sequence]});
      }
      const at::Tensor hidden = model->forward_paged(arena, kv, paged, &binding);
      for (size_t i = 0; i < pieces.size(); ++i) {
        const auto& span = binding.spans[i];
        (pieces[i].sequence == 0 ? first : second)
            .push_back(hidden.narrow(0, span.begin, span.end - span.begin).clone());
      }
    };
    step({{0, 0, 40}});
    step({{1, 0, 5}, {0, 40, 66}});
    step({{0, 66, 141}});
    for (int64_t t = 141; t < 150; ++t) {
      if (t < 145) {
        step({{0, t, t + 1}, {1, t - 136, t - 135}});
      } else {
        step({{0, t, t + 1}});
      }
    }
    const at::Tensor got = at::cat({at::cat(first), at::cat(second)});
    expect_same_bits({want}, {got}, family + " paged");

    model->score(rows, targets, 1.0, scored);
    ops::HeadOutputs again{.logprob_S = at::empty({S}), .lse_S = at::empty({S})};
    const at::Tensor hidden_SK =
        got.index_select(0, at::tensor(std::vector<int64_t>(rows.begin(), rows.end())));
    binding.spans = {{0, S, 0}};
    model->score_hidden(arena, hidden_SK, &binding, {.ids_S = at::tensor(targets, at::kInt)}, 1.0, again);
    expect_same_bits({scored.logprob_S, scored.lse_S}, {again.logprob_S, again.lse_S}, family + " scores");
    ops::HeadOutputs of_logits{.logprob_S = at::empty({S}), .lse_S = at::empty({S})};
    ops::logits_logprobs(model->logits(arena, hidden_SK, &binding), at::tensor(targets, at::kInt), 1.0,
                         of_logits);
    expect_same_bits({scored.logprob_S}, {of_logits.logprob_S}, family + " scores of logits");
  }
}

TEST(CausalLm, RefusesTokensOutsideTheVocabulary) {
  const ModelConfig config = model_config_from_json(base_config(), "test");
  auto model = CausalLM::build(config, LoudWeights(config, 5));
  InputFeature f = feature(4, 1);
  f.input_ids[2] = 53;
  const std::vector<InputFeature> features = {feature(2, 9), f};
  EXPECT_EQ(test::thrown([&] { model->forward(pack(features), nullptr, {}); }),
            "[batch] sequence 1, position 2: token 53 is not in the vocabulary of 53");
}

}  // namespace
}  // namespace twinkle
