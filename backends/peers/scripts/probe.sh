# What this machine is and has: lines of "key<TAB>value…" from "dllm-probe" to "end".
#
# POSIX sh for Linux (GNU, busybox) and macOS. It writes no file, needs no root, and
# what it starts it ends: programs that could hang run under a limit of seconds.
#
#   $1  the parts wanted: any of "system tools engines models"; or "identity" or
#       "sha256" alone, of the files that follow
#   $2  seconds the identities of models may take; 0 computes none
#   $3  how many of the following are directories of engines; the others hold models
#
# Values come one a line, so names with a line end or a tab are passed over.

LC_ALL=C
export LC_ALL
HOME=${HOME:-$(cd ~ && pwd)}
# sshd gives macOS a PATH without Homebrew, and many a Linux one without ~/.local.
PATH="$PATH:/usr/local/bin:/opt/homebrew/bin:$HOME/.local/bin:/usr/sbin:/sbin"
PATH="$PATH:/usr/local/cuda/bin:/opt/cuda/bin:/opt/rocm/bin"
PATH="$PATH:/Applications/CMake.app/Contents/bin"
export PATH
tab=$(printf '\t')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dllm-tui
kernel=$(uname -s)

say() { # KEY VALUE…
  line=$1
  shift
  for value; do line=$line$tab$value; done
  printf '%s\n' "$line"
}

has() { command -v "$1" >/dev/null 2>&1; }

# Run a command without input for at most $1 seconds; its status, 137 if it was killed.
bounded() {
  limit=$1
  shift
  "$@" </dev/null &
  child=$!
  (
    # By $! and not by a name: the signal may come before a name is given.
    trap 'kill -KILL "$!" 2>/dev/null; exit' TERM
    sleep "$limit" &
    wait "$!"
    kill -KILL "$child"
  ) </dev/null >/dev/null 2>&1 &
  watcher=$!
  wait "$child" 2>/dev/null
  status=$?
  kill -TERM "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  return "$status"
}

first_line() { sed -n '/[^[:space:]]/{p;q;}'; }

# --- the machine ------------------------------------------------------------------

system() {
  say uname "$kernel" "$(uname -m)"
  say hostname "$(uname -n)"
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
  tool nvcc nvcc
  tool hipcc hipcc
  tool glslc glslc
  [ "$kernel" = Darwin ] && say gpu metal
  for folder in "${VULKAN_SDK:-/usr}" /usr /usr/local; do
    if [ -f "$folder/include/vulkan/vulkan.h" ] &&
      [ -f "$folder/include/spirv/unified1/spirv.h" ]; then
      say vulkan_headers "$folder"
      break
    fi
  done
  for node in /dev/dri/renderD*; do [ -e "$node" ] && say gpu render && break; done
  grep -qs '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties &&
    say gpu rocm
  has nvidia-smi && bounded 3 nvidia-smi -L 2>/dev/null | grep -q '^GPU ' &&
    say gpu nvidia
}

tool() { # KEY NAME…: the first that can tell its version
  key=$1
  shift
  for name; do
    has "$name" || continue
    text=$(bounded 3 "$name" --version 2>&1) || continue
    text=$(printf '%s\n' "$text" | tail_for "$key")
    say tool "$key" "$(command -v "$name")" "$text"
    return
  done
}

# nvcc tells its release in the fourth line.
tail_for() {
  if [ "$1" = nvcc ]; then sed -n '/release/{p;q;}'; else first_line; fi
}

# --- engines ------------------------------------------------------------------------

