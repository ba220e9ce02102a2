// MessageNormalizer: conversations that other programs recorded, in OpenAI's form.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "twinkle/data/quality_filter.h"
#include "twinkle/text/tool_calls.h"

namespace twinkle {
namespace {

using namespace quality;  // NOLINT: the helpers of every filter

// A message and the places that what it is made of had before.
struct Turn {
  Json message;
  std::vector<int64_t> was;
};

// Asks, or says, that somebody is still there, and nothing else.
bool is_heartbeat(std::string_view text) {
  constexpr size_t kLong = 300;
  if (text.size() > kLong) return false;
  const std::string plain = lower(text);
  if (plain.find("heartbeat.md") != std::string::npos || plain.find("heartbeat_ok") != std::string::npos)
    return true;
  std::string letters;
  for (const char c : plain) {
    if (c >= 'a' && c <= 'z') letters.push_back(c);
  }
  return letters == "heartbeat" || letters == "heartbeatpoll" || letters == "keepalive";
}

void drop_heartbeats(std::vector<Turn>* turns) {
  std::vector<Turn> kept;
  bool answered_next = false;  // the turn before was a question that is left out
  for (Turn& turn : *turns) {
    const std::string role = role_of(turn.message);
    const bool beats = !has_calls(turn.message) && is_heartbeat(text_of(turn.message));
    if (role == "user" && beats) {
      answered_next = true;
      continue;
    }
    if (role == "assistant" && !has_calls(turn.message) && (answered_next || beats)) {
      // Its question, which may not look like one, goes with it.
      if (!answered_next && !kept.empty() && role_of(kept.back().message) == "user") kept.pop_back();
      answered_next = false;
      continue;
    }
    answered_next = false;
    kept.push_back(std::move(turn));
  }
  *turns = std::move(kept);
}

std::vector<std::string> names_of(const Json& tools) {
  std::vector<std::string> names;
  if (!tools.is_array()) return names;
  for (const Json& tool : tools) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool.at("function") : tool;
    if (function.is_object() && function.contains("name") && function.at("name").is_string())
      names.push_back(function.at("name").get<std::string>());
  }
  return names;
}

struct Found {
  std::shared_ptr<const ToolCallParser> parser;
  ParsedReply reply;
};

// The calls in a text. With a list of tools only they can be called; without one a reply that is a JSON
// object is no call, since nothing says so.
std::optional<Found> find_calls(const std::string& text, const std::vector<std::string>& tools) {
  Found out{.parser = tool_call_parser("hermes_qwen")};
  out.reply = parse_reply(*out.parser, text);
  if (out.reply.calls.empty()) {
    const std::string name = detect_tool_call_parser(out.reply.content);
    if (name.empty() || (tools.empty() && name == "llama3_json")) return std::nullopt;
    out.parser = tool_call_parser(name);
    out.reply = parse_reply(*out.parser, text);
  }
  for (const ToolCall& call : out.reply.calls) {
    if (!tools.empty() && std::find(tools.begin(), tools.end(), call.name) == tools.end())
      return std::nullopt;
  }
  return out;
}

void take_out_calls(std::vector<Turn>* turns, const Json& tools) {
  const std::vector<std::string> names = names_of(tools);
  std::vector<Turn> out;
  int number = 0;
  for (size_t i = 0; i < turns->size();) {
    Turn& turn = (*turns)[i++];
    std::optional<Found> found;
    const auto content = turn.message.find("content");
    if (role_of(turn.message) == "assistant" && !has_calls(turn.message) && content != turn.message.end() &&
        content->is_string())
      found = find_calls(content->get<std::string>(), names);
    if (!found) {
      out.push_back(std::move(turn));
      continue;
    }
    std::vector<std::string> ids;
    Json calls = Json::array();
    for (ToolCall& call : found->reply.calls) {
      char id[24];
      std::snprintf(id, sizeof(id), "call_norm_%04d", ++number);
      call.id = id;
      ids.emplace_back(id);
      calls.push_back(openai_tool_call(call, calls.size()));
    }
    turn.message["content"] = found->reply.content;
    if (found->reply.has_reasoning && !turn.message.contains("reasoning_content"))
      turn.message["reasoning_content"] = found->reply.reasoning;
    turn.message["tool_calls"] = std::move(calls);
    out.push_back(std::move(turn));
    // What stands behind the calls as the user's is their results, one each.
    for (size_t k = 0; k < ids.size() && i < turns->size(); ++k, ++i) {
      Turn& next = (*turns)[i];
      const std::string text = text_of(next.message);
      if (role_of(next.message) != "user" || is_blank(text)) break;
      std::optional<std::string> result = found->parser->extract_tool_result(text);
      if (!result && ids.size() == 1) result = text;
      if (!result) break;
      next.message = {{"role", "tool"}, {"tool_call_id", ids[k]}, {"content", std::move(*result)}};
      out.push_back(std::move(next));
    }
  }
  *turns = std::move(out);
}

// Only text, so that nothing is lost when it is joined: no calls, thinking, weight or name of its own.
bool is_plain(const Json& message) {
  for (const auto& [key, value] : message.items()) {
    if (key != "role" && key != "content" && !value.is_null() && value != "") return false;
  }
  const auto content = message.find("content");
  return content != message.end() && (content->is_string() || content->is_array());
}

bool is_empty(const Json& message) {
  const auto content = message.find("content");
  return content == message.end() || content->is_null() ||
         (content->is_string() && is_blank(content->get_ref<const std::string&>()));
}

void merge_roles(std::vector<Turn>* turns) {
  std::vector<Turn> out;
  for (Turn& turn : *turns) {
    const std::string role = role_of(turn.message);
    if (role == "system" && is_empty(turn.message)) continue;
    Turn* last = out.empty() ? nullptr : &out.back();
    const bool joins = last != nullptr && role != "tool" && role == role_of(last->message) &&
                       is_plain(turn.message) && is_plain(last->message) &&
                       turn.message.at("content").is_string() == last->message.at("content").is_string();
    if (!joins) {
      out.push_back(std::move(turn));
      continue;
    }
    Json& content = last->message["content"];
    const Json& more = turn.message.at("content");
    if (content.is_array()) {
      for (const Json& block : more) content.push_back(block);
    } else if (is_empty(last->message)) {
      content = more;
    } else if (!is_empty(turn.message)) {
      content = content.get<std::string>() + "\n" + more.get<std::string>();
    }
    last->was.insert(last->was.end(), turn.was.begin(), turn.was.end());
  }
  *turns = std::move(out);
}

class MessageNormalizer : public QualityFilter {
 public:
  explicit MessageNormalizer(const Options& o) : calls_(o.get_bool("normalize_tool_calls")) {}

