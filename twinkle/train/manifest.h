// What a run was and what it computed, so that it can be run again and compared bit for bit.
//
//   {run}/manifest.json   versions, instruction set, seeds, data hashes, the effective configuration
//   {run}/digest.jsonl    one line a step: the bits of loss and gradient norm; at the end a hash of the
//   weights
//
// The number of threads is not in it: it changes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/train/optimizer.h"
#include "twinkle/train/progress.h"

namespace twinkle {

struct RunManifest {
  std::string command;               // "sft", "pt"
  Json config = Json::object();      // every effective option
  std::string model_id, model_hash;  // model_hash: see model_files_hash
  // Path of the rows -> Dataset::content_hash(). An older manifest has those of the rows to evaluate on in
  // `data_hashes`, too.
  std::map<std::string, std::string> data_hashes;
  std::optional<std::map<std::string, std::string>> eval_data_hashes;
  std::map<std::string, uint64_t> seeds;  // "data", "lora", ...
  std::string isa;                        // the active instruction set when it was made
  std::string twinkle_version, torch_version, compiler;

  /// Fills in versions and the instruction set.
  static RunManifest of_this_program();
  Json to_json() const;
  static RunManifest from_json(const Json& value, const std::string& where);
  /// Of the rows that were trained on, by the recorded options; nothing when it is not known: an older
  /// manifest whose rows to evaluate on lay at the same path has only the hash of those.
  std::optional<std::string> training_data_hash() const;
};

/// SHA-256 over the sorted names and SHA-256 of the weight and config files of a model (a directory or .gguf
/// file).
std::string model_files_hash(const std::string& model_path);

/// SHA-256 over the names and bytes of all trained tensors, in order.
std::string weights_hash(const std::vector<TrainedTensor>& params);

/// Writes digest.jsonl as a run goes.
class DigestWriter {
 public:
  /// `keep_up_to_step`: a resumed run continues the file of the run before.
  DigestWriter(const std::string& path, int64_t keep_up_to_step = 0) : lines_(path, keep_up_to_step) {}
  void step(int64_t step, std::optional<double> loss, std::optional<double> grad_norm);
  void finish(int64_t steps, const std::string& weights_sha256);

 private:
  JsonlWriter lines_;
};

/// A digest.jsonl as a run left it.
struct Digest {
  std::vector<Json> steps;  // the lines of steps, one after the other without a gap
  Json closing = nullptr;   // the line with the hash of the weights; null when the run did not end
  bool torn = false;        // the last line was cut off; it is left out
  int64_t first_step() const { return steps.empty() ? 0 : steps.front().at("step").get<int64_t>(); }
  int64_t last_step() const { return steps.empty() ? 0 : steps.back().at("step").get<int64_t>(); }
};
/// invalid_argument naming the line that is none of a digest, or before which a step is missing.
Digest read_digest(const std::string& path);

struct DigestComparison {
  bool equal = false;
  int64_t steps = 0;       // compared
  std::string difference;  // the first, for people; "" when equal
};
/// Compares line by line.
DigestComparison compare_digests(const Digest& recorded, const Digest& repeated);

}  // namespace twinkle
