# What the scripts of provisioning share; read before each of them.

LC_ALL=C
export LC_ALL
umask 077
HOME=${HOME:-$(cd ~ && pwd)}
PATH="$PATH:/usr/local/bin:/opt/homebrew/bin:$HOME/.local/bin:/usr/sbin:/sbin"
export PATH
root=${XDG_CACHE_HOME:-$HOME/.cache}/dllm-tui
work=$root/provision
tab=$(printf '\t')

fail() { # STATUS SENTENCE
  printf '%s\n' "$2" >&2
  exit "$1"
}

has() { command -v "$1" >/dev/null 2>&1; }

hash() {
  if has sha256sum; then
    sha256sum
  elif has shasum; then
    shasum -a 256
  else
    openssl dgst -sha256 -r
  fi | cut -c 1-64
}

# What tells a process from a later one with its number.
start_of() { # PID
  if [ -r "/proc/$1/stat" ]; then
    printf '%s:' "$(cat /proc/sys/kernel/random/boot_id)"
    # The name may hold anything: the start time is the 20th field after it.
    sed 's/.*) //' "/proc/$1/stat" | cut -d ' ' -f 20
  else
    ps -o lstart= -p "$1" 2>/dev/null
  fi
}

# Whether the process that wrote "PID START" into a file still runs.
owner_lives() { # FILE
  pid='' start=''
  read -r pid start <"$1" 2>/dev/null
  [ -n "$pid" ] && [ -n "$start" ] && [ "$(start_of "$pid")" = "$start" ]
}

# A process and everything below it, the deepest last.
tree() { # PID
  ps -A -o pid= -o ppid= | awk -v top="$1" '
    { parent[$1] = $2 }
    END {
      print top
      for (pid in parent) {
        for (at = pid; at in parent && at > 1; at = parent[at])
          if (parent[at] == top) { print pid; break }
      }
    }'
}

beat() { # PID
  trap 'kill -KILL "$!" 2>/dev/null; exit' TERM
  trap '' PIPE
  while kill -0 "$1" 2>/dev/null; do
    sleep 2 &
    wait "$!"
    printf '~\n' 2>/dev/null || kill -TERM "$1"
  done
}

# Run a command that ends when we are told to end, or when nobody listens any more: a
# beat is written every two seconds, and writing fails once the connection is gone.
guarded() {
  "$@" </dev/null 2>&1 &
  child=$!
  # $$ may be a shell above this one.
  beat "$(exec sh -c 'echo "$PPID"')" </dev/null 2>/dev/null &
  beating=$!
  # Not before: a shell that is being forked loses signals it would have trapped.
  trap 'trap "" TERM HUP INT PIPE; end_child; exit 143' TERM HUP INT PIPE
  wait "$child"
  status=$?
  kill -TERM "$beating" 2>/dev/null
  trap - TERM HUP INT PIPE
  return "$status"
}

end_child() {
  kill -TERM "$beating" 2>/dev/null
  # Their names are taken first: who loses its parent is not found any more.
  all=$(tree "$child")
  kill -TERM $all 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 $all 2>/dev/null || return
    sleep 0.2
  done
  kill -KILL $all 2>/dev/null
}
