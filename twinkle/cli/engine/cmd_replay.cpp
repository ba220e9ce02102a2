// twinkle replay: a run again from its manifest, compared bit for bit.
#include <stdlib.h>

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
  config["resume_from_checkpoint"] = nullptr;  // from the start, however often the run was resumed
  for (const char* name : {"threads", "device"}) {
    if (args.given(name)) config[name] = args.get(name);
  }
  config["isa"] = recorded.isa;
  std::map<std::string, std::string, std::less<>> sources;
  for (const auto& name : recorded.config["given"]) sources[name.get<std::string>()] = run + "/manifest.json";
  TrainingRunOptions options{
      .command = recorded.command, .quiet = args.get_bool("json"), .checkpoints = false};
  if (args.has("steps")) options.stop_after = args.get_int("steps");
  const TrainingRunResult result = run_training(ParsedArgs(config, sources, {}), options);

  std::string digest = run + "/digest.jsonl";
  if (args.has("steps")) {
    const std::string first = first_steps(read_file(digest), args.get_int("steps"));
    digest = output + "/recorded.jsonl";
    write_file_atomic(digest, first);
  }
  const DigestComparison comparison = compare_digests(digest, output + "/digest.jsonl");
  if (args.get_bool("json")) {
    write_json({{"equal", comparison.equal},
                {"steps", comparison.steps},
                {"difference", comparison.difference.empty() ? Json(nullptr) : Json(comparison.difference)},
                {"weights_sha256", result.weights_sha256}});
  } else if (comparison.equal) {
    write_out("the same bits in all " + with_commas(comparison.steps) + " steps\n");
  } else {
    write_out("the runs differ: " + comparison.difference + "\n");
  }
  return comparison.equal ? 0 : 1;
}

const AddRun run_replay("replay", replay);

}  // namespace
}  // namespace twinkle::cli
