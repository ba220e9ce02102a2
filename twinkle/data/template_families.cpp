// Templates of families that the general one does not fit: Qwen3_5Template and DeepseekV4Template.
#include <algorithm>
#include <map>
#include <tuple>

#include "twinkle/core/error.h"
#include "twinkle/data/general_template.h"

namespace twinkle {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), by);
  return text;
}

std::string source_of(const Tokenizer& tokenizer, const TemplateOptions& options) {
  if (!options.chat_template.empty() || !options.use_chat_template) return options.chat_template;
  const Json& config = tokenizer.config();
  if (config.is_object() && config.contains("chat_template") && config.at("chat_template").is_string())
    return config.at("chat_template").get<std::string>();
  return "";
}

// The published chat template of Qwen3.5 takes everything before any </think> for reasoning, also where an
// answer only speaks of that tag, and refuses conversations that end in results of tools without a question.
class Qwen35Template final : public GeneralTemplate {
 public:
  Qwen35Template(std::shared_ptr<const Tokenizer> tokenizer, const TemplateOptions& options)
      : GeneralTemplate(tokenizer, patched(*tokenizer, options)) {}

 protected:
  void adjust(Json* messages, std::vector<float>*) const override {
    for (Json& message : *messages) {
      if (message.at("role") != "assistant") continue;
      if (!message.contains("reasoning_content")) message["reasoning_content"] = "";
    }
  }

 private:
  static TemplateOptions patched(const Tokenizer& tokenizer, TemplateOptions options) {
    options.chat_template = replaced(source_of(tokenizer, options),
                                     "{{- raise_exception('No user query found in messages.') }}", "");
    return options;
  }
};

