// Preprocessors for data sets of tasks with a checkable answer, under upstream's names: what a reward needs
// travels in user_data as [key, JSON text] pairs.
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/data/media.h"
#include "twinkle/data/preprocessor_columns.h"

namespace twinkle {
namespace {

using namespace columns;  // NOLINT: the helpers of every preprocessor

class CompetitionMathProcessor : public Preprocessor {
 public:
  explicit CompetitionMathProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override {
    return question_and_answer(row, "", text_column(row, "problem"), text_column(row, "solution"));
  }
};

class CompetitionMathGrpoProcessor : public Preprocessor {
 public:
  explicit CompetitionMathGrpoProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override {
    Trajectory out =
        question_and_answer(row,
                            "You are a helpful math assistant. Respond with only the final answer in "
                            "the form \\boxed{...} and nothing else.",
                            text_column(row, "problem"), "");
    out.user_data.push_back(user_data_pair("solution", text_column(row, "solution")));
    return out;
  }
};

// [1, 2, 3], or text that spells it ("1,2,3").
Json numbers_of(const Row& row, const std::string& column) {
  const auto found = row.find(column);
  if (found == row.end())
    throw invalid_argument("has no column '" + column + "' (columns: " + columns_of(row) + ")");
  Json out = *found;
  if (out.is_string()) {
    std::string text = out.get<std::string>();
    if (!text.starts_with('[')) text = "[" + text + "]";
    if (try_parse_json(text, out)) out = nullptr;
  }
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (!out.is_array() || out.empty() || !std::all_of(out.begin(), out.end(), is_number))
    throw invalid_argument("expected a list of numbers in '" + column + "', got " + got(*found));
  return out;
}

class CountdownProcessor : public Preprocessor {
 public:
  explicit CountdownProcessor(const Options&) {}
  Trajectory operator()(const Row& row) const override {
    const Json nums = numbers_of(row, "nums");
    const char* column = row.contains("response") ? "response" : "target";
    if (!row.contains(column))
      throw invalid_argument("has no column 'target' or 'response' (columns: " + columns_of(row) + ")");
    Json target = row.at(column);
    if (target.is_string()) {
      Json parsed;
      if (!try_parse_json(target.get_ref<const std::string&>(), parsed)) target = parsed;
    }
    if (!target.is_number())
      throw invalid_argument(std::string("expected a number in '") + column + "', got " +
                             got(row.at(column)));
    std::string list;
    for (const Json& number : nums) list += (list.empty() ? "[" : ", ") + number.dump();
    Trajectory out;
    add_message(
        out.messages, "system",
        "You are a helpful assistant. You first thinks about the reasoning process in the mind and then "
        "provides the user with the answer.");
    add_message(
        out.messages, "user",
        "Using the numbers " + list + "], create an equation that equals " + target.dump() +
            ".\nYou can use basic arithmetic operations (+, -, *, /) and each number can only be used "
            "once.\nShow your work in <think> </think> tags. And return the final equation and answer in "
            "<answer> </answer> tags,\nfor example <answer> (1 + 2) / 3 * 4 = 4 </answer>.");
    out.tools = tools_of(row);
    out.user_data.push_back(user_data_pair("target", target));
    out.user_data.push_back(user_data_pair("nums", nums));
    return out;
  }
};

class Gsm8kProcessor : public Preprocessor {
 public:
  explicit Gsm8kProcessor(const Options& options)
      : system_(options.get_string("system")), add_assistant_(options.get_bool("add_assistant")) {}
  Trajectory operator()(const Row& row) const override {
    refuse_media(row);
    const std::string& answer = text_column(row, "answer");
    Trajectory out;
    if (!system_.empty()) add_message(out.messages, "system", system_);
    add_message(out.messages, "user", text_column(row, "question"));
    if (add_assistant_) add_message(out.messages, "assistant", answer);
    out.tools = tools_of(row);
    out.user_data.push_back(user_data_pair("ground_truth", ground_truth(answer)));
    return out;
  }

 private:
  // The number after ####, without commas.
  static std::string ground_truth(const std::string& answer) {
    const size_t mark = answer.find("####");
    if (mark == std::string::npos) throw invalid_argument("'answer' has no #### before its result");
    const size_t begin = answer.find_first_not_of(" \t\r\n", mark + 4);
    std::string out;
    for (size_t at = begin; at < answer.size(); ++at) {
      const char c = answer[at];
      if ((c < '0' || c > '9') && c != '-' && c != ',' && c != '.') break;
      if (c != ',') out.push_back(c);
    }
    if (out.empty()) throw invalid_argument("'answer' has no number after ####");
    return out;
  }
  std::string system_;
  bool add_assistant_;
};

class ClevrProcessor : public Preprocessor {
 public:
  explicit ClevrProcessor(const Options& options) : system_(options.get_string("system")) {}
  Trajectory operator()(const Row& row) const override {
    Trajectory out;
    if (!system_.empty()) add_message(out.messages, "system", system_);
    add_message(out.messages, "user", text_column(row, "problem"));
    place_media(row, &out.messages);
    if (out.messages.back().at("content").is_string()) throw invalid_argument("has no 'image'");
    out.tools = tools_of(row);
    out.user_data.push_back(user_data_pair("solution", text_column(row, "solution")));
    return out;
  }

