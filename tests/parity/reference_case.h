// One case of build/parity, as tests/parity/reference.py describes it: token sequences, labels, losses and
// the tensors that transformers and PEFT computed.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/data/types.h"

namespace twinkle::parity {

namespace fs = std::filesystem;

inline constexpr double kTolerance = 1e-4;       // logits, loss, gradients, one step
inline constexpr double kTrainTolerance = 1e-3;  // twenty steps

inline fs::path references() { return TWINKLE_BINARY_DIR "/parity"; }

/// Largest difference over the largest reference value. NaN counts as infinite.
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  if (got.sizes() != expected.sizes()) return HUGE_VAL;
  const double scale = expected.abs().max().item<double>();
  const double error = (got - expected).abs().max().item<double>();
  if (!std::isfinite(error)) return HUGE_VAL;
  return error == 0 ? 0 : error / scale;
}

/// The same in the 2-norm: of weights after many AdamW steps, where single elements whose gradient is near
/// zero take either sign of a full step.
inline double relative_norm_error(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  if (got.sizes() != expected.sizes()) return HUGE_VAL;
  const double error = (got - expected).norm().item<double>();
  if (!std::isfinite(error)) return HUGE_VAL;
  return error == 0 ? 0 : error / expected.norm().item<double>();
}

class ReferenceCase {
 public:
  explicit ReferenceCase(const fs::path& folder)
      : folder_(folder),
        json_(read_json_file((folder / "case.json").string())),
        file_(SafetensorsFile::open((folder / "values.safetensors").string())) {
    for (size_t i = 0; i < json_["sequences"].size(); ++i) {
      const auto ids = json_["sequences"][i].get<std::vector<int32_t>>();
      auto labels = json_["labels"][i].get<std::vector<int32_t>>();
      labels.erase(labels.begin());  // the reference does not shift its labels, features do
      labels.push_back(kIgnoreIndex);
      features_.push_back({.input_ids = ids, .labels = labels});
    }
  }

  std::string name() const { return folder_.filename().string(); }
  std::string model_path() const { return (folder_ / json_["model"].get<std::string>()).string(); }
  std::string adapter_path() const { return (folder_ / "adapter").string(); }
  const Json& json() const { return json_; }
  const std::vector<InputFeature>& features() const { return features_; }
  /// The sequences that training step `step` uses.
  std::vector<InputFeature> step_features(int64_t step) const {
    const auto n = static_cast<int64_t>(features_.size());
    return {features_[static_cast<size_t>(step % n)], features_[static_cast<size_t>((step + 1) % n)]};
  }
  bool has_full_training() const { return json_.contains("full_losses"); }
  at::Tensor value(const std::string& name) const {
    const SafeTensor* tensor = file_.find(name);
    if (tensor == nullptr) throw std::runtime_error("the reference has no " + name);
    at::Tensor out = at::empty(tensor->shape, at::kFloat);
    std::memcpy(out.data_ptr(), tensor->data.data(), tensor->data.size());
    return out;
  }
  /// Names after `prefix` of all values that begin with it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const SafeTensor& tensor : file_.tensors()) {
      if (tensor.name.starts_with(prefix)) found.push_back(tensor.name.substr(prefix.size()));
    }
    return found;
  }

 private:
  fs::path folder_;
  Json json_;
  SafetensorsFile file_;
  std::vector<InputFeature> features_;
};

/// Folders of all cases, for INSTANTIATE_TEST_SUITE_P; the fixture parity_references made them.
inline std::vector<std::string> all_cases() {
  std::vector<std::string> found;
  std::error_code none;
  for (const char* kind : {"tiny", "real"}) {
    for (const auto& entry : fs::directory_iterator(references() / kind, none)) {
      if (fs::exists(entry.path() / "case.json")) found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline std::vector<std::string> full_training_cases() {
  std::vector<std::string> found;
  for (const std::string& path : all_cases()) {
    if (ReferenceCase(path).has_full_training()) found.push_back(path);
  }
  return found;
}

inline std::string case_name(const testing::TestParamInfo<std::string>& info) {
  return fs::path(info.param).filename().string();
}

inline void expect_losses(const std::vector<double>& got, const Json& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto reference = expected[i].get<double>();
    EXPECT_NEAR(got[i], reference, kTrainTolerance * std::max(reference, 0.1)) << what << " at step " << i;
  }
}

}  // namespace twinkle::parity