// DeepSeek-V4 is published with an encoder in place of a chat template; this is the same in Jinja. A message
// may carry "task" (action, query, authority, domain, title, read_url).
constexpr const char* kDeepseekV4 = R"JINJA(
{%- set thinking = thinking if thinking is defined else (enable_thinking if enable_thinking is defined else false) -%}
{%- set keep_all = drop_thinking is defined and not drop_thinking -%}
{%- set d = '｜DSML｜' -%}
{%- set max_effort = 'Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n' -%}
{%- set ns = namespace(system='', first=true, last_user=-1, keep=keep_all, open=false, task=none) -%}
{%- if tools -%}{%- set ns.keep = true -%}{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'system' -%}
    {%- set ns.system = ns.system + ('' if ns.first else '\n\n') + (m.content or '') -%}
    {%- set ns.first = false -%}
  {%- elif m.role in ['user', 'developer', 'tool'] -%}
    {%- set ns.last_user = loop.index0 -%}
    {%- if m.role == 'tool' -%}{%- set ns.keep = true -%}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- if thinking and reasoning_effort is defined and reasoning_effort == 'max' -%}{{- max_effort -}}{%- endif -%}
{{- ns.system -}}
{%- if tools -%}
  {{- '\n\n' if ns.system else '' -}}
  {{- '## Tools\n\nYou have access to a set of tools to help answer the user\'s question. You can invoke tools by writing a "<' + d + 'tool_calls>" block like the following:\n\n<' + d + 'tool_calls>\n<' + d + 'invoke name="$TOOL_NAME">\n<' + d + 'parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</' + d + 'parameter>\n...\n</' + d + 'invoke>\n<' + d + 'invoke name="$TOOL_NAME2">\n...\n</' + d + 'invoke>\n</' + d + 'tool_calls>\n\nString parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.\n\nIf thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.\n\nOtherwise, output directly after </think> with tool calls or final response.\n\n### Available Tool Schemas\n\n' -}}
  {%- for t in tools -%}{{- (t.function if t.function is defined else t) | tojson + '\n' -}}{%- endfor -%}
  {{- '\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {%- if m.role in ['user', 'developer', 'tool'] -%}
    {{- '\n\n' if ns.open else '<｜User｜>' -}}
    {%- set ns.open = true -%}
    {%- if m.role == 'tool' -%}
      {{- '<tool_result>' -}}{{- m.content or '' -}}{{- '</tool_result>' -}}
    {%- else -%}
      {{- m.content or '' -}}
      {%- set ns.task = m.task if m.task is defined else none -%}
    {%- endif -%}
  {%- elif m.role == 'latest_reminder' -%}
    {{- '<｜latest_reminder｜>' -}}{{- m.content or '' -}}
  {%- elif m.role == 'assistant' -%}
    {%- set think = thinking and (ns.keep or loop.index0 > ns.last_user) -%}
    {%- if ns.task == none -%}
      {{- '<｜Assistant｜>' -}}
      {%- if think -%}{{- '<think>' -}}{{- m.reasoning_content or '' -}}{%- endif -%}
      {{- '</think>' -}}
    {%- elif ns.task == 'action' -%}
      {{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') + '<｜action｜>' -}}
    {%- elif ns.task in ['query', 'authority', 'domain', 'title', 'read_url'] -%}
      {{- '<｜' + ns.task + '｜>' -}}
    {%- else -%}
      {{- raise_exception('unknown task ' + ns.task) -}}
    {%- endif -%}
    {%- set ns.open = false -%}
    {%- set ns.task = none -%}
    {{- m.content or '' -}}
    {%- if m.tool_calls -%}
      {{- '\n\n<' + d + 'tool_calls>\n' -}}
      {%- for c in m.tool_calls -%}
        {{- '<' + d + 'invoke name="' -}}{{- c.function.name -}}{{- '">\n' -}}
        {%- for key, value in c.function.arguments | items -%}
          {{- '<' + d + 'parameter name="' -}}{{- key -}}
          {%- if value is string -%}
            {{- '" string="true">' -}}{{- value -}}
          {%- else -%}
            {{- '" string="false">' -}}{{- value | tojson -}}
          {%- endif -%}
          {{- '</' + d + 'parameter>\n' -}}
        {%- endfor -%}
        {{- '</' + d + 'invoke>\n' -}}
      {%- endfor -%}
      {{- '</' + d + 'tool_calls>' -}}
    {%- endif -%}
    {{- '<｜end▁of▁sentence｜>' -}}
  {%- elif m.role != 'system' -%}
    {{- raise_exception('unknown role ' + m.role) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {%- if ns.task == none or ns.task == 'action' -%}
    {{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') + ('<｜action｜>' if ns.task == 'action' else '') -}}
  {%- elif ns.task in ['query', 'authority', 'domain', 'title', 'read_url'] -%}
    {{- '<｜' + ns.task + '｜>' -}}
  {%- else -%}
    {{- raise_exception('unknown task ' + ns.task) -}}
  {%- endif -%}
{%- endif -%}
)JINJA";

class DeepseekV4Template final : public GeneralTemplate {
 public:
  DeepseekV4Template(std::shared_ptr<const Tokenizer> tokenizer, const TemplateOptions& options)
      : GeneralTemplate(std::move(tokenizer), with_parser(options), kDeepseekV4) {}

 protected:
  // Results of one turn's calls stand in the order of the calls.
  void adjust(Json* messages, std::vector<float>* weights) const override {
    std::map<std::string, size_t> order;
    for (size_t i = 0; i < messages->size(); ++i) {
      Json& message = (*messages)[i];
      if (message.at("role") == "assistant") {
        order.clear();
        const auto calls = message.find("tool_calls");
        for (size_t c = 0; calls != message.end() && calls->is_array() && c < calls->size(); ++c) {
          const auto id = (*calls)[c].is_object() ? (*calls)[c].find("id") : (*calls)[c].end();
          if (id != (*calls)[c].end() && id->is_string()) order[id->get<std::string>()] = c;
        }
        continue;
      }
      size_t end = i;
      while (end < messages->size() && (*messages)[end].at("role") == "tool") ++end;
      if (end - i < 2 || order.empty()) continue;
      const auto rank = [&](const Json& m) -> size_t {
        const auto id = m.find("tool_call_id");
        if (id == m.end() || !id->is_string()) return 0;
        const auto found = order.find(id->get<std::string>());
        return found == order.end() ? 0 : found->second;
      };
      std::vector<std::pair<Json, float>> results;
      for (size_t k = i; k < end; ++k) results.emplace_back(std::move((*messages)[k]), (*weights)[k]);
      std::stable_sort(results.begin(), results.end(),
                       [&](const auto& a, const auto& b) { return rank(a.first) < rank(b.first); });
      for (size_t k = i; k < end; ++k) std::tie((*messages)[k], (*weights)[k]) = std::move(results[k - i]);
      i = end - 1;
    }
  }

 private:
  static TemplateOptions with_parser(TemplateOptions options) {
    if (options.tool_call_parser.empty()) options.tool_call_parser = "dsml";
    return options;
  }
};

const RegisterTemplate kQwen35{{.name = "Qwen3_5Template",
                                .help = "Qwen3.5 and 3.6: the model's chat template with its faults around "
                                        "</think> and tool results mended.",
                                .params = template_params()},
                               template_factory<Qwen35Template>(),
                               [](const ModelHints& model) {
                                 return model.is("qwen3_5", "qwen3.5") || model.type.starts_with("qwen35") ||
                                        model.name.find("qwen3.6") != std::string::npos;
                               }};
const RegisterTemplate kDeepseek{
    {.name = "DeepseekV4Template",
     .help = "DeepSeek-V4, which comes without a chat template: DSML tool calls, thinking, tasks, "
             "reasoning_effort.",
     .params = template_params()},
    template_factory<DeepseekV4Template>(),
    [](const ModelHints& model) {
      return model.is("deepseek_v4", "deepseek-v4") || model.type == "deepseek4";
    }};

}  // namespace
}  // namespace twinkle
