// Which instruction set the CPU kernels use. Chosen once, at first use: TWINKLE_ISA if set, else the best the
// processor has. The law of exactness holds within one instruction set. avx512bf16 is avx512 but for products
// with weights held in bf16, which round the other side to bf16 as well; amx rounds both sides of all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

enum class Isa { kPlain, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view isa_name(Isa isa);  // "plain", "avx2", "avx512", "avx512bf16", "amx"
std::vector<Isa> available_isas();   // on this processor, from plain up
/// Whether products with the base's weights round their inputs to bf16: with `bf16` weights, or any others.
bool rounds_inputs(Isa isa, bool bf16);
Isa active_isa();         // invalid_argument when TWINKLE_ISA names none or one that is not there
void force_isa(Isa isa);  // tests and --isa; same errors

}  // namespace twinkle
