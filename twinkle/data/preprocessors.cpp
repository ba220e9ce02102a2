// The preprocessors that turn a row into a conversation, under upstream's names. Each is immutable: any
// number of threads may call it. Columns that would change what is trained (images, tools) go into the
// messages or are refused, never dropped.
#include <algorithm>
#include <array>

#include "twinkle/core/error.h"
#include "twinkle/data/media.h"
#include "twinkle/data/preprocessor_columns.h"

namespace twinkle {
namespace {

using namespace columns;  // NOLINT: the helpers of every preprocessor

constexpr std::string_view kName = "{{NAME}}", kAuthor = "{{AUTHOR}}";

// Upstream fills the upper-case spelling. The lower-case one is never meant as text either.
bool is_hole(std::string_view text, std::string_view hole) {
  if (text.size() < hole.size()) return false;
  for (size_t i = 0; i < hole.size(); ++i) {
    const char upper = hole[i], lower = upper >= 'A' && upper <= 'Z' ? static_cast<char>(upper + 32) : upper;
    if (text[i] != upper && text[i] != lower) return false;
  }
  return true;
}

bool has_hole(std::string_view text) {
  for (size_t at = text.find("{{"); at != std::string_view::npos; at = text.find("{{", at + 1)) {
    if (is_hole(text.substr(at), kName) || is_hole(text.substr(at), kAuthor)) return true;
  }
  return false;
}

class SelfCognitionProcessor : public Preprocessor {
 public:
  explicit SelfCognitionProcessor(const Options& options)
      : name_(options.get_string("model_name")),
        author_(options.get_string("model_author")),
        system_(options.get_string("system")) {}
  Trajectory operator()(const Row& row) const override {
    std::string question = filled(text_column(row, "query"));
    return question_and_answer(row, system_, std::move(question), filled(text_column(row, "response")));
  }

 private:
  std::string filled(const std::string& text) const {
    // One pass, so that a name which spells a hole is not filled again.
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const std::string_view rest = std::string_view(text).substr(at);
      if (is_hole(rest, kName)) {
        out += name_;
        at += kName.size();
      } else if (is_hole(rest, kAuthor)) {
        out += author_;
        at += kAuthor.size();
      } else {
        out.push_back(text[at++]);
      }
    }
    return out;
  }
  std::string name_, author_, system_;
};

class AlpacaProcessor : public Preprocessor {
 public:
  explicit AlpacaProcessor(const Options& options) : system_(options.get_string("system")) {}
  Trajectory operator()(const Row& row) const override {
    std::string question = text_column(row, "instruction");
    if (const std::string input = optional_text(row, "input"); !input.empty()) question += "\n" + input;
    const std::string system = optional_text(row, "system");
    return question_and_answer(row, system.empty() ? system_ : system, std::move(question),
                               text_column(row, "output"));
  }

 private:
  std::string system_;
};

class QueryResponseProcessor : public Preprocessor {
 public:
  explicit QueryResponseProcessor(const Options& options)
      : query_(options.get_string("query")),
        response_(options.get_string("response")),
        system_(options.get_string("system")) {}
  Trajectory operator()(const Row& row) const override {
    const std::string& question = text_column(row, query_);
    const std::string system = optional_text(row, "system");
    return question_and_answer(row, system.empty() ? system_ : system, question, text_column(row, response_));
  }

 private:
  std::string query_, response_, system_;
};

class TextProcessor : public Preprocessor {
 public:
  explicit TextProcessor(const Options& options) : column_(options.get_string("column")) {}
  Trajectory operator()(const Row& row) const override {
    refuse_media(row);
    refuse_tools(row);
    const std::string& text = text_column(row, column_);
    if (text.empty()) throw invalid_argument("'" + column_ + "' is empty");
    Trajectory out;
    add_message(out.messages, "user", text);
    return out;
  }

 private:
  std::string column_;
};

std::string known_role(const std::string& role, const std::string& place) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kRoles = {
      {{"system", "system"},
       {"developer", "system"},
       {"user", "user"},
       {"human", "user"},
       {"assistant", "assistant"},
       {"gpt", "assistant"},
       {"chatgpt", "assistant"},
       {"bot", "assistant"},
       {"model", "assistant"},
       {"tool", "tool"},
       {"observation", "tool"},
       {"tool_response", "tool"},
       {"function_response", "tool"}}};
  for (const auto& [name, ours] : kRoles) {
    if (role == name) return std::string(ours);
  }
  throw invalid_argument(place + ": unknown role '" + role +
                         "' (known: system, user, assistant, tool, human, gpt, observation, function_call)");
}

class MessagesProcessor : public Preprocessor {
 public:
  explicit MessagesProcessor(const Options& options) : system_(options.get_string("system")) {}

