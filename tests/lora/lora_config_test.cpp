#include <gtest/gtest.h>

#include <cmath>

#include "tests/needs.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/targets.h"

namespace twinkle {
namespace {

using test::thrown;

// What PEFT 0.19.1 writes for LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"]).
const char* const kPeftFile = R"({
  "alora_invocation_tokens": null,
  "alpha_pattern": {},
  "arrow_config": null,
  "auto_mapping": null,
  "base_model_name_or_path": "",
  "bias": "none",
  "corda_config": null,
  "ensure_weight_tying": false,
  "eva_config": null,
  "exclude_modules": null,
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {},
  "lora_alpha": 8,
  "lora_bias": false,
  "lora_dropout": 0.0,
  "lora_ga_config": null,
  "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": null,
  "peft_type": "LORA",
  "peft_version": "0.19.1",
  "qalora_group_size": 16,
  "r": 4,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "v_proj",
    "q_proj"
  ],
  "target_parameters": null,
  "task_type": "CAUSAL_LM",
  "trainable_token_indices": null,
  "use_bdlora": null,
  "use_dora": false,
  "use_qalora": false,
  "use_rslora": false
})";

TEST(LoraConfig, WritesThePeftFileItRead) {
  const LoraConfig config = lora_config_from_json(parse_json(kPeftFile, "x"), "x");
  EXPECT_EQ(config.r, 4);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"v_proj", "q_proj"}));
  EXPECT_EQ(lora_config_to_json(config).dump(2), kPeftFile);
}

TEST(LoraConfig, EveryOptionGoesRound) {
  LoraConfig config;
  config.r = 16;
  config.lora_alpha = 12.5;
  config.lora_dropout = 0.05;
  config.use_rslora = true;
  config.target_modules = {".*q_proj"};
  config.target_is_pattern = true;
  config.exclude_modules = {".*layers\\.0\\..*"};
  config.exclude_is_pattern = true;
  config.rank_pattern = {{"q_proj", 4}};
  config.alpha_pattern = {{"q_proj", 2.5}};
  config.modules_to_save = {"lm_head"};
  config.base_model_name_or_path = "base";
  const Json json = lora_config_to_json(config);
  EXPECT_EQ(json["target_modules"], ".*q_proj");
  EXPECT_EQ(json["lora_alpha"], 12.5);
  const LoraConfig again = lora_config_from_json(json, "x");
  EXPECT_EQ(lora_config_to_json(again), json);
  EXPECT_TRUE(again.target_is_pattern && again.exclude_is_pattern && again.use_rslora);
  EXPECT_EQ(lora_config_from_json({{"layers_to_transform", 3}}, "x").layers_to_transform,
            std::vector<int64_t>{3});
  EXPECT_EQ(lora_config_from_json({{"layers_to_transform", {1, 2}}}, "x").layers_to_transform,
            (std::vector<int64_t>{1, 2}));
}

TEST(LoraConfig, ReadsRealFilesOfPeft) {
  const LoraConfig plain = lora_config_from_json(
      read_json_file(test::test_data("model-configs/adapter_config.lora-llama-3.2-3B.json")), "x");
  EXPECT_EQ(plain.r, 32);
  EXPECT_EQ(plain.lora_alpha, 64);
  EXPECT_EQ(plain.scale_of(plain.r, plain.lora_alpha), 2.0);
  EXPECT_TRUE(plain.target_modules.empty());
  const LoraConfig rslora = lora_config_from_json(
      read_json_file(test::test_data("model-configs/adapter_config.rslora-llama-3.2-3B.json")), "x");
  EXPECT_EQ(rslora.r, 64);
  EXPECT_EQ(rslora.scale_of(rslora.r, rslora.lora_alpha), 8.0);  // 64 / sqrt(64)
}

