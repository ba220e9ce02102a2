// LossScale, the methods every template has, and the families' templates. Label tables are by hand;
// DeepSeek's renderings are those of its published template.
#include <gtest/gtest.h>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/loss_scale.h"
#include "twinkle/data/template.h"

namespace twinkle {
namespace {

constexpr const char* kChatML =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
    "%}";

std::unique_ptr<Template> minimind(TemplateOptions options = {}) {
  if (options.chat_template.empty()) options.chat_template = kChatML;
  static const std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::load(test::test_data("tokenizers/minimind"));
  return make_template("Template", tokenizer, options);
}

Json msg(const char* role, const Json& content) { return {{"role", role}, {"content", content}}; }
Trajectory chat(std::initializer_list<Json> messages) {
  Trajectory out;
  for (const Json& m : messages) out.messages.push_back(m);
  return out;
}

// The targets with weight `weight`, decoded run by run.
std::vector<std::string> with_weight(const Template& tmpl, const Trajectory& row, float weight) {
  const auto features = tmpl.encode(row);
  const InputFeature& f = features.at(0);
  std::vector<std::string> out;
  std::vector<int32_t> run;
  const auto close = [&] {
    if (!run.empty()) out.push_back(tmpl.decode(run, false));
    run.clear();
  };
  for (size_t t = 0; t < f.labels.size(); ++t) {
    const float w = f.labels[t] == kIgnoreIndex ? 0 : f.weights.empty() ? 1 : f.weights[t];
    if (w == weight && f.labels[t] != kIgnoreIndex) {
      run.push_back(f.labels[t]);
    } else {
      close();
    }
  }
  close();
  return out;
}
using Runs = std::vector<std::string>;

TEST(LossScale, LastRoundAndAll) {
  const Trajectory row = chat({msg("user", "one"), msg("assistant", "alpha"), msg("user", "two"),
                               msg("assistant", "beta"), msg("tool", "result"), msg("assistant", "gamma")});
  EXPECT_EQ(with_weight(*minimind({.loss_scale = "last_round"}), row, 1),
            (Runs{"beta<|im_end|>\n", "gamma<|im_end|>\n"}));
  EXPECT_EQ(with_weight(*minimind(), row, 1),
            (Runs{"alpha<|im_end|>\n", "beta<|im_end|>\n", "gamma<|im_end|>\n"}));
  const auto all = minimind({.loss_scale = "all"});
  const InputFeature f = all->encode(row).at(0);
  EXPECT_EQ(f.num_trained(), static_cast<int64_t>(f.input_ids.size()) - 1);
  EXPECT_TRUE(f.weights.empty());
  // So does that of a message of the user, where it is trained on at all.
  Trajectory left = row;
  left.messages[0]["loss"] = false;
  EXPECT_EQ(with_weight(*all, left, 1)[0],
            "<|im_start|>assistant\nalpha<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>"
            "assistant\nbeta<|im_end|>\n"
            "<|im_start|>tool\nresult<|im_end|>\n<|im_start|>assistant\ngamma<|im_end|>\n");
  // A message's own weight counts within it.
  Trajectory half = row;
  half.messages[1]["weight"] = 0.5;
  EXPECT_EQ(with_weight(*all, half, 0.5), (Runs{"alpha<|im_end|>\n"}));
}

TEST(LossScale, ReactHermesAndEmptyThinking) {
  const Trajectory react =
      chat({msg("user", "q"), msg("assistant", "Thought: look\nAction: get\nAction Input: x\n")});
  const auto tmpl = minimind({.loss_scale = "react"});
  EXPECT_EQ(with_weight(*tmpl, react, 1), (Runs{"Thought: look\n"}));
  EXPECT_EQ(with_weight(*tmpl, react, 2), (Runs{"Action: get\nAction Input: x\n<|im_end|>\n"}));
  Json call = msg("assistant", "hm ");
  call["tool_calls"] =
      Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}});
  EXPECT_EQ(with_weight(*minimind({.loss_scale = "hermes"}), chat({msg("user", "q"), call}), 2),
            (Runs{"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"}));
  // A call is one where the parser of calls finds it: not where a tag is spoken of, and up to its own end.
  const std::string spells =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\", \"b\": 2}}</tool_call>";
  for (const auto& [turn, calls] : std::vector<std::pair<std::string, Runs>>{
           {"Write <tool_call> before it, and no more.", {}},
           {"<think>\nI write <tool_call>.\n</think>\n\n" + spells + " so", {spells}},
           {spells + "\n" + spells, {spells, spells}},
           {"<tool_call>{\"name\": </tool_call>", {}}}) {
    Runs found;
    for (const auto& part : make_loss_scale("hermes")->parts(turn))
      found.push_back(turn.substr(part.begin, part.end - part.begin));
    EXPECT_EQ(found, calls) << turn;
  }
  const auto think = make_loss_scale("ignore_empty_think");
  const auto parts = think->parts("<think>\n\n</think>\n\nyes");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].end, 19u);
  EXPECT_EQ(parts[0].weight, 0);
  EXPECT_TRUE(think->parts("<think>\nreal\n</think>\n\nyes").empty());
  EXPECT_THROW(minimind({.loss_scale = "lastround"}), Error);
}

