# Make room for one installation: create $1, remove what earlier ones of the same name
# ($2) left beside it. Prints the KiB free there and those that $1 has taken already.

mkdir -p "$1" || fail 74 "Cannot create $1"
for other in "$work/$2".*; do
  [ -d "$other" ] && [ "$other" != "$1" ] && rm -rf "$other"
done
printf 'free\t%s\n' "$(df -Pk "$1" | awk 'END { print $4 }')"
printf 'taken\t%s\n' "$(du -sk "$1" | cut -f 1)"
