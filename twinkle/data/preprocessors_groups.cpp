// Preprocessors of rows that hold several conversations: preferences, KTO, embeddings, in the shapes that
// TRL, LLaMA-Factory, ms-swift and FlagEmbedding write.
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/data/preprocessor_columns.h"

namespace twinkle {
namespace {

using namespace columns;  // NOLINT: the helpers of every preprocessor

const Preprocessor& chat() {
  static const std::unique_ptr<Preprocessor> made = Registry<Preprocessor>::create("MessagesProcessor");
  return *made;
}

bool is_given(const Row& row, const char* column) {
  const auto found = row.find(column);
  return found != row.end() && !found->is_null();
}

// The conversation of a row, by whatever names its columns have; only what MessagesProcessor reads is kept.
Trajectory conversation_of(const Row& row, bool with_system = true) {
  Row out = Row::object();
  for (const char* column : {"messages", "conversations", "conversation", "system", "tools", "user_data",
                             "images", "image", "videos", "video", "audios", "audio"}) {
    if (row.contains(column)) out[column] = row.at(column);
  }
  if (!with_system) out.erase("system");
  return chat()(out);
}

Trajectory conversation_of(const Json& given, const char* column) {
  const Json messages = parsed_list(given, column);
  if (!messages.is_array() || messages.empty())
    throw invalid_argument(std::string("expected a list of messages in '") + column + "', got " +
                           got(messages));
  return chat()(Row{{"messages", messages}});
}

// What comes before the answers: a conversation, or {instruction, input}, or {prompt}; no messages when there
// is none. The row's system message is not in it yet: answers may repeat what is.
Trajectory question_of(const Row& row) {
  for (const char* column : {"messages", "conversations", "conversation"}) {
    if (is_given(row, column)) return conversation_of(row, /*with_system=*/false);
  }
  refuse_media(row);
  Trajectory out;
  const Json prompt = is_given(row, "prompt") ? parsed_messages(row.at("prompt"), "prompt") : Json();
  if (prompt.is_structured()) {
    out = conversation_of(prompt.is_object() ? Json::array({prompt}) : prompt, "prompt");
  } else {
    for (const char* column : {"instruction", "prompt", "question", "query"}) {
      if (!is_given(row, column)) continue;
      std::string text = text_column(row, column);
      if (const std::string input = optional_text(row, "input"); !input.empty()) text += "\n" + input;
      add_history(out.messages, row);
      add_message(out.messages, "user", std::move(text));
      break;
    }
  }
  out.tools = tools_of(row);
  return out;
}

bool is_of(const Json& message, const char* role) { return message.at("role") == role; }
bool ends_with(const Json& messages, const char* role) {
  return !messages.empty() && is_of(messages.back(), role);
}
size_t num_system(const Json& messages) {
  return !messages.empty() && is_of(messages.front(), "system") ? 1 : 0;
}

// An answer: text, a message, or the messages that follow the question (or repeat it).
void add_answer(Trajectory* to, const Json& given, const char* column) {
  const Json answer = parsed_messages(given, column);
  if (answer.is_string()) {
    add_message(to->messages, "assistant", answer.get<std::string>());
    return;
  }
  const Json messages = conversation_of(answer.is_object() ? Json::array({answer}) : answer, column).messages;
  Json& question = to->messages;
  const size_t asked = num_system(question), own = num_system(messages);
  const size_t turns = question.size() - asked;
  bool repeats = messages.size() - own > turns;
  for (size_t i = 0; i < turns && repeats; ++i) {
    repeats = messages[own + i].at("role") == question[asked + i].at("role") &&
              messages[own + i].at("content") == question[asked + i].at("content");
  }
  const bool asks_anew = own == 1 || (is_of(messages.front(), "user") && ends_with(question, "user"));
  if (repeats ? own + asked == 2 && messages[0].at("content") != question[0].at("content") : asks_anew) {
    throw invalid_argument(std::string("'") + column +
                           "' begins with another system message or question than the row has; give the "
                           "answer alone, or repeat the question");
  }
  if (own == 1 && asked == 0) question.insert(question.begin(), messages[0]);
  for (size_t i = repeats ? own + turns : 0; i < messages.size(); ++i) question.push_back(messages[i]);
}

// The row's system message, in front.
void add_system(Trajectory* to, const Row& row) {
  const std::string system = optional_text(row, "system");
  if (system.empty()) return;
  if (num_system(to->messages) == 1)
    throw invalid_argument("has a 'system' column and a system message; remove one");
  to->messages.insert(to->messages.begin(), Json{{"role", "system"}, {"content", system}});
}

// Answers before message `end` belong to the prompt: they are not trained on, unless the row says so itself.
void train_behind(Json* messages, size_t end) {
  for (size_t i = 0; i < end; ++i) {
    Json& message = (*messages)[i];
    if (!is_of(message, "assistant")) continue;
    if (!is_given(message, "loss") && !is_given(message, "train") && !is_given(message, "weight"))
      message["loss"] = false;
  }
}

// What two conversations begin with, but for the last message of either.
size_t common_messages(const Json& a, const Json& b) {
  size_t same = 0;
  while (same + 1 < std::min(a.size(), b.size()) && a[same] == b[same]) ++same;
  return same;
}

void check_ends_with_answer(const Trajectory& trajectory, const char* what) {
  if (!ends_with(trajectory.messages, "assistant"))
    throw invalid_argument(std::string(what) + " does not end with an answer of the assistant");
}

class DpoProcessor : public Preprocessor {
 public:
  explicit DpoProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override { return std::move(parts(row)[0].trajectory); }
  std::vector<Part> parts(const Row& row) const override {
    Trajectory question = question_of(row);
    const bool is_swift = is_given(row, "rejected_messages") || is_given(row, "rejected_response");
    // A conversation that ends with the chosen answer: what is common with the other one is the prompt.
    const bool ends_with_chosen =
        question.messages.empty() ||
        (is_swift && (ends_with(question.messages, "assistant") || !is_given(row, "response")));
    if (!ends_with_chosen) train_behind(&question.messages, question.messages.size());
    Trajectory chosen = question, rejected = question;
    if (is_swift) {
      if (ends_with_chosen) {
        check_ends_with_answer(chosen, "the conversation");
      } else {
        add_answer(&chosen, row.at("response"), "response");
      }
      if (is_given(row, "rejected_messages")) {
        rejected.messages = conversation_of(row.at("rejected_messages"), "rejected_messages").messages;
        rejected.user_data = Json::array();  // which speaks of the other one
      } else {
        if (ends_with_chosen) rejected.messages.erase(rejected.messages.size() - 1);
        add_message(rejected.messages, "assistant", text_column(row, "rejected_response"));
      }
    } else {
      for (const char* column : {"chosen", "rejected"}) {
        if (!is_given(row, column))
          throw invalid_argument(std::string("has no column '") + column + "' (columns: " + columns_of(row) +
                                 ")");
        if (question.messages.empty() && parsed_messages(row.at(column), column).is_string())
          throw invalid_argument(
              "has no column with the question (prompt, instruction, question, conversations)");
      }
      add_answer(&chosen, row.at("chosen"), "chosen");
      add_answer(&rejected, row.at("rejected"), "rejected");
    }
    if (ends_with_chosen || is_given(row, "rejected_messages")) {
      const size_t prompt = common_messages(chosen.messages, rejected.messages);
      train_behind(&chosen.messages, prompt);
      train_behind(&rejected.messages, prompt);
    }
    add_system(&chosen, row);
    add_system(&rejected, row);
    check_ends_with_answer(chosen, "the chosen conversation");
    check_ends_with_answer(rejected, "the rejected conversation");
    if (chosen.messages == rejected.messages)
      throw invalid_argument("the chosen and the rejected answer are the same");
    return {{"chosen", std::move(chosen)}, {"rejected", std::move(rejected)}};
  }
};

class EmojiDpoProcessor : public Preprocessor {
 public:
  explicit EmojiDpoProcessor(const Options& options)
      : system_(options.get_string("system")),
        chosen_(options.get_string("chosen_key")),
        rejected_(options.get_string("rejected_key")),
        prompt_(options.get_string("prompt_key")) {}
  Trajectory operator()(const Row& row) const override { return std::move(parts(row)[0].trajectory); }
  std::vector<Part> parts(const Row& row) const override {
    const std::string& prompt = text_column(row, prompt_);
    return {{"chosen", answered(row, prompt, text_column(row, chosen_))},
            {"rejected", answered(row, prompt, text_column(row, rejected_))}};
  }

