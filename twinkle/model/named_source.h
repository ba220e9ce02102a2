// What sources of weights share that keep an entry for each tensor of their files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "twinkle/model/weight_source.h"

namespace twinkle {

/// Entry has a WeightInfo `info`, whose name is the entry's.
template <class Entry>
class NamedSource : public WeightSource {
 public:
  std::vector<WeightInfo> tensors() const override {
    std::vector<WeightInfo> out;
    for (const auto& [name, entry] : tensors_) out.push_back(entry.info);
    return out;
  }

  const WeightInfo* find(const std::string& name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second.info;
  }

 protected:
  std::map<std::string, Entry> tensors_;
};

}  // namespace twinkle
