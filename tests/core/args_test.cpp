#include "twinkle/core/args.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

std::vector<ArgGroup> groups() {
  ArgSpec lr = arg("learning_rate", ParamType::kFloat, 1e-5, "Step size.");
  lr.aliases = {"lr"};
  lr.param.min = 0;
  ArgSpec batch = arg("batch_size", ParamType::kInt, 8, "Rows a step.");
  batch.param.min = 1;
  ArgSpec dtype = arg("dtype", ParamType::kString, "auto", "Storage of the weights.");
  dtype.param.choices = {"auto", "fp32", "bf16"};
  ArgSpec precision =
      refused_arg("mixed_precision", ParamType::kString, "bf16", "choose the storage with --dtype");
  precision.accepted = {"no"};
  ArgSpec model = required_arg("model_id", ParamType::kString, "The model.");
  ArgSpec tokenizer = arg("tokenizer_id", ParamType::kString, nullptr, "Another tokenizer.");
  tokenizer.aliases = {"template_model_id"};
  return {{"ModelArgs",
           "Model",
           {model, tokenizer, dtype, precision, harmless_arg("trust_remote_code", ParamType::kBool, true)}},
          {"LoraArgs",
           "LoRA",
           {arg("lora_r", ParamType::kInt, 8, "Rank."),
            arg("lora_target_modules", ParamType::kStringList, Json::array({"all-linear"}), "Modules.")}},
          {"TrainingArgs",
           "Training",
           {lr, batch, arg("seed", ParamType::kInt, 42, "Seed."),
            arg("max_steps", ParamType::kInt, nullptr, "Steps."),
            arg("shuffle", ParamType::kBool, true, "Shuffle rows."),
            arg("json", ParamType::kBool, false, "For programs."),
            arg("milestones", ParamType::kIntList, nullptr, "Steps."),
            arg("loss_options", ParamType::kJson, nullptr, "More options."),
            arg("config", ParamType::kString, nullptr, "YAML file.")}}};
}

class ArgsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    test::write_text(dir_ / name, bytes);
    return dir_ / name;
  }
  static ParsedArgs parse(std::vector<std::string> argv,
                          std::vector<std::pair<std::string, std::string>> environment = {},
                          const std::string& env_file = "") {
    return parse_args(groups(), {.argv = std::move(argv),
                                 .environment = std::move(environment),
                                 .env_file = env_file,
                                 .positionals = {"model_id"},
                                 .known_elsewhere = {"temperature"},
                                 .command = "twinkle sft"});
  }
  // The message, with the folder of the test cut out.
  std::string error_of(const std::function<void()>& fn) const {
    return dir_.cut(test::thrown(fn, test::kAnyKind));
  }
  const test::TempDir dir_;
};

TEST_F(ArgsTest, TakesEveryWayToWriteAnOption) {
  for (const auto& argv : std::vector<std::vector<std::string>>{
           {"m", "--lora-r", "16", "--lr", "1e-3", "--no-shuffle", "--json"},
           {"--model-id=m", "--lora_r=16", "--LEARNING-RATE=0.001", "--shuffle=false", "--json=yes"},
           {"--model_id", "m", "--Lora-R", "16", "--learning_rate", "1e-3", "--shuffle", "off", "--json",
            "true"},
           {"--json", "--no-shuffle", "--lora-r", "4", "--lora-r", "16", "--training-lr", ".001", "--",
            "m"}}) {
    const ParsedArgs args = parse(argv);
    EXPECT_EQ(args.get_string("model_id"), "m");
    EXPECT_EQ(args.get_int("lora_r"), 16);
    EXPECT_EQ(args.get_float("learning_rate"), 1e-3);
    EXPECT_FALSE(args.get_bool("shuffle"));
    EXPECT_TRUE(args.get_bool("json"));
    EXPECT_EQ(args.get_int("batch_size"), 8);
    EXPECT_TRUE(args.given("lora_r"));
    EXPECT_FALSE(args.given("batch_size"));
    EXPECT_EQ(args.source("lora_r"), "command line");
    EXPECT_EQ(args.source("batch_size"), "default");
  }
}

