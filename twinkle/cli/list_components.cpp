#include "twinkle/cli/list_components.h"

#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle::cli {
namespace {

Json json_of(const ComponentInfo& info) {
  ArgGroup group;
  for (const auto& param : info.params) group.args.push_back({.param = param});
  return {{"kind", info.kind},
          {"name", info.name},
          {"help", info.help},
          {"aliases", info.aliases},
          {"params", args_to_json({group})[0]["options"]}};
}

std::string type_text(const ParamSpec& param) {
  std::string out;
  if (!param.choices.empty()) {
    for (const auto& choice : param.choices) out += (out.empty() ? "" : "|") + choice;
  } else {
    out = param_type_name(param.type);
  }
  if (param.required) return out + ", required";
  if (!param.default_value.is_null()) out += ", default " + param.default_value.dump();
  return out;
}

void print_one(const ComponentInfo& info) {
  write_out(info.name + " (" + info.kind + ")\n  " + wrap_text(info.help, 2, 100) + "\n");
  if (!info.aliases.empty()) {
    std::string names;
    for (const auto& alias : info.aliases) names += (names.empty() ? "" : ", ") + alias;
    write_out("  Also called: " + names + "\n");
  }
  if (info.params.empty()) {
    write_out("  No parameters.\n");
    return;
  }
  write_out("  Parameters:\n");
  for (const auto& param : info.params) {
    write_out("    " + param.name + ": " + type_text(param) + "\n        " + wrap_text(param.help, 8, 100) +
              "\n");
  }
}

}  // namespace

int list_components(const ParsedArgs& args) {
  const Catalog& catalog = Catalog::instance();
  const bool json = args.get_bool("json");
  std::vector<std::string> kinds = catalog.kinds();
  if (args.has("kind")) {
    const std::string kind = args.get_string("kind");
    if (catalog.of_kind(kind).empty())
      throw not_found("[list] no kind '" + kind + "'" + did_you_mean(kind, kinds));
    kinds = {kind};
  }
  if (args.has("name")) {
    const ComponentInfo& info = catalog.info(kinds.front(), args.get_string("name"));
    if (json) {
      write_json(json_of(info), 2);
    } else {
      print_one(info);
    }
    return 0;
  }
  Json all = Json::array();
  for (const auto& kind : kinds) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const auto* info : catalog.of_kind(kind)) {
      rows.emplace_back(info->name, info->help);
      all.push_back(json_of(*info));
    }
    if (json) continue;
    size_t width = 0;
    for (const auto& [name, help] : rows) width = std::max(width, name.size());
    write_out(kind + ":\n");
    for (const auto& [name, help] : rows) {
      write_out("  " + name + std::string(width + 2 - name.size(), ' ') +
                wrap_text(help, static_cast<int>(width) + 4, 100) + "\n");
    }
  }
  if (json) write_json(all, 2);
  return 0;
}

}  // namespace twinkle::cli