  Trajectory operator()(const Row& row) const override {
    refuse_bad_answer(row);
    std::string column;
    for (const char* name : {"messages", "conversations", "conversation"}) {
      if (row.contains(name)) {
        if (!column.empty())
          throw invalid_argument("has both '" + column + "' and '" + name + "'; remove one");
        column = name;
      }
    }
    if (column.empty())
      throw invalid_argument("has no column 'messages' or 'conversations' (columns: " + columns_of(row) +
                             ")");
    const Json list = parsed_list(row.at(column), column);
    if (!list.is_array() || list.empty()) {
      throw invalid_argument("expected a list of messages in '" + column + "', got " +
                             (list.is_array() ? "an empty list" : got(list)));
    }
    Trajectory out;
    for (size_t i = 0; i < list.size(); ++i)
      add(out.messages, list[i], "'" + column + "' message " + std::to_string(i + 1));
    const std::string row_system = optional_text(row, "system");
    const std::string& system = row_system.empty() ? system_ : row_system;
    if (!system.empty()) {
      if (out.messages.front().at("role") != "system") {
        out.messages.insert(out.messages.begin(), Json{{"role", "system"}, {"content", system}});
      } else if (!row_system.empty()) {
        throw invalid_argument("has a 'system' column and a system message; remove one");
      }
    }
    place_media(row, &out.messages);
    out.tools = tools_of(row);
    if (const auto given = row.find("user_data"); given != row.end() && !given->is_null() && *given != "") {
      const Json data = parsed_list(*given, "user_data");
      const auto is_pair = [](const Json& item) {
        return item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string();
      };
      if (!data.is_array() || !std::all_of(data.begin(), data.end(), is_pair)) {
        throw invalid_argument("expected a list of [key, JSON string] pairs in 'user_data'");
      }
      out.user_data = data;
    }
    return out;
  }

 private:
  static void add(Json& messages, const Json& given, const std::string& place) {
    if (!given.is_object()) throw invalid_argument(place + ": expected an object, got " + got(given));
    if (given.contains("role")) return add_role_content(messages, given, place);
    if (given.contains("from")) return add_from_value(messages, given, place);
    if (given.contains("human") || given.contains("user")) {
      // ms-swift: one object holds a question and its answer.
      const char* asker = given.contains("human") ? "human" : "user";
      add_message(messages, "user", text_column(given, asker));
      add_message(messages, "assistant", text_column(given, "assistant"));
      return;
    }
    throw invalid_argument(place + ": expected role and content, or from and value, got " +
                           columns_of(given));
  }

  static void add_role_content(Json& messages, const Json& given, const std::string& place) {
    if (!given.at("role").is_string())
      throw invalid_argument(place + ": expected a string in 'role', got " + got(given.at("role")));
    Json message = given;
    message["role"] = known_role(given.at("role").get<std::string>(), place);
    const bool calls = given.contains("tool_calls") && !given.at("tool_calls").is_null();
    if (!given.contains("content")) {
      if (!calls) throw invalid_argument(place + ": has no 'content'");
      message["content"] = nullptr;
    }
    const Json& content = message.at("content");
    if (!content.is_string() && !content.is_array() && !(content.is_null() && calls)) {
      throw invalid_argument(place + ": expected a string in 'content', got " + got(content));
    }
    if (content.is_array()) {
      for (const auto& block : content) {
        if (block_kind(block).empty() || !block.contains("type")) {
          throw invalid_argument(place +
                                 ": expected blocks of type text, image, video or audio in 'content'");
        }
      }
    }
    if (calls && !given.at("tool_calls").is_array())
      throw invalid_argument(place + ": expected a list in 'tool_calls', got " + got(given.at("tool_calls")));
    messages.push_back(std::move(message));
  }

  static void add_from_value(Json& messages, const Json& given, const std::string& place) {
    for (const char* key : {"from", "value"}) {
      if (!given.contains(key)) throw invalid_argument(place + ": has no '" + key + "'");
      if (!given.at(key).is_string())
        throw invalid_argument(place + ": expected a string in '" + key + "', got " + got(given.at(key)));
    }
    const auto from = given.at("from").get<std::string>();
    const auto value = given.at("value").get<std::string>();
    if (from != "function_call" && from != "tool_call") {
      add_message(messages, known_role(from, place).c_str(), value);
      return;
    }
    // LLaMA-Factory: the value is one call or a list of calls, {"name", "arguments"}.
    Json parsed;
    if (const auto problem = try_parse_json(value, parsed, kMaxJsonDepth, WideIntegers::kRefuse))
      throw invalid_argument(place + ": the call is " + problem->reason);
    Json calls = Json::array();
    for (const auto& call : parsed.is_array() ? parsed : Json::array({parsed})) {
      if (!call.is_object() || !call.contains("name") || !call.contains("arguments")) {
        throw invalid_argument(place + ": expected a call with name and arguments");
      }
      calls.push_back(Json{{"type", "function"},
                           {"function", {{"name", call.at("name")}, {"arguments", call.at("arguments")}}}});
    }
    messages.push_back(Json{{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}});
  }

  std::string system_;
};

template <class T>
Registry<Preprocessor>::Add add(std::string name, std::string help, std::vector<ParamSpec> params,
                                std::vector<std::string> aliases = {}) {
  return add_preprocessor<T>(std::move(name), std::move(help), std::move(params), std::move(aliases));
}

