// Devices by name. CUDA libraries are loaded on demand, so one program runs everywhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace twinkle {

/// "cpu", "cuda" or "cuda:N". For CUDA libtorch_cuda.so is loaded first; unavailable with the reason when the
/// library or the device is not there.
at::Device open_device(const std::string& name);

}  // namespace twinkle
