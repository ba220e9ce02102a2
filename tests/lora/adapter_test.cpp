#include "twinkle/lora/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/lora/lora_testing.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/safetensors.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;
const std::string kData = TWINKLE_SOURCE_DIR "/tests/lora/data";

using test::thrown;
using test::tiny_model;
using Folder = test::TempDir;

PackedBatch batch_of(const std::vector<std::vector<int32_t>>& sequences) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  for (size_t b = 0; b < sequences.size(); ++b) {
    for (size_t t = 0; t < sequences[b].size(); ++t) {
      batch.tokens.push_back(sequences[b][t]);
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.targets.push_back(t + 1 < sequences[b].size() ? sequences[b][t + 1] : kIgnoreIndex);
      batch.weights.push_back(t + 1 < sequences[b].size() ? 1.0f : 0.0f);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.adapter.push_back(0);
    batch.order.push_back(static_cast<int64_t>(b));
    batch.sequence_key.push_back(b);
  }
  return batch;
}

const std::vector<std::vector<int32_t>> kSequences = {{1, 5, 9, 2, 17, 30, 4},
                                                      {3, 3, 8, 22, 11}};  // of the goldens

at::Tensor logits_of(CausalLM& model, Adapter* adapter) {
  const PackedBatch batch = batch_of(kSequences);
  nn::LoraBinding binding;
  if (adapter != nullptr) binding = bind_adapter(model, *adapter, batch, false);
  const nn::LoraBinding* lora = adapter != nullptr ? &binding : nullptr;
  const at::Tensor hidden = model.forward(batch, lora, {});
  at::Tensor out = model.logits(model.arena(), hidden, lora).clone();
  model.finish();
  return out;
}

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const SafeTensor* tensor = file.find(name);
  if (tensor == nullptr) throw not_found("no tensor " + name);
  at::Tensor out = at::empty(tensor->shape, at::kFloat);
  std::memcpy(out.mutable_data_ptr(), tensor->data.data(), tensor->data.size());
  return out;
}

void expect_close(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = std::max(want.abs().max().item<double>(), 1e-3);
  EXPECT_LE((got - want).abs().max().item<double>(), tolerance * scale) << what;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Goldens by tests/parity/make_adapter_goldens.py: PEFT's own files, logits and gradients.
TEST(Adapter, ReadsPeftsFilesAndGivesItsLogits) {
  const auto model = CausalLM::load(kData + "/base");
  const auto adapter = Adapter::load(*model, kData + "/adapter");
  EXPECT_EQ(adapter->modules().size(), 8u);
  EXPECT_EQ(adapter->saved_modules().size(), 9u);
  const SafetensorsFile expected = SafetensorsFile::open(kData + "/expected.safetensors");
  const at::Tensor logits = logits_of(*model, adapter.get());
  expect_close(logits.narrow(0, 0, 7), tensor_of(expected, "logits.0"), 1e-5, "logits.0");
  expect_close(logits.narrow(0, 7, 5), tensor_of(expected, "logits.1"), 1e-5, "logits.1");
}

TEST(Adapter, GradientsOfEveryTrainedTensorAreThoseOfPeft) {
  const SafetensorsFile expected = SafetensorsFile::open(kData + "/expected.safetensors");
  for (const bool recompute : {false, true}) {
    const auto model = CausalLM::load(kData + "/base");
    const auto adapter = Adapter::load(*model, kData + "/adapter");
    adapter->make_trainable();
    const PackedBatch batch = batch_of(kSequences);
    const nn::LoraBinding binding = bind_adapter(*model, *adapter, batch, true);
    model->forward(batch, &binding, {.for_backward = true, .recompute = recompute});
    const std::vector<int32_t> rows = batch.scored_rows();
    std::vector<int32_t> targets;
    for (const int32_t row : rows) targets.push_back(batch.targets[static_cast<size_t>(row)]);
    ops::HeadOutputs out;
    out.logprob_S = at::empty({static_cast<int64_t>(rows.size())});
    out.lse_S = at::empty_like(out.logprob_S);
    model->score(rows, targets, 1.0, out);
    expect_close(out.logprob_S.narrow(0, 0, 6), tensor_of(expected, "logprobs.0"), 1e-5, "logprobs.0");
    expect_close(out.logprob_S.narrow(0, 6, 4), tensor_of(expected, "logprobs.1"), 1e-5, "logprobs.1");
    const std::vector<float> coefficients = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4};
    model->backward(at::tensor(coefficients));
    model->finish();
    size_t checked = 0;
    for (const auto& tensor : adapter->trained()) {
      at::Tensor grad = tensor.grad;
      for (auto& [name, parameter] : adapter->saved_modules()) {
        if (tensor.name == "base_model.model." + name + ".weight" && parameter.is_matrix())
          grad = parameter.matrix_grad.unpack();
      }
      expect_close(grad, tensor_of(expected, "grad." + tensor.name), 2e-5, tensor.name);
      ++checked;
    }
    EXPECT_EQ(checked, 25u);
    adapter->zero_grad();
    for (const auto& tensor : adapter->trained()) EXPECT_EQ(tensor.grad.abs().max().item<float>(), 0.0f);
  }
}

