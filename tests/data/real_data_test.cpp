// labels: slow
// The real data sets, from rows to packed bins: rows, tokens, trained tokens and dropped rows are those that
// transformers counts (tests/parity/make_real_data_goldens.py); every token of them ends up in a bin once.
#include "tests/data/data_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/data/packing.h"

namespace twinkle {
namespace {

struct Set {
  std::string name, path, preprocessor;
  Json options = nullptr;
  bool prompts = false;
  std::vector<std::string> columns = {};
  Json rename = nullptr;
};

const Json kEnglish = {{"language", "en"}};

const std::vector<Set>& sets() {
  static const std::vector<Set> list = {
      {"alpaca", "datasets/llama-factory/alpaca_en_demo.json", "AlpacaProcessor"},
      {"identity", "datasets/identity.json", "AlpacaProcessor"},
      {"gsm8k",
       "datasets/gsm8k/train.jsonl",
       "QueryResponseProcessor",
       {{"query", "question"}, {"response", "answer"}}},
      {"dpo", "datasets/llama-factory/dpo_en_demo.json", "DPOProcessor"},
      {"kto", "datasets/llama-factory/kto_en_demo.json", "KTOProcessor"},
      {"glaive", "datasets/llama-factory/glaive_toolcall_en_demo.json", "ShareGPTProcessor"},
      {"chatml", "datasets/ms-swift/chatml.jsonl", "MessagesProcessor"},
      {"conversations", "datasets/ms-swift/conversations.jsonl", "ConversationsProcessor"},
      {"sharegpt", "datasets/ms-swift/sharegpt.jsonl", "MessagesProcessor"},
      {"tinker", "datasets/tinker/conversations.jsonl", "MessagesProcessor"},
      {"wikisql", "datasets/mlx-lora-wikisql/valid.jsonl", "TextProcessor"},
      {"nli", "datasets/embedding/nli.jsonl", "EmbeddingProcessor"},
      {"nq", "datasets/embedding/nq.jsonl", "EmbeddingProcessor"},
      {"stsb_train",
       "datasets/stsb/train.csv",
       "EmbeddingProcessor",
       nullptr,
       false,
       {"sentence1", "sentence2", "score"}},
      {"stsb_dev",
       "datasets/stsb/dev.csv",
       "EmbeddingProcessor",
       nullptr,
       false,
       {"sentence1", "sentence2", "score"}},
      {"countdown",
       "datasets/countdown/cd3_a.jsonl",
       "CountdownProcessor",
       nullptr,
       true,
       {},
       {{"input", "nums"}, {"output", "target"}}},
      {"olympiad", "datasets/olympiadbench/maths_en_a.jsonl", "OlympiadBenchProcessor", kEnglish, true},
      {"bfcl", "datasets/bfcl/BFCL_v4_parallel.json", "", nullptr, true},
      {"tinyzero",
       "parquet-arrow/tinyzero_arithmetic_train.parquet",
       "MessagesProcessor",
       nullptr,
       true,
       {},
       {{"prompt", "messages"}}},
  };
  return list;
}

TEST(RealData, CountsAreThoseOfTransformers) {
  const Json goldens = read_json_file(TWINKLE_SOURCE_DIR "/tests/data/real_data_goldens.json");
  const int64_t max_length = goldens.at("max_length").get<int64_t>();
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/minimind"));
  const TemplateOptions options{
      .max_length = max_length,
      .truncation_strategy = "delete",
      .chat_template = read_file(test_data("chat-templates/Qwen-Qwen2.5-7B-Instruct.jinja"))};
  const auto chat = make_template("", tokenizer, options);
  const auto text = make_template("", tokenizer, {.max_length = max_length, .use_chat_template = false});
  int64_t compared = 0;
  for (const Set& set : sets()) {
#ifndef TWINKLE_HAS_ARROW
    if (set.path.ends_with(".parquet")) continue;
#endif
    const Json& want = goldens.at("sets").at(set.name);
    Dataset data({.dataset_id = test_data(set.path), .columns = set.columns});
    EXPECT_EQ(data.size(), want.at("rows").get<int64_t>()) << set.name;
    if (!set.rename.is_null()) data.rename_columns(set.rename);
    if (set.preprocessor.empty()) {
      // The caller's own: a question with functions to call.
      data.map([](const Row& row) -> Trajectory {
        Trajectory out{.messages = row.at("question").at(0), .tools = Json::array()};
        for (const Json& function : row.at("function"))
          out.tools.push_back({{"type", "function"}, {"function", function}});
        return out;
      });
    } else {
      data.map(set.preprocessor, set.options);
    }
    data.encode(set.name == "wikisql" ? *text : *chat, BadRows::kDrop, "", set.prompts);
    int64_t tokens = 0, trained = 0, longest = 0;
    for (const auto& f : data.features()) {
      tokens += static_cast<int64_t>(f.input_ids.size());
      trained += f.num_trained();
      longest = std::max(longest, static_cast<int64_t>(f.input_ids.size()));
    }
    EXPECT_EQ(tokens, want.at("tokens").get<int64_t>()) << set.name;
    EXPECT_EQ(trained, want.at("trained").get<int64_t>()) << set.name;
    EXPECT_EQ(longest, want.at("longest").get<int64_t>()) << set.name;
    EXPECT_EQ(static_cast<int64_t>(data.dropped().size()), want.at("dropped").get<int64_t>()) << set.name;
    int64_t too_long = 0, untrained = 0;
    for (const auto& row : data.dropped()) {
      EXPECT_NE(row.reason.find(" row "), std::string::npos);
      too_long +=
          row.reason.ends_with(": deleted by the template (max_length 1024, truncation_strategy delete)");
      untrained += row.reason.ends_with(": no token of it is trained on (every label is masked)");
    }
    EXPECT_EQ(too_long, want.at("too_long").get<int64_t>()) << set.name;
    EXPECT_EQ(untrained, want.at("untrained").get<int64_t>()) << set.name;
    const PackingDataset packed(data.take_features(), {.max_length = 4 * max_length});
    EXPECT_EQ(packed.num_tokens(), tokens) << set.name;
    // Bins are at least 98.5 % full, but for the last one.
    const int64_t room = 4 * max_length;
    EXPECT_GE(tokens * 1000, (packed.size() - 1) * room * 985) << set.name;
    ++compared;
  }
#ifdef TWINKLE_HAS_ARROW
  EXPECT_EQ(compared, 19);
#endif
}

// Rows with pictures go as far as their rendering, and are not encoded.
TEST(RealData, RowsWithPicturesAreRenderedAndRefusedByName) {
  const auto tmpl =
      make_template("", Tokenizer::load(test_data("tokenizers/minimind")),
                    {.chat_template = read_file(test_data("chat-templates/Qwen-Qwen3-VL.jinja"))});
  struct Pictures {
    std::string path, first;
    int64_t rows, pictures, left;
  };
  for (const auto& set :
       {Pictures{"ms-swift/multi_modal_1.jsonl", "<|vision_start|><|image_pad|><|vision_end|>55555", 3, 3, 1},
        Pictures{"ms-swift/multi_modal_2.jsonl", "<|vision_start|><|image_pad|><|vision_end|>55555", 3, 5, 0},
        Pictures{"ms-swift/multi_modal_3.jsonl", "<|vision_start|><|image_pad|><|vision_end|>55555", 3, 3, 0},
        Pictures{"llama-factory/mllm_demo.json", "<|vision_start|><|image_pad|><|vision_end|>Who are they?",
                 6, 8, 0}}) {
    Dataset data({test_data("datasets/") + set.path});
    data.map("");
    ASSERT_EQ(data.size(), set.rows) << set.path;
    int64_t pictures = 0;
    for (int64_t i = 0; i < data.size(); ++i) {
      const std::string text = tmpl->render(data.trajectory(i), false);
      if (i == 0) {
        EXPECT_NE(text.find("<|im_start|>user\n" + set.first), std::string::npos) << text;
      }
      for (size_t at = 0; (at = text.find("<|image_pad|>", at)) != std::string::npos; ++at) ++pictures;
    }
    EXPECT_EQ(pictures, set.pictures) << set.path;
    std::string said;
    try {
      data.encode(*tmpl, BadRows::kDrop);
      said = data.dropped().front().reason;
    } catch (const Error& e) {
      said = e.what();
    }
    EXPECT_EQ(static_cast<int64_t>(data.features().size()), set.left) << set.path;
    EXPECT_NE(said.find("message 0: has an image ("), std::string::npos) << said;
    EXPECT_NE(said.find("the models trained here read text only"), std::string::npos) << said;
  }
}

TEST(RealData, ShakespeareIsCutIntoWindows) {
  Dataset shakespeare({.dataset_id = test_data("datasets/tinyshakespeare/input.txt")});
  const auto plain =
      make_template("", Tokenizer::load(test_data("tokenizers/minimind")),
                    {.max_length = 512, .truncation_strategy = "split", .use_chat_template = false});
  shakespeare.encode(*plain);
  std::vector<int32_t> all;
  for (const auto& f : shakespeare.features()) all.insert(all.end(), f.input_ids.begin(), f.input_ids.end());
  EXPECT_EQ(plain->decode(all, false), read_file(test_data("datasets/tinyshakespeare/input.txt")));
}

}  // namespace
}  // namespace twinkle
