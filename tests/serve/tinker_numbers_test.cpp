// Losses, tables of targets, spans, and what a sample can be asked for, on both wires.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/serve/tinker_messages.h"

namespace twinkle::serve::tinker {
namespace {

template <class T>
std::string sparse(const std::vector<T>& values, int64_t dtype, const std::vector<int64_t>& crow,
                   const std::vector<int64_t>& col, const std::vector<int64_t>& shape) {
  WireWriter csr, out;
  csr.bytes(1, pack_array(values));
  csr.bytes(2, pack_array(crow));
  csr.bytes(3, pack_array(col));
  out.bytes(2, csr.str());
  out.integer(3, dtype);
  for (const int64_t size : shape) out.integer(4, size);
  return out.take();
}

const std::vector<int64_t> kTargets = {0, 7, 0, 0, 5, 9};
const std::vector<float> kWeights = {0, 0.5f, 0, 0, 0, -2};

std::string sparse_targets() { return sparse<int64_t>({7, 5, 9}, 2, {0, 1, 1, 3}, {1, 0, 1}, {3, 2}); }

TEST(TinkerNumbers, TakeTablesDenseAndSparse) {
  const std::string dense =
      request("cross_entropy", {datum({1, 2, 3}, {{"target_tokens", tensor(kTargets, 2, {3, 2})},
                                                  {"weights", tensor(kWeights, 1, {3, 2})}})});
  // The two tensors have patterns of their own.
  const std::string csr =
      request("cross_entropy",
              {datum({1, 2, 3}, {{"target_tokens", sparse_targets()},
                                 {"weights", sparse<float>({0.5f, -2}, 1, {0, 1, 1, 2}, {1, 1}, {3, 2})}})});
  const Json body = parse_json(R"({"forward_backward_input": {"loss_fn": "cross_entropy", "data": [{
      "model_input": {"chunks": [{"tokens": [1, 2, 3]}]},
      "loss_fn_inputs": {
        "target_tokens": {"data": [7, 5, 9], "dtype": "int64", "shape": [3, 2],
                          "sparse_crow_indices": [0, 1, 1, 3], "sparse_col_indices": [1, 0, 1]},
        "weights": {"data": [0, 0.5, 0, 0, 0, -2], "dtype": "float32", "shape": [3, 2]}}}]}})",
                               "test");
  const TrainCall call = parse_call(dense);
  EXPECT_EQ(call.data[0].columns, 2);
  EXPECT_EQ(call.data[0].targets, (std::vector<int32_t>{0, 7, 0, 0, 5, 9}));
  EXPECT_EQ(call.data[0].inputs.at("weights"), kWeights);
  EXPECT_EQ(encode(parse_call(csr)), encode(call));
  EXPECT_EQ(encode(parse_call(body, "forward_backward_input")), encode(call));
  EXPECT_EQ(encode(decode_call(encode(call))), encode(call));
  const TrainCall one =
      parse_call(request("ppo", {datum({1, 2}, {{"target_tokens", tensor<int64_t>({3, 4}, 2, {2, 1})},
                                                {"logprobs", tensor<float>({-1, -2}, 1)},
                                                {"advantages", tensor<float>({1, 2}, 1, {2, 1})}})}));
  EXPECT_EQ(one.data[0].columns, 1);
}

