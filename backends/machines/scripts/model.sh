# Look at, or finish, the copy of a model.
#
#   look FOLDER NAME…           create the folder; print where it is, its free KiB, and
#                               for each name what is there, whole or half
#   finish FOLDER NAME SHA256   see that the half one is whole, give it its name;
#                               a SHA256 of - is not compared
#   drop FOLDER NAME            forget a half copy
#   sum FOLDER NAME             print the SHA-256 of a whole one
#   fetch FOLDER NAME BYTES CONFIG
#                               append to the half one what curl gets, so configured;
#                               its last line of errors is "code", HTTP status and type
#
# Ends with 65 when the copy differs, 73 when another file took the name meanwhile.

folder=$2
case "$folder" in "~") folder=$HOME ;; "~/"*) folder=$HOME/${folder#??} ;; esac
case "$folder" in /*) ;; *) folder=$HOME/$folder ;; esac

look() {
  mkdir -p "$folder" || fail 74 "Cannot create $folder"
  printf 'folder\t%s\n' "$folder"
  printf 'free\t%s\n' "$(df -Pk "$folder" | awk 'END { print $4 }')"
  for name; do
    if [ -e "$folder/$name" ]; then printf 'whole\t%s\n' "$name"; fi
    part=$folder/$name.part
    if [ -f "$part" ]; then
      printf 'half\t%s\t%s\t%s\n' "$(cat "$part.identity" 2>/dev/null)" \
        "$(du -sk "$part" | cut -f 1)" "$name"
    fi
  done
}

finish() { # NAME SHA256
  part=$folder/$1.part
  [ "$2" = - ] || [ "$(hash <"$part")" = "$2" ] || fail 65 'It differs from the original'
  [ -e "$folder/$1" ] && fail 73 "Another file is called $folder/$1 now"
  mv "$part" "$folder/$1" || fail 74 "Cannot create $folder/$1"
  rm -f "$part.identity"
}

# The configuration, which may hold a token, is in no command line: printf is the
# shell's own, and curl reads it from its standard input.
fetch() { # NAME BYTES CONFIG
  has curl || fail 69 'curl is not installed'
  printf '%s\n' "$3" | curl -K - -w '%{stderr}\ncode\t%{http_code}\t%{content_type}\n' |
    head -c "$2" >>"$folder/$1.part"
}

action=$1
shift 2
case "$action" in
  look) look "$@" ;;
  sum) hash <"$folder/$1" ;;
  fetch) fetch "$@" ;;
  finish) guarded finish "$@" ;;
  drop) rm -f "$folder/$1.part" "$folder/$1.part.identity" ;;
esac
