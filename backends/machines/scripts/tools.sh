# What could build here: "tool<TAB>KEY<TAB>path<TAB>version" for each that can tell one.

PATH=$PATH:/Applications/CMake.app/Contents/bin

# A busy machine takes seconds to begin a program.
tool() { # KEY NAME…
  key=$1
  shift
  for name; do
    has "$name" || continue
    text=$(bounded 15 "$name" --version 2>&1) || continue
    text=$(printf '%s\n' "$text" | sed -n '/[^[:space:]]/{p;q;}')
    printf 'tool\t%s\t%s\t%s\n' "$key" "$(command -v "$name")" "$text"
    return
  done
}

# Without its command line tools macOS has stubs that open a window.
if [ "$(uname -s)" != Darwin ] || xcode-select -p >/dev/null 2>&1; then
  tool cc cc gcc clang &
  tool cxx c++ g++ clang++ &
  tool make make gmake &
fi
tool cmake cmake &
tool ninja ninja &
wait
