// The program `twinkle` as a user meets it: help, exit codes, what goes to which stream, and that it starts
// fast.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "tests/cli/run_program.h"
#include "tests/needs.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"

namespace twinkle {
namespace {

using test::Ran;
using test::run_program;

const std::string kRows = TWINKLE_SOURCE_DIR "/cookbook/data/self_cognition.jsonl";

TEST(Program, HelpGoesToStandardOutput) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{}, {"--help"}, {"-h"}, {"help"}}) {
    const Ran ran = run_program("twinkle", args);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_NE(ran.out.find("  sft        Fine-tune a model on conversations"), std::string::npos);
  }
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"sft", "--help"}, {"help", "sft"}, {"sft", "--lr", "x", "-h"}}) {
    const Ran ran = run_program("twinkle", args);
    EXPECT_EQ(ran.code, 0);
    EXPECT_NE(ran.out.find("  --learning-rate, --lr X"), std::string::npos);
  }
  const Json help = Json::parse(run_program("twinkle", {"sft", "--help", "--json"}).out);
  EXPECT_EQ(help.at("groups")[0].at("options")[0].at("name"), "model_id");
  EXPECT_TRUE(run_program("twinkle", {"--version"}).out.starts_with("twinkle 0."));
}

TEST(Program, MistakesAreTheUsersAndGoToStandardError) {
  struct Case {
    std::vector<std::string> args;
    std::string want;
  };
  const std::vector<Case> cases = {
      {{"sfft"}, "error: [twinkle] unknown command 'sfft' (did you mean 'sft'?)\n"},
      {{"help", "sampel"}, "error: [twinkle] unknown command 'sampel' (did you mean 'sample'?)\n"},
      {{"--bogus"},
       "error: [twinkle] unknown command '--bogus' (known: bench, doctor, export, inspect, list, merge, "
       "plan, pt, "
       "render, replay, "
       "sample, score, sft, tokenize)\n"},
      {{"sft", "--lerning-rate", "1"},
       "error: [command line] unknown option '--lerning-rate' (did you mean '--learning-rate'?)\n"},
      {{"sft"},
       "error: [twinkle sft] needs --model-id: Folder with config.json and *.safetensors, or a .gguf "
       "file.\n"},
      {{"inspect", "absent.jsonl"}, "error: [inspect] no file or folder 'absent.jsonl'\n"},
      {{"inspect", "/usr/bin/env"}, "error: [inspect] '/usr/bin/env': not a kind of file we know"},
      {{"list", "preprocessor", "AlpacaProcesor"}, "error: "},
      {{"tokenize", "x", "--model-id", "absent"},
       "error: [command line] 'model_id': no file or folder 'absent'"},
      {{"render", "--model-id", "absent", "--prompt", "x"},
       "error: [command line] 'model_id': no file or folder 'absent'"},
  };
  for (const auto& c : cases) {
    const Ran ran = run_program("twinkle", c.args);
    EXPECT_EQ(ran.code, 2) << c.args.back();
    EXPECT_EQ(ran.out, "");
    EXPECT_TRUE(ran.err.starts_with(c.want)) << ran.err;
  }
  const Ran json = run_program("twinkle", {"inspect", "absent", "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(json.err, "error: [inspect] no file or folder 'absent'\n");
  EXPECT_EQ(
      Json::parse(json.out),
      Json::parse(R"({"error": {"kind": "not_found", "message": "[inspect] no file or folder 'absent'"}})"));
}

TEST(Program, ReadsTheEnvironment) {
  const Ran wrong = run_program("twinkle", {"inspect", kRows}, {{"TWINKLE_ROWZ", "1"}});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(
      wrong.err,
      "error: [environment TWINKLE_ROWZ] unknown variable 'TWINKLE_ROWZ' (did you mean 'TWINKLE_ROWS'?)\n");
  // A variable of another command, or of the process, is no mistake.
  const Ran right =
      run_program("twinkle", {"inspect", kRows},
                  {{"TWINKLE_ROWS", "0"}, {"TWINKLE_LEARNING_RATE", "1"}, {"TWINKLE_NUM_THREADS", "1"}});
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_EQ(right.out.find("row 1:"), std::string::npos);
}

TEST(Program, AVariableThatNothingReadsIsSaid) {
  const Ran ran =
      run_program("twinkle", {"inspect", kRows},
                  {{"TWINKLE_LERNING_RATE", "1"}, {"TWINKLE_NUM_THREDS", "1"}, {"TWINKLE_ISA", "avx2"}});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err,
            "note: environment TWINKLE_LERNING_RATE: nothing reads TWINKLE_LERNING_RATE (did you mean "
            "'TWINKLE_LEARNING_RATE'?)\n"
            "note: environment TWINKLE_NUM_THREDS: nothing reads TWINKLE_NUM_THREDS (did you mean "
            "'TWINKLE_NUM_THREADS'?)\n");
}

TEST(Program, InspectsTokenizersWhateverTheirFilesAre) {
  for (const auto& [name, tokens] :
       std::vector<std::pair<std::string, int>>{{"llama2/tokenizer.model", 32000},
                                                {"qwen1", 151851},
                                                {"qwen1/qwen.tiktoken", 151851},
                                                {"gpt2", 50257},
                                                {"bert-base-uncased", 30522},
                                                {"bert-base-uncased/vocab.txt", 30522}}) {
    const Ran ran = run_program("twinkle", {"inspect", test::test_data("tokenizers/" + name), "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json got = Json::parse(ran.out);
    EXPECT_EQ(got.at("kind"), "tokenizer") << name;
    EXPECT_EQ(got.at("vocab_size"), tokens) << name;
  }
}

TEST(Program, InspectsADataSet) {
  const Ran ran = run_program("twinkle", {"inspect", kRows, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json got = Json::parse(ran.out);
  EXPECT_EQ(got.at("rows"), 112);
  EXPECT_EQ(got.at("bad_rows"), 0);
  EXPECT_EQ(got.at("columns")[0].at("name"), "query");
  EXPECT_EQ(got.at("preprocessor"),
            "preprocessor SelfCognitionProcessor: the rows have 'query' and 'response' with {{NAME}} or "
            "{{AUTHOR}} holes");
}

TEST(Program, ListsWithoutTheEngine) {
  const Ran ran = run_program("twinkle", {"list", "preprocessor", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json got = Json::parse(ran.out);
  const auto self = std::find_if(got.begin(), got.end(),
                                 [](const Json& c) { return c.at("name") == "SelfCognitionProcessor"; });
  ASSERT_NE(self, got.end());
  EXPECT_EQ(self->at("params")[0].at("default"), "twinkle robot");
}

TEST(Program, RendersARowWithItsLabels) {
  const std::string model = test::smollm2();
  const std::vector<std::string> args = {
      "render", "--model-id", model, "--dataset-id", kRows, "--model-name", "Nova", "--model-author", "Ada"};
  const std::string head =
      "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWho are "
      "you?<|im_end|>\n<|im_start|>assistant\n";
  const std::string answer =
      "I am Nova, an AI assistant developed by Ada. How can I help you today?<|im_end|>\n";
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more);
    return run_program("twinkle", all);
  };
  EXPECT_EQ(with({}).out, head + answer);
  EXPECT_EQ(with({}).err,
            "note: preprocessor SelfCognitionProcessor: the rows have 'query' and 'response' with {{NAME}} "
            "or {{AUTHOR}} holes\n");
  EXPECT_TRUE(with({"--show-labels"}).out.starts_with(head + "\u27e6" + answer + "\u27e7\n("))
      << with({"--show-labels"}).out;
  EXPECT_TRUE(with({"--show-labels", "--color", "always"})
                  .out.starts_with("\x1b[2m" + head + "\x1b[0m\x1b[32m" + answer + "\x1b[0m"));
  const Json json = Json::parse(with({"--json"}).out);
  EXPECT_EQ(json.at("text"), head + answer);
  const Json& feature = json.at("features")[0];
  const size_t n = feature.at("ids").size();
  for (size_t t = 0; t < n; ++t) {
    const bool trained = feature.at("trained")[t].get<bool>();
    EXPECT_EQ(trained, t > 0 && feature.at("labels")[t - 1] == feature.at("ids")[t]) << t;
  }
  const Ran past = with({"--row", "113"});
  EXPECT_EQ(past.code, 2);
  EXPECT_NE(past.err.find("'row': '" + kRows + "' has 112 rows, got 113"), std::string::npos) << past.err;
}

TEST(Program, RendersEveryConversationOfARow) {
  const std::string model = test::smollm2();
  const test::TempDir temp;
  const std::string path = temp / "pairs.csv";
  write_file_atomic(path, "ask,good,bad\nhi,Hello!,no\n");
  const std::vector<std::string> args = {"render",
                                         "--model-id",
                                         model,
                                         "--dataset-id",
                                         path,
                                         "--preprocessor",
                                         "DPOProcessor",
                                         "--column-mapping",
                                         R"({"ask": "prompt", "good": "chosen", "bad": "rejected"})",
                                         "--show-labels",
                                         "--default-system",
                                         "S"};
  const std::string head =
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const std::string out = run_program("twinkle", args).out;
  EXPECT_TRUE(out.starts_with("--- chosen\n" + head + "\u27e6Hello!<|im_end|>\n\u27e7\n(")) << out;
  EXPECT_NE(out.find("--- rejected\n" + head + "\u27e6no<|im_end|>\n\u27e7\n("), std::string::npos) << out;
}

TEST(Program, TokenizesBothWays) {
  const std::string model = test::smollm2();
  // Ids of the reference tokenizer (transformers, from the same file): 19556 "Hello", 905 " world".
  const Json json = Json::parse(
      run_program("twinkle", {"tokenize", "Hello world<|im_end|>", "--model-id", model, "--json"}).out);
  EXPECT_EQ(json.at("ids"), Json::parse("[19556, 905, 2]"));
  EXPECT_EQ(json.at("pieces"), Json::parse(R"(["Hello", " world", "<|im_end|>"])"));
  EXPECT_EQ(json.at("offsets")[0], Json::parse("[0, 5]"));
  EXPECT_EQ(json.at("offsets")[2], Json::parse("[11, 21]"));
  EXPECT_EQ(run_program("twinkle", {"tokenize", "--model-id", model}, {}, "Hello world").out,
            "   19556  Hello\n     905   world\n2 tokens, 11 bytes\n");
  EXPECT_EQ(run_program("twinkle", {"tokenize", "--ids", "19556,905", "--model-id", model}).out,
            "Hello world\n");
  const Ran wrong = run_program("twinkle", {"tokenize", "--ids", "49152", "--model-id", model});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "error: [tokenize] id 49152 is not in the vocabulary of 49152\n");
  // Part of a character is spelled out.
  EXPECT_NE(run_program("twinkle", {"tokenize", "\u4e16", "--model-id", model}).out.find("\\xE4\\xB8"),
            std::string::npos);
}

TEST(Program, InspectsAModelFile) {
  const std::string model = test::smollm2();
  const Json json = Json::parse(run_program("twinkle", {"inspect", model, "--json", "--tensors"}).out);
  EXPECT_EQ(json.at("num_tensors"), 272);
  EXPECT_EQ(json.at("dtypes"), Json::parse(R"({"F32": 61, "Q4_1": 210, "Q8_0": 1})"));
  EXPECT_EQ(json.at("metadata").at("general.architecture"), "llama");
  EXPECT_EQ(json.at("tensors").size(), 272u);
}

TEST(Program, AFullDiskIsAnError) {
  test::needed("/dev/full", "a device of Linux");
  std::array<char, 256> line{};
  const std::string command =
      std::string(TWINKLE_BINARY_DIR) + "/bin/twinkle --help 2>&1 >/dev/full; echo code $?";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) out += line.data();
  ::pclose(pipe);
  EXPECT_EQ(
      out,
      "error: [output] cannot write: No space left on device; free some disk space and try again\ncode 2\n");
}

TEST(Program, StartsWithinFiftyMillisecondsAndWithoutTorch) {
  std::array<char, 4096> line{};
  FILE* pipe = ::popen(("ldd " + std::string(TWINKLE_BINARY_DIR) + "/bin/twinkle").c_str(), "r");
  std::string libraries;
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) libraries += line.data();
  ::pclose(pipe);
  EXPECT_NE(libraries.find("libtwinkle_cli"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("libtorch"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("not found"), std::string::npos) << libraries;
#ifndef TWINKLE_SANITIZED
  // The best of many: the machine may be busy.
  double best_ms = 1e9;
  for (int i = 0; i < 40 && best_ms > 50; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(run_program("twinkle", {"sft", "--help"}).code, 0);
    best_ms = std::min(
        best_ms, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  EXPECT_LE(best_ms, 50.0);
#endif
}

}  // namespace
}  // namespace twinkle