TEST(LoraConfig, RefusesByName) {
  const struct {
    const char* message;
    Json raw;
  } cases[] = {
      {"expected an object, got list", Json::array()},
      {"'peft_type': 'IA3' is not supported (LORA is)", {{"peft_type", "IA3"}}},
      {"'task_type': 'SEQ_CLS' is not supported (CAUSAL_LM is)", {{"task_type", "SEQ_CLS"}}},
      {"'use_dora': DoRA is not supported", {{"use_dora", true}}},
      {"'bias': trained biases are not supported", {{"bias", "all"}}},
      {"'init_lora_weights': 'pissa_niter_4' changes the base model",
       {{"init_lora_weights", "pissa_niter_4"}}},
      {"'fan_in_fan_out' is not supported", {{"fan_in_fan_out", true}}},
      {"'lora_bias' is not supported", {{"lora_bias", true}}},
      {"'layer_replication' is not supported", {{"layer_replication", {{0, 4}}}}},
      {"'trainable_token_indices' is not supported", {{"trainable_token_indices", {1}}}},
      {"'ensure_weight_tying' is not supported", {{"ensure_weight_tying", true}}},
      {"'target_parameters' is not supported", {{"target_parameters", {"experts.w"}}}},
      {"'target_module' is not supported (did you mean 'target_modules'?)", {{"target_module", {"q_proj"}}}},
      {"'r': must be from 1 to 65536, got 0", {{"r", 0}}},
      {"'r': expected a whole number, got number", {{"r", 1.5}}},
      {"'lora_alpha': must be > 0, got 0", {{"lora_alpha", 0}}},
      {"'lora_alpha': expected a number, got string", {{"lora_alpha", "8"}}},
      {"'lora_dropout': must be >= 0 and < 1, got 1", {{"lora_dropout", 1}}},
      {"'rank_pattern.q_proj': must be from 1", {{"rank_pattern", {{"q_proj", 0}}}}},
      {"'rank_pattern': expected an object, got list", {{"rank_pattern", Json::array()}}},
      {"'target_modules': expected a string or a list of names, got number", {{"target_modules", 3}}},
      {"'target_modules': expected a list of names, got number", {{"target_modules", {3}}}},
      {"'modules_to_save': expected a list of names, got string", {{"modules_to_save", "lm_head"}}},
      {"'layers_to_transform': layers count from 0, got -1", {{"layers_to_transform", -1}}},
      {"'layers_to_transform' needs 'target_modules' as a list",
       {{"layers_to_transform", 1}, {"target_modules", "all-linear"}}},
  };
  for (const auto& c : cases) {
    const std::string message = thrown([&] { lora_config_from_json(c.raw, "x.json"); });
    const std::string expected = std::string("[lora] x.json: ") + c.message;
    EXPECT_EQ(message.substr(0, expected.size()), expected);
  }
}

std::vector<std::string> module_names(int layers) {
  std::vector<std::string> out = {"model.embed_tokens"};
  for (int l = 0; l < layers; ++l) {
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      out.push_back("model.layers." + std::to_string(l) + "." + part);
    }
  }
  out.push_back("lm_head");
  return out;
}

std::vector<std::string> matched(const LoraConfig& config, int layers = 2) {
  std::vector<std::string> out;
  for (const auto& m : match_targets(config, module_names(layers), true)) out.push_back(m.name);
  return out;
}

using Names = std::vector<std::string>;

TEST(LoraTargets, FollowPeftsRules) {
  EXPECT_EQ(matched({.target_modules = {"q_proj"}}),
            (Names{"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"}));
  EXPECT_EQ(matched({.target_modules = {"self_attn.q_proj"}}).size(), 2u);
  EXPECT_EQ(matched({.target_modules = {"model.layers.1.mlp.up_proj"}}), Names{"model.layers.1.mlp.up_proj"});
  EXPECT_EQ(matched({}).size(), 4u);  // q_proj and v_proj
  EXPECT_EQ(matched({.target_modules = {"embed_tokens", "lm_head"}}),
            (Names{"model.embed_tokens", "lm_head"}));
  for (const char* all : {"all-linear", "All-Linear"}) {
    const Names names = matched({.target_modules = {all}, .target_is_pattern = true});
    EXPECT_EQ(names.size(), 14u);
    EXPECT_EQ(std::count(names.begin(), names.end(), "lm_head"), 0);
  }
  // A pattern must match the whole name.
  EXPECT_EQ(matched({.target_modules = {".*\\.1\\..*(q|v)_proj"}, .target_is_pattern = true}),
            (Names{"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"}));
  EXPECT_NE(thrown([] {
              matched({.target_modules = {"q_proj"}, .target_is_pattern = true});
            }).find("matches no linear module"),
            std::string::npos);
  EXPECT_EQ(matched({.target_modules = {"all-linear"},
                     .target_is_pattern = true,
                     .exclude_modules = {"o_proj", "mlp.up_proj"}})
                .size(),
            10u);
  EXPECT_EQ(
      matched({.target_modules = {"q_proj"}, .exclude_modules = {".*\\.0\\..*"}, .exclude_is_pattern = true}),
      Names{"model.layers.1.self_attn.q_proj"});
  EXPECT_EQ(matched({.target_modules = {"q_proj", "lm_head"}, .modules_to_save = {"lm_head"}}).size(), 2u);
  EXPECT_EQ(matched({.target_modules = {"q_proj", "lm_head"}, .layers_to_transform = {11, 3}}, 12),
            (Names{"model.layers.3.self_attn.q_proj", "model.layers.11.self_attn.q_proj", "lm_head"}));
}