TEST(SplitRounds, EveryAnswerIsTrainedAsTheModelMeetsIt) {
  const std::string source = read_file(test::test_data("chat-templates/Qwen-Qwen3-0.6B.jinja"));
  Json first = msg("assistant", "one"), second = msg("assistant", "two"), call = msg("assistant", ""),
       result = msg("tool", "found");
  first["reasoning_content"] = "think first";
  second["reasoning_content"] = "think last";
  call["reasoning_content"] = "think of a tool";
  call["tool_calls"] =
      Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}});
  const Trajectory row = chat({msg("user", "q1"), first, msg("user", "q2"), call, result, second});
  // In one rendering the thinking of the first round is dropped; that of a tool chain is kept.
  const auto whole = minimind({.chat_template = source});
  EXPECT_EQ(whole->render(row, false).find("think first"), std::string::npos);
  EXPECT_NE(whole->render(row, false).find("think of a tool"), std::string::npos);
  EXPECT_EQ(whole->encode(row).size(), 1u);
  const auto split = minimind({.chat_template = source, .split_rounds = true});
  const auto parts = split->encode(row);
  ASSERT_EQ(parts.size(), 2u);
  const auto text = [&](const InputFeature& f) {
    std::vector<int32_t> ids;
    for (const int32_t label : f.labels) {
      if (label != kIgnoreIndex) ids.push_back(label);
    }
    return split->decode(ids, false);
  };
  EXPECT_EQ(text(parts[0]), "<think>\nthink first\n</think>\n\none<|im_end|>\n");
  EXPECT_EQ(text(parts[1]),
            "<think>\nthink of a tool\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
            "1}}\n</tool_call><|im_end|>\n<think>\nthink last\n</think>\n\ntwo<|im_end|>\n");
  EXPECT_EQ(split->decode(parts[1].input_ids, false), whole->render(row, false));
  Trajectory key = row;
  key.user_data = Json::array({Json::array({"key_rounds", "[1]"})});
  ASSERT_EQ(split->encode(key).size(), 1u);
  EXPECT_EQ(text(split->encode(key)[0]), text(parts[0]));
}

// What counts in the rounds together is what counts in the whole conversation.
TEST(SplitRounds, CountWhatTheConversationCounts) {
  Json half = msg("user", "q2");
  half["weight"] = 0.5;
  const Trajectory row = chat({msg("system", "s"), msg("user", "q1"), msg("assistant", "a1"),
                               msg("tool", "r"), half, msg("assistant", "a2")});
  const auto tokens = [](const Template& tmpl, const Trajectory& of) {
    std::vector<std::pair<std::string, float>> out;
    for (const InputFeature& f : tmpl.encode(of)) {
      for (size_t t = 0; t < f.labels.size(); ++t) {
        if (f.labels[t] == kIgnoreIndex) continue;
        out.emplace_back(tmpl.decode({&f.labels[t], 1}, false), f.weights.empty() ? 1 : f.weights[t]);
      }
    }
    return out;
  };
  for (const char* scale : {"default", "all", "last_round", "react"}) {
    for (const char* rounds : {"null", "[2]", "[5]", "[2, 5]", "[]"}) {
      Trajectory given = row;
      given.user_data = Json::array({Json::array({"key_rounds", rounds})});
      for (const std::string system : {"", "Be kind"}) {
        if (!system.empty()) given.messages.erase(0);
        if (!system.empty()) given.user_data = nullptr;
        TemplateOptions options{.default_system = system, .loss_scale = scale};
        const auto whole = tokens(*minimind(options), given);
        options.split_rounds = true;
        EXPECT_EQ(tokens(*minimind(options), given), whole) << scale << rounds << system;
      }
    }
  }
  const auto split = minimind({.loss_scale = "last_round", .split_rounds = true});
  EXPECT_EQ(split->encode(row).size(), 1u);
  for (const char* rounds : {"[2, 99]", "[2, 3]"}) {
    Trajectory given = row;
    given.user_data = Json::array({Json::array({"key_rounds", rounds})});
    EXPECT_NE(test::thrown([&] { split->encode(given); }).find("[template] key_rounds: message"),
              std::string::npos);
  }
}

