#include "twinkle/serve/basis.h"

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle::serve {

void check_basis(const Disk& disk, const std::string& data_dir, const EngineInfo& engine, bool has_models,
                 bool accept_change) {
  const std::string path = data_dir + "/basis.json";
  const Json now = {{"weights", engine.weights}, {"isa", engine.isa}};
  if (file_exists(path)) {
    Json before;
    const auto problem = try_parse_json(disk.map(path).text(), before);
    if (!problem && before == now) return;
    const auto named = [&](const char* key) { return before.contains(key) && before.at(key).is_string(); };
    if (problem || !before.is_object() || !named("weights") || !named("isa")) {
      throw unavailable("[data_dir] '" + path +
                        "' is damaged; restore it, or remove it to go on with the present engine");
    }
    if (has_models && !accept_change) {
      const std::string isa = before.at("isa");
      const bool other_weights = before.at("weights") != engine.weights, other_isa = isa != engine.isa;
      std::string trained_on, start = "Start as before";
      if (other_weights) trained_on = "other weights of the base (another model, or held in another --dtype)";
      if (other_isa) {
        trained_on += (other_weights ? " and " : "") + ("the instruction set " + isa + ", not " + engine.isa);
        start += " (TWINKLE_ISA=" + isa + ")";
      }
      throw conflict("[data_dir] '" + data_dir + "' holds models that were trained on " + trained_on +
                     "; they would go on with other numbers. " + start +
                     ", use another --data-dir, or say --accept-engine-change");
    }
  }
  write_file(disk, path, now.dump(2) + "\n");
}

}  // namespace twinkle::serve
