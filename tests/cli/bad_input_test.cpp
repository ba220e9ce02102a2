// labels: slow
// Bad input, as data: every case of bad_input.json is a command on a tiny model, the exit code and what it
// must say. A case may lay files first (`files`), in a folder of its own. Words in braces stand for paths:
// {dir} the case's folder, {model} a trained tiny model, {other} a wider one, {config} the first without
// weights, {adapter} and {full} checkpoints, {rows} a good data set.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/cli/run_program.h"
#include "tests/tiny_model.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"

namespace twinkle {
namespace {

using test::run_program;
using test::write_text;

const char* const kRows =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
{"messages": [{"role": "user", "content": "who"}, {"role": "assistant", "content": "me"}]}
)";

// The models and checkpoints that all cases share.
class Fixture {
 public:
  Fixture() {
    test::write_tiny_model(root_ + "/config");
    write_text(root_ + "/text.txt",
               "to be or not to be that is the question whether it is nobler in the mind to suffer");
    write_text(root_ + "/rows.jsonl", kRows);
    expect_ok({"pt", "--model-id", root_ + "/config", "--init", "random", "--dataset-id", root_ + "/text.txt",
               "--max-length", "32", "--max-steps", "1", "--output-dir", root_ + "/pt"});
    test::write_tiny_model(root_ + "/wide");
    Json wide = test::tiny_config();
    wide["intermediate_size"] = 64;
    write_text(root_ + "/wide/config.json", wide.dump());
    expect_ok({"pt", "--model-id", root_ + "/wide", "--init", "random", "--dataset-id", root_ + "/text.txt",
               "--max-length", "32", "--max-steps", "1", "--output-dir", root_ + "/pt-wide"});
    expect_ok({"sft", "--model-id", root_ + "/pt/checkpoint-step-1", "--dataset-id", root_ + "/rows.jsonl",
               "--max-steps", "2", "--batch-size", "2", "--output-dir", root_ + "/sft"});
  }

  std::string fill(std::string text, const std::string& dir) const {
    const std::vector<std::pair<std::string, std::string>> words = {
        {"{dir}", dir},
        {"{model}", root_ + "/pt/checkpoint-step-1"},
        {"{full}", root_ + "/pt/checkpoint-step-1"},
        {"{other}", root_ + "/pt-wide/checkpoint-step-1"},
        {"{config}", root_ + "/config"},
        {"{adapter}", root_ + "/sft/checkpoint-step-2"},
        {"{run}", root_ + "/sft"},
        {"{rows}", root_ + "/rows.jsonl"}};
    for (const auto& [word, path] : words) {
      for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + path.size())) {
        text.replace(at, word.size(), path);
      }
    }
    return text;
  }
  const std::string& root() const { return root_; }
  const std::string& problem() const { return problem_; }

 private:
  void expect_ok(const std::vector<std::string>& args) {
    const test::Ran ran = run_program("twinkle", args);
    if (ran.code != 0) problem_ += ran.err;
  }
  const test::TempDir temp_;
  const std::string root_ = temp_.path();
  std::string problem_;
};

const Fixture& fixture() {
  static const Fixture made;
  return made;
}

// Files of a case: text, or a change to a file of the fixture.
//   "name": "text"                       the text
//   "name": {"copy": "{model}/x"}        a copy, then {"cut": bytes} or {"replace": ["from", "to"]} or
//   {"append": "x"}
void lay_file(const std::string& path, const Json& what, const std::string& dir) {
  if (what.is_string()) return write_text(path, fixture().fill(what.get<std::string>(), dir));
  std::string text = read_file(fixture().fill(what.at("copy").get<std::string>(), dir));
  if (what.contains("cut")) text.resize(text.size() - what["cut"].get<size_t>());
  if (what.contains("append")) text += what["append"].get<std::string>();
  if (what.contains("replace")) {
    const std::string from = what["replace"][0], to = what["replace"][1];
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << path << " has no " << from;
    text.replace(at, from.size(), to);
  }
  write_text(path, text);
}

std::vector<Json> all_cases() {
  const Json list = read_json_file(std::string(TWINKLE_SOURCE_DIR) + "/tests/cli/bad_input.json");
  return {list.begin(), list.end()};
}

class BadInput : public ::testing::TestWithParam<size_t> {};

TEST_P(BadInput, IsRefusedWithAReason) {
  ASSERT_EQ(fixture().problem(), "");
  const Json c = all_cases()[GetParam()];
  const std::string dir = fixture().root() + "/case" + std::to_string(GetParam());
  std::filesystem::create_directories(dir);
  if (c.contains("files")) {
    for (const auto& [name, what] : c["files"].items()) lay_file(dir + "/" + name, what, dir);
  }
  std::vector<std::string> args;
  for (const auto& word : c.at("argv")) args.push_back(fixture().fill(word.get<std::string>(), dir));
  std::vector<std::pair<std::string, std::string>> environment;
  if (c.contains("environment")) {
    for (const auto& [name, value] : c["environment"].items())
      environment.emplace_back(name, value.get<std::string>());
  }
  const test::Ran ran = run_program("twinkle", args, environment, c.value("stdin", ""));
  EXPECT_EQ(ran.code, c.value("code", 2)) << ran.err;
  for (const auto& part : c.at("says")) {
    const std::string want = fixture().fill(part.get<std::string>(), dir);
    EXPECT_NE((ran.err + ran.out).find(want), std::string::npos)
        << "wanted: " << want << "\n   got: " << ran.err;
  }
  // What was refused left nothing behind.
  for (const auto& [key, path] : std::vector<std::pair<std::string, std::string>>{{"out", dir + "/out"}}) {
    if (ran.code == 2 && !c.value("writes", false)) {
      EXPECT_FALSE(file_exists(path)) << key;
    }
  }
  std::filesystem::remove_all(dir);
}

std::string case_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = all_cases()[info.param].at("name");
  for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, BadInput, ::testing::Range<size_t>(0, all_cases().size()), case_name);

}  // namespace
}  // namespace twinkle
