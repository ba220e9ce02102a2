// A tiny model with rows, and runs of the program on them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/run_program.h"
#include "tests/tiny_model.h"
#include "twinkle/core/files.h"

namespace twinkle {

using test::Ran;
using test::run_program;
using test::write_text;
using Words = std::vector<std::string>;

class RunOptions : public ::testing::Test {
 protected:
  void SetUp() override {
    // An untied head, so that a broken row of the embedding spoils only the texts it is in.
    test::write_tiny_model(root_ + "/config");
    Json config = test::tiny_config();
    config["tie_word_embeddings"] = false;
    write_text(root_ + "/config/config.json", config.dump());
    write_text(root_ + "/text.txt", "to be or not to be that is the question");
    const Ran ran = run_program("twinkle", {"pt", "--model-id", root_ + "/config", "--init", "random",
                                            "--dataset-id", root_ + "/text.txt", "--max-length", "32",
                                            "--max-steps", "1", "--output-dir", root_ + "/pt"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    write_rows("rows.jsonl", -1);
  }

  std::string model() const { return root_ + "/pt/checkpoint-step-1"; }

  // Ten rows; the answer of row `broken` has a '~'.
  void write_rows(const std::string& name, int broken) const {
    std::string rows;
    for (int i = 0; i < 10; ++i) {
      rows +=
          Json{{"query", "question " + std::to_string(i)},
               {"response", std::string(static_cast<size_t>(3 + 5 * i % 17), 'a') + (i == broken ? "~" : "")}}
              .dump() +
          "\n";
    }
    write_text(root_ + "/" + name, rows);
  }

  Ran sft(const std::string& name, const Words& more, const std::string& rows = "rows.jsonl") const {
    Words args = {"sft",          "--model-id",      model(), "--dataset-id", root_ + "/" + rows, "--lr",
                  "3e-3",         "--batch-size",    "2",     "--no-shuffle", "--max-length",     "128",
                  "--output-dir", root_ + "/" + name};
    args.insert(args.end(), more.begin(), more.end());
    return run_program("twinkle", args);
  }
  std::string run(const std::string& name, const Words& more, const std::string& rows = "rows.jsonl") const {
    const Ran ran = sft(name, more, rows);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return digest(name);
  }
  std::string digest(const std::string& name) const {
    return read_file(root_ + "/" + name + "/digest.jsonl");
  }
  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> out;
    const std::string text = read_file(root_ + "/" + name + "/metrics.jsonl");
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
      out.push_back(Json::parse(text.substr(begin, text.find('\n', begin) - begin)));
    return out;
  }
  std::vector<std::string> checkpoints(const std::string& name) const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + "/" + name)) {
      if (entry.is_directory()) out.push_back(entry.path().filename().string());
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  // The lines of the last steps and of the weights.
  static std::string tail(const std::string& text, int64_t lines) {
    size_t at = text.size();
    while (lines-- > 0 && at > 0) at = at < 2 ? 0 : text.rfind('\n', at - 2) + 1;
    return text.substr(at);
  }
  Json replayed(const std::string& name) const {
    const Ran ran = run_program("twinkle", {"replay", root_ + "/" + name, "--json"});
    return ran.code <= 1 && !ran.out.empty() ? Json::parse(ran.out) : Json(ran.err);
  }

  const test::TempDir temp_;
  const std::string root_ = temp_.path();
};

}  // namespace twinkle