engines() { # COUNT FOLDERS…
  count=0 known='' left=$1
  shift
  for folder; do
    [ "$left" -gt 0 ] || break
    left=$((left - 1))
    engine_in "$(expanded "${folder%/}")" config
  done
  for folder in "$cache"/engines/*; do engine_in "$folder" cache; done
  server=$(command -v llama-server) && engine_in "$(dirname "$server")" path
  relays
  wait
}

engine_in() { # DIRECTORY SOURCE
  for folder in "$1" "$1/bin"; do
    [ -f "$folder/llama-server" ] && [ -x "$folder/llama-server" ] || continue
    for worker in "$folder/ggml-rpc-server" "$folder/rpc-server"; do
      [ -f "$worker" ] && [ -x "$worker" ] || continue
      case "$known" in *"|$folder|"*) return ;; esac
      known="$known|$folder|"
      count=$((count + 1))
      [ "$count" -le 8 ] && { engine "$count" "$folder" "$worker" "$2" & }
      return
    done
  done
}

engine() { # NUMBER FOLDER WORKER SOURCE
  ours=no
  [ -f "$2/provisioned" ] && ours=yes
  say engine "$1" "$2" "$2/llama-server" "$3" "$4" "$ours"
  text=$(bounded 10 "$2/llama-server" --version 2>&1)
  status=$?
  if [ "$status" -ne 0 ]; then
    say engine_broken "$1" "$status" "$(printf '%s\n' "$text" | tail -n 1)"
    return
  fi
  printf '%s\n' "$text" | told engine_version "$1"
  if [ -f "$2/engine.json" ]; then
    say engine_manifest "$1" "$(tr '\n\t' '  ' <"$2/engine.json")"
  else
    say engine_protocol "$1" "$(protocol "$3" "$1")"
  fi
  bounded 10 "$2/llama-server" --list-devices 2>&1 | told engine_devices "$1"
}

told() { # KEY NUMBER: each line of the input
  while IFS= read -r line; do say "$1" "$2" "$line"; done
}

# The RPC protocol in a worker's banner. It stays in the worker's buffer until a first
# client comes, so one connects and closes; a HELLO would be answered into a closed
# socket, of which a stock worker dies.
protocol() { # WORKER NUMBER
  port=$((20000 + ($$ + $2 * 97) % 20000))
  {
    (
      trap '' PIPE
      exec "$1" -H 127.0.0.1 -p "$port" </dev/null 2>&1
    ) &
    started=$!
    tries=0
    until touch_port "$port" >/dev/null 2>&1; do
      tries=$((tries + 1))
      [ "$tries" -lt 40 ] && kill -0 "$started" 2>/dev/null || break
      sleep 0.1
    done
    sleep 0.2
    kill -KILL "$started" 2>/dev/null
    wait "$started" 2>/dev/null
  } 2>/dev/null | sed -n 's/.*Starting RPC server v\([0-9.]*\).*/\1/p'
}

touch_port() {
  if has bash; then
    bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0"' "$1"
  elif has nc; then
    nc -w 1 127.0.0.1 "$1" </dev/null
  elif has python3; then
    python3 -c 'import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()' "$1"
  else
    perl -MIO::Socket::INET -e \
      'exit !IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]")' "$1"
  fi
}