TEST(TemplateMethods, BatchEncodeCheckAndDecode) {
  const auto tmpl = minimind({.max_length = 64});
  std::vector<Trajectory> rows;
  for (int i = 0; i < 50; ++i)
    rows.push_back(chat({msg("user", "q" + std::to_string(i)), msg("assistant", "a")}));
  const auto encoded = tmpl->batch_encode(rows);
  ASSERT_EQ(encoded.size(), 50u);
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(encoded[i].at(0).input_ids, tmpl->encode(rows[i]).at(0).input_ids);
  rows[7] = chat({msg("user", "no answer")});
  rows[9].messages[0].erase("role");
  const auto reasons = tmpl->batch_check(rows);
  EXPECT_EQ(reasons[0], "");
  EXPECT_EQ(reasons[7], "no token of it is trained on (every label is masked)");
  EXPECT_EQ(reasons[9], "[template] message 0: expected a string in 'role'");
  EXPECT_EQ(test::thrown([&] { tmpl->batch_encode(rows); }),
            "[template] conversation 9: message 0: expected a string in 'role'");
  const std::vector<std::vector<int32_t>> ids = {encoded[0][0].input_ids, encoded[1][0].input_ids};
  EXPECT_EQ(tmpl->batch_decode(ids, false)[1], tmpl->render(rows[1], false));
}