TEST(LoraTargets, BareSuffixesDoNotMatch) {
  // "proj" is no component of "q_proj", and "1.q_proj" none of "11.q_proj".
  EXPECT_EQ(thrown([] { matched({.target_modules = {"proj"}}); }).substr(0, 61),
            "[lora] 'target_modules': 'proj' names no linear module of thi");
  EXPECT_NE(thrown([] { matched({.target_modules = {"q_prj"}}); }).find("did you mean 'q_proj'?"),
            std::string::npos);
  EXPECT_NE(thrown([] { matched({.target_modules = {"norm"}}); }).find("names no linear module"),
            std::string::npos);
}

TEST(LoraTargets, AFileMayNameModulesThatTheModelLacks) {
  EXPECT_EQ(match_targets({.target_modules = {"q_proj", "c_attn"}}, module_names(2), false).size(), 2u);
  EXPECT_THROW(match_targets({.target_modules = {"c_attn"}}, module_names(2), false), Error);
}

TEST(LoraTargets, RankAndAlphaByPattern) {
  LoraConfig config{.r = 8, .lora_alpha = 16, .target_modules = {"q_proj", "v_proj"}};
  config.rank_pattern = {{"layers\\.1\\.self_attn\\.q_proj", 2}, {"v_proj", 4}};
  // The first that matches counts, also where another one says more.
  config.alpha_pattern = {{"v_proj", 3}, {"layers\\.0\\.self_attn\\.v_proj", 5}};
  const auto modules = match_targets(config, module_names(2), true);
  ASSERT_EQ(modules.size(), 4u);
  EXPECT_EQ(modules[0].rank, 8);
  EXPECT_EQ(modules[0].alpha, 16);
  EXPECT_EQ(modules[1].rank, 4);
  EXPECT_EQ(modules[1].alpha, 3);
  EXPECT_EQ(modules[2].rank, 2);
}

TEST(LoraTargets, HostilePatternsEndSoon) {
  EXPECT_THROW(matched({.target_modules = {"((((.*)*)*)*)*x"}, .target_is_pattern = true}), Error);
  EXPECT_THROW(matched({.target_modules = {".*q_proj)|(?:.*v_proj"}, .target_is_pattern = true}), Error);
  EXPECT_THROW(matched({.target_modules = {"(unclosed"}, .target_is_pattern = true}), Error);
  EXPECT_THROW(matched({.target_modules = {"q_proj{33333333333333333333}"}, .target_is_pattern = true}),
               Error);
  EXPECT_THROW(matched({.target_modules = {std::string(5000, 'a')}, .target_is_pattern = true}), Error);
}

TEST(LoraTargets, AllLinearBecomesAList) {
  const LoraConfig out =
      expand_all_linear({.target_modules = {"all-linear"}, .target_is_pattern = true}, module_names(2));
  EXPECT_FALSE(out.target_is_pattern);
  EXPECT_EQ(out.target_modules,
            (Names{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
}

TEST(LoraTargets, ModulesToSaveCompareEndsOfNames) {
  const Names names = {"model.embed_tokens", "model.layers.0.input_layernorm", "model.norm", "lm_head"};
  EXPECT_EQ(match_modules_to_save({.modules_to_save = {"norm"}}, names),
            (Names{"model.layers.0.input_layernorm", "model.norm"}));
  EXPECT_EQ(match_modules_to_save({.modules_to_save = {"lm_head", "embed_tokens"}}, names),
            (Names{"model.embed_tokens", "lm_head"}));
  EXPECT_NE(thrown([&] {
              match_modules_to_save({.modules_to_save = {"lm_haed"}}, names);
            }).find("did you mean 'lm_head'?"),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle
