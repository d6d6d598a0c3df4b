# Processes of this user: a verb and its words; answers in lines, the last one "end".
#
# POSIX sh and awk for Linux (GNU, busybox) and macOS. It is sent whole at each call,
# after `program` was set to what the verb needs of *.awk, and runs once its last line is
# here: a connection that breaks leaves nothing half done. All it knows is in the process
# directories under RUN (an absolute path).
#
#   records RUN [NAME]               record NAME, process NAME JSON, exit NAME JSON,
#                                    alive PID RSS_BYTES IDENTITY
#   start RUN NAME RELAY WORD...     leftover PID, or status N and the record
#   stop RUN NAME TERM_S KILL_S SUPERVISOR_S
#                                    left PID..., and the record
#   remove RUN NAME                  alive when it still runs
#   orphans RUN                      encoding NAME, orphan PID IDENTITY NAME,
#                                    argv PID ENCODED
#   log RUN NAME OFFSET BYTES        size BYTES, the encoding and the bytes; missing
#   ports                            range FIRST LAST, used PORT...
#   listeners PORT [PID]             listening, owner PID NAME
#   memory                           what the kernel says, as it says it
#
# Status 3: the last line of stderr is a sentence for the user.
#
# IDENTITY is what `dllm-relay spawn` records; of macOS, whose ps knows no more, the
# seconds and an "s". JSON is one line because spawn writes it so.

# Without it, what we start would look like a part of whatever started us.
unset DLLM_PROCESS_DIR CDPATH
system=$(uname -s)
tools=$PATH:/usr/sbin:/sbin
encoder=base64
command -v base64 >/dev/null 2>&1 || encoder="od -An -v -tx1"

refuse() {
  printf '%s\n' "$1" >&2
  exit 3
}

# Go to RUN, and set `real` to its path without links, as processes carry it; `there`
# says whether it exists.
enter() {
  there='' rest='' base=$1
  if [ -e "$1" ]; then
    [ -d "$1" ] || refuse "$1 cannot be read (not a directory)"
    { [ -r "$1" ] && cd -P -- "$1"; } || refuse "$1 cannot be read (permission denied)"
    there=1 real=${PWD%/}
    return
  fi
  until [ -d "$base" ]; do
    rest=/${base##*/}$rest
    base=${base%/*}
    base=${base:-/}
  done
  cd -P -- "$base" || refuse "$base cannot be read"
  real=${PWD%/}$rest
}

# Run `program`. Only awk gets these variables: what we start must not.
look() {
  LC_ALL=C PATH=$tools DLLM_SYSTEM=$system DLLM_RUN=$real DLLM_THERE=$there DLLM_SELF=$$ \
    DLLM_ENCODER=$encoder awk "$program" "$@" </dev/null
}

# --- verbs ------------------------------------------------------------------------

records() { # RUN [NAME]
  enter "$1"
  shift
  [ "$there" ] || return 0
  [ $# -eq 1 ] || set -- *
  for entry; do
    shift
    [ -e "$entry/process.json" ] && set -- "$@" "$entry"
  done
  [ $# -eq 0 ] || look records "$@"
}

start() { # RUN NAME RELAY WORD...
  run=$1 name=$2 relay=$3
  shift 3
  private "$run"
  enter "$run"
  left=$(look family "$name") || exit
  if [ "$left" ]; then
    printf 'leftover %s\n' "$left"
    return
  fi
  launch "$@"
  printf 'status %s\n' $?
  records "$run" "$name"
}

launch() { # WORD...
  if ! [ -f "$relay" ] || ! [ -x "$relay" ]; then
    printf '%s cannot be run (no such program)\n' "$relay" >&2
    return 127
  fi
  "$relay" "$@" </dev/null >/dev/null
}

private() { # RUN
  (umask 077 && mkdir -p -- "$1") || refuse "Cannot use the directory $1"
  [ -O "$1" ] || refuse "$1 is not a directory owned by you"
  chmod 700 "$1" || refuse "Cannot use the directory $1"
}

stop() { # RUN NAME TERM_S KILL_S SUPERVISOR_S
  enter "$1"
  look stop "$2" "$3" "$4" "$5" || exit
  records "$1" "$2"
}

remove() { # RUN NAME
  enter "$1"
  [ "$there" ] || return 0
  if [ "$(look living "$2")" ]; then
    echo alive
    return
  fi
  # The supervisor of a process that ended this moment may add a file.
  rm -rf -- "$2" 2>/dev/null || rm -rf -- "$2" 2>/dev/null ||
    why=$(rm -rf -- "$2" 2>&1) || refuse "$1/$2 cannot be deleted (${why##*: })"
}

orphans() { # RUN
  enter "$1"
  printf 'encoding %s\n' "${encoder%% *}"
  look orphans
}

log() { # RUN NAME OFFSET BYTES
  enter "$1"
  file=$2/log
  if ! [ "$there" ] || ! [ -e "$file" ]; then
    { [ "$there" ] && [ -e "$2/process.json" ]; } ||
      refuse "There is no process called $2"
    echo missing
    return
  fi
  { [ -f "$file" ] && [ -r "$file" ]; } || refuse "The log of $2 cannot be read"
  size=$(($(wc -c <"$file")))
  first=$3
  [ "$first" -ge 0 ] || first=$((size + first))
  { [ "$first" -ge 0 ] && [ "$first" -le "$size" ]; } || first=0
  printf 'size %s\n%s\n' "$size" "${encoder%% *}"
  skipped=$((first % 4096))
  dd if="$file" bs=4096 skip=$((first / 4096)) count=$((($4 + skipped) / 4096 + 1)) \
    2>/dev/null | tail -c +$((skipped + 1)) | head -c "$4" | $encoder
}

ports() {
  PATH=$tools
  if [ "$system" = Darwin ]; then
    printf 'range %s %s\n' "$(sysctl -n net.inet.ip.portrange.first)" \
      "$(sysctl -n net.inet.ip.portrange.last)"
  else
    # Not with read: the kernel gives this file out in one piece or not at all.
    printf 'range '
    tr '\t' ' ' </proc/sys/net/ipv4/ip_local_port_range
  fi
  look ports
}

listeners() { # PORT [PID]
  look listeners "$@"
}

memory() {
  PATH=$tools
  if [ "$system" = Darwin ]; then
    printf 'total %s\n' "$(sysctl -n hw.memsize)"
    vm_stat | sed -n 's/.*page size of \([0-9]*\).*/page \1/p
      s/^Pages free: *\([0-9]*\).*/pages \1/p
      s/^Pages inactive: *\([0-9]*\).*/pages \1/p'
    printf 'cpu %s\n' "$(sysctl -n machdep.cpu.brand_string)"
    printf 'cores %s\n' "$(sysctl -n hw.physicalcpu)"
    return
  fi
  sed -n 's/^\(Mem[A-Z][a-z]*\): *\([0-9]*\) kB$/\1 \2/p' /proc/meminfo
  for item in max current; do
    if read -r value 2>/dev/null <"/sys/fs/cgroup/memory.$item"; then
      printf '%s %s\n' "$item" "$value"
    fi
  done
  sed -n 's/^inactive_file /&/p' /sys/fs/cgroup/memory.stat 2>/dev/null
  printf 'cpu %s\n' "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
  printf 'machine %s\n' "$(uname -m)"
  printf 'cores %s\n' "$(cat /sys/devices/system/cpu/cpu[0-9]*/topology/core_cpus_list \
    2>/dev/null | sort -u | wc -l)"
  printf 'processors %s\n' "$(grep -c '^processor' /proc/cpuinfo)"
}


case $1 in
records | start | stop | remove | orphans | log | ports | listeners | memory) ;;
*) refuse "There is no verb $1" ;;
esac
"$@" && echo end
