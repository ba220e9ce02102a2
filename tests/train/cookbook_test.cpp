// The recipes of cookbook/ do what they say, run as a user would run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "tests/needs.h"
#include "tests/train/train_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"

namespace twinkle {
namespace {

struct Output {
  std::string text;
  int status = 0;
};

Output run(const std::string& command) {
  Output output;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.text.append(buffer.data(), n);
  output.status = WEXITSTATUS(::pclose(pipe));
  return output;
}

TEST(Cookbook, SftTrainsAndSavesAnAdapter) {
  testing::TempDir dir;
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    rows += Json{{"messages",
                  {{{"role", "user"}, {"content", "Who are you?"}},
                   {{"role", "assistant"},
                    {"content", "I am Twinkle, a little robot. Number " + std::to_string(i % 3) + "."}}}}}
                .dump() +
            "\n";
  }
  write_file_atomic(dir / "rows.jsonl", rows);
  write_file_atomic(dir / "chat.jinja",
                    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
                    "{% if add_generation_prompt %}assistant: {% endif %}");
  const std::string program = TWINKLE_BINARY_DIR "/cookbook/sft ";
  const Output output = run(program + test::stories() + " " + dir / "rows.jsonl" + " " + dir / "out" +
                            " 10 " + dir / "chat.jinja");
  ASSERT_EQ(output.status, 0) << output.text;
  // 3 batches an epoch. The loss falls; the first and last reports carry it.
  const auto loss_at = [&](const std::string& step) {
    const size_t at = output.text.find("step " + step + "/30  loss ");
    EXPECT_NE(at, std::string::npos) << output.text;
    return at == std::string::npos ? 0.0 : std::stod(output.text.substr(at + step.size() + 14));
  };
  EXPECT_GT(loss_at("1"), loss_at("30") + 1.0) << output.text;
  EXPECT_NE(output.text.find("adapter: " + dir / "out/checkpoint-step-30"), std::string::npos) << output.text;
  EXPECT_TRUE(file_exists(dir / "out/checkpoint-step-30/adapter_model.safetensors"));
  EXPECT_TRUE(file_exists(dir / "out/checkpoint-step-30/adapter_config.json"));
  EXPECT_EQ(read_json_file(dir / "out/checkpoint-step-30/trainer_state.json")["consumed_train_samples"], 120);

  EXPECT_EQ(run(program).status, 2);
  const Output missing = run(program + "/nowhere " + dir / "rows.jsonl" + " " + dir / "out");
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.text.find("/nowhere"), std::string::npos);
}

TEST(Cookbook, MixDataPacksTwoSources) {
  testing::TempDir dir;
  std::string first, second = "ask,reply\nnothing,\n";
  for (int i = 0; i < 20; ++i) {
    first += Json{{"query", "q" + std::to_string(i)}, {"response", "first"}}.dump() + "\n";
    second += "a" + std::to_string(i) + ",second\n";
  }
  first += Json{{"query", std::string(2000, 'x')}, {"response", "too long"}}.dump() + "\n";
  write_file_atomic(dir / "first.jsonl", first);
  write_file_atomic(dir / "second.csv", second);
  write_file_atomic(dir / "chat.jinja",
                    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}");
  const std::string program = TWINKLE_BINARY_DIR "/cookbook/mix_data ";
  const Output output = run(program + test::stories() + " " + dir / "first.jsonl" + " " + dir / "second.csv" +
                            " " + dir / "chat.jinja");
  ASSERT_EQ(output.status, 0) << output.text;
  EXPECT_NE(output.text.find("first.jsonl row 21: deleted by the template"), std::string::npos)
      << output.text;
  EXPECT_NE(output.text.find(" % full\nfirst batch: "), std::string::npos) << output.text;
  EXPECT_EQ(run(program).status, 2);
}

TEST(Cookbook, SftIsShort) {
  const std::string text = read_file(TWINKLE_SOURCE_DIR "/cookbook/sft.cpp");
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 40);
}

}  // namespace
}  // namespace twinkle
