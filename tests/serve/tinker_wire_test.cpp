// Tinker's wire: both encodings of a call mean the same, what is wrong is told by name, and no bytes do harm.
#include <gtest/gtest.h>

#include <random>

#include "tests/serve/tinker_messages.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/number_lists.h"
#include "twinkle/serve/zstd_body.h"

namespace twinkle::serve::tinker {
namespace {

std::string good_request() {
  return request("cross_entropy", {datum({1, 2, 3}, {{"target_tokens", tensor<int64_t>({2, 3, 4}, 2, {3})},
                                                     {"weights", tensor<float>({1, -0.5f, 0}, 1)},
                                                     {"unknown", "\xff"}})});
}

TEST(TinkerWire, ReadsBothEncodingsAlike) {
  const TrainCall a = parse_call(good_request());
  const Json body = parse_json(R"({"model_id": "s:train:0", "seq_id": 7, "forward_backward_input": {
    "loss_fn": "cross_entropy", "loss_fn_config": null, "data": [{
      "model_input": {"chunks": [{"tokens": [1, 2]}, {"type": "encoded_text", "tokens": [3]}]},
      "loss_fn_inputs": {"target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]},
                         "weights": {"data": [1, -0.5, 0], "dtype": "float32"}}}]}})",
                               "test");
  const TrainCall b = parse_call(body, "forward_backward_input");
  EXPECT_EQ(encode(a), encode(b));
  ASSERT_EQ(a.data.size(), 1u);
  EXPECT_EQ(a.data[0].tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(a.data[0].targets, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(a.data[0].inputs.at("weights"), (std::vector<float>{1, -0.5f, 0}));
  EXPECT_EQ(call_head(std::string_view(good_request())).seq_id, 7);
  EXPECT_EQ(call_head(body).model_id, "s:train:0");
}

TEST(TinkerWire, NamesWhatIsWrong) {
  const std::string targets = tensor<int64_t>({2, 3, 4}, 2);
  const auto bad = [&](const std::map<std::string, std::string>& inputs,
                       const std::string& loss = "cross_entropy") {
    return error_of(request(loss, {datum({1, 2, 3}, inputs)}));
  };
  EXPECT_NE(bad({}).find("datum 0: loss 'cross_entropy' needs 'target_tokens'"), std::string::npos);
  EXPECT_NE(bad({{"target_tokens", tensor<int64_t>({2, 3}, 2)}}).find("has 2 values for 3 tokens"),
            std::string::npos);
  EXPECT_NE(bad({{"target_tokens", tensor<int64_t>({2, 3, -4}, 2)}}).find("token -4 is out of range"),
            std::string::npos);
  EXPECT_NE(
      bad({{"target_tokens", targets}, {"weights", tensor<float>({1, 1, NAN}, 1)}}).find("NonFiniteInTensor"),
      std::string::npos);
  EXPECT_NE(bad({{"target_tokens", targets}}, "ppo").find("needs 'logprobs'"), std::string::npos);
  EXPECT_NE(bad({{"target_tokens", targets}}, "pppo").find("'ppo'"), std::string::npos);
  EXPECT_NE(bad({{"target_tokens", tensor<int64_t>({2, 3, 4, 5, 6, 7}, 2)}}).find("6 values for 3"),
            std::string::npos);
  EXPECT_NE(error_of(request("cross_entropy", {})).find("there are no data"), std::string::npos);
  EXPECT_NE(error_of(request("cross_entropy", {datum({}, {})})).find("has no tokens"), std::string::npos);
}

// In JSON, where long lists of numbers are read in another way and old packages leave out what a chunk is.
TEST(TinkerWire, NamesWhatIsWrongInJson) {
  const auto error = [](const std::string& data) {
    const Json body = parse_json_packed(
        R"({"model_id": "m", "forward_backward_input": {"loss_fn": "cross_entropy", "data": )" + data + "}}",
        "body");
    return test::thrown([&] { parse_call(body, "forward_backward_input"); }, ErrorKind::kInvalidArgument);
  };
  EXPECT_HAS(error("[]"), "there are no data");
  EXPECT_HAS(error("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"),
             "must be a list of objects, not of numbers");
  const auto chunk = [&](const char* fields) {
    return error(R"([{"model_input": {"chunks": [)" + std::string(fields) + "]}}]");
  };
  EXPECT_HAS(chunk(R"({"data": "aGk=", "format": "png"})"), "chunks of type 'image' need a model that sees");
  EXPECT_HAS(chunk(R"({"location": "x", "format": "png"})"), "chunks of type 'image_asset_pointer' need");
  EXPECT_HAS(chunk(R"({"text": "x"})"), "a text chunk needs a list 'tokens'");
}

// Cut anywhere, changed anywhere: a call or a user's error.
TEST(TinkerWire, SurvivesAnyBytes) {
  const std::string good = good_request();
  for (size_t size = 0; size < good.size(); ++size) error_of(good.substr(0, size));
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    error_of(bytes);
  }
}

