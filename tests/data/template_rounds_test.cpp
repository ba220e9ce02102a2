// The turns that the template finds against their definition, computed the long way: from the end of the
// prompt for a turn to the end of the conversation up to it, wherever both are beginnings of the whole
// rendering.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/needs.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/template.h"
#include "twinkle/data/template_labels.h"

namespace twinkle {
namespace {

Json msg(const char* role, const Json& content) { return {{"role", role}, {"content", content}}; }

Json with_call(const char* content, const char* reasoning = nullptr) {
  Json out = msg("assistant", content);
  if (reasoning != nullptr) out["reasoning_content"] = reasoning;
  out["tool_calls"] =
      Json::array({{{"id", "call00001"},
                    {"type", "function"},
                    {"function", {{"name", "look"}, {"arguments", {{"at", "the \"sky\""}, {"n", 2}}}}}}});
  return out;
}
Json result(const char* content) {
  Json out = msg("tool", content);
  out["tool_call_id"] = "call00001";
  out["name"] = "look";
  return out;
}
Json thinking(const char* content, const char* reasoning) {
  Json out = msg("assistant", content);
  out["reasoning_content"] = reasoning;
  return out;
}

std::vector<Json> conversations() {
  const Json u = msg("user", "What <is> it?"), u2 = msg("user", "assistant\n\nreally?"),
             a = msg("assistant", "It is\n\nso."), a2 = msg("assistant", "<b>Yes</b>"),
             s = msg("system", "Be brief.");
  return {Json::array({u, a}),
          Json::array({s, u, a}),
          Json::array({s, u, a, u2, a2}),
          Json::array({u, a, u2, a2, u}),
          Json::array({u, thinking("ok", "hm\nhm"), u2, thinking("fine", "well")}),
          Json::array({u, with_call(""), result("blue"), a, u2, a2}),
          Json::array(
              {u, with_call("", "look up"), result("blue"), with_call("again"), result("grey"), a2, u2, a}),
          Json::array({u, msg("assistant", "<think>\nx\n</think>\n\ny"), u2,
                       msg("assistant", "<think>\nz\n</think>\n\nw")})};
}

TEST(TemplateRounds, TurnsAreWhatTheDefinitionSays) {
  const std::string root = test::test_data("chat-templates");
  const Json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function",
                     {{"name", "look"},
                      {"description", "looks"},
                      {"parameters",
                       {{"type", "object"},
                        {"properties", {{"at", {{"type", "string"}, {"description", "where"}}}}},
                        {"required", {"at"}}}}}}}});
  int compared = 0, rewritten = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().extension() != ".jinja") continue;
    const ChatTemplate chat(config, read_file(entry.path()));
    for (const Json& messages : conversations()) {
      for (const bool think : {true, false}) {
        const bool calls = messages.dump().find("tool_calls") != std::string::npos;
        const Json& given = calls ? tools : Json(nullptr);
        const ChatRenderOptions plain{.enable_thinking = think};
        ChatRenderOptions prompt = plain;
        prompt.add_generation_prompt = true;
        Rendered whole;
        std::vector<TurnSpan> turns;
        try {
          whole = chat.render(messages, given, plain);
          turns = assistant_spans(chat, messages, given, plain, whole);
        } catch (const Error&) {
          ++refused;
          continue;
        }
        size_t k = 0;
        Json so_far = Json::array();
        for (const Json& message : messages) {
          if (message.at("role") == "assistant") {
            ASSERT_LT(k, turns.size());
            const auto part = [&](const TextSpan& span) {
              return whole.text.substr(static_cast<size_t>(span.begin),
                                       static_cast<size_t>(span.end - span.begin));
            };
            const std::string before = chat.render(so_far, given, prompt).text;
            so_far.push_back(message);
            const std::string after = chat.render(so_far, given, plain).text;
            const TextSpan found = turns[k++].text;
            std::string got = part(found);
            // What the message says may stand behind the results of its calls.
            while (k < turns.size() && turns[k].message == turns[k - 1].message) got += part(turns[k++].text);
            const std::string where = entry.path().filename().string() + " turn " +
                                      std::to_string(so_far.size() - 1) + " of " + messages.dump();
            if (whole.text.starts_with(before) && whole.text.starts_with(after) &&
                before.size() <= after.size()) {
              EXPECT_EQ(got, after.substr(before.size())) << where;
              EXPECT_EQ(found.begin, static_cast<int64_t>(before.size())) << where;
              ++compared;
            } else {
              // What the message says is in it, whatever happened to the rest.
              const std::string content = message.at("content").get<std::string>();
              // Mistral Nemo drops what is said beside a call.
              const bool written =
                  !message.contains("tool_calls") || whole.text.find(content) != std::string::npos;
              if (content.find("think>") == std::string::npos && written) {
                EXPECT_NE(got.find(content), std::string::npos) << where << "\n" << got;
              }
              ++rewritten;
            }
          } else {
            so_far.push_back(message);
          }
        }
        EXPECT_EQ(k, turns.size());
      }
    }
  }
  std::printf("%d turns by definition, %d in rewritten history, %d conversations refused by their template\n",
              compared, rewritten, refused);
  EXPECT_GE(compared, 480);
}

// Finding the turns renders no message more than a few times over, so the work is linear in the turns.
TEST(TemplateRounds, LongConversationsTakeLinearWork) {
  const Json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const auto cost = [](const ChatTemplate& chat, int turns, bool calls) {
    Json messages = Json::array();
    for (int i = 0; i < turns; ++i) {
      messages.push_back(msg("user", "question " + std::to_string(i)));
      if (calls && i % 5 == 3) {
        messages.push_back(with_call("", "look"));
        messages.push_back(result("blue"));
      }
      messages.push_back(i % 2 == 0 ? msg("assistant", "answer " + std::to_string(i))
                                    : thinking("well", "hm"));
    }
    const Rendered whole = chat.render(messages);
    const int64_t before = chat.rendered_messages();
    const auto spans = assistant_spans(chat, messages, nullptr, {}, whole);
    EXPECT_EQ(spans.size(), static_cast<size_t>(calls ? turns + turns / 5 : turns));
    return static_cast<double>(chat.rendered_messages() - before) / static_cast<double>(messages.size());
  };
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_data("chat-templates"))) {
    if (entry.path().extension() != ".jinja") continue;
    const ChatTemplate chat(config, read_file(entry.path()));
    for (const bool calls : {false, true}) {
      const std::string where = entry.path().filename().string() + (calls ? " with calls" : "");
      try {
        const double few = cost(chat, 20, calls), many = cost(chat, 200, calls);
        EXPECT_LE(many, few) << where;
        EXPECT_LE(many, 4) << where;
        ++compared;
      } catch (const Error&) {  // the template refuses such a conversation
      }
    }
  }
  EXPECT_GE(compared, 30);
}

}  // namespace
}  // namespace twinkle
