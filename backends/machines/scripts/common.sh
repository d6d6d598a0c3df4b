# What the scripts of provisioning share; read before each of them, after what those of
# a build share.

umask 077
root=${XDG_CACHE_HOME:-$HOME/.cache}/dllm-tui
work=$root/provision
tab=$(printf '\t')

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