TEST(Adapter, SavesWhatPeftSaved) {
  const Folder folder;
  const auto model = CausalLM::load(kData + "/base");
  Adapter::load(*model, kData + "/adapter")->save(folder.path());
  EXPECT_EQ(read_json_file(folder / "adapter_config.json"),
            read_json_file(kData + "/adapter/adapter_config.json"));
  const auto ours = SafetensorsFile::open(folder / "adapter_model.safetensors");
  const auto theirs = SafetensorsFile::open(kData + "/adapter/adapter_model.safetensors");
  EXPECT_EQ(ours.metadata().at("format"), "pt");
  size_t base_layers = 0;
  for (const auto& tensor : theirs.tensors()) {
    if (tensor.name.ends_with(".base_layer.weight")) {  // the frozen weights; they need not be there
      ++base_layers;
      continue;
    }
    ASSERT_NE(ours.find(tensor.name), nullptr) << tensor.name;
    EXPECT_TRUE(same_bits(tensor_of(ours, tensor.name), tensor_of(theirs, tensor.name))) << tensor.name;
  }
  EXPECT_EQ(base_layers, 2u);
  EXPECT_EQ(ours.tensors().size() + base_layers, theirs.tensors().size());
}

TEST(Adapter, MergedWeightsGiveItsLogitsAndUnmergeRestoresTheBits) {
  const auto model = CausalLM::load(kData + "/base");
  const auto adapter = Adapter::load(*model, kData + "/adapter");
  const at::Tensor base = logits_of(*model, nullptr), with = logits_of(*model, adapter.get());
  {
    MergedAdapter merged(*model, *adapter);
    expect_close(logits_of(*model, nullptr), with, 1e-5, "merged");
    merged.unmerge();
    EXPECT_TRUE(same_bits(logits_of(*model, nullptr), base));
  }
  {
    MergedAdapter merged(*model, *adapter);
  }
  EXPECT_TRUE(same_bits(logits_of(*model, nullptr), base));
  MergedAdapter(*model, *adapter).commit();
  expect_close(logits_of(*model, nullptr), with, 1e-5, "committed");
}

TEST(Adapter, MergingIntoHalvesRoundsOnce) {
  // Weight 1.0 and delta 1e-3: in bf16 the sum is rounded from fp32 to the nearest, which is 1.0; with a
  // delta of 6e-3 it is 1.0078125.
  const auto model = tiny_model(false, "bf16");
  const auto adapter = Adapter::create(*model, {.r = 1, .lora_alpha = 1, .target_modules = {"q_proj"}});
  Parameter* q = nullptr;
  for (auto& p : model->parameters()) {
    if (p.name == "model.layers.0.self_attn.q_proj.weight") q = &p;
  }
  q->matrix = ops::PackedMatrix::pack(at::ones({16, 16}), at::kBFloat16);
  adapter->modules()[0].slot.a_rK.fill_(1.0f);
  for (const auto& [delta, sum] : {std::pair{1e-3f, 1.0f}, {6e-3f, 1.0078125f}}) {
    adapter->modules()[0].slot.b_Nr.fill_(delta);
    MergedAdapter merged(*model, *adapter);
    EXPECT_EQ(q->matrix.dtype(), at::kBFloat16);
    EXPECT_EQ(q->matrix.unpack().min().item<float>(), sum);
    EXPECT_EQ(q->matrix.unpack().max().item<float>(), sum);
  }
}

TEST(Adapter, TiedWeightsAreNotMergedApart) {
  const auto model = tiny_model(true);
  for (const char* module : {"embed_tokens", "lm_head"}) {
    const auto adapter = Adapter::create(*model, {.target_modules = {module, "q_proj"}});
    EXPECT_HAS(thrown([&] { MergedAdapter(*model, *adapter); }), "shares between embedding and head");
  }
}

