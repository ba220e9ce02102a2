// What the log keeps of operations and results: whatever is not as it was written is told as damage of the
// log.
#include "twinkle/serve/operation.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"

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
