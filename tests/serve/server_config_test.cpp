// The configuration file: the Python Twinkle's form, our own, and what is wrong in either.
#include "twinkle/serve/server_config.h"

#include <gtest/gtest.h>

namespace twinkle::serve {
namespace {

std::vector<ArgGroup> groups() {
  ArgSpec port = arg("port", ParamType::kInt, 8000, "");
  port.param.max = 65535;
  return {
      {"ServerArgs",
       "",
       {arg("model_id", ParamType::kString, nullptr, ""),
        arg("model_name", ParamType::kStringList, nullptr, ""), arg("data_dir", ParamType::kString, "d", ""),
        arg("host", ParamType::kString, "h", ""), port, arg("session_timeout", ParamType::kInt, 1, ""),
        arg("limit_models", ParamType::kInt, 0, ""),
        arg("limit_requests_per_second", ParamType::kFloat, 0.0, ""),
        arg("limit_tokens_per_minute", ParamType::kInt, 0, ""),
        arg("models_in_memory", ParamType::kInt, 32, ""), arg("config", ParamType::kString, nullptr, "")}}};
}

ServerConfig read(const std::string& text) { return read_server_config(text, "s.yaml", groups()); }

Json values(const ServerConfig& config) {
  Json out = Json::object();
  for (const auto& value : config.values) out[value.option] = value.value;
  return out;
}

// With every key of that form that its documentation names.
constexpr const char* kUpstream = R"yaml(
ray_namespace: twinkle
proxy_location: EveryNode
http_options: {host: 0.0.0.0, port: 8001}
telemetry: {enabled: false, service_name: s, otlp_endpoint: "http://localhost:4317", debug: false,
            export_interval_ms: 30000, resource_attributes: {a: b}}
persistence: {mode: file, file_path: /tmp/twinkle_state.json}
applications:
  - name: server
    route_prefix: /api/v1
    import_path: server
    args:
      server_config: {expiration_timeout: 7200, cleanup_interval: 60, per_token_model_limit: 3,
                      metrics_update_interval: 15, actor_name: x}
      supported_models:
        - Qwen/Qwen3.5-4B
        - {model_name: tiny}
    deployments:
      - {name: GatewayServer, autoscaling_config: {min_replicas: 1}}
  - name: models-Qwen3.5-4B
    route_prefix: /api/v1/model/Qwen/Qwen3.5-4B
    import_path: model
    args:
      backend: transformers
      model_id: "ms://Qwen/Qwen3.5-4B"
      max_length: 10240
      max_loras: 7
      nproc_per_node: 2
      device_group: {name: model, ranks: [0, 1], device_type: cuda}
      device_mesh: {device_type: cuda, dp_size: 2}
      queue_config: {rps_limit: 100, tps_limit: 1000}
      adapter_config: {adapter_timeout: 30}
  - name: sampler
    import_path: sampler
    args:
      model_id: "ms://Qwen/Qwen3.5-4B"
      sampler_type: vllm
      engine_args: {max_model_len: 4096}
      device_group: {name: sampler}
      device_mesh: {dp_size: 1}
      queue_config: {rps_limit: 50}
  - name: processor
    import_path: processor
    args: {ncpu_proc_per_node: 2, device_group: {name: p}, device_mesh: {dp_size: 2}}
)yaml";

TEST(ServerConfig, ReadsTheFileOfThePythonTwinkle) {
  const ServerConfig config = read(kUpstream);
  EXPECT_TRUE(config.errors.empty()) << config.errors[0];
  EXPECT_EQ(values(config), (Json{{"host", "0.0.0.0"},
                                  {"port", 8001},
                                  {"model_name", {"Qwen/Qwen3.5-4B", "tiny", "ms://Qwen/Qwen3.5-4B"}},
                                  {"session_timeout", 7200},
                                  {"limit_models", 3},
                                  {"model_id", "Qwen/Qwen3.5-4B"},
                                  {"models_in_memory", 7},
                                  {"limit_requests_per_second", 100.0},
                                  {"limit_tokens_per_minute", 60000},
                                  {"data_dir", "/tmp/twinkle_state"}}))
      << values(config);
  const auto noted = [&](const std::string& note) {
    return std::ranges::find(config.notes, note) != config.notes.end();
  };
  EXPECT_TRUE(noted("s.yaml line 41: limit_requests_per_second 50.0: 100.0 of s.yaml line 31 counts"));
  EXPECT_TRUE(noted(
      "s.yaml line 26: 'applications[1].args.max_length': a sequence may be as long as the model's context"));
  EXPECT_TRUE(noted("s.yaml line 7: 'persistence': the state is kept in the folder /tmp/twinkle_state"));
}

TEST(ServerConfig, LimitsOfQueuesAreNeitherLostNorMade) {
  const auto queue = [](const std::string& config) {
    return values(
        read("applications:\n  - name: m\n    import_path: model\n    args:\n      model_id: a/b\n"
             "      queue_config: {" +
             config + "}\n"));
  };
  for (const char* off : {"false", "False", "FALSE"})
    EXPECT_FALSE(
        queue("enabled: " + std::string(off) + ", tps_limit: 3").contains("limit_tokens_per_minute"));
  EXPECT_EQ(queue("enabled: True, tps_limit: 3").value("limit_tokens_per_minute", 0), 180);
  EXPECT_EQ(queue("tps_limit: 0.01").value("limit_tokens_per_minute", 0), 1);  // 0 would be no limit
  EXPECT_EQ(queue("tps_limit: 1.1").value("limit_tokens_per_minute", 0), 66);
  EXPECT_EQ(queue("tps_limit: 1e300").value("limit_tokens_per_minute", int64_t{0}), 9'000'000'000'000'000);
}

TEST(ServerConfig, ReadsOptionsByTheirNames) {
  const ServerConfig config =
      read("model_id: /m\nmodel-name: [a, b]\nlimit:\n  models: 2\n  tokens_per_minute: 5\nport: 1");
  EXPECT_TRUE(config.errors.empty()) << config.errors[0];
  EXPECT_EQ(values(config), (Json{{"model_id", "/m"},
                                  {"model_name", {"a", "b"}},
                                  {"limit_models", 2},
                                  {"limit_tokens_per_minute", 5},
                                  {"port", 1}}));
  EXPECT_EQ(config.values[3].where, "s.yaml line 5");
  EXPECT_TRUE(read("").values.empty());
}

TEST(ServerConfig, TellsEveryErrorWithItsLineAndTheNearestName) {
  const ServerConfig config = read(R"yaml(
modle_id: x
http_options:
  prot: 1
  host: [1]
port: 70000
proxy_location: Everywhere
persistence:
  mode: redis
applications:
  - name: a
    import_path: modle
  - import_path: server
    name: b
    args:
      server_config:
        per_token_model_limit: many
      supported_models: all
  - name: c
    import_path: model
    args:
      model_id: x
      max_lora: 3
      queue_config: {rps_limit: -1, tps_limt: 2}
      device_group: 1
      device_mesh: {}
  - name: d
    import_path: sampler
    args: {model_id: y, sampler_type: vllm, device_group: {}, device_mesh: {}}
)yaml");
  const std::vector<std::string> expected = {
      "[s.yaml line 2] unknown key 'modle_id' (did you mean 'model_id'?)",
      "[s.yaml line 4] 'http_options': unknown key 'prot' (did you mean 'port'?)",
      "[s.yaml line 5] 'http_options.host': expected a string, got list",
      "[s.yaml line 6] 'port': must be <= 65535, got 70000",
      "[s.yaml line 7] 'proxy_location': must be one of EveryNode, HeadOnly, Disabled, got 'Everywhere'",
      "[s.yaml line 12] 'applications[0].import_path': unknown kind 'modle' (did you mean 'model'?)",
      "[s.yaml line 18] 'applications[1].args.supported_models': expected a list",
      "[s.yaml line 17] 'applications[1].args.server_config.per_token_model_limit': expected a whole number, "
      "got 'many'",
      "[s.yaml line 21] 'applications[2].args': needs 'backend'",
      "[s.yaml line 23] 'applications[2].args': unknown key 'max_lora' (did you mean 'max_loras'?)",
      "[s.yaml line 24] 'applications[2].args.queue_config.rps_limit': must be >= 0, got -1",
      "[s.yaml line 24] 'applications[2].args.queue_config': unknown key 'tps_limt' (did you mean "
      "'tps_limit'?)",
      "[s.yaml line 25] 'applications[2].args.device_group': expected names and values",
      "[s.yaml line 29] 'applications[3].args.model_id': 'y' is a second base model beside 'x' of s.yaml "
      "line 22; "
      "this server keeps one",
      "[s.yaml line 9] 'persistence.mode': this server keeps its state in a folder of its own; use 'file'"};
  EXPECT_EQ(config.errors.size(), expected.size());
  for (size_t i = 0; i < std::min(expected.size(), config.errors.size()); ++i)
    EXPECT_EQ(config.errors[i], expected[i]) << i;
}

TEST(ServerConfig, NullSaysNothing) {
  const ServerConfig config = read(R"yaml(
model_id:
model_name: ~
applications:
  - {name: m, import_path: model, args: {model_id: a, backend: mock, device_group: , device_mesh: }}
)yaml");
  EXPECT_TRUE(config.errors.empty()) << config.errors[0];
  EXPECT_EQ(values(config), (Json{{"model_id", "a"}, {"model_name", {"a"}}}));
}

TEST(ServerConfig, FilesThatAreNone) {
  EXPECT_EQ(read("a: [").errors.size(), 1u);
  EXPECT_EQ(read("- a").errors,
            std::vector<std::string>{"[s.yaml line 1] expected options as 'name: value'"});
  EXPECT_EQ(read("port: 1\nport: 2").errors.size(), 1u);
  EXPECT_EQ(read("config: other.yaml").errors,
            std::vector<std::string>{"[s.yaml line 1] a configuration file cannot name another"});
  EXPECT_EQ(read("model_name: {a: b}").errors,
            std::vector<std::string>{"[s.yaml line 1] 'model_name': expected a list of strings, got map"});
  EXPECT_EQ(read("host: a\nhttp_options: {host: caf\xE9}").errors,
            std::vector<std::string>{"[s.yaml line 2] this is not UTF-8 text"});
  EXPECT_EQ(read("applications: 3").errors,
            std::vector<std::string>{"[s.yaml line 1] 'applications': expected a list"});
  EXPECT_EQ(read("applications:\n - {name: p, import_path: processor}").errors,
            std::vector<std::string>{
                "[s.yaml line 1] 'applications': none of them is a model (import_path: model)"});
}

}  // namespace
}  // namespace twinkle::serve
