// Which instruction set the CPU kernels use. Chosen once, at first use: TWINKLE_ISA if set, else the best the
// processor has. The law of exactness holds within one instruction set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

enum class Isa { kPlain, kAvx2, kAvx512, kAmx };

std::string_view isa_name(Isa isa);  // "plain", "avx2", "avx512", "amx"
std::vector<Isa> available_isas();   // on this processor, from plain up
Isa active_isa();                    // invalid_argument when TWINKLE_ISA names none or one that is not there
void force_isa(Isa isa);             // tests and --isa; same errors

}  // namespace twinkle
