// twinkle inspect for models, adapters and checkpoints.
#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/inspect.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/train/checkpoint.h"

namespace twinkle::cli {
namespace {

int show(const ParsedArgs& args, const Json& value) {
  if (args.get_bool("json")) {
    write_json(value);
    return 0;
  }
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& [key, item] : value.items()) {
    if (key == "tensor_list") continue;
    if (!item.is_null()) rows.emplace_back(key, item.is_string() ? item.get<std::string>() : item.dump());
  }
  write_out(table_text(rows));
  if (!value.contains("tensor_list")) return 0;
  rows.clear();
  for (const auto& tensor : value["tensor_list"])
    rows.emplace_back(tensor["name"], tensor["dtype"].get<std::string>() + " " + tensor["shape"].dump());
  write_out("tensors:\n" + table_text(rows, 2));
  return 0;
}

template <class Tensors>
Json tensor_list(const Tensors& tensors) {
  Json out = Json::array();
  for (const auto& t : tensors) out.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}});
  return out;
}

Json model_summary(const std::string& path, bool list_tensors) {
  const ModelFiles files = open_model_files(path);
  const ModelConfig config = model_config_from_json(files.config, path);
  Json out = {{"kind", "model"},
              {"path", path},
              {"architecture", config.architecture},
              {"layers", config.num_layers},
              {"hidden_size", config.hidden_size},
              {"heads", config.num_heads},
              {"key_value_heads", config.num_kv_heads},
              {"mlp_width", config.intermediate_size},
              {"vocabulary", config.vocab_size},
              {"context", config.max_position},
              {"rope", config.rope.type},
              {"tied_head", config.tie_word_embeddings}};
  if (config.sliding_window > 0) out["sliding_window"] = config.sliding_window;
  int64_t parameters = 0;
  for (const auto& weight : expected_weights(config)) {
    int64_t elements = 1;
    for (const int64_t size : weight.shape) elements *= size;
    parameters += elements;
  }
  out["parameters"] = parameters;
  if (!files.weights) {
    out["weights"] = "none (a config alone: --init random)";
    return out;
  }
  std::map<std::string, int64_t> dtypes;
  for (const auto& info : files.weights->tensors()) ++dtypes[info.dtype];
  out["tensors"] = dtypes;
  check_weights(config, *files.weights);
  out["weights"] = "every tensor is there and fits";
  if (list_tensors) out["tensor_list"] = tensor_list(files.weights->tensors());
  return out;
}

Json adapter_summary(const std::string& path, bool list_tensors) {
  const LoraConfig config =
      lora_config_from_json(read_json_file(path + "/adapter_config.json"), path + "/adapter_config.json");
  const SafetensorsFile file = SafetensorsFile::open(path + "/adapter_model.safetensors");
  int64_t parameters = 0;
  for (const auto& tensor : file.tensors()) parameters += tensor.num_elements();
  Json out = {{"kind", "adapter"},
              {"path", path},
              {"base_model", config.base_model_name_or_path},
              {"r", config.r},
              {"lora_alpha", config.lora_alpha},
              {"lora_dropout", config.lora_dropout},
              {"use_rslora", config.use_rslora},
              {"target_modules", config.target_modules},
              {"modules_to_save", config.modules_to_save},
              {"tensors", file.tensors().size()},
              {"parameters", parameters}};
  if (list_tensors) out["tensor_list"] = tensor_list(file.tensors());
  return out;
}

// A checkpoint, or a run's folder with checkpoints in it.
Json checkpoint_summary(const std::string& path) {
  if (!file_exists(path + "/trainer_state.json")) {
    const auto found = list_checkpoints(path);
    Json out = {{"kind", "run"}, {"path", path}, {"checkpoints", found}};
    if (file_exists(path + "/manifest.json")) {
      const Json manifest = read_json_file(path + "/manifest.json");
      for (const char* key : {"command", "model_id", "isa", "twinkle_version"}) {
        if (manifest.contains(key)) out[key] = manifest[key];
      }
    }
    return out;
  }
  const TrainerState state = read_checkpoint(path);
  Json out = {{"kind", "checkpoint"},
              {"path", path},
              {"trains", state.kind == "lora" ? "an adapter" : "all weights"},
              {"step", state.cur_step},
              {"consumed_train_samples", state.consumed_train_samples},
              {"tokens_seen", state.tokens_seen},
              {"base_model", state.base_model},
              {"loss", state.loss.name},
              {"optimizer", state.optimizer.name},
              {"scheduler", state.scheduler.name},
              {"resumable", state.has_optimizer},
              {"isa", state.isa},
              {"files", "all there, sizes and hashes agree"}};
  if (state.kind == "lora") out["adapter"] = adapter_summary(path, false);
  return out;
}

int inspect(const ParsedArgs& args) {
  const std::string path = args.get_string("path");
  const std::string kind = inspect_kind(path, args.get_string("kind"));
  check_inspect_options(args, kind);
  const bool tensors = args.get_bool("tensors");
  if (kind == "model") return show(args, model_summary(path, tensors));
  if (kind == "adapter") return show(args, adapter_summary(path, tensors));
  if (kind == "checkpoint") return show(args, checkpoint_summary(path));
  throw internal_error("[inspect] '" + kind + "' is not for this program");
}

const AddRun run_inspect("inspect", inspect);

}  // namespace
}  // namespace twinkle::cli
