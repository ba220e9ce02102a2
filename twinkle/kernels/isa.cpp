#include "twinkle/kernels/isa.h"

#include <atomic>
#include <cstdlib>

#include "twinkle/core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace twinkle {
namespace {

constexpr int kUnset = -1;
std::atomic<int> active{kUnset};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  if (!has_avx512()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 5) != 0;
}

// The kernel hands out the tile registers only to a process that asked for them.
bool has_amx() {
  if (!has_avx512()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
#endif

Isa choose() {
  const std::vector<Isa> available = available_isas();
  const char* wanted = std::getenv("TWINKLE_ISA");
  if (wanted == nullptr || *wanted == '\0') return available.back();
  std::string names;
  for (const Isa isa : available) {
    if (isa_name(isa) == wanted) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw invalid_argument("[isa] TWINKLE_ISA: this processor has " + names + ", got '" + wanted + "'");
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "plain";
}

std::vector<Isa> available_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found = {Isa::kPlain};
    if (has_avx2()) found.push_back(Isa::kAvx2);
    if (has_avx512()) found.push_back(Isa::kAvx512);
    if (has_avx512_bf16()) found.push_back(Isa::kAvx512Bf16);
    if (has_amx()) found.push_back(Isa::kAmx);
    return found;
  }();
  return isas;
}

bool rounds_inputs(Isa isa, bool weights_are_bf16) {
  return isa == Isa::kAmx || (isa == Isa::kAvx512Bf16 && weights_are_bf16);
}

Isa active_isa() {
  int isa = active.load(std::memory_order_relaxed);
  if (isa == kUnset) {
    const int chosen = static_cast<int>(choose());
    if (active.compare_exchange_strong(isa, chosen)) isa = chosen;
  }
  return static_cast<Isa>(isa);
}

void force_isa(Isa isa) {
  for (const Isa have : available_isas()) {
    if (have == isa) {
      active.store(static_cast<int>(isa));
      return;
    }
  }
  throw invalid_argument(
      "[isa] '" + std::string(isa_name(isa)) +
      "' is not available on this processor (best: " + std::string(isa_name(available_isas().back())) + ")");
}

}  // namespace twinkle