relays() {
  for program in "$cache"/relay/*/dllm-relay; do
    [ -x "$program" ] || continue
    text=$(bounded 3 "$program" --version 2>/dev/null) || continue
    say relay "$program" "${text##* }"
  done
}

# --- models -------------------------------------------------------------------------

# "device:inode size path" of files, links followed.
states() {
  if stat -c %s / >/dev/null 2>&1; then
    stat -L -c '%d:%i %s %n' "$@"
  else
    stat -L -f '%d:%i %z %N' "$@"
  fi
}

ggufs() { # FOLDER
  [ -d "$1" ] || return
  if stat -c %s / >/dev/null 2>&1; then
    style=-c format='%d:%i %s %n'
  else
    style=-f format='%d:%i %z %N'
  fi
  bounded 5 find -L "$1" -maxdepth 9 -type f -name '*.[gG][gG][uU][fF]' \
    -exec stat -L "$style" "$format" {} + 2>/dev/null
}

# The weights Ollama's manifests name.
blobs() { # FOLDER
  grep -rhoE \
    '"application/vnd.ollama.image.model","digest":"sha256:[0-9a-f]{64}"' \
    "$1/manifests" 2>/dev/null | sort -u | while IFS= read -r found; do
    found=${found##*:}
    states "$1/blobs/sha256-${found%?}" 2>/dev/null
  done
}

all_models() { # FOLDERS…
  for folder; do ggufs "$(expanded "$folder")"; done
  place() { case "$1" in /*) printf %s "$1" ;; *) printf %s "$2" ;; esac; }
  base=$(place "${XDG_CACHE_HOME:-}" "$HOME/.cache")
  hub=$(place "${HUGGINGFACE_HUB_CACHE:-}" \
    "$(place "${HF_HOME:-}" "$base/huggingface")/hub")
  ggufs "$HOME/.models"
  ggufs "$(place "${HF_HUB_CACHE:-}" "$hub")"
  ggufs "$HOME/.lmstudio/models"
  ggufs "$HOME/.cache/lm-studio/models"
  blobs "$(place "${OLLAMA_MODELS:-}" "$HOME/.ollama/models")"
  ggufs "$(place "${LLAMA_CACHE:-}" "$base/llama.cpp")"
  ggufs "$HOME/Library/Caches/llama.cpp"
}

models() { # SECONDS FOLDERS…
  seconds=$1
  shift
  found=$(all_models "$@")
  seen=' '
  unique=
  while read -r inode size path; do
    case "$seen$path" in *" $inode "* | *"$tab"*) continue ;; esac
    [ -f "$path" ] || continue
    seen="$seen$inode "
    unique="$unique$size $path
"
    say model "$size" "$path"
  done <<EOT
$found
EOT
  [ "$seconds" -gt 0 ] || return
  until=$(($(date +%s) + seconds))
  printf %s "$unique" | while read -r size path; do
    [ "$(date +%s)" -lt "$until" ] || break
    say identity "$(identity "$size" "$path")" "$path"
  done
}

hash() {
  if has sha256sum; then
    sha256sum
  elif has shasum; then
    shasum -a 256
  else
    openssl dgst -sha256 -r
  fi | cut -c 1-64
}

# The same as backends/models/identity.py computes.
identity() { # SIZE FILE
  [ -r "$2" ] || return
  block=131072
  blocks=$((($1 + block - 1) / block))
  digest=$(
    {
      if [ "$blocks" -le 32 ]; then
        cat "$2"
      else
        dd if="$2" bs=$block count=8
        for part in 1 2 3 4 5 6 7 8; do
          dd if="$2" bs=$block count=1 skip=$((blocks * part / 9))
        done
        dd if="$2" bs=$block count=8 skip=$((blocks - 8))
      fi
    } 2>/dev/null | hash | cut -c 1-32
  )
  printf '1-%s-%s' "$1" "$digest"
}

identities() { # FILE…
  for file; do
    state=$(states "$file" 2>/dev/null) || continue
    size=${state#* }
    say identity "$(identity "${size%% *}" "$file")" "$file"
  done
}

hashes() { # FILE…
  for file; do [ -r "$file" ] && say sha256 "$(hash <"$file")" "$file"; done
}

# ------------------------------------------------------------------------------------

expanded() { case "$1" in "~/"*) printf %s "$HOME/${1#??}" ;; *) printf %s "$1" ;; esac; }

survey() { # PARTS SECONDS ENGINE_COUNT FOLDERS…
  parts=" $1 " seconds=$2 engine_count=$3
  shift 3
  case "$parts" in *" system "*) system & ;; esac
  case "$parts" in *" tools "*) tools & ;; esac
  case "$parts" in *" engines "*) engines "$engine_count" "$@" & ;; esac
  shift "$engine_count"
  case "$parts" in *" models "*) models "$seconds" "$@" & ;; esac
  wait
}

main() {
  say dllm-probe 1
  say clock "$(date +%s.%N)"
  case "$1" in
    identity) shift && identities "$@" ;;
    sha256) shift && hashes "$@" ;;
    *) survey "$@" ;;
  esac
  say end
}

main "$@" </dev/null
