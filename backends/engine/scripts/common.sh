# What the scripts of a build share; read before each of them.

LC_ALL=C
export LC_ALL
HOME=${HOME:-$(cd ~ && pwd)}
# sshd gives many a machine a PATH without these.
places=/usr/local/bin:/opt/homebrew/bin:$HOME/.local/bin:/usr/sbin:/sbin
places=$places:/usr/local/cuda/bin:/opt/cuda/bin:/opt/rocm/bin
PATH=$PATH:${DLLM_TOOL_PLACES-$places}
export PATH

fail() { # STATUS SENTENCE
  printf '%s\n' "$2" >&2
  exit "$1"
}

has() { command -v "$1" >/dev/null 2>&1; }

# Run a command without input for at most $1 seconds; its status, 137 if it was killed.
bounded() {
  limit=$1
  shift
  "$@" </dev/null &
  child=$!
  (
    # By $!, as the signal may come before a name is given; and KILL, as a process just
    # forked loses the signals that this shell traps.
    trap 'kill -KILL "$!" 2>/dev/null; exit' TERM
    # The signal may be lost like that here, too: then the command has ended.
    kill -0 "$child" || exit
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
