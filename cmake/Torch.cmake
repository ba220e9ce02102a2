# libtorch from the pip wheel, by a hand-made imported target: the wheel's own CMake files ask for a CUDA
# toolkit, and the meta library libtorch.so needs libtorch_cuda. scripts/setup unpacks the wheels so that
# libtorch_cpu.so finds its two CUDA helper libraries by its own RUNPATH (../../nvidia/cu13/lib).
set(TWINKLE_TORCH_ROOT "${TWINKLE_DEPS}/site/torch")
if(NOT EXISTS "${TWINKLE_TORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch is not at ${TWINKLE_TORCH_ROOT}; run scripts/setup (or set TWINKLE_DEPS)")
endif()

add_library(torch_cpu INTERFACE)
target_include_directories(torch_cpu SYSTEM INTERFACE
  "${TWINKLE_TORCH_ROOT}/include" "${TWINKLE_TORCH_ROOT}/include/torch/csrc/api/include")
target_compile_definitions(torch_cpu INTERFACE AT_PER_OPERATOR_HEADERS)
target_link_options(torch_cpu INTERFACE
  "-Wl,--allow-shlib-undefined" "-Wl,-rpath,${TWINKLE_TORCH_ROOT}/lib" "-L${TWINKLE_TORCH_ROOT}/lib"
  "-Wl,-rpath-link,${TWINKLE_TORCH_ROOT}/lib:${TWINKLE_DEPS}/site/nvidia/cu13/lib")
target_link_libraries(torch_cpu INTERFACE
  "${TWINKLE_TORCH_ROOT}/lib/libtorch_cpu.so" "${TWINKLE_TORCH_ROOT}/lib/libc10.so")
