// labels: slow bits
// What options of a run mean, by whole runs of the program: where it ends, where it starts, what it keeps,
// and that what belongs together has the same bits.
#include <cmath>
#include <cstring>

#include "tests/cli/run_options_testing.h"
#include "tests/thrown.h"

namespace twinkle {
namespace {

TEST_F(RunOptions, StepsThatWereSkippedCountAfterAResume) {
  // The row of '~' in the embedding is not a number.
  const std::string file = model() + "/model.safetensors";
  std::string bytes = read_file(file);
  uint64_t head = 0;
  std::memcpy(&head, bytes.data(), 8);
  const Json info = Json::parse(bytes.substr(8, head)).at("model.embed_tokens.weight");
  ASSERT_EQ(info.at("dtype"), "F32");
  const float nan = std::nanf("");
  for (size_t k = 0; k < 32; ++k) {
    const size_t at = 8 + head + info.at("data_offsets")[0].get<size_t>() + ('~' * size_t{32} + k) * 4;
    std::memcpy(bytes.data() + at, &nan, 4);
  }
  // As a checkpoint it would be refused.
  EXPECT_EQ(run_program("twinkle", {"score", "--model-id", model()}, {}, "{\"tokens\": [1, 2]}").code, 0);
  write_text(file, bytes);
  const Ran patched = run_program("twinkle", {"score", "--model-id", model()}, {}, "{\"tokens\": [1, 2]}");
  EXPECT_EQ(patched.code, 2);
  EXPECT_NE(
      patched.err.find("/model.safetensors' is not what was written: its SHA-256 differs; take another copy"),
      std::string::npos)
      << patched.err;
  std::filesystem::remove(model() + "/trainer_state.json");
  for (const Words& command :
       std::vector<Words>{{"score", "--model-id", model()},
                          {"export", "--model-id", model(), "--output-dir", root_ + "/e"},
                          {"sample", "--model-id", model(), "--prompt", "x"}}) {
    const Ran ran = run_program("twinkle", command, {}, "{\"tokens\": [1, 2]}");
    EXPECT_EQ(ran.code, 2) << command[0];
    EXPECT_NE(ran.err.find("tensor 'model.embed_tokens.weight' holds numbers that are not finite"),
              std::string::npos)
        << ran.err;
  }
  EXPECT_FALSE(file_exists(root_ + "/e"));

  write_rows("broken.jsonl", 3);  // in the second batch of each epoch
  const Words options = {"--max-steps", "9", "--save-steps", "3"};
  const std::string whole = run("whole", options, "broken.jsonl");
  const auto lines = metrics("whole");
  ASSERT_EQ(lines.size(), 9u);
  for (const size_t skipped : {size_t{1}, size_t{6}}) {
    EXPECT_TRUE(lines[skipped].contains("skipped")) << lines[skipped];
    EXPECT_EQ(lines[skipped].at("loss"), nullptr);
    EXPECT_EQ(lines[skipped].at("accuracy"), nullptr);
  }
  EXPECT_TRUE(lines[7].at("loss").is_number());
  // Three weight updates are four steps of the run.
  Words resume = options;
  resume.insert(resume.end(), {"--resume-from-checkpoint", root_ + "/whole/checkpoint-step-3"});
  EXPECT_EQ(run("resumed", resume, "broken.jsonl"), tail(whole, 6));
  EXPECT_EQ(Json::parse(read_file(root_ + "/resumed/summary.json")).at("skipped_steps"), 2);
  EXPECT_EQ(replayed("resumed").value("equal", false), true);
}

TEST_F(RunOptions, NamesOfSchedulesAndOptimizersMayBeShort) {
  const Words values = {"--max-steps", "4", "--num-warmup-steps", "2", "--adam-beta1", "0.8"};
  const auto with = [&](const std::string& name, const std::string& scheduler, const std::string& optimizer) {
    Words all = {"--scheduler-cls", scheduler, "--optimizer-cls", optimizer};
    all.insert(all.end(), values.begin(), values.end());
    return run(name, all);
  };
  EXPECT_EQ(with("short", "linear", "adamw"), with("long", "LinearWarmupScheduler", "AdamW"));
}

TEST_F(RunOptions, ReplayKnowsHowARunWasResumed) {
  run("first", {"--max-steps", "6", "--save-steps", "2"});
  const std::string at = root_ + "/first/checkpoint-step-4";
  run("elsewhere", {"--max-steps", "6", "--resume-from-checkpoint", at});
  EXPECT_EQ(digest("elsewhere"), tail(digest("first"), 3));
  run("weights", {"--max-steps", "3", "--resume-from-checkpoint", at, "--resume-only-model"});
  run("again", {"--max-steps", "7", "--resume-from-checkpoint", at, "--ignore-data-skip"});
  for (const auto& [name, steps] : std::vector<std::pair<std::string, int>>{
           {"first", 6}, {"elsewhere", 2}, {"weights", 3}, {"again", 3}}) {
    const Json got = replayed(name);
    ASSERT_TRUE(got.is_object()) << name << got;
    EXPECT_EQ(got.at("equal"), true) << name << got;
    EXPECT_EQ(got.at("steps"), steps) << name;
  }
  // The weights alone start another run; the data from their beginning give other steps.
  EXPECT_NE(tail(digest("weights"), 4), tail(digest("first"), 4));
  EXPECT_NE(tail(digest("again"), 4).substr(0, 40), tail(digest("first"), 3).substr(0, 40));

  std::filesystem::rename(at, at + "-gone");
  const Json gone = replayed("weights");
  ASSERT_TRUE(gone.is_string());
  EXPECT_NE(gone.get<std::string>().find("which is no longer there"), std::string::npos) << gone;
  // Other rows are no other bits: they are refused.
  write_rows("rows.jsonl", 4);
  const Json changed = replayed("first");
  ASSERT_TRUE(changed.is_string());
  EXPECT_NE(changed.get<std::string>().find("are not those the run used"), std::string::npos) << changed;
}

TEST_F(RunOptions, AnAdapterCanBeGoneOnWith) {
  run("first", {"--max-steps", "3", "--lora-dropout", "0", "--lora-r", "4"});
  const std::string adapter = root_ + "/first/checkpoint-step-3";
  const std::string on = run("on", {"--max-steps", "3", "--lora-path", adapter});
  // The same as starting a run of these options from the checkpoint's weights.
  EXPECT_EQ(on, run("weights", {"--max-steps", "3", "--lora-dropout", "0", "--lora-r", "4",
                                "--resume-from-checkpoint", adapter, "--resume-only-model"}));
  EXPECT_EQ(read_json_file(root_ + "/on/checkpoint-step-3/adapter_config.json").at("r"), 4);
  // Its dropout is drawn by the run's seed.
  run("dropping", {"--max-steps", "2", "--lora-dropout", "0.3"});
  const std::string dropping = root_ + "/dropping/checkpoint-step-2";
  const auto with_seed = [&](const std::string& name, const char* seed) {
    return run(name, {"--max-steps", "2", "--lora-path", dropping, "--seed", seed});
  };
  const std::string one = with_seed("one", "1");
  EXPECT_EQ(with_seed("one-again", "1"), one);
  EXPECT_NE(with_seed("two", "2"), one);
}

TEST_F(RunOptions, EpochsAndRowsEndARun) {
  const auto steps = [&](const std::string& name, const Words& more) {
    run(name, more);
    return Json::parse(read_file(root_ + "/" + name + "/summary.json")).at("steps").get<int>();
  };
  EXPECT_EQ(steps("epochs", {"--num-train-epochs", "1.4"}), 7);  // of 5 batches
  EXPECT_EQ(metrics("epochs").back().at("epoch"), 1.4);
  EXPECT_EQ(steps("both", {"--num-train-epochs", "2", "--max-steps", "3"}), 3);
  EXPECT_EQ(steps("rows", {"--train-samples", "5"}), 3);
  EXPECT_EQ(steps("few-rows", {"--train-samples", "5", "--gradient-accumulation-steps", "2"}), 2);
  EXPECT_EQ(digest("rows").substr(0, 40), digest("epochs").substr(0, 40));
  // More than anybody counts.
  EXPECT_EQ(steps("all-epochs", {"--num-train-epochs", "1e300", "--max-steps", "3"}), 3);
  EXPECT_EQ(steps("most-epochs", {"--num-train-epochs", "1e18", "--max-steps", "2"}), 2);
  EXPECT_EQ(steps("all-rows", {"--train-samples", "9223372036854775807", "--max-steps", "2",
                               "--gradient-accumulation-steps", "3"}),
            2);
}

TEST_F(RunOptions, AFolderHoldsTheCheckpointsOfOneRun) {
  run("out", {"--max-steps", "6", "--save-steps", "2", "--save-total-limit", "2"});
  EXPECT_EQ(checkpoints("out"), (Words{"checkpoint-step-4", "checkpoint-step-6"}));
  const Ran refused = sft("out", {"--max-steps", "2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("holds checkpoints of another run"), std::string::npos) << refused.err;
  EXPECT_EQ(checkpoints("out").size(), 2u);
  // Going back to step 4: what was written after it is not this run's.
  run("out", {"--max-steps", "5", "--save-steps", "1", "--save-total-limit", "2", "--resume-from-checkpoint",
              root_ + "/out/checkpoint-step-4"});
  EXPECT_EQ(checkpoints("out"), (Words{"checkpoint-step-4", "checkpoint-step-5"}));
  const Ran ran = sft("out", {"--max-steps", "2", "--overwrite-output-dir"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(checkpoints("out"), (Words{"checkpoint-step-2"}));
  // What is said to be saved is there.
  EXPECT_NE(ran.err.find("saved " + root_ + "/out/checkpoint-step-2"), std::string::npos) << ran.err;
}

TEST_F(RunOptions, AFinishedRunGoesOnInItsFolder) {
  const Words options = {"--max-steps", "6", "--save-steps", "2"};
  const auto resume = [&](const std::string& name, const char* steps, int64_t at) {
    const Ran ran = sft(name, {"--max-steps", steps, "--save-steps", "2", "--resume-from-checkpoint",
                               root_ + "/" + name + "/checkpoint-step-" + std::to_string(at)});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.err;
  };
  // The schedule's length is given: a shorter run has the bits of a longer one.
  const std::string whole = run("whole", options);
  run("on", {"--max-steps", "4", "--save-steps", "2", "--t-max", "6"});
  const Ran went = sft("on", {"--max-steps", "6", "--save-steps", "2", "--t-max", "6",
                              "--resume-from-checkpoint", root_ + "/on/checkpoint-step-4"});
  ASSERT_EQ(went.code, 0) << went.err;
  EXPECT_EQ(digest("on"), whole);
  EXPECT_EQ(replayed("on").value("equal", false), true) << replayed("on");
  const auto counts = [&](const std::string& name) {
    std::vector<Json> out;
    for (const Json& line : metrics(name)) out.push_back(line.at("tokens_seen"));
    return out;
  };
  EXPECT_EQ(counts("on"), counts("whole"));
  // Killed between the last step and the lines that close the run.
  const std::string path = root_ + "/whole/digest.jsonl";
  for (const bool torn : {false, true}) {
    write_text(path,
               whole.substr(0, whole.size() - tail(whole, 1).size()) + (torn ? "{\"steps\":6,\"we" : ""));
    write_text(root_ + "/whole/metrics.jsonl.tmp-999999999-0", "x");
    EXPECT_NE(resume("whole", "6", 6).find("only the end of the run is written"), std::string::npos);
    EXPECT_EQ(digest("whole"), whole);
    EXPECT_FALSE(file_exists(root_ + "/whole/metrics.jsonl.tmp-999999999-0"));
  }
  std::filesystem::remove(root_ + "/whole/summary.json");
  resume("whole", "6", 6);
  EXPECT_EQ(Json::parse(read_file(root_ + "/whole/summary.json")).at("checkpoint"),
            root_ + "/whole/checkpoint-step-6");
  EXPECT_EQ(replayed("whole").value("equal", false), true) << replayed("whole");
}

TEST_F(RunOptions, TheEvaluationAtTheEndIsReportedOnce) {
  const Words options = {"--max-steps", "2", "--save-steps", "1", "--eval-dataset-id", root_ + "/rows.jsonl"};
  const std::string whole = run("whole", options);
  const std::string reports = read_file(root_ + "/whole/metrics.jsonl");
  write_text(root_ + "/whole/digest.jsonl", whole.substr(0, whole.size() - tail(whole, 1).size()));
  const double loss = Json::parse(read_file(root_ + "/whole/summary.json")).at("eval_loss");
  Words again = options;
  again.insert(again.end(), {"--resume-from-checkpoint", root_ + "/whole/checkpoint-step-2"});
  EXPECT_EQ(run("whole", again), whole);
  EXPECT_EQ(read_file(root_ + "/whole/metrics.jsonl"), reports);
  EXPECT_EQ(Json::parse(read_file(root_ + "/whole/summary.json")).at("eval_loss"), loss);
}

TEST_F(RunOptions, RowsToAnswerHaveTheirOwnOptions) {
  write_text(root_ + "/in.jsonl",
             "{\"prompt\": \"hi\", \"max_tokens\": 2}\n"
             "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"system\": \"Be brief.\"}\n"
             "{\"prompt\": \"hi\", \"system\": \"Be brief.\", \"logprobs\": 3}\n");
  const Ran ran = run_program("twinkle", {"sample", "--model-id", model(), "--input", root_ + "/in.jsonl",
                                          "--temperature", "0", "--max-tokens", "4", "--ignore-eos"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::vector<Json> lines;
  for (size_t begin = 0; begin < ran.out.size(); begin = ran.out.find('\n', begin) + 1)
    lines.push_back(Json::parse(ran.out.substr(begin, ran.out.find('\n', begin) - begin)));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("samples")[0].at("tokens").size(), 2u);
  EXPECT_EQ(lines[1].at("samples")[0].at("tokens").size(), 4u);
  EXPECT_EQ(lines[2].at("samples")[0].at("tokens"), lines[1].at("samples")[0].at("tokens"));
  EXPECT_GT(lines[1].at("prompt_tokens"), lines[0].at("prompt_tokens"));
  EXPECT_FALSE(lines[1].at("samples")[0].contains("top_logprobs"));
  EXPECT_EQ(lines[2].at("samples")[0].at("top_logprobs")[0].size(), 3u);
}

TEST_F(RunOptions, ThePlanCountsWhatIsTrained) {
  const auto items = [&](const Words& more) {
    Words args = {"plan", "--model-id", model(), "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Ran ran = run_program("twinkle", args);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Json::parse(ran.out).at("items");
  };
  run("first", {"--max-steps", "1", "--lora-r", "3", "--lora-target-modules", "q_proj"});
  // Two layers, q_proj 32 x 32, rank 3; a weight and its gradient are 8 bytes, AdamW's moments 8 more.
  const int64_t adapter = 2 * 3 * (32 + 32);
  const Json loaded = items({"--lora-path", root_ + "/first/checkpoint-step-1"});
  EXPECT_EQ(loaded.at("adapter and its gradients"), 8 * adapter);
  EXPECT_EQ(loaded.at("optimizer state"), 8 * adapter);
  const Json head =
      items({"--lora-r", "3", "--lora-target-modules", "q_proj", "--lora-modules-to-save", "lm_head"});
  EXPECT_EQ(head.at("adapter and its gradients"), 8 * (adapter + 259 * 32));
  const Words sgd = {"--lora-r", "3", "--lora-target-modules", "q_proj", "--optimizer-cls", "sgd"};
  Words momentum = sgd;
  momentum.insert(momentum.end(), {"--optimizer-options", R"({"momentum": 0.9})"});
  EXPECT_FALSE(items(sgd).contains("optimizer state"));
  EXPECT_EQ(items(momentum).at("optimizer state"), 4 * adapter);
}

}  // namespace
}  // namespace twinkle
