# What this machine is, and what is there: lines of "key<TAB>value…" from "dllm-probe"
# to "end". Read after what the scripts of a build share.
#
# POSIX sh for Linux (GNU, busybox) and macOS. It writes no file, needs no root, starts
# no engine, and what it starts it ends: compilers that hang run under a limit.
#
#   $1  the parts wanted: any of "system tools engines"; then directories of engines
#
# Values come one a line, so names with a line end or a tab are passed over.

PATH=$PATH:/Applications/CMake.app/Contents/bin
tab=$(printf '\t')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dllm-tui
kernel=$(uname -s)

say() { # KEY VALUE…
  line=$1
  shift
  for value; do line=$line$tab$value; done
  printf '%s\n' "$line"
}

first_line() { sed -n '/[^[:space:]]/{p;q;}'; }

# --- the machine ------------------------------------------------------------------

system() {
  say uname "$kernel" "$(uname -m)"
  say hostname "$(uname -n)"
  say env HOME "$HOME"
  say env XDG_CACHE_HOME "${XDG_CACHE_HOME:-}"
  say env HF_HOME "${HF_HOME:-}"
  say env HF_HUB_CACHE "${HF_HUB_CACHE:-}"
  say env HUGGINGFACE_HUB_CACHE "${HUGGINGFACE_HUB_CACHE:-}"
  say env OLLAMA_MODELS "${OLLAMA_MODELS:-}"
  say env LLAMA_CACHE "${LLAMA_CACHE:-}"
  say cache "$cache"
  say cores "$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
  say disk_free_kib "$(disk_free_kib)"
  if [ "$kernel" = Darwin ]; then system_macos; else system_linux; fi
}

disk_free_kib() {
  folder=$cache
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  df -Pk "$folder" 2>/dev/null | awk 'END { print $4 }'
}

system_linux() {
  say system "$(. /etc/os-release 2>/dev/null && printf %s "$PRETTY_NAME")"
  say libc "$(libc)"
  say cpu_name "$(sed -n '/^model name/{s/^[^:]*: *//p;q;}' /proc/cpuinfo 2>/dev/null)"
  say cpu_flags "$(sed -n '/^\(flags\|Features\)/{s/^[^:]*: *//p;q;}' /proc/cpuinfo)"
  say cpus_allowed "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
  say cpus_performance "$(cat /sys/devices/cpu_core/cpus 2>/dev/null)"
  sed -n 's/^\(MemTotal\|MemAvailable\):[[:space:]]*\([0-9]*\) kB/\1\t\2/p' \
    /proc/meminfo 2>/dev/null | while read -r key value; do say "$key" "$value"; done
  cpus
  limits
}

libc() {
  getconf GNU_LIBC_VERSION 2>/dev/null && return
  ldd --version 2>&1 | sed -n 's/^musl.*/musl/p; s/^Version \(.*\)/\1/p' | tr '\n' ' '
  for loader in /lib/ld-musl-*; do [ -e "$loader" ] && printf musl; done
}

