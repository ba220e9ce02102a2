#include "twinkle/cli/command.h"
#include "twinkle/cli/list_components.h"

namespace twinkle::cli {
namespace {
const AddRun run_list("list", list_components);
}  // namespace
}  // namespace twinkle::cli
