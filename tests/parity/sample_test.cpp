// Greedy answers are those of transformers' generate(), in fp32; those of an adapter trained here are left
// for check_greedy.py, which asks PEFT.
#include <fstream>

#include "tests/needs.h"
#include "tests/parity/reference_case.h"
#include "twinkle/sample/generate.h"

namespace twinkle::parity {
namespace {

std::vector<SampleRequest> requests_of(const Json& rows, const std::string& version) {
  std::vector<SampleRequest> out;
  for (const auto& row : rows) {
    out.push_back({.prompt = row.at("prompt").get<std::vector<int32_t>>(),
                   .params = {.max_tokens = static_cast<int64_t>(row.at("answer").size()),
                              .temperature = 0,
                              .ignore_eos = true,
                              // generate() masks the end of sequence this way while more tokens are due.
                              .forbidden_token_ids = {2}},
                   .version = version});
  }
  return out;
}

TEST(GreedyParity, FiftyPromptsAsTransformersAnswersThem) {
  const Json rows = read_json_file((references() / "greedy" / "greedy.json").string());
  ASSERT_EQ(rows.size(), 50u);
  const auto model = CausalLM::load(test::smollm2(), {.dtype = "fp32"});
  SampleEngine engine(*model, nullptr, {.kv_blocks = 120, .own_thread = false});
  const auto results = generate(engine, requests_of(rows, ""));
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(results[i].sequences[0].tokens, rows[i].at("answer").get<std::vector<int32_t>>())
        << "prompt " << i << ", the closest decision was by " << rows[i].at("margin");
  }
}

TEST(GreedyParity, LeavesAnswersOfATrainedAdapterForPeft) {
  const fs::path ours = references() / "ours" / "smollm2_135m";
  const auto model = CausalLM::load(test::smollm2(), {.dtype = "fp32"});
  SampleEngine engine(*model, nullptr, {.kv_blocks = 40, .own_thread = false});
  engine.add_version("ours",
                     std::shared_ptr<const Adapter>(Adapter::load(*model, (ours / "adapter").string())));
  Json rows = read_json_file((references() / "greedy" / "greedy.json").string());
  rows.erase(rows.begin() + 8, rows.end());
  const auto results = generate(engine, requests_of(rows, "ours"));
  Json out = Json::array();
  for (size_t i = 0; i < rows.size(); ++i)
    out.push_back({{"prompt", rows[i].at("prompt")}, {"answer", results[i].sequences[0].tokens}});
  std::ofstream(ours / "greedy.json") << out.dump();
  EXPECT_EQ(out.size(), 8u);
}

}  // namespace
}  // namespace twinkle::parity
