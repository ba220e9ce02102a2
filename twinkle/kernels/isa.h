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
/// Whether a product with the base's weights rounds the other factor to bf16, as it is or is not bf16 that
/// the weights are held in.
bool rounds_inputs(Isa isa, bool weights_are_bf16);
Isa active_isa();         // invalid_argument when TWINKLE_ISA names none or one that is not there
void force_isa(Isa isa);  // tests and --isa; same errors

}  // namespace twinkle