 private:
  Trajectory answered(const Row& row, const std::string& prompt, const std::string& answer) const {
    Trajectory out = question_and_answer(row, system_, prompt, answer);
    train_behind(&out.messages, out.messages.size() - 1);
    return out;
  }
  std::string system_, chosen_, rejected_, prompt_;
};

class KtoProcessor : public Preprocessor {
 public:
  explicit KtoProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override { return std::move(parts(row)[0].trajectory); }
  std::vector<Part> parts(const Row& row) const override {
    const char* tag = row.contains("label") ? "label" : "kto_tag";
    if (!row.contains(tag))
      throw invalid_argument("has no column 'label' or 'kto_tag' (columns: " + columns_of(row) + ")");
    const std::optional<bool> wanted = truth_of(row.at(tag));
    if (!wanted)
      throw invalid_argument(std::string("expected true or false in '") + tag + "', got " + got(row.at(tag)));
    Trajectory out = question_of(row);
    size_t prompt = out.messages.size();
    const char* answer = nullptr;
    for (const char* column : {"response", "output", "completion"}) {
      if (is_given(row, column)) answer = column;
    }
    // Else the answers behind the last question are what is judged.
    while (answer == nullptr && prompt > 0 && !is_of(out.messages[prompt - 1], "user")) --prompt;
    train_behind(&out.messages, prompt);
    if (answer != nullptr) add_answer(&out, row.at(answer), answer);
    check_ends_with_answer(out, "the conversation");
    add_system(&out, row);
    return {{*wanted ? "desirable" : "undesirable", std::move(out)}};
  }
};

class EmbeddingProcessor : public Preprocessor {
 public:
  explicit EmbeddingProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override { return std::move(parts(row)[0].trajectory); }
  std::vector<Part> parts(const Row& row) const override {
    std::vector<Part> out;
    if (is_given(row, "messages")) {  // ms-swift
      out.push_back({"anchor", conversation_of(row)});
      add_conversations(row, "positive_messages", "positive", &out);
      add_conversations(row, "negative_messages", "negative", &out);
    } else {
      struct Names {
        const char *anchor, *positive, *negative;
      };
      static constexpr Names kNames[] = {{"query", "pos", "neg"},
                                         {"query", "response", "rejected_response"},
                                         {"anchor", "positive", "negative"},
                                         {"sentence1", "sentence2", "hard_negatives"}};
      for (const Names& names : kNames) {
        if (!is_given(row, names.anchor) || !is_given(row, names.positive)) continue;
        refuse_tools(row);
        if (is_given(row, "system") && row.at("system") != "")
          throw invalid_argument("has 'system', and texts that are compared take none; remove the column");
        out.push_back({"anchor", text_of(row.at(names.anchor), names.anchor)});
        add_texts(row, names.positive, "positive", &out);
        add_texts(row, names.negative, "negative", &out);
        break;
      }
      if (out.empty()) {
        throw invalid_argument(
            "has no columns query and pos, anchor and positive, or sentence1 and sentence2 (columns: " +
            columns_of(row) + ")");
      }
    }
    if (out.size() < 2 || out[1].name != "positive") throw invalid_argument("has no positive text");
    for (const char* column : {"label", "score"}) {
      if (is_given(row, column))
        out[0].trajectory.user_data.push_back(user_data_pair(column, row.at(column)));
    }
    return out;
  }

