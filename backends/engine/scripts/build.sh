# Build programs from their source; goes on where it was left.
#
#   $1 the folder of this build, with source/ or source.tar.gz in it
#   $2 where the programs go
#   $3 cmake   $4 jobs   $5 names of the programs, also the targets
#   then the options of cmake
#
# Prints what tar, cmake and the build tool print, and "stage<TAB>…" before each. Ends
# with 67, 68 or 69 when unpacking, configuring or compiling failed.

folder=$1 to=$2 cmake=$3 jobs=$4 programs=$5
shift 5
cd "$folder" || fail 74 "Cannot enter $folder"
scratch=$folder/tmp
rm -rf "$scratch"
mkdir -p "$scratch" || fail 74 "Cannot write to $folder"
TMPDIR=$scratch
NINJA_STATUS='[%f/%t] '
GIT_CEILING_DIRECTORIES=$folder
export TMPDIR NINJA_STATUS GIT_CEILING_DIRECTORIES

if [ ! -d source ]; then
  printf 'stage\tunpack\n'
  rm -rf unpacking
  mkdir unpacking || fail 74 "Cannot write to $folder"
  guarded tar -xzf source.tar.gz -C unpacking || fail 67 "The source could not be unpacked"
  mv unpacking source || fail 74 "Cannot write to $folder"
fi

# CMake does not say that a file of its own was cut off by a full disk; nor that it
# began with such a file.
room() {
  [ "$(df -Pk . | awk 'NR == 2 { print $4 }')" -ge 64 ] || fail 74 'No space left on device'
}

wanted=$(printf '%s\n' "$cmake" "$@")
if [ "$(cat configured 2>/dev/null)" != "$wanted" ]; then
  printf 'stage\tconfigure\n'
  rm -rf cmake
  guarded "$cmake" -S source -B cmake "$@" || { room; fail 68 'CMake could not configure it'; }
  room
  printf '%s\n' "$wanted" >configured || fail 74 "Cannot write to $folder"
fi

printf 'stage\tcompile\n'
# After "--", as CMake before 3.15 takes one target only; both build tools take several.
guarded "$cmake" --build cmake -- -j "$jobs" $programs || { room; fail 69 'Compiling failed'; }

rm -rf "$to"
mkdir -p "$to" || fail 74 "Cannot create $to"
for program in $programs; do
  built=cmake/bin/$program
  [ -f "$built" ] || built=cmake/$program
  cp "$built" "$to/" || fail 74 "Cannot write to $to"
done
rm -rf "$scratch"
