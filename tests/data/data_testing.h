// What the tests of data sets share: a template whose tokens are bytes, and a folder that goes away.
#pragma once

#include <gtest/gtest.h>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/data/dataset.h"

namespace twinkle {

// Every byte of every message is a token; the bytes of assistant messages, and all of plain text, are trained
// on.
class ByteTemplate : public Template {
 public:
  explicit ByteTemplate(TemplateOptions options = {}) : options_(std::move(options)) {}
  std::vector<InputFeature> encode(const Trajectory& trajectory) const override {
    InputFeature f;
    std::vector<bool> trained;
    for (const auto& message : trajectory.messages) {
      for (const char c : message.at("content").get<std::string>()) {
        f.input_ids.push_back(static_cast<unsigned char>(c));
        trained.push_back(message.at("role") == "assistant" || !options_.use_chat_template);
      }
    }
    const auto max = static_cast<size_t>(options_.max_length);
    for (size_t t = 0; t < trained.size(); ++t) {
      f.labels.push_back(t + 1 < trained.size() && trained[t + 1] ? f.input_ids[t + 1] : kIgnoreIndex);
    }
    if (f.input_ids.size() <= max) return {f};
    if (options_.truncation_strategy == "delete") return {};
    if (options_.truncation_strategy == "raise")
      throw invalid_argument("[template] is longer than max_length");
    std::vector<InputFeature> parts;
    for (size_t begin = 0; begin < f.input_ids.size(); begin += max) {
      const size_t end = std::min(begin + max, f.input_ids.size());
      InputFeature part;
      part.input_ids.assign(f.input_ids.begin() + static_cast<long>(begin),
                            f.input_ids.begin() + static_cast<long>(end));
      part.labels.assign(f.labels.begin() + static_cast<long>(begin),
                         f.labels.begin() + static_cast<long>(end));
      parts.push_back(part);
    }
    return parts;
  }
  InputFeature encode_prompt(const Trajectory& trajectory) const override {
    InputFeature f;
    for (const auto& message : trajectory.messages) {
      for (const char c : message.at("content").get<std::string>())
        f.input_ids.push_back(static_cast<unsigned char>(c));
    }
    f.labels.assign(f.input_ids.size(), kIgnoreIndex);
    return f;
  }
  std::string render(const Trajectory&, bool) const override { return ""; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string out;
    for (const int32_t id : ids) out.push_back(static_cast<char>(id));
    return out;
  }
  const Tokenizer& tokenizer() const override { throw internal_error("no tokenizer"); }
  const TemplateOptions& options() const override { return options_; }
  std::vector<int32_t> stop_ids() const override { return {}; }

 private:
  TemplateOptions options_;
};

class DataFolderTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    test::write_text(in_dir(name), bytes);
    return in_dir(name);
  }
  std::string in_dir(const std::string& name) const { return dir_ / name; }
  // The message, with the folder of the test cut out.
  std::string error_of(const std::function<void()>& fn) const {
    return dir_.cut(test::thrown(fn, test::kAnyKind));
  }
  std::vector<Json> rows_of(const DatasetMeta& meta) {
    const Dataset data(meta);
    std::vector<Json> rows;
    for (int64_t i = 0; i < data.size(); ++i) rows.push_back(data.row(i));
    return rows;
  }
  const test::TempDir dir_;
};

using test::test_data;

}  // namespace twinkle