TEST_F(ArgsTest, BlanksOfAListMayMeanSomething) {
  ArgSpec stop = arg("stop", ParamType::kStringList, Json::array(), "Ends an answer.");
  stop.repeats = stop.keep_space = true;
  const std::vector<ArgGroup> only = {
      {"SamplingArgs", "Sampling", {stop, arg("config", ParamType::kString, nullptr, "YAML file.")}}};
  const auto stops = [&](std::vector<std::string> argv,
                         std::vector<std::pair<std::string, std::string>> environment = {}) {
    return parse_args(only, {.argv = std::move(argv), .environment = std::move(environment)})
        .get_strings("stop");
  };
  using Strings = std::vector<std::string>;
  EXPECT_EQ(stops({"--stop", " "}), (Strings{" "}));
  EXPECT_EQ(stops({"--stop", "\n"}), (Strings{"\n"}));
  EXPECT_EQ(stops({"--stop=\nUser: ,a b"}), (Strings{"\nUser: ", "a b"}));
  EXPECT_EQ(stops({"--stop", "[\",\", \" \"]", "--stop", "["}), (Strings{",", " ", "["}));
  EXPECT_EQ(stops({"--stop", ""}), (Strings{""}));
  EXPECT_EQ(stops({}, {{"TWINKLE_STOP", " x"}}), (Strings{" x"}));
  EXPECT_EQ(stops({"--config", write("s.yaml", "stop: \"\\n\"\n")}), (Strings{"\n"}));
  EXPECT_EQ(stops({"--config", write("l.yaml", "stop: [\" \", \"a,b\"]\n")}), (Strings{" ", "a,b"}));
}

