# The CUDA compiler of a build with BATON_CUDA: CMAKE_CUDA_COMPILER or CUDACXX when given, else nvcc
# on PATH or in /usr/local/cuda, else the wheels of scripts/deps.sh --cuda. Only nvcc, its headers
# and cudart_static are used at build time; the driver, NCCL and cuBLASLt are found at run time.
include_guard(GLOBAL)

file(GLOB BATON_CUDA_WHEELS
  "${PROJECT_SOURCE_DIR}/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin")
find_program(BATON_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin ${BATON_CUDA_WHEELS})
find_program(BATON_CUOBJDUMP cuobjdump HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin
  ${BATON_CUDA_WHEELS})
# NVTX is headers only: a part of the toolkit, and a wheel of its own.
list(TRANSFORM BATON_CUDA_WHEELS REPLACE "/bin$" "/include" OUTPUT_VARIABLE nvtx_hints)
find_path(BATON_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS "$ENV{CUDA_HOME}/include"
  /usr/local/cuda/include ${nvtx_hints})
if(BATON_CUDA)
  if(NOT BATON_NVTX_INCLUDE)
    message(FATAL_ERROR "nvtx3/nvToolsExt.h is missing; run scripts/deps.sh --cuda")
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    if(NOT BATON_NVCC)
      message(FATAL_ERROR "nvcc is missing; install CUDA 13.0 or run scripts/deps.sh --cuda")
    endif()
    set(CMAKE_CUDA_COMPILER "${BATON_NVCC}")
  endif()
  # The `a` is needed: the Hopper-only instructions exist in no other architecture's name. The
  # program that users run also has machine code for Ampere, Ada and Blackwell, and PTX for other
  # GPUs that came after Hopper (preset cuda-all). A family (100f) would hold no more: no kernel has
  # an instruction of one, and CMake 3.25 refuses the letter.
  set(BATON_CUDA_ARCHITECTURES "90a-real" CACHE STRING "GPU architectures to compile for")
  set(CMAKE_CUDA_ARCHITECTURES ${BATON_CUDA_ARCHITECTURES})
  if(BATON_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${BATON_CCACHE}")
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 13.0")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows none above 17 for nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
endif()

# The flags that every .cu is compiled with. A spill or a local array fails the build; products are
# fused only where a kernel says so.
set(BATON_NVCC_FLAGS --expt-relaxed-constexpr -fmad=false
  -Xptxas=-warn-spills,-warn-lmem-usage,-Werror)
