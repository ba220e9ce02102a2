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

// What is run again: the whole run, or what followed the checkpoint it was resumed from.
struct Part {
  std::string checkpoint;  // "": from the start
  int64_t after = 0;       // the record of later steps is compared
};

Part part_to_repeat(const RunManifest& recorded, const Digest& digest) {
  const Json resumed = recorded.config.value("resumed_from", Json());
  if (!resumed.is_object()) return {};
  if (resumed.value("from_start", false) && digest.first_step() == 1) return {};
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

// The record of the steps that are repeated: those after `after`, `most` of them. The hash of the weights
// belongs to the last step of all.
Digest part_of(Digest digest, int64_t after, std::optional<int64_t> most) {
  std::erase_if(digest.steps, [&](const Json& line) { return line.at("step") <= after; });
  if (!most || *most >= static_cast<int64_t>(digest.steps.size())) return digest;
  digest.steps.resize(static_cast<size_t>(*most));
  digest.closing = nullptr;
  return digest;
}

// What can not be compared is said before a run is repeated for it.
Digest recorded_digest(const std::string& path) {
  Digest digest = read_digest(path);
  if (digest.steps.empty()) {
    throw invalid_argument(
        "[replay] '" + path +
        "' holds no step: the run was stopped before its first one, and there is nothing to "
        "compare");
  }
  if (digest.torn)
    write_error("note: the last line of '" + path + "' is cut off; the steps before it count\n");
  return digest;
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
  const Digest whole = recorded_digest(run + "/digest.jsonl");
  const Part part = part_to_repeat(recorded, whole);
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
  std::optional<int64_t> asked;
  if (args.has("steps")) asked = args.get_int("steps");
  const Digest record = part_of(whole, part.after, asked);
  if (record.steps.empty() || record.first_step() != part.after + 1) {
    throw invalid_argument("[replay] '" + run + "/digest.jsonl' has no record of step " +
                           std::to_string(part.after + 1) + ", where the run begins" +
                           (part.checkpoint.empty() ? "" : " after '" + part.checkpoint + "'") +
                           ": lines are missing");
  }
  // A run that was interrupted recorded no hash of its weights: as many steps as it took are compared.
  const auto taken = static_cast<int64_t>(record.steps.size());
  if (record.closing.is_null()) options.stop_after = part.after + taken;
  if (asked && *asked > taken) write_error("note: the run recorded " + with_commas(taken) + " steps\n");
  options.repeats = recorded;
  const TrainingRunResult result = run_training(ParsedArgs(config, sources, {}), options);

  Digest repeated = read_digest(output + "/digest.jsonl");
  if (record.closing.is_null()) repeated.closing = nullptr;
  const DigestComparison comparison = compare_digests(record, repeated);
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
