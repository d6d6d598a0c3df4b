# What GPUs this machine has, and for which of them a small program compiles: a toolkit
# that is too old, or not whole, shows here after seconds, in a build after minutes.
#
#   $1 the C++ compiler, or nothing for the usual one   $2 seconds for one compilation
#   $3 what to prove: cuda hip metal vulkan none; nothing for what the GPUs here call for;
#      seen for the GPUs alone
#   $4 those that need no proof: an engine for them was built here
#
# Prints "gpu<TAB>nvidia|rocm|render|metal" for each kind, "proved<TAB>cuda<TAB>/…/nvcc",
# "failed<TAB>vulkan<TAB>why", "idle<TAB>cuda" for a toolkit without its GPU, and
# "driver<TAB>580" for NVIDIA's.

cxx=$1 limit=$2 wanted=$3 built=$4

gpu() { # KIND ACCELERATOR
  printf 'gpu\t%s\n' "$1"
  [ -n "$asked" ] || wanted="$wanted $2"
}

gpus() {
  asked=$wanted
  [ "$(uname -s 2>/dev/null)" = Darwin ] && gpu metal metal
  [ "$asked" != none ] || return
  if has nvidia-smi && bounded 10 nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    gpu nvidia cuda
    driver=$(bounded 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader \
      2>/dev/null | sed -n '1s/\..*//p')
    case "$driver" in '' | *[!0-9]*) ;; *) printf 'driver\t%s\n' "$driver" ;; esac
  elif [ -n "$(nvcc_path)" ]; then
    printf 'idle\tcuda\n'
  fi
  grep -qs '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties &&
    gpu rocm hip
  for node in /dev/dri/renderD*; do [ -e "$node" ] && gpu render vulkan && break; done
}

nvcc_path() {
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
    [ -x "$folder/bin/nvcc" ] && printf %s "$folder/bin/nvcc" && return
  done
  command -v nvcc
}

compiler() {
  for name in "$cxx" c++ g++ clang++; do
    [ -n "$name" ] && has "$name" && command -v "$name" && return
  done
}

missing() { # ACCELERATOR WHAT
  printf 'failed\t%s\t%s\n' "$1" "$2 is not installed"
}

# Compile and link what a build of llama.cpp would; say why where it fails.
compiles() { # ACCELERATOR TOOL COMMAND…
  accelerator=$1 tool=$2
  shift 2
  if bounded "$limit" "$@" -o "$work/probe" >"$work/said" 2>&1; then
    printf 'proved\t%s\t%s\n' "$accelerator" "$tool"
  else
    printf 'failed\t%s\t%s\n' "$accelerator" "$(reason)"
  fi
}

reason() {
  if grep -q 'LayerSettingEXT' "$work/said"; then
    printf 'its Vulkan headers are older than 1.3.272'
    return
  fi
  line=$(grep -m 1 -E 'error|cannot find|undefined reference' "$work/said")
  [ -n "$line" ] || line=$(tail -n 1 "$work/said")
  printf '%s' "${line:-the compiler gave no answer}" | tr '\t' ' ' |
    sed "s|$work/||g" | cut -c 1-160
}

prove_none() { :; }

prove_seen() { :; }

prove_cuda() {
  nvcc=$(nvcc_path)
  [ -n "$nvcc" ] || { missing cuda 'the CUDA compiler (nvcc)' && return; }
  cat >"$work/probe.cu" <<'EOT'
#include <cublas_v2.h>
#include <cuda_runtime.h>
__global__ void nothing() {}
int main() {
  nothing<<<1, 1>>>();
  cublasHandle_t handle;
  return cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS;
}
EOT
  compiles cuda "$nvcc" "$nvcc" "$work/probe.cu" -lcublas
}

prove_hip() {
  has hipcc || { missing hip 'the ROCm compiler (hipcc)' && return; }
  cat >"$work/probe.hip" <<'EOT'
#include <hip/hip_runtime.h>
#include <hipblas/hipblas.h>
#include <rocblas/rocblas.h>
__global__ void nothing() {}
int main() { nothing<<<1, 1>>>(); return hipDeviceSynchronize() != hipSuccess; }
EOT
  compiles hip "$(command -v hipcc)" hipcc -x hip "$work/probe.hip"
}

prove_metal() {
  [ "$(uname -s)" = Darwin ] || { missing metal macOS && return; }
  # Without its command line tools macOS has stubs that open a window.
  xcode-select -p >/dev/null 2>&1 || { missing metal 'the compiler of Xcode' && return; }
  found=$(compiler)
  [ -n "$found" ] || { missing metal 'a C++ compiler' && return; }
  cat >"$work/probe.mm" <<'EOT'
#import <Metal/Metal.h>
int main() { return MTLCreateSystemDefaultDevice() == nil; }
EOT
  compiles metal "$found" "$found" "$work/probe.mm" -framework Metal -framework Foundation
}

prove_vulkan() {
  has glslc || { missing vulkan 'the shader compiler (glslc)' && return; }
  found=$(compiler)
  [ -n "$found" ] || { missing vulkan 'a C++ compiler' && return; }
  cat >"$work/probe.cpp" <<'EOT'
#include <vulkan/vulkan.hpp>
#include <spirv/unified1/spirv.hpp>
int main() {
  vk::LayerSettingEXT setting;
  return vk::enumerateInstanceVersion() == 0 || setting.valueCount != 0;
}
EOT
  set -- "$work/probe.cpp"
  [ -n "${VULKAN_SDK:-}" ] && set -- "-I$VULKAN_SDK/include" "$@" "-L$VULKAN_SDK/lib"
  compiles vulkan "$(command -v glslc)" "$found" -std=c++17 "$@" -lvulkan
}

tool() { # ACCELERATOR: its compiler
  case "$1" in
    cuda) nvcc_path ;;
    hip) command -v hipcc ;;
    vulkan) command -v glslc || printf glslc ;;
    *) compiler ;;
  esac
}

gpus
[ -n "$wanted" ] || exit 0
work=$(mktemp -d) || fail 74 'No folder for scratch files can be made'
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM HUP INT
for accelerator in $wanted; do
  case " $built " in
    *" $accelerator "*)
      found=$(tool "$accelerator")
      [ -n "$found" ] && printf 'proved\t%s\t%s\n' "$accelerator" "$found" && continue
      ;;
  esac
  "prove_$accelerator"
done
