# Compiles and links for a Mac on another machine, with compiler, headers and linker of ziglang
# (PyPI): cmake -DCMAKE_TOOLCHAIN_FILE=native/macos.cmake. What comes out runs on a Mac only.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
find_program(PYTHON_ZIG python-zig REQUIRED)
# In builds without optimisation zig checks for undefined behaviour, and has no library for it here.
set(for_a_mac -target aarch64-macos.13.0 -fno-sanitize=undefined)
set(CMAKE_C_COMPILER ${PYTHON_ZIG} cc ${for_a_mac})
set(CMAKE_CXX_COMPILER ${PYTHON_ZIG} c++ ${for_a_mac})
foreach(language C CXX)
  set(CMAKE_${language}_ARCHIVE_CREATE "${PYTHON_ZIG} ar qc <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "${PYTHON_ZIG} ranlib <TARGET>")
endforeach()
# Searched for, and not needed.
set(CMAKE_INSTALL_NAME_TOOL "${PYTHON_ZIG}")
set(CMAKE_OSX_SYSROOT "")
