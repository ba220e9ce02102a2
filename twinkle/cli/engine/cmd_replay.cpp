// twinkle replay: a run again from its manifest, compared bit for bit.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/engine/training_run.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/train/manifest.h"

namespace twinkle::cli {
namespace {

// A folder that goes away with the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "twinkle-replay-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw unavailable("[replay] cannot make a temporary folder; give --output-dir");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // nothing can be done about a folder that will not go
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The run's folder, given itself or a checkpoint in it.
std::string run_folder(const std::string& given) {
  for (const std::string& folder :
       {given, std::filesystem::path(given).lexically_normal().parent_path().string()}) {
    if (file_exists(folder + "/manifest.json") && file_exists(folder + "/digest.jsonl")) return folder;
  }
  throw not_found("[replay] '" + given +
                  "' has no manifest.json and digest.jsonl; give the --output-dir of a run");
}

void check_same_inputs(const RunManifest& recorded) {
  const std::string hash = model_files_hash(recorded.model_id);
  if (hash != recorded.model_hash) {
    throw conflict("[replay] the model '" + recorded.model_id + "' is not the one the run used (SHA-256 " +
                   hash.substr(0, 12) + "…, the run's " + recorded.model_hash.substr(0, 12) + "…)");
  }
  if (recorded.isa != isa_name(active_isa())) {
    throw conflict("[replay] the run used the instruction set " + recorded.isa + ", this one would use " +
                   std::string(isa_name(active_isa())) + "; bits agree within one: give --isa " +
                   recorded.isa);
  }
}

// What is run again: the whole run, or what followed the checkpoint it was resumed from.
struct Part {
  std::string checkpoint;  // "": from the start
  int64_t after = 0;       // the record of later steps is compared
};

Part part_to_repeat(const RunManifest& recorded, const std::string& digest) {
  const Json resumed = recorded.config.value("resumed_from", Json());
  if (!resumed.is_object()) return {};
  const Json first = parse_json(digest.substr(0, digest.find('\n')), "digest.jsonl");
  if (resumed.value("from_start", false) && first.is_object() && first.value("step", 0) == 1) return {};
  Part part{resumed.value("checkpoint", ""), resumed.value("step", int64_t{0})};
  const std::string state = part.checkpoint + "/trainer_state.json";
  if (!file_exists(state)) {
    throw not_found("[replay] the run went on from '" + part.checkpoint +
                    "', which is no longer there: without it the run cannot be repeated");
  }
  if (sha256_hex(read_file(state)) != resumed.value("state_sha256", "")) {
    throw conflict("[replay] the run went on from '" + part.checkpoint +
                   "', which holds another checkpoint now: the run cannot be repeated");
  }
  return part;
}

// The record without the steps up to `step`.
std::string lines_after(const std::string& digest, int64_t step) {
  std::string kept;
  for (size_t begin = 0; begin < digest.size();) {
    const size_t end = std::min(digest.find('\n', begin), digest.size() - 1) + 1;
    const std::string line = digest.substr(begin, end - begin);
    const Json value = Json::parse(line, nullptr, false);
    if (!value.is_object() || !value.contains("step") || value["step"] > step) kept += line;
    begin = end;
  }
  return kept;
}

// The lines of the first steps; all of them, with the hash of the weights, when the run was no longer.
std::string first_steps(const std::string& digest, int64_t steps) {
  size_t end = 0;
  for (int64_t line = 0; line < steps; ++line) {
    const size_t next = digest.find('\n', end);
    if (next == std::string::npos) return digest;
    end = next + 1;
  }
  const bool only_the_hash_is_left = digest.find('\n', end) == digest.size() - 1;
  return only_the_hash_is_left ? digest : digest.substr(0, end);
}

int replay(const ParsedArgs& args) {
  const std::string run = run_folder(args.get_string("run"));
  const RunManifest recorded =
      RunManifest::from_json(read_json_file(run + "/manifest.json"), run + "/manifest.json");
  apply_machine(args);
  check_same_inputs(recorded);

  std::optional<TemporaryFolder> temporary;
  std::string output = args.has("output_dir") ? args.get_string("output_dir") : "";
  if (output.empty()) output = temporary.emplace().path();
  if (std::filesystem::weakly_canonical(output) == std::filesystem::weakly_canonical(run)) {
    throw invalid_argument("[" + args.source("output_dir") +
                           "] 'output_dir': is the run itself; give another folder");
  }
  if (!recorded.config.contains("options") || !recorded.config.contains("given")) {
    throw invalid_argument("[" + run + "/manifest.json] 'config': expected the options of a run");
  }
  Json config = recorded.config["options"];
  config["output_dir"] = output;
  std::string record = read_file(run + "/digest.jsonl");
  const Part part = part_to_repeat(recorded, record);
  if (part.checkpoint.empty()) {
    config["resume_from_checkpoint"] = nullptr;
    config["resume_only_model"] = config["ignore_data_skip"] = false;
  } else {
    config["resume_from_checkpoint"] = part.checkpoint;
  }
  for (const char* name : {"threads", "device"}) {
    if (args.given(name)) config[name] = args.get(name);
  }
  config["isa"] = recorded.isa;
  std::map<std::string, std::string, std::less<>> sources;
  for (const auto& name : recorded.config["given"]) sources[name.get<std::string>()] = run + "/manifest.json";
  TrainingRunOptions options{
      .command = recorded.command, .quiet = args.get_bool("json"), .checkpoints = false};
  // A run that was interrupted recorded no hash of its weights: as many steps as it took are compared.
  record = lines_after(record, part.after);
  const bool ended = record.find("\"weights_sha256\"") != std::string::npos;
  if (args.has("steps") || !ended) {
    const auto taken = static_cast<int64_t>(std::count(record.begin(), record.end(), '\n'));
    const int64_t steps = args.has("steps") ? args.get_int("steps") : std::max<int64_t>(1, taken);
    options.stop_after = part.after + steps;
    record = first_steps(record, steps);
  }
  const std::string dataset = config.value("dataset_id", "");
  if (const auto hash = recorded.data_hashes.find(dataset); hash != recorded.data_hashes.end())
    options.dataset_hash = hash->second;
  const TrainingRunResult result = run_training(ParsedArgs(config, sources, {}), options);

  std::string repeated = read_file(output + "/digest.jsonl");
  if (!ended) repeated = first_steps(repeated, *options.stop_after - part.after);
  if (const size_t hash = repeated.find("{\"steps\""); !ended && hash != std::string::npos)
    repeated.resize(hash);
  const std::string digest = output + "/recorded.jsonl", again = output + "/repeated.jsonl";
  write_file_atomic(digest, record);
  write_file_atomic(again, repeated);
  const DigestComparison comparison = compare_digests(digest, again);
  if (args.get_bool("json")) {
    write_json({{"equal", comparison.equal},
                {"steps", comparison.steps},
                {"difference", comparison.difference.empty() ? Json(nullptr) : Json(comparison.difference)},
                {"weights_sha256", result.weights_sha256}});
  } else if (comparison.equal) {
    write_out("the same bits in all " + with_commas(comparison.steps) + " steps" +
              (part.checkpoint.empty() ? "" : " after " + part.checkpoint) + "\n");
  } else {
    write_out("the runs differ: " + comparison.difference + "\n");
  }
  return comparison.equal ? 0 : 1;
}

const AddRun run_replay("replay", replay);

}  // namespace
}  // namespace twinkle::cli
