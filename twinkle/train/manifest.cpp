#include "twinkle/train/manifest.h"

#include <torch/version.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/isa.h"

namespace twinkle {
namespace {

std::string bits_text(double x) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "%016llx",
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(x)));
  return buffer;
}

// What is not a number has many bits; there is one way to have none.
Json bits(std::optional<double> x) { return x && !std::isnan(*x) ? Json(bits_text(*x)) : Json(nullptr); }

std::vector<Json> lines_of(const Digest& digest) {
  std::vector<Json> lines = digest.steps;
  if (!digest.closing.is_null()) lines.push_back(digest.closing);
  return lines;
}

}  // namespace

RunManifest RunManifest::of_this_program() {
  RunManifest m;
  m.isa = std::string(isa_name(active_isa()));
  m.twinkle_version = TWINKLE_VERSION;
  m.torch_version = TORCH_VERSION;
  m.compiler = __VERSION__;
  return m;
}

Json RunManifest::to_json() const {
  Json out = {{"manifest_version", 1},
              {"command", command},
              {"config", config},
              {"model_id", model_id},
              {"model_hash", model_hash},
              {"data_hashes", data_hashes},
              {"seeds", seeds},
              {"isa", isa},
              {"twinkle_version", twinkle_version},
              {"torch_version", torch_version},
              {"compiler", compiler}};
  if (eval_data_hashes) out["eval_data_hashes"] = *eval_data_hashes;
  return out;
}

std::optional<std::string> RunManifest::training_data_hash() const {
  const Json options = config.is_object() ? config.value("options", Json::object()) : Json::object();
  const Json path = options.is_object() ? options.value("dataset_id", Json()) : Json();
  if (!path.is_string()) return std::nullopt;
  if (!eval_data_hashes && options.value("eval_dataset_id", Json()) == path) return std::nullopt;
  const auto found = data_hashes.find(path.get<std::string>());
  return found == data_hashes.end() ? std::nullopt : std::optional(found->second);
}

RunManifest RunManifest::from_json(const Json& value, const std::string& where) {
  const auto need = [&](const char* key) -> const Json& {
    if (!value.is_object() || !value.contains(key))
      throw invalid_argument("[manifest] '" + where + "' lacks '" + key + "'");
    return value.at(key);
  };
  if (need("manifest_version") != Json(1)) {
    throw invalid_argument("[manifest] '" + where + "' has version " + need("manifest_version").dump() +
                           "; this program reads version 1");
  }
  RunManifest m;
  try {
    m.command = need("command").get<std::string>();
    m.config = need("config");
    m.model_id = need("model_id").get<std::string>();
    m.model_hash = need("model_hash").get<std::string>();
    m.data_hashes = need("data_hashes").get<std::map<std::string, std::string>>();
    if (value.contains("eval_data_hashes"))
      m.eval_data_hashes = value["eval_data_hashes"].get<std::map<std::string, std::string>>();
    m.seeds = need("seeds").get<std::map<std::string, uint64_t>>();
    m.isa = need("isa").get<std::string>();
    m.twinkle_version = need("twinkle_version").get<std::string>();
    m.torch_version = need("torch_version").get<std::string>();
    m.compiler = need("compiler").get<std::string>();
  } catch (const Json::type_error& e) {
    throw invalid_argument("[manifest] '" + where + "': " + e.what());
  }
  return m;
}

std::string model_files_hash(const std::string& model_path) {
  if (!is_directory(model_path)) return sha256_hex(MappedFile(model_path).text());
  std::map<std::string, std::string> hashes;
  for (const auto& entry : std::filesystem::directory_iterator(model_path)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name.ends_with(".safetensors"))
      hashes[name] = sha256_hex(MappedFile(entry.path().string()).text());
  }
  std::string all;
  for (const auto& [name, hash] : hashes) all += name + ":" + hash + "\n";
  return sha256_hex(all);
}

std::string weights_hash(const std::vector<TrainedTensor>& params) {
  std::string all;
  for (const auto& param : params) {
    const at::Tensor host = param.value.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(host.const_data_ptr()),
                                 static_cast<size_t>(host.nbytes()));
    all += param.name + ":" + sha256_hex(bytes) + "\n";
  }
  return sha256_hex(all);
}

void DigestWriter::step(int64_t step, std::optional<double> loss, std::optional<double> grad_norm) {
  lines_.write({{"step", step}, {"loss", bits(loss)}, {"grad_norm", bits(grad_norm)}});
}

void DigestWriter::finish(int64_t steps, const std::string& weights_sha256) {
  lines_.write({{"steps", steps}, {"weights_sha256", weights_sha256}});
}

Digest read_digest(const std::string& path) {
  Digest digest;
  const std::string text = read_file(path);
  size_t begin = 0;
  int64_t number = 0;
  const auto refuse = [&](const std::string& what) {
    return invalid_argument("[digest] '" + path + "' line " + std::to_string(number) + " " + what);
  };
  for (size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    ++number;
    Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
    const bool closes = line.is_object() && line.contains("weights_sha256");
    if (!digest.closing.is_null()) throw refuse("follows the line that closes the run");
    if (closes) {
      digest.closing = std::move(line);
      continue;
    }
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer())
      throw refuse("is not one of a digest: the file was damaged");
    const auto step = line["step"].get<int64_t>(), wanted = digest.last_step() + 1;
    if (!digest.steps.empty() && step != wanted) {
      throw refuse("has step " + std::to_string(step) + " where step " + std::to_string(wanted) +
                   " belongs: lines are missing or were added");
    }
    digest.steps.push_back(std::move(line));
  }
  digest.torn = begin < text.size();
  return digest;
}

DigestComparison compare_digests(const Digest& recorded, const Digest& repeated) {
  const auto a = lines_of(recorded), b = lines_of(repeated);
  DigestComparison result;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size()) {
      result.difference = std::string("the ") + (i >= a.size() ? "recorded" : "repeated") +
                          " run ends after " + std::to_string(i) + " lines, the other goes on with " +
                          (i >= a.size() ? b[i] : a[i]).dump();
      return result;
    }
    if (a[i] != b[i]) {
      result.difference = "recorded " + a[i].dump() + ", repeated " + b[i].dump();
      return result;
    }
    if (a[i].contains("step")) ++result.steps;
  }
  result.equal = !a.empty();
  if (a.empty()) result.difference = "both are empty";
  return result;
}

}  // namespace twinkle
