# Whether the program $2 in the folder $1 (below our cache) runs: what it says to
# --version, and what it was made from where that is told.

folder=$root/$1
said=$(bounded 10 "$folder/$2" --version 2>&1) || exit 0
printf '%s\n' "$said" | while IFS= read -r line; do printf 'said\t%s\n' "$line"; done
printf 'made-from\t%s\n' "$(cat "$folder/made-from" 2>/dev/null)"