  void edit(Trajectory* conversation) const override {
    std::vector<Turn> turns;
    for (size_t i = 0; i < conversation->messages.size(); ++i) {
      Json message = conversation->messages[i];
      if (role_of(message) == "developer") message["role"] = "system";
      turns.push_back({std::move(message), {static_cast<int64_t>(i)}});
    }
    drop_heartbeats(&turns);
    if (calls_) take_out_calls(&turns, conversation->tools);
    merge_roles(&turns);
    const Json rounds = user_data_of(*conversation, "key_rounds");
    Json moved = Json::array();
    std::map<std::string, std::string> now_at;  // where a message is now, by where it was
    conversation->messages = Json::array();
    for (Turn& turn : turns) {
      bool key = false;
      for (const int64_t was : turn.was) {
        key = key || (rounds.is_array() && std::find(rounds.begin(), rounds.end(), was) != rounds.end());
        now_at[std::to_string(was)] = std::to_string(conversation->messages.size());
      }
      if (key) moved.push_back(conversation->messages.size());
      conversation->messages.push_back(std::move(turn.message));
    }
    if (rounds.is_array()) set_user_data(conversation, "key_rounds", moved);
    // What other filters found of rounds goes with them.
    for (const char* name : {"intents", "scores"}) {
      const Json found = user_data_of(*conversation, name);
      if (!found.is_object()) continue;
      Json at = Json::object();
      for (const auto& [was, value] : found.items()) {
        if (const auto now = now_at.find(was); now != now_at.end()) at[now->second] = value;
      }
      set_user_data(conversation, name, at);
    }
  }
  std::string drop_reason(const Trajectory& conversation) const override {
    return conversation.messages.empty() ? "invalid_messages" : "";
  }

 private:
  bool calls_;
};

const auto kNormalizer = add_filter<MessageNormalizer>(
    "MessageNormalizer",
    "Brings conversations to OpenAI's form: calls that an answer holds as text become tool_calls, what the "
    "user's turn behind them holds becomes their results; messages of one role in a row become one; rounds "
    "that only ask for a sign of life go; developer becomes system. Drops those of which nothing is left: "
    "invalid_messages.",
    {flag("normalize_tool_calls", true,
          "Take calls out of texts. Turn it off where answers show calls as code.")});

}  // namespace
}  // namespace twinkle
