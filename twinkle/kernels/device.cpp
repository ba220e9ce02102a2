#include "twinkle/kernels/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

void load_cuda() {
  static const std::string problem = [] {
    if (at::globalContext().hasCUDA()) return std::string();
    // Next to libtorch_cpu.so, which the loader has found already.
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return std::string();
    const char* reason = dlerror();
    return std::string(reason != nullptr ? reason : "unknown reason");
  }();
  if (!problem.empty()) {
    throw unavailable("[device] cannot load libtorch_cuda.so, which --device cuda needs: " + problem +
                      "; install the CUDA wheels of torch 2.11 beside it, or use --device cpu");
  }
}

}  // namespace

at::Device open_device(const std::string& name) {
  at::Device device = at::kCPU;
  try {
    device = at::Device(name);
  } catch (const c10::Error&) {
    throw invalid_argument("[device] expected cpu, cuda or cuda:N, got '" + name + "'");
  }
  if (device.is_cpu()) return device;
  if (!device.is_cuda()) throw invalid_argument("[device] expected cpu, cuda or cuda:N, got '" + name + "'");
  load_cuda();
  const int count =
      c10::impl::hasDeviceGuardImpl(at::kCUDA) ? c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() : 0;
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw unavailable("[device] '" + name + "': this machine shows " + std::to_string(count) +
                      " CUDA devices; use --device cpu");
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace twinkle