TEST(Adapter, AFreshAdapterChangesNothing) {
  for (const bool tied : {false, true}) {
    const auto model = tiny_model(tied);
    const auto adapter =
        Adapter::create(*model, {.r = 4,
                                 .target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                    "up_proj", "down_proj", "embed_tokens", "lm_head"}});
    EXPECT_EQ(adapter->modules().size(), 16u);
    EXPECT_EQ(adapter->modules()[0].name, "model.embed_tokens");
    const at::Tensor base = logits_of(*model, nullptr);
    expect_close(logits_of(*model, adapter.get()), base, 1e-7, "fresh");
    const auto whole = Adapter::create(
        *model, {.target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens", "lm_head", "norm"}});
    EXPECT_EQ(whole->saved_modules().size(), 7u);
    EXPECT_TRUE(same_bits(logits_of(*model, whole.get()), base));
  }
}

TEST(Adapter, InitialValuesFollowTheSeedAndPeftsDistribution) {
  const auto model = tiny_model();
  const LoraConfig config{
      .r = 4, .lora_alpha = 6, .target_modules = {"q_proj", "down_proj", "embed_tokens"}, .seed = 7};
  const auto a = Adapter::create(*model, config), b = Adapter::create(*model, config);
  LoraConfig other = config;
  other.seed = 8;
  const auto c = Adapter::create(*model, other);
  for (size_t i = 0; i < a->modules().size(); ++i) {
    const auto &x = a->modules()[i], &y = b->modules()[i], &z = c->modules()[i];
    EXPECT_TRUE(same_bits(x.slot.a_rK, y.slot.a_rK) && same_bits(x.slot.b_Nr, y.slot.b_Nr)) << x.name;
    EXPECT_FALSE(same_bits(x.slot.a_rK, z.slot.a_rK) && same_bits(x.slot.b_Nr, z.slot.b_Nr)) << x.name;
    EXPECT_EQ(x.slot.scale, 1.5f);
    if (x.linear < 0) {
      EXPECT_EQ(x.slot.a_rK.sizes(), (std::vector<int64_t>{4, 32}));
      EXPECT_EQ(x.slot.b_Nr.sizes(), (std::vector<int64_t>{16, 4}));
      EXPECT_EQ(x.slot.a_rK.abs().max().item<float>(), 0.0f);
      EXPECT_NEAR(x.slot.b_Nr.std().item<double>(), 1.0, 0.3);
    } else {
      EXPECT_EQ(x.slot.b_Nr.abs().max().item<float>(), 0.0f);
      const double bound = 1.0 / std::sqrt(static_cast<double>(x.slot.a_rK.size(1)));
      EXPECT_LE(x.slot.a_rK.abs().max().item<double>(), bound);
      EXPECT_GE(x.slot.a_rK.abs().max().item<double>(), 0.8 * bound);
    }
  }
  // The values of one module do not depend on which others are adapted.
  const auto only = Adapter::create(
      *model, {.r = 4, .lora_alpha = 6, .target_modules = {"model.layers.1.self_attn.q_proj"}, .seed = 7});
  const auto& q = *std::find_if(a->modules().begin(), a->modules().end(), [](const LoraModule& m) {
    return m.name == "model.layers.1.self_attn.q_proj";
  });
  EXPECT_TRUE(same_bits(only->modules()[0].slot.a_rK, q.slot.a_rK));
}

TEST(Adapter, BindsSequencesInReductionOrder) {
  const auto model = tiny_model();
  const auto adapter =
      Adapter::create(*model, {.lora_dropout = 0.25, .target_modules = {"up_proj", "down_proj"}});
  PackedBatch batch = batch_of({{1, 2}, {3, 4, 5}, {6}});
  batch.order = {2, 0, 1};
  const auto training = bind_adapter(*model, *adapter, batch, true);
  ASSERT_EQ(training.spans.size(), 3u);
  EXPECT_EQ(training.spans[0].begin, 2);
  EXPECT_EQ(training.spans[0].end, 5);
  EXPECT_EQ(training.spans[1].begin, 5);
  EXPECT_EQ(training.spans[2].begin, 0);
  EXPECT_EQ(training.slots.size(), model->linears().size());
  for (size_t i = 0; i < training.slots.size(); ++i) {
    const std::string& name = model->linears()[i].name;
    const bool adapted = name.ends_with("up_proj") || name.ends_with("down_proj");
    EXPECT_EQ(training.slots[i].size(), adapted ? 1u : 0u) << name;
  }
  EXPECT_EQ(training.dropout, std::vector<double>{0.25});
  EXPECT_EQ(bind_adapter(*model, *adapter, batch, false).dropout, std::vector<double>{0.0});
}

TEST(Adapter, RoundTripsThroughFiles) {
  const auto model = tiny_model();
  LoraConfig config{
      .r = 4, .target_modules = {"all-linear"}, .target_is_pattern = true, .modules_to_save = {"lm_head"}};
  const auto adapter = Adapter::create(*model, config);
  for (auto& module : adapter->modules()) module.slot.b_Nr.normal_();
  const Folder folder;
  adapter->save(folder.path());
  EXPECT_EQ(read_json_file(folder / "adapter_config.json")["target_modules"],
            Json({"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
  const auto again = Adapter::load(*model, folder.path());
  EXPECT_EQ(again->num_parameters(), adapter->num_parameters());
  EXPECT_TRUE(same_bits(logits_of(*model, again.get()), logits_of(*model, adapter.get())));
}

TEST(Adapter, RefusesFilesThatDoNotFit) {
  const auto model = tiny_model();
  const auto adapter = Adapter::create(*model, {.r = 4, .target_modules = {"q_proj"}});
  const Folder folder;
  EXPECT_HAS(thrown([&] { Adapter::load(*model, folder.path()); }, ErrorKind::kNotFound),
             "has no adapter_config.json");
  adapter->save(folder.path());

  // One key with a wrong prefix.
  const std::string path = folder / "adapter_model.safetensors";
  std::string bytes = read_file(path);
  const size_t at = bytes.find("base_model.model.model.layers.0.self_attn.q_proj.lora_A");
  std::string renamed = bytes;
  renamed[at] = 'x';
  write_file_atomic(path, renamed);
  EXPECT_HAS(thrown([&] { Adapter::load(*model, folder.path()); }),
             "does not fit this model and its adapter_config.json: 3 of 4 tensors match; 1 missing: "
             "'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'; 1 unexpected: "
             "'xase_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'");
  write_file_atomic(path, bytes);

  // Numbers that are none.
  std::string broken = bytes;
  std::memcpy(broken.data() + broken.size() - 4, "\x00\x00\xC0\x7F", 4);
  write_file_atomic(path, broken);
  EXPECT_HAS(
      thrown([&] { Adapter::load(*model, folder.path()); }),
      "tensor 'base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight' holds numbers that are not "
      "finite");
  write_file_atomic(path, bytes);

  // Another base: Qwen3 of the goldens has another q_proj.
  const auto other =
      CausalLM::build(model_config_from_json({{"architectures", {"LlamaForCausalLM"}},
                                              {"hidden_size", 24},
                                              {"intermediate_size", 24},
                                              {"num_hidden_layers", 2},
                                              {"num_attention_heads", 2},
                                              {"vocab_size", 32}},
                                             "x"),
                      *random_weights(model_config_from_json({{"architectures", {"LlamaForCausalLM"}},
                                                              {"hidden_size", 24},
                                                              {"intermediate_size", 24},
                                                              {"num_hidden_layers", 2},
                                                              {"num_attention_heads", 2},
                                                              {"vocab_size", 32}},
                                                             "x"),
                                      1));
  EXPECT_HAS(thrown([&] { Adapter::load(*other, folder.path()); }),
             "0 of 4 tensors match; 4 of the wrong shape: "
             "'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' is "
             "[4, 16], expected [4, 24]");
  EXPECT_HAS(thrown([&] { Adapter::load(*other, folder.path()); }),
             "an adapter goes with the model it was trained on");

  // The config says another rank.
  Json raw = read_json_file(folder / "adapter_config.json");
  raw["r"] = 8;
  write_file_atomic(folder / "adapter_config.json", raw.dump());
  EXPECT_HAS(thrown([&] { Adapter::load(*model, folder.path()); }), "is [4, 16], expected [8, 16]");

  fs::remove(path);
  EXPECT_HAS(thrown([&] { Adapter::load(*model, folder.path()); }, ErrorKind::kNotFound),
             "has no adapter_model.safetensors");
  write_file_atomic(folder / "adapter_model.bin", "x");
  EXPECT_HAS(thrown([&] { Adapter::load(*model, folder.path()); }), "pickled adapter_model.bin");
}

TEST(Adapter, RefusesAnAdapterWhoseFrozenEmbeddingIsAnothers) {
  const auto model = CausalLM::load(kData + "/base");
  for (auto& p : model->parameters()) {
    if (p.name == "lm_head.weight")
      p.matrix = ops::PackedMatrix::pack(p.matrix.unpack().roll(1, 0), at::kFloat);
  }
  EXPECT_HAS(thrown([&] { Adapter::load(*model, kData + "/adapter"); }),
             "the adapter was trained on another base");
}

TEST(Adapter, CreateRefusesByName) {
  const auto model = tiny_model();
  EXPECT_HAS(thrown([&] { Adapter::create(*model, {.target_modules = {"q_proj", "qproj"}}); }),
             "'target_modules': 'qproj' names no linear module of this model (did you mean 'q_proj'?)");
  EXPECT_HAS(thrown([&] { Adapter::create(*model, {.r = 0}); }), "'r': must be from 1 to 65536");
  EXPECT_HAS(
      thrown([&] { Adapter::create(*model, {.target_modules = {"q_proj"}, .modules_to_save = {"o_proj"}}); }),
      "'modules_to_save': 'model.layers.0.self_attn.o_proj' can not be trained whole here");
  EXPECT_HAS(thrown([&] {
               Adapter::create(*model, {.target_modules = {"q_proj"}, .modules_to_save = {"classifier"}});
             }),
             "'modules_to_save': 'classifier' names no module");
}

}  // namespace
}  // namespace twinkle
