# Check uploaded or built programs, run them, and put them in place in one step.
#
#   $1 the folder they are in   $2 the folder to become
#   then for each file: its SHA-256 ("-" where it was built here, "=NAME" for a link to
#   another of them), its name, and the option to try it with ("-" for none)
#
# Ends with 65 when a file differs from what was sent, 66 when one does not run.

from=$1 to=$2
shift 2
case "$from$to" in *"/../"*) fail 64 "A path must not lead out of the cache" ;; esac

tried() { # PROGRAM OPTION
  bounded 30 "$1" "$2" >"$from/.said" 2>&1
  status=$?
  said=$(tail -n 1 "$from/.said")
  rm -f "$from/.said"
  case "$status" in
    0) return 0 ;;
    132) said='it uses instructions this CPU does not have' ;;
    137) said='it gave no answer' ;;
  esac
  fail 66 "${1##*/} does not run there: ${said:-exit status $status}"
}

commands=$#
while [ "$commands" -gt 0 ]; do
  sum=$1 name=$2 option=$3
  shift 3
  commands=$((commands - 3))
  case "$sum" in
    =*)
      ln -sf "${sum#=}" "$from/$name" || fail 74 "Cannot link $name"
      continue
      ;;
  esac
  if [ "$sum" != - ] && [ "$(hash <"$from/$name")" != "$sum" ]; then
    rm -f "$from/$name"
    fail 65 "$name did not arrive whole"
  fi
  if [ "$option" != - ]; then
    chmod 755 "$from/$name" || fail 74 "Cannot make $name a program"
    set -- "$@" "$name" "$option"
  fi
done
# Only now: a program may need a library that is checked after it.
while [ "$#" -gt 0 ]; do
  tried "$from/$1" "$2"
  shift 2
done

mkdir -p "${to%/*}" || fail 74 "Cannot create ${to%/*}"
old=$work/old.$$
if [ -e "$to" ]; then mv "$to" "$old" || fail 74 "Cannot replace $to"; fi
if ! mv "$from" "$to"; then
  [ -e "$old" ] && mv "$old" "$to"
  fail 74 "Cannot create $to"
fi
rm -rf "$old"