TEST(TinkerWire, ChecksAdam) {
  const auto error = [](const char* params) {
    try {
      parse_adam({{"adam_params", parse_json(params, "test")}});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error("{}"), "");
  EXPECT_EQ(parse_adam(Json::object()).at("beta2"), 0.95);
  EXPECT_NE(error(R"({"beta1": 1})"), "");
  EXPECT_NE(error(R"({"eps": 0})"), "");
  EXPECT_NE(error(R"({"learning_rate": -1})"), "");
  EXPECT_NE(error(R"({"learning_rate": "x"})"), "");
}

TEST(TinkerWire, TellsNoStopFromNoEndOfText) {
  const auto sample = [](const char* params) {
    return parse_sample(
        {{"prompt", {{"chunks", {{{"tokens", {1}}}}}}}, {"sampling_params", parse_json(params, "t")}});
  };
  EXPECT_TRUE(sample(R"({})").stop_at_end);
  EXPECT_TRUE(sample(R"({"stop": null})").stop_at_end);
  EXPECT_FALSE(sample(R"({"stop": []})").stop_at_end);
  EXPECT_EQ(sample(R"({"stop": "ab"})").stop_strings, std::vector<std::string>{"ab"});
  EXPECT_EQ(sample(R"({"stop": [4, 5]})").stop_tokens, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(sample(R"({"temperature": 0})").temperature, 0);
  EXPECT_FALSE(sample(R"({"max_tokens": null})").max_tokens);
}

// Numbers that are not finite are texts in JSON: a bare NaN is none of its numbers.
TEST(TinkerWire, WritesStrictJson) {
  const CallResult result{.loss = NAN, .logprobs = {{-1.5f, -INFINITY}}};
  EXPECT_EQ(call_to_json(result),
            R"({"loss_fn_output_type":"scalar","loss_fn_outputs":[{"logprobs":{"data":[-1.5,"-Infinity"],)"
            R"("dtype":"float32","shape":[2]}}],"metrics":{"loss:sum":"NaN"}})");
}

// A body of a thousand bytes that would be ten gigabytes stops where it has to.
TEST(ZstdBody, StopsAtItsLimit) {
  // A frame that says nothing of its size, and blocks that repeat one byte 128 KiB times each.
  std::string bomb("\x28\xb5\x2f\xfd\x00\x58", 6);
  for (int i = 0; i < 80000; ++i) bomb += std::string("\x02\x00\x10\x41", 4);
  bomb += std::string("\x03\x00\x10\x41", 4);
  try {
    unpack_zstd(bomb, 1 << 20);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kExhausted) << e.what();
  }
  EXPECT_THROW(unpack_zstd("not zstd at all", 1 << 20), Error);
  EXPECT_THROW(unpack_zstd(bomb.substr(0, 8), 1 << 20), Error);
  const std::string small =
      std::string("\x28\xb5\x2f\xfd\x00\x58", 6) + std::string("\x21\x00\x00", 3) + "abcd";
  EXPECT_EQ(unpack_zstd(small, 1 << 20), "abcd");
}

}  // namespace
}  // namespace twinkle::serve::tinker
