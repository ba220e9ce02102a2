#include "twinkle/lora/adapter_copies.h"

#include <ATen/ATen.h>

#include <cstring>

namespace twinkle {
namespace {

void copy_into(at::Tensor to, const at::Tensor& from) {
  if (from.numel() == 0) return;
  if (from.is_cpu()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(from.nbytes()));
  } else {
    to.copy_(from);
  }
}

}  // namespace

at::Tensor own_copy(const at::Tensor& x) {
  const at::Tensor from = x.contiguous();
  at::Tensor out = at::empty(from.sizes(), from.options());
  copy_into(out, from);
  return out;
}

Parameter own_copy(const Parameter& from) {
  Parameter out;
  out.name = from.name;
  if (from.is_matrix()) {
    out.matrix = ops::PackedMatrix::zeros_like(from.matrix, from.matrix.dtype());
    copy_into(out.matrix.storage(), from.matrix.storage());
  } else {
    out.vector = own_copy(from.vector);
  }
  return out;
}

std::vector<LoraModule> modules_without_gradients(const Adapter& adapter) {
  std::vector<LoraModule> out = adapter.modules();
  for (auto& module : out) module.slot.da_rK = module.slot.db_Nr = at::Tensor();
  return out;
}

std::map<std::string, Parameter> saved_without_gradients(const Adapter& adapter) {
  std::map<std::string, Parameter> out;
  for (const auto& [module, from] : adapter.saved_modules()) {
    Parameter& value = out[module];
    value.name = from.name;
    value.matrix = from.matrix;
    value.vector = from.vector;
  }
  return out;
}

void make_own(std::vector<LoraModule>& modules, std::map<std::string, Parameter>& saved_modules) {
  for (auto& module : modules) {
    module.slot.a_rK = own_copy(module.slot.a_rK);
    module.slot.b_Nr = own_copy(module.slot.b_Nr);
    module.slot.da_rK = module.slot.db_Nr = at::Tensor();
  }
  for (auto& [name, parameter] : saved_modules) parameter = own_copy(parameter);
}

}  // namespace twinkle
