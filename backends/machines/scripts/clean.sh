# Remove what provisioning put here: marked engines, relays, builds and half uploads, and
# the process directories of dead processes of every head.
# Prints "freed<TAB>KiB"; ends with 75 and prints "runs<TAB>…" for what still runs.

state=${XDG_STATE_HOME:-$HOME/.local/state}/dllm-tui/run
busy=

runs() { # WHAT
  busy=yes
  printf 'runs\t%s\n' "$1"
}

for lock in "$work"/*.lock; do
  [ -f "$lock" ] && owner_lives "$lock" && runs "an installation (pid $pid)"
done

# An agent only looks: it may go on without its file.
is_agent() { # PID
  case "$(if [ -r "/proc/$1/cmdline" ]; then
    tr '\0' ' ' <"/proc/$1/cmdline"
  else
    ps -ww -o command= -p "$1"
  fi 2>/dev/null)" in *"dllm-relay agent --run-dir "*) true ;; *) false ;; esac
}

programs() {
  if [ -d /proc/self ]; then
    for process in /proc/[0-9]*; do
      # The program of a process whose file was replaced reads "… (deleted)".
      target=$(readlink "$process/exe" 2>/dev/null) && printf '%s %s\n' \
        "${process#/proc/}" "$target"
    done
  else
    ps -A -ww -o pid= -o comm=
  fi
}

physical=$(cd "$root" 2>/dev/null && pwd -P)
for place in "$root" "$physical"; do
  [ -n "$place" ] || continue
  while read -r pid program; do
    case "$program" in
      "$place/engines/"* | "$place/relay/"* | "$place/provision/"*)
        is_agent "$pid" || runs "${program##*/} (pid $pid)"
        ;;
    esac
  done <<EOT
$(programs)
EOT
  [ "$place" = "$physical" ] && break
done
[ -z "$busy" ] || exit 75

kib=0
take() { # PATH
  [ -e "$1" ] || return
  size=$(du -sk "$1" 2>/dev/null | cut -f 1)
  rm -rf "$1" || fail 74 "Cannot remove $1"
  kib=$((kib + ${size:-0}))
}

for engine in "$root"/engines/*; do
  [ -f "$engine/provisioned" ] && take "$engine"
done
take "$root/relay"
take "$root/tensors"
take "$root/starts"
take "$work"

# Of our own process directories the agent took what had ended; these are of other heads.
# process.json is one object; the numbers in it are all that is needed here.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$2" | head -n 1; }
lives() { # FILE PID_FIELD START_FIELD
  number=$(field "$2" "$1")
  [ "${number:-0}" -gt 0 ] 2>/dev/null || return 1
  if [ -d /proc/self ]; then
    [ "$(start_of "$number")" = "$(field "$3" "$1")" ]
  else
    kill -0 "$number" 2>/dev/null
  fi
}
# By head and by cluster: as deep as they lie. A line end in a name makes it no file.
[ ! -d "$state" ] || while IFS= read -r file; do
  [ -f "$file" ] || continue
  lives "$file" pid start_id || lives "$file" supervisor_pid supervisor_start_id ||
    take "${file%/process.json}"
done <<EOT
$(find "$state" -name process.json)
EOT
# What is empty by then: a head that looked and started nothing leaves its folder too.
[ ! -d "$state" ] || find "$state" -depth -type d -exec rmdir {} \; 2>/dev/null
rmdir "${state%/run}" 2>/dev/null
rmdir "$root/engines" "$root" 2>/dev/null
printf 'freed\t%s\n' "$((kib * 1024))"
