#include "twinkle/data/template.h"

#include <algorithm>
#include <filesystem>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/gguf.h"
#include "twinkle/data/general_template.h"

namespace twinkle {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

const RegisterTemplate kRegistered{{.name = "Template",
                                    .help = "The chat template of the model (or a given one) over its "
                                            "tokenizer, with labels on the assistant turns.",
                                    .params = template_params()},
                                   template_factory<GeneralTemplate>()};

struct Entry {
  TemplateFactory factory;
  std::function<bool(const ModelHints&)> suits;
};

const Entry& entry(const std::string& name) {
  return std::any_cast<const Entry&>(Catalog::instance().factory(Template::kKind, name));
}

}  // namespace

std::vector<ParamSpec> template_params() {
  const TemplateOptions defaults;
  return {
      {.name = "max_length",
       .type = ParamType::kInt,
       .default_value = defaults.max_length,
       .help = "Most tokens of a row.",
       .min = 1.0},
      {.name = "truncation_strategy",
       .default_value = defaults.truncation_strategy,
       .help = "What happens to longer rows: an error, keep the end, keep the beginning, windows, leave out.",
       .choices = kTruncationStrategies},
      {.name = "use_chat_template",
       .type = ParamType::kBool,
       .default_value = defaults.use_chat_template,
       .help = "false: rows are plain text and every token is trained."},
      {.name = "enable_thinking",
       .type = ParamType::kBool,
       .default_value = defaults.enable_thinking,
       .help = "Passed to the chat template."},
      {.name = "default_system",
       .default_value = defaults.default_system,
       .help = "System message of conversations that begin with the user."},
      {.name = "chat_template",
       .default_value = defaults.chat_template,
       .help = "Jinja text in place of the tokenizer's chat template."},
      {.name = "chat_template_kwargs",
       .type = ParamType::kJson,
       .help = "Further variables of the chat template, as an object."},
      {.name = "loss_scale",
       .default_value = defaults.loss_scale,
       .help = "How tokens count in the loss; see the components of kind loss_scale."},
      {.name = "split_rounds",
       .type = ParamType::kBool,
       .default_value = defaults.split_rounds,
       .help = "A feature for each round of a conversation, rendered as the model meets it."},
      {.name = "tool_call_parser",
       .default_value = defaults.tool_call_parser,
       .help = "Format of tool calls in replies (default: found out)."}};
}

std::string template_name_for(const std::string& model_path) {
  std::string type;
  const std::string config = model_path + "/config.json";
  if (model_path.ends_with(".gguf") && file_exists(model_path)) {
    const GgufFile file = GgufFile::open(model_path);
    const Json& metadata = file.metadata();
    if (const auto found = metadata.find("general.architecture");
        found != metadata.end() && found->is_string())
      type = found->get<std::string>();
  } else if (file_exists(config)) {
    const Json value = read_json_file(config);
    if (value.is_object() && value.contains("model_type") && value.at("model_type").is_string())
      type = value.at("model_type").get<std::string>();
  }
  type = lower(type);
  // Upstream goes by the name alone, which also covers a tokenizer without its model.
  std::filesystem::path path(model_path);
  if (path.filename().empty()) path = path.parent_path();
  const ModelHints model{type, lower(path.filename().string())};
  for (const ComponentInfo* info : Catalog::instance().of_kind(Template::kKind)) {
    const auto& suits = entry(info->name).suits;
    if (suits && suits(model)) return info->name;
  }
  return "Template";
}

RegisterTemplate::RegisterTemplate(ComponentInfo info, TemplateFactory factory,
                                   std::function<bool(const ModelHints&)> suits) {
  info.kind = std::string(Template::kKind);
  Catalog::instance().add(std::move(info), Entry{std::move(factory), std::move(suits)});
}

std::unique_ptr<Template> make_template(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer,
                                        const TemplateOptions& options) {
  if (tokenizer == nullptr) throw invalid_argument("[template] a template needs a tokenizer");
  return entry(name.empty() ? "Template" : name).factory(std::move(tokenizer), options);
}

}  // namespace twinkle
