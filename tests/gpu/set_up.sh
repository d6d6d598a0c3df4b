#!/bin/sh
# Build the engine of the GPU tests: llama.cpp with Vulkan, which Mesa can run in software.
#
#   $1 the folder of a cache of its own, so that nobody's engine changes for it
#   $2 a folder for what is downloaded
#
# Packages are installed where this is Debian (or made from it) and we are root; elsewhere
# it says what is missing. Ends at once where everything is there.

set -eu
cache=$1 downloads=$2
PACKAGES='mesa-vulkan-drivers glslc spirv-headers libvulkan-dev'
HEADER=vulkan/vulkan_structs.hpp

say() { printf '%s\n' "$*" >&2; }
built() { python -m tests.gpu.engine >/dev/null 2>&1; }

install_packages() {
  for package in $PACKAGES; do
    dpkg -s "$package" >/dev/null 2>&1 || missing=yes
  done
  [ -n "${missing:-}" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    say "Run once as root: apt-get install $PACKAGES"
    return
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES
}

new_enough() { grep -qs 'struct LayerSettingEXT' "$1/$HEADER"; }

# The Vulkan headers of Debian 12 are too old; those of Debian 13 suit it. apt fetches and
# checks that one package from where this machine has its others, with lists of its own.
newer_headers() {
  new_enough "$downloads/sdk/include" && return
  . /etc/os-release
  [ "${VERSION_CODENAME:-}" = bookworm ] || return 0
  apt=$PWD/$downloads/apt
  mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/archives/partial"
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian*; do
    [ -f "$list" ] || continue
    sed 's/bookworm/trixie/g' "$list" >"$apt/sources/$(basename "$list")"
  done
  set -- -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$apt/sources" \
    -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Sandbox::User=
  apt-get "$@" -qq update
  (cd "$apt" && apt-get "$@" -qq download libvulkan-dev)
  dpkg -x "$apt"/libvulkan-dev_*.deb "$apt/unpacked"
  mkdir -p "$downloads/sdk"
  rm -rf "$downloads/sdk/include"
  mv "$apt/unpacked/usr/include" "$downloads/sdk/include"
  rm -rf "$apt"
}

if command -v apt-get >/dev/null; then install_packages; fi
built && exit 0
if command -v apt-get >/dev/null && ! new_enough /usr/include; then newer_headers; fi
if new_enough "$downloads/sdk/include"; then
  VULKAN_SDK=$PWD/$downloads/sdk
  export VULKAN_SDK
fi
XDG_CACHE_HOME=$cache exec dllm-tui engine build --accelerator vulkan
