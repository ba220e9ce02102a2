// The row, attention, embedding and optimizer kernels for AVX2 with FMA and F16C. Compiled with those flags;
// nothing here runs before the processor was seen to have them.
#include "twinkle/kernels/cpu/attention_grad_kernels.inl.h"
#include "twinkle/kernels/cpu/attention_kernels.inl.h"
#include "twinkle/kernels/cpu/row_kernels.h"
#include "twinkle/kernels/cpu/row_kernels.inl.h"

namespace twinkle::ops::cpu {

const RowKernels kRowKernelsAvx2 = {rows::rms_norm,
                                    rows::rms_norm_backward,
                                    rows::rms_norm_weight_grad,
                                    rows::add,
                                    rows::rope,
                                    rows::swiglu,
                                    rows::swiglu_backward,
                                    rows::dropout,
                                    rows::read_panel_row,
                                    rows::read_panel_row_float,
                                    rows::add_to_panel_row,
                                    rows::adam,
                                    rows::sum_of_squares,
                                    attn::attention_scratch,
                                    attn::attention,
                                    attn::attention_delta,
                                    attn::attention_grad_scratch,
                                    attn::attention_grad};

}  // namespace twinkle::ops::cpu
