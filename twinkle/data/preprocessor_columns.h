// Columns of a row, as preprocessors read them. Errors name the column and what was got; the caller adds file
// and row.
#pragma once

#include <optional>
#include <string>

#include "twinkle/data/dataset.h"

namespace twinkle::columns {

std::string got(const Json& value);
std::string columns_of(const Row& row);
/// A column that must be a string.
const std::string& text_column(const Row& row, const std::string& column);
/// An optional column: absent and null are "".
std::string optional_text(const Row& row, const std::string& column);
/// A list that may be given as JSON text, as .csv files hold it; other values stay as they are.
Json parsed_list(const Json& value, const std::string& column);
/// Text that spells a message or a list of messages, as .csv files hold them, as what it spells; other
/// values, and texts that only begin with a bracket, stay as they are.
Json parsed_messages(const Json& value, const std::string& column);
/// The column `tools` in OpenAI's form: a list, or text that spells one. Null when there is none.
Json tools_of(const Row& row);
/// For rows that have no prompt to put tools into.
void refuse_tools(const Row& row);
/// True or false, also as the text that .csv files hold ("True").
std::optional<bool> truth_of(const Json& value);
/// For rows that have no place for images, audio and video: they are refused, never dropped.
void refuse_media(const Row& row);
/// Data for KTO marks its bad answers; supervised training would learn them as good ones.
void refuse_bad_answer(const Row& row);
void add_message(Json& messages, const char* role, std::string content);
/// Earlier turns as [[question, answer], ...], or text that spells them.
void add_history(Json& messages, const Row& row);
/// With the row's history, tools and media.
Trajectory question_and_answer(const Row& row, const std::string& system, std::string question,
                               std::string answer);
/// A [key, JSON text] pair.
Json user_data_pair(const std::string& key, const Json& value);

ParamSpec text_param(std::string name, std::string default_value, std::string help);
inline constexpr const char* kSystemHelp = "System message put before the conversation; \"\" for none.";

template <class T>
Registry<Preprocessor>::Add add_preprocessor(std::string name, std::string help,
                                             std::vector<ParamSpec> params,
                                             std::vector<std::string> aliases = {}) {
  return {{.name = std::move(name),
           .help = std::move(help),
           .params = std::move(params),
           .aliases = std::move(aliases)},
          [](const Options& options) { return std::make_unique<T>(options); }};
}

}  // namespace twinkle::columns