 private:
  static Trajectory text_of(const Json& value, const char* column) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      throw invalid_argument(std::string("expected a text in '") + column + "', got " + got(value));
    Trajectory out;
    add_message(out.messages, "user", value.get<std::string>());
    return out;
  }
  static void add_texts(const Row& row, const char* column, const char* part, std::vector<Part>* out) {
    if (!is_given(row, column) || row.at(column) == "") return;
    const Json given = texts_of(row.at(column));
    if (!given.is_array()) return out->push_back({part, text_of(given, column)});
    for (const Json& text : given) out->push_back({part, text_of(text, column)});
  }
  // A list of texts that .csv files hold as JSON text; other texts stay as they are.
  static Json texts_of(const Json& given) {
    Json parsed;
    if (!given.is_string() || try_parse_json(given.get_ref<const std::string&>(), parsed)) return given;
    const auto is_text = [](const Json& item) { return item.is_string(); };
    return parsed.is_array() && std::all_of(parsed.begin(), parsed.end(), is_text) ? parsed : given;
  }
  static void add_conversations(const Row& row, const char* column, const char* part,
                                std::vector<Part>* out) {
    if (!is_given(row, column) || row.at(column) == "") return;
    const Json given = parsed_list(row.at(column), column);
    if (!given.is_array() || given.empty())
      throw invalid_argument(std::string("expected a list of conversations in '") + column + "', got " +
                             got(given));
    // One conversation, or a list of them.
    if (given[0].is_object()) return out->push_back({part, conversation_of(given, column)});
    for (const Json& messages : given) out->push_back({part, conversation_of(messages, column)});
  }
};

const auto kDpo = add_preprocessor<DpoProcessor>("DPOProcessor",
                                                 "Rows of preferences: a question with chosen and rejected "
                                                 "answers, or a conversation (or query and response) with "
                                                 "rejected_response or rejected_messages. The answers alone "
                                                 "are trained on.",
                                                 {});
const auto kEmoji = add_preprocessor<EmojiDpoProcessor>(
    "EmojiDPOProcessor", "Rows {prompt, answer_zh, answer_en}: the first answer is preferred.",
    {text_param("system", "You are a helpful assistant.", kSystemHelp),
     text_param("chosen_key", "answer_zh", "Column of the preferred answer."),
     text_param("rejected_key", "answer_en", "Column of the other answer."),
     text_param("prompt_key", "prompt", "Column of the question.")});
const auto kKto = add_preprocessor<KtoProcessor>(
    "KTOProcessor",
    "Rows of a conversation (or prompt and completion) with label or kto_tag: true where it is wanted.", {});
const auto kEmbedding = add_preprocessor<EmbeddingProcessor>(
    "EmbeddingProcessor",
    "Rows {query, pos, neg}, {anchor, positive, negative}, {sentence1, sentence2}, or messages with "
    "positive_messages and negative_messages.",
    {});

}  // namespace
}  // namespace twinkle