# Which CPUs share a core, and their capacity where the kernel tells it. Not by the
# shell's own read: it asks byte by byte, which some of these files answer with nothing.
cpus() {
  for file in topology/thread_siblings_list cpu_capacity; do
    grep -s . /sys/devices/system/cpu/cpu[0-9]*/"$file" /dev/null |
      while IFS=: read -r path value; do
        number=${path#/sys/devices/system/cpu/cpu}
        say "cpu_${file##*_}" "${number%%/*}" "$value"
      done
  done
}

# What containers and slices allow: of our own group and all above it.
limits() {
  group=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null)
  while :; do
    group=${group%/}
    limit_in "/sys/fs/cgroup$group" memory.max memory.current inactive_file
    quota='' period=''
    read -r quota period <"/sys/fs/cgroup$group/cpu.max"
    [ "${quota:-max}" = max ] || say cpu_quota "$quota" "$period"
    [ -n "$group" ] || break
    group=${group%/*}
  done 2>/dev/null
  limit_in /sys/fs/cgroup/memory memory.limit_in_bytes memory.usage_in_bytes \
    total_inactive_file 2>/dev/null
}

limit_in() { # FOLDER LIMIT_FILE USED_FILE CACHE_FIELD
  [ -r "$1/$2" ] || return
  limit='' used=''
  read -r limit <"$1/$2"
  read -r used <"$1/$3"
  [ "${limit:-max}" = max ] && return
  say memory_limit "$limit" "$used" "$(sed -n "s/^$4 //p" "$1/memory.stat")"
}

system_macos() {
  say system "$(sw_vers -productName) $(sw_vers -productVersion)"
  say cpu_name "$(sysctl -n machdep.cpu.brand_string 2>/dev/null)"
  say cpu_flags "$(cpu_flags_macos)"
  say hw.memsize "$(sysctl -n hw.memsize)"
  say hw.physicalcpu "$(sysctl -n hw.physicalcpu 2>/dev/null)"
  # Absent on Intel.
  say hw.perflevel0.physicalcpu "$(sysctl -n hw.perflevel0.physicalcpu 2>/dev/null)"
  vm_stat 2>/dev/null | while IFS= read -r line; do say vm_stat "$line"; done
}

cpu_flags_macos() {
  {
    sysctl -n machdep.cpu.features machdep.cpu.leaf7_features
    sysctl hw.optional.arm | sed -n 's/^hw\.optional\.arm\.\([^:]*\): 1$/\1/p'
  } 2>/dev/null | tr 'A-Z\n' 'a-z '
}

# --- what could build here ----------------------------------------------------------

tools() {
  # Without its command line tools macOS has stubs that open a window.
  if [ "$kernel" != Darwin ] || xcode-select -p >/dev/null 2>&1; then
    tool cc cc gcc clang
    tool cxx c++ g++ clang++
    tool make make gmake
  fi
  tool cmake cmake
  tool ninja ninja
}

tool() { # KEY NAME…: the first that can tell its version
  key=$1
  shift
  for name; do
    has "$name" || continue
    text=$(bounded 3 "$name" --version 2>&1) || continue
    text=$(printf '%s\n' "$text" | first_line)
    say tool "$key" "$(command -v "$name")" "$text"
    return
  done
}

# --- what is installed --------------------------------------------------------------

engines() { # FOLDERS…
  count=0 known=
  for folder; do engine_in "$(expanded "${folder%/}")" config; done
  for folder in "$cache"/engines/*; do engine_in "$folder" cache; done
  server=$(command -v llama-server) && engine_in "$(dirname "$server")" path
  for program in "$cache"/relay/*/dllm-relay; do
    [ -x "$program" ] && say relay "$program"
  done
}

engine_in() { # DIRECTORY SOURCE
  for folder in "$1" "$1/bin"; do
    [ -f "$folder/llama-server" ] && [ -x "$folder/llama-server" ] || continue
    for worker in "$folder/ggml-rpc-server" "$folder/rpc-server"; do
      [ -f "$worker" ] && [ -x "$worker" ] || continue
      case "$known" in *"|$folder|"*) return ;; esac
      known="$known|$folder|"
      count=$((count + 1))
      source=$2
      [ -f "$folder/provisioned" ] && source=provisioned
      [ "$count" -le 8 ] && say engine "$folder" "$folder/llama-server" "$worker" \
        "$source" "$(tr '\n\t' '  ' 2>/dev/null <"$folder/engine.json")"
      return
    done
  done
}

# ------------------------------------------------------------------------------------

expanded() { case "$1" in "~/"*) printf %s "$HOME/${1#??}" ;; *) printf %s "$1" ;; esac; }

main() { # PARTS FOLDERS…
  parts=" $1 "
  shift
  say dllm-probe 1
  say clock "$(date +%s.%N)"
  case "$parts" in *" system "*) system & ;; esac
  case "$parts" in *" tools "*) tools & ;; esac
  case "$parts" in *" engines "*) engines "$@" & ;; esac
  wait
  say end
}

main "$@" </dev/null
