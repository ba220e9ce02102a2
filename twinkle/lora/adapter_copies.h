// Weights of adapters for somebody who must not see later steps: without gradients, and where asked for in
// memory that nobody else changes. Copies are made by the calling thread alone, so one in the background
// takes nothing from the training loop.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "twinkle/lora/adapter.h"

namespace twinkle {

/// On the same device.
at::Tensor own_copy(const at::Tensor& x);
/// Name and value.
Parameter own_copy(const Parameter& from);

/// The modules, sharing the adapter's memory.
std::vector<LoraModule> modules_without_gradients(const Adapter& adapter);
/// Likewise its whole copies (modules_to_save).
std::map<std::string, Parameter> saved_without_gradients(const Adapter& adapter);

/// Puts modules and whole copies into memory of their own; gradients are dropped.
void make_own(std::vector<LoraModule>& modules, std::map<std::string, Parameter>& saved_modules);

}  // namespace twinkle