 private:
  std::string system_;
};

class OlympiadBenchProcessor : public Preprocessor {
 public:
  explicit OlympiadBenchProcessor(const Options& options)
      : system_(options.get_string("system")), chinese_(options.get_string("language") == "zh") {}
  Trajectory operator()(const Row& row) const override {
    Row images = {{"images", Json::array()}};
    for (int i = 1; i <= 9; ++i) {
      const auto image = row.find("image_" + std::to_string(i));
      if (image != row.end() && !image->is_null()) images["images"].push_back(*image);
    }
    const std::string context = optional_text(row, "context"), unit = optional_text(row, "unit");
    const std::string subject = optional_text(row, "subject");
    std::string question = text_column(row, "question");
    if (!context.empty()) question = "背景信息：" + context + "\n\n" + question;
    Trajectory out;
    add_message(out.messages, "system", !system_.empty() ? system_ : chinese_ ? kChinese : kEnglish);
    add_message(out.messages, "user", question);
    place_media(images, &out.messages);
    out.tools = tools_of(row);
    std::string truth = joined(row, "final_answer", ", ");
    if (!unit.empty() && !truth.empty()) truth += " " + unit;
    out.user_data.push_back(user_data_pair("ground_truth", truth));
    out.user_data.push_back(user_data_pair("solution", joined(row, "solution", "\n")));
    const auto several = row.find("is_multiple_answer");
    const bool multiple = several != row.end() && several->is_boolean() && several->get<bool>();
    out.user_data.push_back(user_data_pair("is_multiple_answer", multiple));
    out.user_data.push_back(user_data_pair("subject", subject.empty() ? "maths" : subject));
    out.user_data.push_back(user_data_pair("unit", unit));
    return out;
  }

 private:
  static constexpr const char* kChinese =
      "你是一个专业的数学和物理解题助手。请仔细分析题目，逐步推理解答，并将最终答案用 \\boxed{} "
      "格式给出。如果有多个答案，请用逗号分隔。";
  static constexpr const char* kEnglish =
      "You are a professional math and physics problem solver. Analyze the problem carefully, solve it step "
      "by "
      "step, and provide your final answer in \\boxed{} format. If there are multiple answers, separate them "
      "with "
      "commas.";

  static std::string joined(const Row& row, const char* column, const char* separator) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null()) return "";
    const auto text = [&](const Json& value) {
      if (value.is_string()) return std::string(trimmed(value.get_ref<const std::string&>()));
      if (value.is_number()) return value.dump();
      throw invalid_argument(std::string("expected texts in '") + column + "', got " + got(value));
    };
    if (!found->is_array()) return text(*found);
    std::string out;
    for (const Json& item : *found) {
      if (item.is_null() || item == "") continue;
      out += (out.empty() ? "" : separator) + text(item);
    }
    return out;
  }
  static std::string_view trimmed(std::string_view text) {
    while (!text.empty() && std::string_view(" \t\r\n").find(text.front()) != std::string_view::npos)
      text.remove_prefix(1);
    while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
      text.remove_suffix(1);
    return text;
  }
  std::string system_;
  bool chinese_;
};

const auto kMath = add_preprocessor<CompetitionMathProcessor>(
    "CompetitionMathProcessor", "Rows {problem, solution}: a question and its answer.", {});
const auto kMathGrpo = add_preprocessor<CompetitionMathGrpoProcessor>(
    "CompetitionMathGRPOProcessor", "Rows {problem, solution} as prompts; the solution is for the reward.",
    {});
const auto kCountdown = add_preprocessor<CountdownProcessor>(
    "CountdownProcessor", "Rows {nums, target or response}: prompts of the Countdown game.", {});
const auto kGsm8k = add_preprocessor<Gsm8kProcessor>(
    "GSM8KProcessor",
    "Rows {question, answer} whose answer ends in #### and a number, which is for the reward.",
    {text_param(
         "system",
         "You are a helpful math assistant. Solve the problem step by step. Show your reasoning in <think> "
         "</think> tags, then give the final numerical answer after ####.\nFor example:\n<think> ... "
         "reasoning "
         "... </think>\n#### 42",
         kSystemHelp),
     {.name = "add_assistant",
      .type = ParamType::kBool,
      .default_value = false,
      .help = "Add the answer as the assistant's turn, to train on."}});
const auto kClevr = add_preprocessor<ClevrProcessor>(
    "CLEVRProcessor",
    "Rows {image, problem, solution}: questions about a picture; the solution is for the reward.",
    {text_param("system", "", kSystemHelp)});
const auto kOlympiad = add_preprocessor<OlympiadBenchProcessor>(
    "OlympiadBenchProcessor", "Rows of OlympiadBench as prompts; answers are for the reward.",
    {text_param("system", "", "System message; \"\": one in the language below."),
     {.name = "language",
      .default_value = "zh",
      .help = "Language of the system message.",
      .choices = {"zh", "en"}}});

}  // namespace
}  // namespace twinkle
