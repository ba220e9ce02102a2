// `twinkle-server routes`.
#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/serve/server.h"

namespace twinkle::cli {
namespace {

std::vector<ArgGroup> routes_groups() {
  return {{"RoutesArgs", "Routes", {arg("json", ParamType::kBool, false, "Print JSON.")}}};
}

int routes(const ParsedArgs& args) {
  const auto all = serve::server_routes();
  if (args.get_bool("json")) {
    Json list = Json::array();
    for (const auto& route : all)
      list.push_back({{"method", route.method}, {"path", route.path}, {"scope", route.scope}});
    write_json(list, 2);
    return 0;
  }
  for (const auto& [method, path, scope] : all) {
    const std::string key = scope.empty() ? "no key" : scope == "any" ? "any key" : scope;
    write_out(method + std::string(8 - method.size(), ' ') + path +
              std::string(path.size() < 68 ? 68 - path.size() : 1, ' ') + key + "\n");
  }
  return 0;
}

const AddServerCommand add_routes({
    .name = "routes",
    .summary = "List what a server answers, and what a key needs for it",
    .usage = "[--json]",
    .description =
        "Method, path ('*' stands for one part that varies) and the scope a key needs. What is not in "
        "this list is answered 401 without a key and 404 with one.",
    .groups = routes_groups,
    .run = routes,
    .order = 70,
});

}  // namespace
}  // namespace twinkle::cli
