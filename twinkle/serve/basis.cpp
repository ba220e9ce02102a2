#include "twinkle/serve/basis.h"

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle::serve {

void check_basis(const std::string& data_dir, const EngineInfo& engine, bool has_models, bool accept_change) {
  const std::string path = data_dir + "/basis.json";
  const Json now = {{"weights", engine.weights}, {"isa", engine.isa}};
  if (file_exists(path)) {
    const Json before = read_json_file(path);
    if (before == now) return;
    if (has_models && !accept_change) {
      const std::string isa = before.value("isa", std::string());
      const bool other_weights = before.value("weights", std::string()) != engine.weights;
      throw conflict("[data_dir] '" + data_dir + "' holds models that were trained on " +
                     (other_weights ? "other weights of the base (another model, or held in another --dtype)"
                                    : "the instruction set " + isa + ", not " + engine.isa) +
                     "; they would go on with other numbers. Start as before" +
                     (other_weights ? "" : " (TWINKLE_ISA=" + isa + ")") +
                     ", use another --data-dir, or say --accept-engine-change");
    }
  }
  write_file_atomic(path, now.dump(2) + "\n");
}

}  // namespace twinkle::serve
