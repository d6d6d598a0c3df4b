# What this machine is, as far as a copy of our helper must fit it, and the helpers that
# are there: lines of "key<TAB>value…".

libc() {
  getconf GNU_LIBC_VERSION 2>/dev/null && return
  ldd --version 2>&1 | sed -n 's/^musl.*/musl/p'
  for loader in /lib/ld-musl-*; do [ -e "$loader" ] && printf musl && return; done
}

printf 'uname\t%s\t%s\n' "$(uname -s)" "$(uname -m)"
printf 'libc\t%s\n' "$(libc | head -n 1)"
printf 'cores\t%s\n' "$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
printf 'cache\t%s\n' "$root"
for program in "$root"/relay/*/dllm-relay; do
  [ -x "$program" ] && printf 'relay\t%s\t%s\n' "$program" \
    "$(cat "${program%/*}/made-from" 2>/dev/null)"
done
true
