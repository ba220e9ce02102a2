// twinkle doctor: what this machine is and how fast it is, against its own limit measured in the same run.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "twinkle/cli/command.h"
#include "twinkle/cli/options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/units.h"
#include "twinkle/kernels/device.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/machine.h"
#include "twinkle/train/manifest.h"
#include "twinkle/train/planner.h"

namespace twinkle::cli {
namespace {

// The value of the first line "name : value" of a file in /proc.
std::string proc_value(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.find_first_not_of(" \t", name.size()) != colon) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "unknown";
}

int64_t memory_total_bytes() {
  const std::string kilobytes = proc_value("/proc/meminfo", "MemTotal");
  return kilobytes == "unknown" ? 0 : std::stoll(kilobytes) * 1024;
}

std::string number(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.0f %s", value, unit);
  return text;
}

int doctor(const ParsedArgs& args) {
  apply_threads(args);
  if (args.has("isa")) {
    for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
      if (isa_name(isa) == args.get_string("isa")) force_isa(isa);
    }
  }
  std::string isas;
  std::vector<std::string> isa_list;
  for (const Isa isa : available_isas()) {
    isa_list.emplace_back(isa_name(isa));
    isas += (isas.empty() ? "" : ", ") + isa_list.back();
  }
  // A device that was asked for must be there; otherwise its absence is only a line.
  std::string cuda = "found";
  try {
    open_device("cuda");
  } catch (const Error& e) {
    if (args.get_string("device") == "cuda") throw;
    cuda = std::string("none: ") + e.what();
  }
  const std::string active(isa_name(active_isa()));
  const std::string torch = RunManifest::of_this_program().torch_version;
  MachineLimits limits = measure_machine();
  // A limit below what was reached was measured while others used the processor.
  for (int again = 0; again < 3 && limits.product_gflops > limits.bf16_gflops; ++again) {
    limits.bf16_gflops = std::max(limits.bf16_gflops, measure_bf16_gflops());
  }
  const double share = limits.bf16_gflops > 0 ? limits.product_gflops / limits.bf16_gflops : 0;
  if (args.get_bool("json")) {
    write_json({{"processor", proc_value("/proc/cpuinfo", "model name")},
                {"threads", num_threads()},
                {"isas", isa_list},
                {"isa", active},
                {"cuda", cuda == "found"},
                {"memory_bytes", memory_total_bytes()},
                {"available_memory_bytes", available_memory_bytes()},
                {"fma_gflops", limits.fma_gflops},
                {"bf16_gflops", limits.bf16_gflops},
                {"product_gflops", limits.product_gflops},
                {"product_share", share},
                {"copy_gbs", limits.copy_gbs},
                {"torch", torch},
                {"twinkle", version()}},
               2);
    return 0;
  }
  char percent[32];
  std::snprintf(percent, sizeof(percent), " (%.0f %% of the limit)", 100 * share);
  write_out(table_text({{"processor", proc_value("/proc/cpuinfo", "model name")},
                        {"threads", std::to_string(num_threads())},
                        {"instruction sets", isas + "; used: " + active},
                        {"cuda", cuda},
                        {"memory", bytes_text(memory_total_bytes()) + ", " +
                                       bytes_text(available_memory_bytes()) + " available"},
                        {"limit", number(limits.fma_gflops, "GFLOP/s") + " in fp32, " +
                                      number(limits.bf16_gflops, "GFLOP/s") + " with weights in bf16"},
                        {"matrix product", number(limits.product_gflops, "GFLOP/s") + percent},
                        {"memory copy", number(limits.copy_gbs, "GB/s")},
                        {"versions", "twinkle " + version() + ", torch " + torch}}));
  if (active == "plain" && isa_list.size() > 1)
    write_out("The plain kernels are for checking: training with them is slow.\n");
  return 0;
}

const AddRun run_doctor("doctor", doctor);

}  // namespace
}  // namespace twinkle::cli
