// What the log keeps of operations and results: whatever is not as it was written is told as damage of the
// log.
#include "twinkle/serve/operation.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve {
namespace {

Json operation() {
  return {{"record", "operation"}, {"id", 3},       {"request", "r3"}, {"kind", "call"},
          {"owner", "ann"},        {"target", "m"}, {"seq", -1},       {"forward_only", false}};
}

TEST(Operation, IsReadAsItWasWritten) {
  const Operation op = operation_from(operation(), "body");
  EXPECT_EQ(op.id, 3u);
  EXPECT_EQ(op.seq, -1);
  EXPECT_EQ(op.body, "body");
  Json head;
  std::string_view body;
  const std::string record = operation_record(op, false);
  split_record(record, head, body);
  EXPECT_EQ(operation_record(operation_from(head, body), false), record);
}

TEST(Operation, TellsDamageOfItsRecord) {
  const auto error = [](const Json& head) {
    return test::thrown([&] { operation_from(head, ""); }, ErrorKind::kUnavailable);
  };
  for (const char* key : {"id", "request", "kind", "owner", "target", "seq", "forward_only"}) {
    Json head = operation();
    head.erase(key);
    EXPECT_HAS(error(head), "[log] a record is not as this program writes it: ") << key;
    head[key] = Json::array();
    EXPECT_HAS(error(head), "[log] a record is not as this program writes it: ") << key;
  }
  for (const Json& number : {Json(1.5), Json(1e300), Json(-1)}) {
    Json head = operation();
    head["id"] = number;
    EXPECT_HAS(error(head), "this is no whole number in its range") << number;
  }
  EXPECT_HAS(error(Json("text")), "[log] a record is not as this program writes it: ");
  const auto result_error = [](const Json& head) {
    return test::thrown([&] { result_from(head, ""); }, ErrorKind::kUnavailable);
  };
  EXPECT_HAS(result_error({{"kind", 1}}), "[log] a record is not as this program writes it: ");
  EXPECT_EQ(result_error({{"kind", "x"}}), "[log] a record speaks of 'x', which is unknown here");
}

TEST(Operation, TellsDamageOfASample) {
  Json head;
  std::string_view body;
  const std::string record = encode(SampleCall{.prompt = {1, 2}});
  split_record(record, head, body);
  head["seed"] = "x";
  EXPECT_HAS(test::thrown([&] { decode_sample(join_record(head, body)); }, ErrorKind::kUnavailable),
             "[log] a record is not as this program writes it: ");
}

TrainCall call_of_two() {
  TrainCall call{.loss = "ppo", .loss_config = {{"clip_low_threshold", 0.5}}};
  call.data.push_back(
      {.tokens = {1, 2, 70000}, .targets = {2, 70000, -100}, .inputs = {{"weights", {0, 1, 1}}}});
  call.data.push_back(
      {.tokens = {5}, .targets = {6, 7}, .inputs = {{"weights", {0.25f, 3}}, {"x", {}}}, .columns = 2});
  return call;
}

void expect_same(const TrainCall& got, const TrainCall& expected) {
  EXPECT_EQ(got.loss, expected.loss);
  EXPECT_EQ(got.loss_config, expected.loss_config);
  ASSERT_EQ(got.data.size(), expected.data.size());
  for (size_t i = 0; i < got.data.size(); ++i) {
    EXPECT_EQ(got.data[i].tokens, expected.data[i].tokens);
    EXPECT_EQ(got.data[i].targets, expected.data[i].targets);
    EXPECT_EQ(got.data[i].inputs, expected.data[i].inputs);
    EXPECT_EQ(got.data[i].columns, expected.data[i].columns);
  }
}

TEST(Operation, CallsAreReadAsTheyWereWritten) {
  expect_same(decode_call(encode(call_of_two())), call_of_two());
}

// Four bytes a number, in fields of their own.
TEST(Operation, CallsOfLogsOfFormat2AreReadToo) {
  const TrainCall call = call_of_two();
  WireWriter out, config;
  out.bytes(1, call.loss);
  config.bytes(1, "clip_low_threshold");
  config.real64(2, 0.5);
  out.bytes(2, config.str());
  for (const Datum& datum : call.data) {
    WireWriter d;
    d.bytes(1, pack_array(datum.tokens));
    d.bytes(2, pack_array(datum.targets));
    for (const auto& [name, values] : datum.inputs) {
      WireWriter input;
      input.bytes(1, name);
      input.bytes(2, pack_array(values));
      d.bytes(3, input.str());
    }
    d.integer(4, datum.columns);
    out.bytes(4, d.str());
  }
  expect_same(decode_call(out.str()), call);
}

TEST(Operation, ResultsHaveTheSameOfEveryDatum) {
  const CallResult whole{
      .loss = 1, .logprobs = {{-1}, {-2}}, .elementwise_loss = {{1}, {2}}, .columns = {1, 0}};
  EXPECT_EQ(decode_call_result(encode(whole)).columns, whole.columns);
  CallResult without = whole;
  without.columns = {};
  without.elementwise_loss = {};
  EXPECT_EQ(decode_call_result(encode(without)).logprobs, whole.logprobs);
  CallResult short_columns = whole, short_losses = whole;
  short_columns.columns = {1};
  short_losses.elementwise_loss = {{1}};
  for (const CallResult& bad : {short_columns, short_losses}) {
    EXPECT_EQ(test::thrown([&] { decode_call_result(encode(bad)); }, ErrorKind::kUnavailable),
              "[log] a record of a result does not have the same of every datum");
  }
}

}  // namespace
}  // namespace twinkle::serve