TEST(TinkerNumbers, RefuseTablesThatAreNone) {
  const auto bad = [](const std::string& targets, const std::string& weights = "") {
    std::map<std::string, std::string> inputs = {{"target_tokens", targets}};
    if (!weights.empty()) inputs["weights"] = weights;
    return error_of(request("cross_entropy", {datum({1, 2, 3}, inputs)}));
  };
  const std::string place = "[forward_backward] datum 0, target_tokens: ";
  EXPECT_EQ(bad(tensor(kTargets, 2, {2, 3})), place + "its shape [2, 3] is neither [3] nor [3, K]");
  EXPECT_EQ(bad(tensor(kTargets, 2, {3, 3})), place + "has 6 values for shape [3, 3]");
  EXPECT_EQ(bad(tensor(kTargets, 2, {3, 1, 2})), place + "its shape [3, 1, 2] is neither [3] nor [3, K]");
  EXPECT_EQ(bad(tensor(kTargets, 2, {-3, -2})), place + "its shape [-3, -2] is neither [3] nor [3, K]");
  EXPECT_EQ(bad(tensor(kTargets, 2, {3, int64_t{1} << 62})),
            place + "has 4611686018427387904 columns, at most 1024 are taken");
  EXPECT_EQ(bad(sparse<int64_t>({7}, 2, {0, 1, 1, 1}, {1}, {3, 5000})),
            place + "has 5000 columns, at most 1024 are taken");
  const auto csr = [&](std::vector<int64_t> crow, std::vector<int64_t> col, std::vector<int64_t> values) {
    return bad(sparse<int64_t>(values, 2, crow, col, {3, 2}));
  };
  const std::string pointers = place + "its row pointers are not those of a sparse tensor of 3 rows";
  EXPECT_EQ(csr({0, 1, 1}, {1}, {7}), pointers);
  EXPECT_EQ(csr({0, 2, 1, 1}, {1}, {7}), pointers);
  EXPECT_EQ(csr({0, 1, 1, int64_t{1} << 60}, {1}, {7}), pointers);
  EXPECT_EQ(csr({-1, 0, 0, 1}, {1}, {7}), pointers);
  EXPECT_EQ(csr({0, 1, 1, 1}, {1}, {7, 8}), place + "has 2 values for 1 column indices");
  EXPECT_EQ(csr({0, 1, 1, 1}, {2}, {7}), place + "column index 2 of row 0 is out of range or out of order");
  EXPECT_EQ(csr({0, 2, 2, 2}, {1, 1}, {7, 8}),
            place + "column index 1 of row 0 is out of range or out of order");
  EXPECT_EQ(csr({}, {}, {}), place + "a sparse tensor without row pointers");
  EXPECT_EQ(bad(tensor(kTargets, 2, {3, 2}), tensor<float>({1, 1, 1}, 1)),
            "[forward_backward] datum 0, weights: has 1 values a token, target_tokens has 2");
  EXPECT_EQ(error_of(request("dro", {datum({1, 2, 3}, {{"target_tokens", sparse_targets()}})})),
            place + "loss 'dro' takes one target a token; only cross_entropy takes several");
}

