# Hold a lock as long as somebody listens: $1 names it. Prints "held" and a file when it
# is ours; to release it, that file and the lock are removed. Ends with 75 when another
# living process has it. It may be killed at any time: a lock of the dead is none.

lock=$work/$1.lock
mkdir -p "$work" || fail 74 "Cannot create $work"
owner=$work/.owner.$$
printf '%s %s\n' "$$" "$(start_of $$)" >"$owner" || fail 74 "Cannot write to $work"
trap 'rm -f "$owner"' EXIT

tries=0
# A link appears whole or not at all, and never over another.
until ln "$owner" "$lock" 2>/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -lt 5 ] || fail 74 "Cannot lock $lock"
  owner_lives "$lock" && fail 75 "held by process $pid"
  # Left by one that was killed. Take it away by a name of our own, look again.
  mv "$lock" "$owner.stale" 2>/dev/null || continue
  owner_lives "$owner.stale" && ln "$owner.stale" "$lock" 2>/dev/null
  rm -f "$owner.stale"
done
for other in "$work"/.owner.*; do owner_lives "$other" || rm -f "$other"; done

# Without its owner the lock was released, and may be another's by now.
trap 'kill -KILL "$!" 2>/dev/null; [ -e "$owner" ] && rm -f "$lock" "$owner"' EXIT
trap 'exit 143' TERM HUP INT PIPE
while printf 'held\t%s\t%s\n' "$lock" "$owner" 2>/dev/null; do
  sleep 2 &
  wait "$!"
done
