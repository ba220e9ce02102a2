// Preprocessors of rows that hold several conversations: preferences, KTO, embeddings, in the shapes that
// TRL, LLaMA-Factory, ms-swift and FlagEmbedding write.
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
Trajectory conversation_of(const Row& row) {
  Row out = Row::object();
  for (const char* column : {"messages", "conversations", "conversation", "system", "tools", "user_data",
                             "images", "image", "videos", "video", "audios", "audio"}) {
    if (row.contains(column)) out[column] = row.at(column);
  }
  return chat()(out);
}

Trajectory conversation_of(const Json& given, const char* column) {
  const Json messages = parsed_list(given, column);
  if (!messages.is_array() || messages.empty())
    throw invalid_argument(std::string("expected a list of messages in '") + column + "', got " +
                           got(messages));
  return chat()(Row{{"messages", messages}});
}

// What comes before the answers: a conversation, or {instruction, input}, or {prompt}.
Trajectory question_of(const Row& row, bool* found) {
  *found = true;
  for (const char* column : {"messages", "conversations", "conversation"}) {
    if (is_given(row, column)) return conversation_of(row);
  }
  refuse_media(row);
  Trajectory out;
  const std::string system = optional_text(row, "system");
  if (is_given(row, "prompt") && row.at("prompt").is_array()) {
    out = conversation_of(row.at("prompt"), "prompt");
  } else {
    for (const char* column : {"instruction", "prompt", "question", "query"}) {
      if (!is_given(row, column)) continue;
      std::string text = text_column(row, column);
      if (const std::string input = optional_text(row, "input"); !input.empty()) text += "\n" + input;
      if (!system.empty()) add_message(out.messages, "system", system);
      add_history(out.messages, row);
      add_message(out.messages, "user", std::move(text));
      return out;
    }
    *found = false;
  }
  return out;
}

// An answer: text, a message, or the messages that follow the question (or repeat it).
void add_answer(Trajectory* to, const Json& answer, const char* column) {
  if (answer.is_string()) {
    add_message(to->messages, "assistant", answer.get<std::string>());
    return;
  }
  const Json list = answer.is_object() ? Json::array({answer}) : answer;
  const Json messages = conversation_of(list, column).messages;
  const size_t before = to->messages.size();
  bool repeats = messages.size() > before;
  for (size_t i = 0; i < before && repeats; ++i)
    repeats = messages[i].at("role") == to->messages[i].at("role") &&
              messages[i].at("content") == to->messages[i].at("content");
  for (size_t i = repeats ? before : 0; i < messages.size(); ++i) to->messages.push_back(messages[i]);
}

void check_ends_with_answer(const Trajectory& trajectory, const char* what) {
  if (trajectory.messages.empty() || trajectory.messages.back().at("role") != "assistant")
    throw invalid_argument(std::string(what) + " does not end with an answer of the assistant");
}

class DpoProcessor : public Preprocessor {
 public:
  explicit DpoProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override { return std::move(parts(row)[0].trajectory); }
  std::vector<Part> parts(const Row& row) const override {
    bool found = false;
    Trajectory question = question_of(row, &found);
    Trajectory chosen = question, rejected = question;
    if (is_given(row, "rejected_messages") || is_given(row, "rejected_response")) {
      // ms-swift: the conversation ends with the chosen answer.
      check_ends_with_answer(chosen, "the conversation");
      if (is_given(row, "rejected_messages")) {
        rejected = conversation_of(row.at("rejected_messages"), "rejected_messages");
        rejected.tools = question.tools;
      } else {
        rejected.messages.back() =
            Json{{"role", "assistant"}, {"content", text_column(row, "rejected_response")}};
      }
    } else {
      for (const char* column : {"chosen", "rejected"}) {
        if (!is_given(row, column))
          throw invalid_argument(std::string("has no column '") + column + "' (columns: " + columns_of(row) +
                                 ")");
      }
      if (!found && row.at("chosen").is_string())
        throw invalid_argument(
            "has no column with the question (prompt, instruction, question, conversations)");
      add_answer(&chosen, row.at("chosen"), "chosen");
      add_answer(&rejected, row.at("rejected"), "rejected");
    }
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
    return {{"chosen", question_and_answer(row, system_, prompt, text_column(row, chosen_))},
            {"rejected", question_and_answer(row, system_, prompt, text_column(row, rejected_))}};
  }

 private:
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
    Json wanted = row.at(tag);
    if (wanted == "true" || wanted == "false") wanted = wanted == "true";  // of a .csv file
    if (!wanted.is_boolean())
      throw invalid_argument(std::string("expected true or false in '") + tag + "', got " + got(row.at(tag)));
    bool found = false;
    Trajectory out = question_of(row, &found);
    for (const char* column : {"completion", "output", "response"}) {
      if (!is_given(row, column)) continue;
      add_answer(&out, row.at(column), column);
      break;
    }
    check_ends_with_answer(out, "the conversation");
    return {{wanted.get<bool>() ? "desirable" : "undesirable", std::move(out)}};
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
    if (!is_given(row, column)) return;
    const Json& given = row.at(column);
    if (!given.is_array()) return out->push_back({part, text_of(given, column)});
    for (const Json& text : given) out->push_back({part, text_of(text, column)});
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
                                                 "answers, or a conversation with rejected_response "
                                                 "or rejected_messages.",
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