TEST(TemplateMethods, ConcatenatesWhatTheModelWrote) {
  const auto tmpl = minimind();
  const InputFeature prompt = tmpl->encode_prompt(chat({msg("user", "weather?")}));
  const std::string reply =
      "<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": "
      "\"Paris\"}}\n</tool_call><|im_end|>";
  const auto ids = tmpl->tokenizer().encode(reply);
  const auto out = tmpl->concat_input_feature(prompt, ids);
  const size_t n = prompt.input_ids.size();
  ASSERT_EQ(out.feature.input_ids.size(), n + ids.size());
  EXPECT_EQ(out.feature.num_trained(), static_cast<int64_t>(ids.size()));
  for (size_t t = 0; t < n - 1; ++t) EXPECT_EQ(out.feature.labels[t], kIgnoreIndex);
  for (size_t k = 0; k < ids.size(); ++k) EXPECT_EQ(out.feature.labels[n - 1 + k], ids[k]);
  EXPECT_EQ(out.feature.labels.back(), kIgnoreIndex);
  EXPECT_EQ(out.message["content"], "I look.");
  EXPECT_EQ(out.message["reasoning_content"], "hm");
  EXPECT_EQ(out.message["tool_calls"][0]["function"]["name"], "get");
  EXPECT_EQ(out.message["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Paris\"}");
  // The labels of an earlier round stay.
  const auto next = tmpl->concat_input_feature(out.feature, ids);
  EXPECT_EQ(next.feature.num_trained(), static_cast<int64_t>(2 * ids.size()));
  EXPECT_THROW(tmpl->concat_input_feature(prompt, std::vector<int32_t>{-1}), Error);
  EXPECT_THROW(minimind({.max_length = 8})->concat_input_feature(prompt, ids), Error);
  const auto left =
      minimind({.max_length = 8, .truncation_strategy = "left"})->concat_input_feature(prompt, ids);
  EXPECT_EQ(left.feature.input_ids, std::vector<int32_t>(ids.end() - 8, ids.end()));
}

TEST(TemplateFamilies, AreChosenFromTheModel) {
  EXPECT_EQ(template_name_for(test::test_data("tokenizers/qwen3")), "Template");
  EXPECT_EQ(template_name_for("/models/Qwen3.5-4B/"), "Qwen3_5Template");
  EXPECT_EQ(template_name_for("Qwen/Qwen3.6-27B"), "Qwen3_5Template");
  EXPECT_EQ(template_name_for("deepseek-ai/DeepSeek-V4"), "DeepseekV4Template");
  const test::TempDir temp;
  const std::string& folder = temp.path();
  write_file_atomic(folder + "/config.json", R"({"model_type": "qwen3_5_moe"})");
  EXPECT_EQ(template_name_for(folder), "Qwen3_5Template");
  write_file_atomic(folder + "/config.json", R"({"model_type": "deepseek_v4"})");
  EXPECT_EQ(template_name_for(folder), "DeepseekV4Template");
}

TEST(TemplateFamilies, DeepseekV4RendersWhatThePublishedTemplateDoes) {
  const auto tokenizer = Tokenizer::load(test::test_data("tokenizers/minimind"));
  const std::string published = read_file(test::test_data("chat-templates/deepseek-ai-DeepSeek-V4.jinja"));
  Json call = msg("assistant", "I look.");
  call["reasoning_content"] = "maybe";
  call["tool_calls"] = Json::array(
      {{{"id", "c1"},
        {"type", "function"},
        {"function",
         {{"name", "get"}, {"arguments", {{"city", "Paris"}, {"n", Json::array({1, nullptr})}}}}}}});
  Json result = msg("tool", "sunny");
  result["tool_call_id"] = "c1";
  Json thought = msg("assistant", "4");
  thought["reasoning_content"] = "2+2";
  const Json tools = Json::array(
      {{{"type", "function"},
        {"function", {{"name", "get"}, {"description", "d"}, {"parameters", {{"type", "object"}}}}}}});
  std::vector<Trajectory> rows = {
      chat({msg("user", "hi"), msg("assistant", "yo")}),
      chat({msg("system", "be"), msg("user", "2+2"), thought, msg("user", "more"), thought}),
      chat({msg("system", "be"), msg("user", "w"), call, result, thought}),
      chat({msg("user", "a"), msg("user", "b"), msg("assistant", "c")})};
  rows.push_back(rows[2]);
  rows.back().tools = tools;
  int compared = 0;
  for (const bool thinking : {false, true}) {
    const auto ours = make_template("DeepseekV4Template", tokenizer, {.enable_thinking = thinking});
    const auto theirs =
        make_template("Template", tokenizer, {.enable_thinking = thinking, .chat_template = published});
    for (const auto& row : rows) {
      for (const bool prompt : {false, true}) {
        EXPECT_EQ(ours->render(row, prompt), theirs->render(row, prompt));
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 20);
  // Tasks, and the order of results.
  const auto tmpl = make_template("DeepseekV4Template", tokenizer, {.enable_thinking = false});
  Json task = msg("user", "find it");
  task["task"] = "query";
  const std::string bos = tokenizer->config().value("bos_token", "");
  EXPECT_EQ(tmpl->render(chat({task, msg("assistant", "it")}), false),
            bos + "<｜User｜>find it<｜query｜>it<｜end▁of▁sentence｜>");
  Json two = call;
  two["tool_calls"].push_back(two["tool_calls"][0]);
  two["tool_calls"][1]["id"] = "c2";
  Json late = msg("tool", "second");
  late["tool_call_id"] = "c2";
  const std::string text =
      tmpl->render(chat({msg("user", "w"), two, late, result, msg("assistant", "ok")}), false);
  EXPECT_NE(text.find("<tool_result>sunny</tool_result>\n\n<tool_result>second</tool_result>"),
            std::string::npos)
      << text;
  // A result's weight goes with it to its place.
  late["weight"] = 0.5;
  const auto all =
      make_template("DeepseekV4Template", tokenizer, {.enable_thinking = false, .loss_scale = "all"});
  const Runs halved =
      with_weight(*all, chat({msg("user", "w"), two, late, result, msg("assistant", "ok")}), 0.5);
  ASSERT_EQ(halved.size(), 1u);
  EXPECT_NE(halved[0].find("<tool_result>second</tool_result>"), std::string::npos) << halved[0];
  EXPECT_EQ(halved[0].find("sunny"), std::string::npos) << halved[0];
  EXPECT_EQ(tmpl->parse_tool_call(
                    "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"></｜DSML｜invoke></｜DSML｜tool_calls>")
                .calls.at(0)
                .name,
            "f");
}

TEST(TemplateFamilies, Qwen35KeepsOrphanTagsAndTakesToolTails) {
  const auto tokenizer = Tokenizer::load(test::test_data("tokenizers/minimind"));
  const std::string source = read_file(test::test_data("chat-templates/Qwen3.5-4B.jinja"));
  const auto tmpl = make_template("Qwen3_5Template", tokenizer, {.chat_template = source});
  const auto plain = make_template("Template", tokenizer, {.chat_template = source});
  const Trajectory orphan =
      chat({msg("user", "what is it?"), msg("assistant", "The tag </think> ends thinking.")});
  EXPECT_NE(tmpl->render(orphan, false).find("The tag </think> ends thinking."), std::string::npos);
  EXPECT_EQ(plain->render(orphan, false).find("The tag </think> ends thinking."), std::string::npos);
  const Trajectory tail = chat({msg("assistant", "calling"), msg("tool", "result")});
  EXPECT_NE(tmpl->render(tail, true).find("result"), std::string::npos);
  EXPECT_THROW(plain->render(tail, true), Error);
  // Everything else stays as published.
  const Trajectory usual =
      chat({msg("system", "s"), msg("user", "q"), msg("assistant", "<think>\nx\n</think>\n\ny")});
  EXPECT_EQ(tmpl->render(usual, false), plain->render(usual, false));
}

}  // namespace
}  // namespace twinkle