TEST_F(ArgsTest, CastsToTheDeclaredType) {
  const ParsedArgs args =
      parse({"m", "--lora-target-modules", "q_proj, v_proj", "--milestones", "1,2,3", "--max-steps", "none",
             "--seed", "1e3", "--learning-rate", "1", "--loss-options", "{\"a\": [1]}"});
  EXPECT_EQ(args.get_strings("lora_target_modules"), (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(args.get("milestones"), (Json{1, 2, 3}));
  EXPECT_FALSE(args.has("max_steps"));
  EXPECT_EQ(args.get_int("seed"), 1000);
  EXPECT_EQ(args.get_float("learning_rate"), 1.0);
  EXPECT_EQ(args.get("loss_options"), Json::parse(R"({"a": [1]})"));
  // A regular expression with commas goes through as a JSON list.
  EXPECT_EQ(parse({"m", "--lora-target-modules", R"(["layers\\.{1,2}"])"}).get_strings("lora_target_modules"),
            (std::vector<std::string>{"layers\\.{1,2}"}));
  EXPECT_EQ(parse({"m", "--tokenizer-id", "none"}).get_string("tokenizer_id"), "none");
  EXPECT_EQ(parse({"m", "--template-model-id", "t"}).get_string("tokenizer_id"), "t");
}

TEST_F(ArgsTest, StrongerSourcesWin) {
  const std::string env_file = write(".env",
                                     "# mine\nexport TWINKLE_SEED=1\nTWINKLE_BATCH_SIZE='2'\nTWINKLE_LORA_R "
                                     "= 3 # rank\nTWINKLE_LR=\"0.1\"\nOTHER=9\nTWINKLE_TEMPERATURE=2\n");
  const std::string yaml =
      write("run.yaml", "lora: {r: 5}\ntraining:\n  learning_rate: 0.3\n  max_steps: 7\nmodel_id: y\n");
  const ParsedArgs args = parse({"--config", yaml, "--learning-rate", "0.4"},
                                {{"TWINKLE_BATCH_SIZE", "20"},
                                 {"TWINKLE_LORA_R", "30"},
                                 {"TWINKLE_DEPS", "/x"},
                                 {"TWINKLE_SHUFFLE", ""}},
                                env_file);
  EXPECT_EQ(args.get_int("seed"), 1);               // .env
  EXPECT_EQ(args.get_int("batch_size"), 20);        // environment over .env
  EXPECT_EQ(args.get_int("lora_r"), 5);             // YAML over the environment
  EXPECT_EQ(args.get_float("learning_rate"), 0.4);  // command line over YAML
  EXPECT_EQ(args.get_int("max_steps"), 7);
  EXPECT_EQ(args.get_string("model_id"), "y");
  EXPECT_EQ(args.source("seed"), env_file + " line 2");
  EXPECT_EQ(args.source("batch_size"), "environment TWINKLE_BATCH_SIZE");
  EXPECT_EQ(args.source("max_steps"), yaml + " line 4");
  EXPECT_TRUE(args.notes().empty());
  EXPECT_EQ(parse({"m"}, {{"TWINKLE_CONFIG", yaml}}).get_int("max_steps"), 7);
  EXPECT_EQ(
      parse({"m"}, {{"TWINKLE_FROBNICATION", "1"}}).notes(),
      (std::vector<std::string>{"environment TWINKLE_FROBNICATION: nothing reads TWINKLE_FROBNICATION"}));
}

TEST_F(ArgsTest, UpstreamsOptionsWithoutMeaningPassOnlyWhenTheyChangeNothing) {
  EXPECT_EQ(error_of([] { parse({"m", "--trust-remote-code", "false", "--mixed-precision", "bf16"}); }), "");
  EXPECT_EQ(error_of([] { parse({"m", "--mixed-precision=no"}); }), "");
  EXPECT_EQ(error_of([] { parse({"m", "--mixed-precision", "fp8"}); }),
            "[command line] 'mixed_precision': \"fp8\" is not supported: choose the storage with --dtype");
}

TEST_F(ArgsTest, BadCommandLines) {
  struct Case {
    std::vector<std::string> argv;
    std::string want;
  };
  const std::vector<Case> cases = {
      {{}, "[twinkle sft] needs --model-id: The model."},
      {{"m", "--lerning-rate", "1"},
       "[command line] unknown option '--lerning-rate' (did you mean '--learning-rate'?)"},
      {{"m", "--no-shufle"}, "[command line] unknown option '--no-shufle' (did you mean '--no-shuffle'?)"},
      {{"m", "--qqqqqqqqqqqqqq"}, "[command line] unknown option '--qqqqqqqqqqqqqq'; see twinkle sft --help"},
      {{"m", "--=3"}, "[command line] unknown option '--'; see twinkle sft --help"},
      {{"m", "-r", "3"}, "[command line] unknown option '-r': options begin with two dashes"},
      {{"m", "n"}, "[command line] unexpected 'n'; options begin with two dashes, see twinkle sft --help"},
      {{"m", "--model-id", "n"}, "[command line] 'model_id' is given twice"},
      {{"m", "--lora-r"}, "[command line] '--lora-r' needs a value: a whole number"},
      {{"m", "--lora-r", "--json"}, "[command line] '--lora-r' needs a value: a whole number"},
      {{"m", "--lora-r", "eight"}, "[command line] 'lora_r': expected a whole number, got 'eight'"},
      {{"m", "--lora-r", "8.5"}, "[command line] 'lora_r': expected a whole number, got number 8.5"},
      {{"m", "--lora-r", "none"}, "[command line] 'lora_r': expected a whole number, got 'none'"},
      {{"m", "--lora-r", ""}, "[command line] 'lora_r': expected a whole number, got ''"},
      {{"m", "--lora-r=8x"}, "[command line] 'lora_r': expected a whole number, got '8x'"},
      {{"m", "--lora-r", "99999999999999999999"},
       "[command line] 'lora_r': 99999999999999999999 is too large"},
      {{"m", "--lora-r", "1e20"}, "[command line] 'lora_r': expected a whole number, got number 1e+20"},
      {{"m", "--batch-size", "0"}, "[command line] 'batch_size': must be >= 1, got 0"},
      {{"m", "--lr", "-1"}, "[command line] 'learning_rate': must be >= 0, got -1"},
      {{"m", "--lr", "nan"}, "[command line] 'learning_rate': must be a finite number"},
      {{"m", "--lr", "1e-3,2"}, "[command line] 'learning_rate': expected a number, got '1e-3,2'"},
      {{"m", "--shuffle=maybe"}, "[command line] 'shuffle': expected true or false, got 'maybe'"},
      {{"m", "--lora-r", "18446744073709551615"},
       "[command line] 'lora_r': 18446744073709551615 is too large"},
      {{"m", "--lora-r", "-9223372036854775809"},
       "[command line] 'lora_r': -9223372036854775809 is too small"},
      {{"m", "--no-shuffle=true"},
       "[command line] '--no-shuffle' takes no value, got 'true'; write --no-shuffle alone, or "
       "--shuffle=true or =false"},
      {{"m", "--no-lora-r"},
       "[command line] '--no-lora-r': only options that are true or false have a --no- form"},
      {{"m", "--dtype", "int3"}, "[command line] 'dtype': must be one of auto, fp32, bf16, got 'int3'"},
      {{"m", "--milestones", "1,,2"},
       "[command line] 'milestones': expected a list of whole numbers, got ''"},
      {{"m", "--loss-options", "{"},
       "[command line] 'loss_options': not valid JSON: syntax error while parsing object key - unexpected "
       "end of input; expected string literal"},
      {{"m", "--config", "absent.yaml"}, "[files] cannot read 'absent.yaml': No such file or directory"},
  };
  for (const auto& c : cases) EXPECT_EQ(error_of([&] { parse(c.argv); }), c.want);
}

TEST_F(ArgsTest, BadYaml) {
  struct Case {
    std::string yaml, want;
  };
  const std::vector<Case> cases = {
      {"seed: 1\nlerning_rate: 3\n",
       "[f.yaml line 2] unknown key 'lerning_rate' (did you mean 'learning_rate'?)"},
      {"lora:\n  rr: 1\n", "[f.yaml line 2] unknown key 'lora_rr' (did you mean 'lora_r'?)"},
      {"training: 3\n", "[f.yaml line 1] unknown key 'training'; see twinkle sft --help"},
      {"seed: [1, 2]\n", "[f.yaml line 1] 'seed': expected a whole number, got list"},
      {"\nseed: one\n", "[f.yaml line 2] 'seed': expected a whole number, got 'one'"},
      {"seed: \"1\"\n", "[f.yaml line 1] 'seed': expected a whole number, got '1'"},
      {"seed:\n", "[f.yaml line 1] 'seed': expected a whole number, got null"},
      {"seed: {a: 1}\n", "[f.yaml line 1] unknown key 'seed_a' (did you mean 'seed'?)"},
      {"batch_size: 0\n", "[f.yaml line 1] 'batch_size': must be >= 1, got 0"},
      {"lr: 1\nlearning_rate: 2\n", "[f.yaml line 2] 'learning_rate' is given twice (also: f.yaml line 1)"},
      {"seed: 1\nseed: 2\n", "[f.yaml line 2] key 'seed' is given twice"},
      {"- 1\n", "[f.yaml line 1] expected options as 'name: value'"},
      {"a: b: c\n", "[f.yaml line 1] not valid YAML: illegal map value"},
      {"seed: [1\n", "[f.yaml line 2] not valid YAML: end of sequence flow not found"},
      {"config: other.yaml\n", "[f.yaml line 1] a configuration file cannot name another"},
      {"seed: 1\n---\nseed: 2\n", "[f.yaml] holds more than one document"},
      {"seed: !!python/object:os.system 1\n",
       "[f.yaml line 1] tag 'tag:yaml.org,2002:python/object:os.system' is not supported"},
      {"a: &a {<<: 1}\n", "[f.yaml line 1] merge keys (<<) are not supported; write the values out"},
      {"? [a]\n: 1\n", "[f.yaml line 1] a key must be plain text"},
      {"milestones: [1, [2]]\n", "[f.yaml line 1] 'milestones': expected plain values in the list"},
  };
  for (const auto& c : cases) {
    const std::string path = write("f.yaml", c.yaml);
    EXPECT_EQ(error_of([&] { parse({"m", "--config", path}); }), c.want) << c.yaml;
  }
  EXPECT_EQ(parse({"m", "--config", write("empty.yaml", "# nothing\n")}).get_int("seed"), 42);
  EXPECT_EQ(parse({"m", "--config",
                   write("l.yaml",
                         "lora_target_modules: [q_proj, v_proj]\nloss-options: {a: [1, x]}\nmax_steps: ~\n")})
                .get("loss_options"),
            Json::parse(R"({"a": [1, "x"]})"));
}

TEST_F(ArgsTest, BadEnvironment) {
  EXPECT_EQ(error_of([] { parse({"m"}, {{"TWINKLE_LERNING_RATE", "1"}}); }),
            "[environment TWINKLE_LERNING_RATE] unknown variable 'TWINKLE_LERNING_RATE' (did you mean "
            "'TWINKLE_LEARNING_RATE'?)");
  EXPECT_EQ(error_of([] { parse({"m"}, {{"TWINKLE_SEED", "x"}}); }),
            "[environment TWINKLE_SEED] 'seed': expected a whole number, got 'x'");
  EXPECT_EQ(
      error_of([] { parse({"m"}, {{"TWINKLE_LR", "1"}, {"TWINKLE_LEARNING_RATE", "2"}}); }),
      "[environment TWINKLE_LR] 'learning_rate' is given twice (also: environment TWINKLE_LEARNING_RATE)");
  EXPECT_EQ(error_of([&] { parse({"m"}, {}, write(".env", "A=1\nB\n")); }),
            "[.env line 2] expected NAME=value");
  EXPECT_EQ(error_of([&] { parse({"m"}, {}, write(".env", "A=\"1\n")); }),
            "[.env line 1] the quote is never closed");
  EXPECT_EQ(error_of([&] { parse({"m"}, {}, write(".env", "TWINKLE_SEED=1\nTWINKLE_BATCH_SIZE=0\n")); }),
            "[.env line 2] 'batch_size': must be >= 1, got 0");
}

TEST_F(ArgsTest, HelpIsAlignedAndFits) {
  const std::string help = render_args_help(groups(), 100);
  size_t longest = 0;
  for (size_t start = 0; start < help.size();) {
    const size_t end = help.find('\n', start);
    longest = std::max(longest, end - start);
    start = end + 1;
  }
  EXPECT_LE(longest, 100u);
  EXPECT_NE(help.find("Model:\n  --model-id TEXT                 The model. [required]\n"), std::string::npos)
      << help;
  EXPECT_NE(help.find("  --dtype auto|fp32|bf16          Storage of the weights. [default: auto]\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("  --learning-rate, --lr X         Step size. [default: 1e-05]\n"), std::string::npos)
      << help;
  EXPECT_NE(help.find("  --[no-]shuffle                  Shuffle rows. [default: on]\n"), std::string::npos)
      << help;
  EXPECT_EQ(help.find("trust"), std::string::npos);
  EXPECT_EQ(wrap_text("aaa bbb ccc ddd", 2, 10), "aaa bbb\n  ccc ddd");
  const Json json = args_to_json(groups());
  EXPECT_EQ(
      json[0]["options"][0],
      Json::parse(
          R"({"name": "model_id", "type": "string", "default": null, "help": "The model.", "required": true})"));
}

}  // namespace
}  // namespace twinkle