const auto kSelfCognition = add<SelfCognitionProcessor>(
    "SelfCognitionProcessor",
    "Rows {query, response} that teach a model who it is; fills {{NAME}} and {{AUTHOR}} (or in lower case).",
    {text_param("model_name", "twinkle robot", "What the model calls itself."),
     text_param("model_author", "twinkle lab", "Who the model says made it."),
     text_param("system", "You are a helpful assistant.", kSystemHelp)});
const auto kAlpaca = add<AlpacaProcessor>("AlpacaProcessor",
                                          "Rows {instruction, input, output} (also system, history, tools).",
                                          {text_param("system", "", kSystemHelp)});
const auto kMessages = add<MessagesProcessor>(
    "MessagesProcessor",
    "Rows with a chat: {messages: [{role, content}]} or {conversations: [{from, value}]}, with tools.",
    {text_param("system", "", "System message for rows that have none; \"\" for none.")},
    {"ShareGPTProcessor", "ConversationsProcessor"});
const auto kQueryResponse = add<QueryResponseProcessor>(
    "QueryResponseProcessor", "Rows with one question and its answer (also system, history, tools).",
    {text_param("query", "query", "Column of the question."),
     text_param("response", "response", "Column of the answer."), text_param("system", "", kSystemHelp)});
const auto kText = add<TextProcessor>("TextProcessor", "Rows of plain text, for pre-training.",
                                      {text_param("column", "text", "Column of the text.")});

}  // namespace

PreprocessorGuess guess_preprocessor(const Row& row) {
  const auto has = [&](const char* column) { return row.contains(column); };
  for (const char* column : {"chosen", "rejected", "rejected_response", "kto_tag"}) {
    if (has(column)) {
      throw invalid_argument(std::string("[dataset] the rows have '") + column +
                             "': preference data is not for supervised training; name a preprocessor to "
                             "train on the rest of the row");
    }
  }
  for (const char* column : {"messages", "conversations", "conversation"}) {
    if (has(column))
      return {"MessagesProcessor", Json::object(), std::string("the rows have '") + column + "'"};
  }
  if (has("query") && has("response")) {
    for (const char* column : {"query", "response"}) {
      if (!row.at(column).is_string()) continue;
      if (has_hole(row.at(column).get_ref<const std::string&>())) {
        return {"SelfCognitionProcessor", Json::object(),
                "the rows have 'query' and 'response' with {{NAME}} or {{AUTHOR}} holes"};
      }
    }
    return {"QueryResponseProcessor", Json::object(), "the rows have 'query' and 'response'"};
  }
  if (has("instruction") && has("output"))
    return {"AlpacaProcessor", Json::object(), "the rows have 'instruction' and 'output'"};
  for (const auto& [question, answer] :
       {std::pair{"prompt", "completion"}, {"prompt", "response"}, {"question", "answer"}}) {
    if (!has(question) || !has(answer)) continue;
    return {"QueryResponseProcessor", Json{{"query", question}, {"response", answer}},
            std::string("the rows have '") + question + "' and '" + answer + "'"};
  }
  if (has("text")) return {"TextProcessor", Json::object(), "the rows have 'text'"};
  throw invalid_argument("[dataset] cannot guess a preprocessor from the columns " + columns_of(row) +
                         "; name one (--preprocessor), or use rows with messages, conversations, query and "
                         "response, instruction and output, "
                         "or text");
}

PreprocessorGuess guess_preprocessor(std::span<const Row> rows, const Json& options) {
  PreprocessorGuess out = guess_preprocessor(rows.front());
  const bool named =
      options.is_object() && (options.contains("model_name") || options.contains("model_author"));
  if (out.name == "QueryResponseProcessor" && out.options.empty()) {
    // The first row may have none. In others the lower-case spelling may be text, unless names are given.
    const auto has_any = [&](const Row& row) {
      for (const char* column : {"query", "response"}) {
        const auto found = row.find(column);
        if (found == row.end() || !found->is_string()) continue;
        const auto& text = found->get_ref<const std::string&>();
        if (text.find(kName) != text.npos || text.find(kAuthor) != text.npos || (named && has_hole(text)))
          return true;
      }
      return false;
    };
    if (std::any_of(rows.begin(), rows.end(), has_any)) {
      out = {"SelfCognitionProcessor", Json::object(),
             "the rows have 'query' and 'response' with {{NAME}} or {{AUTHOR}} holes"};
    } else if (named) {
      out.why += ", without {{NAME}} or {{AUTHOR}} holes in the first " + std::to_string(rows.size());
    }
  }
  if (!options.is_object()) return out;
  const auto& params = Catalog::instance().info("preprocessor", out.name).params;
  for (const auto& [key, value] : options.items()) {
    const bool known =
        std::any_of(params.begin(), params.end(), [&](const auto& p) { return p.name == key; });
    if (!known) {
      throw invalid_argument("[dataset] " + out.name + ", guessed since " + out.why + ", has no option '" +
                             key + "'; name the preprocessor that is meant (--preprocessor)");
    }
    out.options[key] = value;
  }
  return out;
}

}  // namespace twinkle