// A number above 2^63-1 was read as a negative one.
TEST(TinkerNumbers, WrapNoWholeNumbers) {
  const auto error = [](const std::string& tokens, const std::string& targets, const std::string& weights) {
    const std::string text = R"({"x": {"loss_fn": "cross_entropy", "data": [{
      "model_input": {"chunks": [{"tokens": )" +
                             tokens + R"(}]},
      "loss_fn_inputs": {"target_tokens": {"data": )" +
                             targets + R"(, "dtype": "int64"},
                         "weights": {"data": )" +
                             weights + R"(, "dtype": "int64"}}}]}})";
    return test::thrown([&] { parse_call(parse_json(text, "test"), "x"); });
  };
  const std::string most = "[18446744073709551615]", place = "[forward_backward] datum 0";
  EXPECT_EQ(error("[1]", "[2]", "[1]"), "");
  EXPECT_EQ(error("[1]", "[2]", most), place + ", weights: 18446744073709551615 is out of range");
  EXPECT_EQ(error("[1]", most, "[1]"), place + ", target_tokens: 18446744073709551615 is out of range");
  EXPECT_EQ(error(most, "[2]", "[1]"), place + ": 18446744073709551615 is out of range");
}

std::string option(uint32_t field, const std::string& name, double value) {
  WireWriter inner, out;
  if (field == 7) {
    WireWriter number;
    number.real64(1, value);
    inner.bytes(1, name);
    inner.bytes(2, number.str());
  } else {
    inner.bytes(1, name);
    inner.real64(2, value);
  }
  out.bytes(field, inner.str());
  return out.take();
}

TEST(TinkerNumbers, KnowTheOptionsOfEachLoss) {
  const std::map<std::string, std::vector<std::string>> known = {
      {"cross_entropy", {}},
      {"importance_sampling", {}},
      {"ppo", {"clip_low_threshold", "clip_high_threshold"}},
      {"cispo", {"clip_low_threshold", "clip_high_threshold"}},
      {"dro", {"beta"}},
      {"gspo", {"clip_low_threshold", "clip_high_threshold"}},
      {"stable_reinforce", {"kl_coeff"}}};
  const std::string one = datum({1}, {{"target_tokens", tensor<int64_t>({2}, 2)},
                                      {"logprobs", tensor<float>({-1}, 1)},
                                      {"advantages", tensor<float>({1}, 1)}});
  for (const auto& [loss, names] : known) {
    for (const uint32_t field : {5u, 7u}) {
      std::string bytes = request(loss, {one});
      for (const auto& name : names) bytes += option(field, name, 0.5);
      EXPECT_EQ(parse_call(bytes).loss_config.size(), names.size()) << loss;
      EXPECT_HAS(error_of(bytes + option(field, "epsilon", 0.5)),
                 "[forward_backward] loss '" + loss + "' has no option 'epsilon'");
      if (names.empty()) continue;
      EXPECT_EQ(error_of(request(loss, {one}) + option(field, names[0], NAN)),
                "[forward_backward] option '" + names[0] + "' is not finite");
    }
  }
  // Field 7 is the whole of it where it is there.
  const TrainCall both = parse_call(request("dro", {one}) + option(5, "beta", 1) + option(7, "beta", 2));
  EXPECT_EQ(both.loss_config.at("beta"), 2);
  WireWriter text, inner, out;
  text.bytes(2, "much");
  inner.bytes(1, "beta");
  inner.bytes(2, text.str());
  out.bytes(7, inner.str());
  EXPECT_EQ(error_of(request("dro", {one}) + out.str()),
            "[forward_backward] option 'beta' must be a number, not a text");
  EXPECT_HAS(error_of(request("custom", {one})), "forward_backward_custom computes it on your machine");
}

std::string span(bool sampled, const std::string& sequence, int64_t offset, int64_t length) {
  WireWriter in, out;
  if (!sequence.empty()) in.bytes(1, sequence);
  in.integer(2, offset);
  in.integer(3, length);
  out.bytes(sampled ? 2 : 1, in.str());
  return out.take();
}

TEST(TinkerNumbers, CheckWhereTokensComeFrom) {
  const auto with = [](const std::vector<std::string>& inputs, const std::vector<std::string>& targets,
                       const std::string& loss = "stable_reinforce", std::vector<float> a = {0, 0, 2, -1}) {
    WireWriter spans;
    for (const auto& s : inputs) spans.bytes(3, s);
    for (const auto& s : targets) spans.bytes(4, s);
    return request(loss, {datum({1, 2, 3, 4}, {{"target_tokens", tensor<int64_t>({2, 3, 4, 5}, 2)},
                                               {"logprobs", tensor<float>({0, 0, -1, -2}, 1)},
                                               {"advantages", tensor(a, 1)}}) +
                          spans.str()});
  };
  const std::vector<std::string> inputs = {span(false, "s:0", 0, 3), span(true, "s:0", 0, 1)},
                                 targets = {span(false, "s:0", 1, 2), span(true, "s:0", 0, 2)};
  EXPECT_EQ(parse_call(with(inputs, targets)).data[0].inputs.at("sampled"), (std::vector<float>{0, 0, 1, 1}));
  EXPECT_FALSE(parse_call(with({}, {})).data[0].inputs.contains("sampled"));
  const std::string place = "[forward_backward] datum 0, loss_fn_input_spans";
  EXPECT_EQ(
      error_of(with(inputs, {})),
      "[forward_backward] datum 0: provenance comes as a pair: model_input_spans and loss_fn_input_spans");
  EXPECT_EQ(error_of(with(inputs, {targets[1]})),
            place + ": the spans cover fewer than the 4 positions of the datum");
  EXPECT_EQ(error_of(with(inputs, {span(true, "s:0", 0, INT64_MAX), span(true, "s:0", 0, INT64_MAX)})),
            place + ": the spans cover more than the 4 positions of the datum");
  EXPECT_EQ(error_of(with(inputs, {span(true, "", 0, 4)})), place + "[0]: names no sequence");
  EXPECT_EQ(error_of(with(inputs, {targets[0], span(true, "s:0", -1, 2)})),
            place + "[1]: its offset and length must not be negative");
  EXPECT_EQ(error_of(with(inputs, targets, "stable_reinforce", {0, 1, 0, 0})),
            "[forward_backward] datum 0, advantages: position 1 has one, and loss_fn_input_spans say that "
            "its target "
            "was not sampled");
  // Other losses do not look at them.
  EXPECT_EQ(error_of(with(inputs, {span(true, "", 0, 9)}, "importance_sampling")), "");
  EXPECT_HAS(note_on(parse_call(with({}, {}))), "kl_coeff");
  EXPECT_EQ(note_on(parse_call(with({}, {}, "ppo"))), "");
}

// Cut anywhere, changed anywhere: a call or a user's error.
TEST(TinkerNumbers, SurviveAnyBytes) {
  WireWriter spans;
  spans.bytes(3, span(true, "s:0", 0, 2));
  spans.bytes(4, span(true, "s:0", 0, 2));
  const std::string sparse_one =
      request("cross_entropy", {datum({1, 2, 3}, {{"target_tokens", sparse_targets()}})});
  const std::string spanned =
      request("stable_reinforce", {datum({1, 2}, {{"target_tokens", tensor<int64_t>({2, 3}, 2)},
                                                  {"logprobs", tensor<float>({-1, -1}, 1)},
                                                  {"advantages", tensor<float>({1, 1}, 1)}}) +
                                   spans.str()}) +
      option(7, "kl_coeff", 0.5);
  std::mt19937 random(2);
  for (const std::string& good : {sparse_one, spanned}) {
    EXPECT_EQ(error_of(good), "");
    for (size_t size = 0; size < good.size(); ++size) error_of(good.substr(0, size));
    for (int i = 0; i < 10000; ++i) {
      std::string bytes = good;
      for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
      error_of(bytes);
    }
  }
}

TEST(TinkerNumbers, ReplyWithTables) {
  CallResult result{.loss = 2,
                    .logprobs = {{-1, -2}, {-1, -2, -3, -4}, {-5, -6}},
                    .elementwise_loss = {{1, 2}, {1, 2, 3, 4}, {5, 6}},
                    .columns = {0, 2, 2}};
  result = decode_call_result(encode(result));
  std::vector<int64_t> counts;
  std::vector<std::vector<int64_t>> trailing;
  const std::string bytes = call_to_proto(result);
  for (WireReader in(bytes, "reply"); in.next();) {
    if (in.field() != 2) continue;
    for (WireReader record(in.bytes(), "record"); record.next();) {
      if (record.field() == 3) counts.push_back(record.integer());
      if (record.field() != 2) continue;
      for (WireReader entry(record.bytes(), "entry"); entry.next();) {
        if (entry.field() != 2) continue;
        auto& shape = trailing.emplace_back();
        for (WireReader t(entry.bytes(), "tensor"); t.next();) {
          if (t.field() == 4) t.integers(shape);
        }
      }
    }
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(trailing, (std::vector<std::vector<int64_t>>{{}, {}, {2}, {2}}));
  const Json json = parse_json(call_to_json(result), "test");
  EXPECT_EQ(json["loss_fn_outputs"][0]["logprobs"]["shape"], Json({2}));
  EXPECT_EQ(json["loss_fn_outputs"][1]["elementwise_loss"]["shape"], Json({2, 2}));
  EXPECT_EQ(json["loss_fn_outputs"][2]["logprobs"]["shape"], Json({1, 2}));
}

SampleCall sample(const std::string& more) {
  return parse_sample(parse_json(R"({"prompt": {"chunks": [{"tokens": [1, 2, 3]}]})" + more + "}", "test"));
}

TEST(TinkerNumbers, AskASampleForMore) {
  const SampleCall call =
      sample(R"(, "prompt_logprobs": true, "prompt_logprobs_last_n": 2, "topk_prompt_logprobs": 4,
    "topk_sample_logprobs": 3, "prompt_alt_tokens_k": 5, "record_stability_info": true,
    "target_prompt_logprobs": {"data": [7, 9], "dtype": "int64", "shape": [2, 3],
                               "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [2, 0]})");
  EXPECT_EQ(call.prompt_logprobs_last_n, 2);
  EXPECT_EQ(call.topk_sample_logprobs, 3);
  EXPECT_EQ(call.prompt_alt_tokens, 5);
  EXPECT_EQ(call.prompt_targets.ids, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(call.prompt_targets.layout.col, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(encode(decode_sample(encode(call))), encode(call));
  const auto error = [](const std::string& more) { return test::thrown([&] { sample(more); }); };
  const auto table = [&](const std::string& data, const std::string& shape) {
    return error(R"(, "target_prompt_logprobs": {"dtype": "int64", "data": )" + data + R"(, "shape": )" +
                 shape + "}");
  };
  const std::string place = "[sample] target_prompt_logprobs: ";
  EXPECT_EQ(table("[1, -1]", "[2, 1]"), "");
  EXPECT_EQ(table("[1, 2, 3]", "[3, 1]"), place + "its shape [3, 1] is neither [2] nor [2, K]");
  EXPECT_EQ(table("[1, 2]", "[2]"), place + "must be a table of the tokens of each place but the first");
  EXPECT_EQ(table("[-1, -1]", "[2, 1]"), place + "names no token");
  EXPECT_EQ(table("[-2, 1]", "[2, 1]"), place + "token -2 is out of range");
  EXPECT_EQ(error(R"(, "prompt_logprobs_last_n": 1)"),
            "[sample] 'prompt_logprobs_last_n' needs 'prompt_logprobs'");
  EXPECT_EQ(error(R"(, "prompt_logprobs": true, "prompt_logprobs_last_n": 3)"),
            "[sample] 'prompt_logprobs_last_n' must be a whole number from 1 to 2");
  EXPECT_EQ(error(R"(, "topk_sample_logprobs": -1)"),
            "[sample] 'topk_sample_logprobs' must be a whole number from 0 to 1024");
  EXPECT_EQ(error(R"(, "sampling_params": {"stop": [18446744073709551615]})"),
            "[sample] stop: 18446744073709551615 is out of range");
  const std::string prompt = R"({"prompt": {"chunks": [{"tokens": [-1]}]}})";
  EXPECT_EQ(test::thrown([&] { parse_sample(parse_json(prompt, "test")); }),
            "[sample] the prompt: token -1 is out of range");
}

// What the log of the first servers has of a sample.
TEST(TinkerNumbers, ReadSamplesOfOlderLogs) {
  const SampleCall call = sample(R"(, "sampling_params": {"max_tokens": 4})");
  Json head;
  std::string_view body;
  const std::string bytes = encode(call);
  split_record(bytes, head, body);
  for (const char* key :
       {"prompt_logprobs_last_n", "topk_sample_logprobs", "prompt_alt_tokens", "prompt_tokens"})
    head.erase(key);
  EXPECT_EQ(encode(decode_sample(join_record(head, body))), bytes);
}

TEST(TinkerNumbers, ReplyWithWhatASampleWasAskedFor) {
  SampleDone done;
  done.sequences = {
      {.tokens = {4, 5}, .logprobs = {-1, -2}, .stopped = true, .top = {{{4, -1}, {6, -3}}, {{5, -2}}}}};
  done.target_layout = {.shape = {2, 3}, .crow = {0, 1, 2}, .col = {2, 0}};
  done.target_prompt_logprobs = {-7, -9};
  done.alt_tokens_a_place = 2;
  done.alt_tokens = {1, 2, 3, 4};
  done.alt_logprobs = {-1, -2, -3, -4};
  done = decode_sample_result(encode(done));
  const Json json = parse_json(sample_to_json(done), "test");
  EXPECT_EQ(json["sequences"][0]["topk_logprobs"],
            parse_json("[[[4, -1.0], [6, -3.0]], [[5, -2.0]]]", "test"));
  EXPECT_EQ(json["target_prompt_logprobs"],
            parse_json(R"({"data": [-7.0, -9.0], "dtype": "float32", "shape": [2, 3],
      "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [2, 0]})",
                       "test"));
  EXPECT_EQ(json["prompt_alt_tokens"]["tokens"],
            parse_json(R"({"data": [1, 2, 3, 4], "dtype": "int64", "shape": [2, 2]})", "test"));
  const std::string proto = sample_to_proto(done);
  std::vector<uint32_t> fields;
  for (WireReader in(proto, "reply"); in.next();) {
    fields.push_back(in.field());
    if (in.field() == 1) {
      for (WireReader s(in.bytes(), "sequence"); s.next();) {
        if (s.field() != 4) continue;
        for (WireReader top(s.bytes(), "top"); top.next();) {
          switch (top.field()) {
            case 1:
              EXPECT_EQ(unpack_array<int32_t>(top.bytes(), ""), (std::vector<int32_t>{4, 6, 5, 0}));
              break;
            case 2:
              EXPECT_EQ(unpack_array<float>(top.bytes(), ""), (std::vector<float>{-1, -3, -2, -99999}));
              break;
            default:
              EXPECT_EQ(top.integer(), 2);  // alternatives, places
          }
        }
      }
    }
    if (in.field() == 5) {
      for (WireReader t(in.bytes(), "tensor"); t.next();) {
        EXPECT_NE(t.field(), 1u);  // sparse, as it was asked for
        if (t.field() == 3) {
          EXPECT_EQ(t.integer(), 1);
        }
      }
    }
  }
  EXPECT_EQ(fields, (std::vector<uint32_t>{1, 5, 6}));
}

}  // namespace
}  // namespace twinkle::serve::tinker
