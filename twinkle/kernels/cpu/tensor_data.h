// Raw pointers into tensors for the CPU kernels, and scratch memory of a thread. A wrong dtype or layout is a
// bug of the caller in this library, not of the user.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "twinkle/core/error.h"

namespace twinkle::ops::cpu {

template <class T>
const T* read(const at::Tensor& x) {
  TW_CHECK(x.is_contiguous() && x.scalar_type() == c10::CppTypeToScalarType<T>::value,
           "a contiguous tensor of another type is needed");
  return x.const_data_ptr<T>();
}

template <class T>
T* write(at::Tensor& x) {
  TW_CHECK(x.is_contiguous() && x.scalar_type() == c10::CppTypeToScalarType<T>::value,
           "a contiguous tensor of another type is needed");
  return x.mutable_data_ptr<T>();
}

/// At least n floats, 64-byte aligned, of the calling thread; valid until its next call.
inline float* thread_scratch(int64_t n) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (n > size) {
    memory.reset();
    size = 0;
    const size_t bytes = (static_cast<size_t>(n) * sizeof(float) + 63) / 64 * 64;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!memory) throw std::bad_alloc();
    size = n;
  }
  return memory.get();
}

}  // namespace twinkle::ops::cpu
