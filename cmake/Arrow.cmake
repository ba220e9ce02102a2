# libarrow and libparquet from the pyarrow wheel, by hand-made imported targets: the wheel has no CMake files and no
# development links. Without the wheel the tree builds and says so when a Parquet or Arrow file is asked for.
set(TWINKLE_ARROW_ROOT "${TWINKLE_DEPS}/arrow/pyarrow")
file(GLOB TWINKLE_ARROW_LIBRARIES "${TWINKLE_ARROW_ROOT}/libarrow.so.*" "${TWINKLE_ARROW_ROOT}/libparquet.so.*")
list(LENGTH TWINKLE_ARROW_LIBRARIES found)
if(found EQUAL 2)
  add_library(arrow_wheel INTERFACE)
  target_include_directories(arrow_wheel SYSTEM INTERFACE "${TWINKLE_ARROW_ROOT}/include")
  target_link_options(arrow_wheel INTERFACE "-Wl,-rpath,${TWINKLE_ARROW_ROOT}"
    "-Wl,-rpath-link,${TWINKLE_ARROW_ROOT}" "-Wl,--allow-shlib-undefined")
  target_link_libraries(arrow_wheel INTERFACE ${TWINKLE_ARROW_LIBRARIES})
else()
  message(STATUS "no pyarrow under ${TWINKLE_DEPS}/arrow: Parquet and Arrow files are not read (scripts/setup)")
endif()
