// Declaration of bench: what a user can measure on their own machine.
#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

std::vector<ArgGroup> bench_groups() {
  ArgGroup group{"BenchArgs", "Measuring", {}};
  ArgSpec what = arg("what", ParamType::kString, "tenants", "What to measure.");
  what.param.choices = {"tenants"};
  ArgSpec tenants = arg("tenants", ParamType::kInt, 8, "Adapters that train at the same time.");
  tenants.param.min = 1;
  tenants.param.max = 1024;
  ArgSpec tokens = arg("tokens_each", ParamType::kIntList, Json::array({16, 64, 256}),
                       "Tokens of each tenant in a step, one measurement for each number.");
  ArgSpec ranks = arg("ranks", ParamType::kIntList, Json::array({4, 8, 16, 32, 64, 8, 16, 32}),
                      "Ranks of the adapters, over and over.");
  ArgSpec rounds = arg("rounds", ParamType::kInt, 5, "Steps of each kind, taken in turn; medians are shown.");
  rounds.param.min = 1;
  ArgSpec memory =
      arg("memory_tenants", ParamType::kInt, 32,
          "Also the memory of so many adapters of rank 16 with Adam beside one (0: leave it out).");
  memory.param.min = 0;
  memory.param.max = 1024;
  ArgSpec resident = arg("max_loras", ParamType::kInt, nullptr,
                         "Adapters in memory at a time; the others are written out (default: all).");
  resident.param.min = 1;
  resident.param.max = 1024;
  ArgSpec state = arg("state_dtype", ParamType::kString, "fp32", "How the moments of Adam are kept.");
  state.param.choices = {"fp32", "bf16"};
  group.args = {what, tenants, tokens, ranks, rounds, memory, resident, state};
  return {group, model_args(), machine_args(), program_args()};
}

void check_bench(const ParsedArgs& args) {
  if (!args.has("model_id")) throw invalid_argument("[twinkle bench] needs --model-id");
  for (const char* name : {"tokens_each", "ranks"}) {
    if (args.get(name).empty())
      throw invalid_argument(std::string("[twinkle bench] '") + name + "' is empty");
    for (const auto& value : args.get(name)) {
      if (value.get<int64_t>() < (std::string_view(name) == "ranks" ? 1 : 2))
        throw invalid_argument(std::string("[twinkle bench] '") + name + "': " + value.dump() +
                               " is too small");
    }
  }
}

const AddCommand bench({
    .name = "bench",
    .summary = "Measure this machine with many adapters in training",
    .description =
        "Trains adapters of several ranks on one model: all in one pass, one after another, and one "
        "adapter with as many tokens. Shows tokens per second of passes and of whole steps.\n\n"
        "Example: twinkle bench tenants --model-id SmolLM2.gguf",
    .usage = "[tenants] [options]",
    .positionals = {"what"},
    .groups = bench_groups,
    .check = check_bench,
    .order = 140,
});

}  // namespace
}  // namespace twinkle::cli
