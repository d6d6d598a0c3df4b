# What the kernel and the process directories tell of processes, for host.sh.
#
# For awk of GNU, mawk, busybox and macOS. DLLM_SYSTEM, DLLM_RUN, DLLM_THERE and
# DLLM_SELF come in the environment; the working directory is the run directory.

function forget(array) { split("", array) }

function output_of(command,    line) {
  line = ""
  command | getline line
  close(command)
  return line
}

# START, PARENT, GROUP, SESSION and RSS of the living among some processes ("": all).
function look(pids,    command, line, text) {
  forget(START)
  command = linux ? stat_command(pids) : ps_command(pids)
  while ((command | getline line) > 0) {
    text = text line
    # The name of a program may hold a line end.
    if (linux ? take_stat(text) : take_ps(text)) text = ""
  }
  close(command)
}

function stat_command(pids) {
  if (pids == "") return "cat /proc/[0-9]*/stat 2>/dev/null"
  gsub(/[0-9]+/, "/proc/&/stat", pids)
  return "cat " pids " 2>/dev/null"
}

function take_stat(text,    pid, rest, field) {
  rest = text
  sub(/^.*\) /, "", rest)
  if (split(rest, field, " ") < 30) return 0
  if (field[1] == "Z" || field[1] == "X") return 1
  pid = text + 0
  START[pid] = boot ":" field[20]
  PARENT[pid] = field[2]
  GROUP[pid] = field[3]
  SESSION[pid] = field[4]
  RSS[pid] = field[22]
  return 1
}

function ps_command(pids,    which) {
  which = "-ax"
  if (pids != "") {
    gsub(/ +/, ",", pids)
    sub(/^,/, "", pids)
    which = "-p " pids
  }
  return "TZ=UTC0 ps " which " -o pid= -o ppid= -o pgid= -o stat= -o rss= -o lstart="
}

function take_ps(text,    pid, field) {
  if (split(text, field, " ") < 10 || field[4] ~ /^Z/) return 1
  pid = field[1] + 0
  START[pid] = seconds(field[10], field[7], field[8], field[9]) "s"
  PARENT[pid] = field[2]
  GROUP[pid] = SESSION[pid] = field[3]
  RSS[pid] = field[5]
  return 1
}

# Unix time of a date such as 2025 Nov 21 09:34:00.
function seconds(year, month, day, clock,    part, days) {
  month = (index("JanFebMarAprMayJunJulAugSepOctNovDec", month) + 2) / 3
  year -= month <= 2
  days = int(year / 400) * 146097 + (year % 400) * 365 + int((year % 400) / 4)
  days += int((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 719469
  days -= int((year % 400) / 100)
  split(clock, part, ":")
  return days * 86400 + part[1] * 3600 + part[2] * 60 + part[3]
}

function is_same(pid, recorded,    seen) {
  if (!(pid in START) || recorded == "") return 0
  seen = START[pid]
  return seen == recorded || \
    (seen ~ /s$/ && seen == substr(recorded, 1, length(recorded) - 6) "s")
}

# --- process directories

function member_of(text, key, form) {
  if (!match(text, "\"" key "\" *: *" form)) return ""
  text = substr(text, RSTART, RLENGTH)
  sub(/^"[a-z_]*" *: */, "", text)
  gsub(/"/, "", text)
  return text
}

# FILES[name]: the text of a file in several process directories; lost ones have none.
function read_files(file, names, FILES,    command, line, name, at) {
  forget(FILES)
  if (!there) return
  at = "==> [A-Za-z0-9._-]+/" file " <=="
  command = "tail -c +1 /dev/null"
  for (name in names) command = command " " name "/" file
  command = command " 2>/dev/null"
  name = ""
  while ((command | getline line) > 0) {
    if (line ~ ("^" at "$")) name = substr(line, 5, length(line) - 9 - length(file))
    else if (name != "") FILES[name] = FILES[name] line
  }
  close(command)
}

function nap() { system("sleep 0.03 2>/dev/null || sleep 1") }

function is_name(text) {
  return length(text) <= 64 && text ~ /^[A-Za-z0-9][A-Za-z0-9._-]*$/
}

# What process.json says: LEADER_PID and so on, 0 and "" where it says nothing.
function read_process(name,    NAMES, FILES, text) {
  NAMES[name] = 1
  read_files("process.json", NAMES, FILES)
  text = FILES[name]
  leader_pid = member_of(text, "pid", "[0-9]+") + 0
  leader_id = member_of(text, "start_id", "\"[^\"]*\"")
  observer_pid = member_of(text, "supervisor_pid", "[0-9]+") + 0
  observer_start = member_of(text, "supervisor_start_id", "\"[^\"]*\"")
}

function records(names,    name, pids, tries) {
  read_files("process.json", names, PROCESS)
  for (name in PROCESS) {
    LEADER[name] = member_of(PROCESS[name], "pid", "[0-9]+") + 0
    OBSERVER[name] = member_of(PROCESS[name], "supervisor_pid", "[0-9]+") + 0
    pids = pids " " LEADER[name] " " OBSERVER[name]
  }
  # In this order: a supervisor ends only after it has written.
  for (tries = 0; tries < 6; tries++) {
    if (tries) nap()
    look(pids == "" ? " 0" : pids)
    read_files("exit.json", names, EXIT)
    if (!awaits_exit()) break
  }
  for (name in names) tell_record(name)
  for (name in PROCESS) tell_living(LEADER[name])
  for (name in PROCESS) tell_living(OBSERVER[name])
}

function awaits_exit(    name) {
  for (name in PROCESS) {
    if (name in EXIT || !is_same(OBSERVER[name], observer_id(name))) continue
    if (!is_same(LEADER[name], member_of(PROCESS[name], "start_id", "\"[^\"]*\"")))
      return 1
  }
  return 0
}

function observer_id(name) {
  return member_of(PROCESS[name], "supervisor_start_id", "\"[^\"]*\"")
}

function tell_record(name) {
  print "record " name
  if (name in PROCESS) print "process " name " " PROCESS[name]
  if (name in EXIT) print "exit " name " " EXIT[name]
}

function tell_living(pid) {
  if (pid in START) print "alive " pid " " RSS[pid] * page " " START[pid]
}

BEGIN {
  linux = ENVIRON["DLLM_SYSTEM"] != "Darwin"
  run = ENVIRON["DLLM_RUN"]
  there = ENVIRON["DLLM_THERE"]
  if (linux) getline boot < "/proc/sys/kernel/random/boot_id"
  if (ARGV[1] == "records") {
    page = linux ? output_of("getconf PAGESIZE 2>/dev/null || echo 4096") : 1024
    for (i = 2; i < ARGC; i++) if (is_name(ARGV[i])) NAMES[ARGV[i]] = 1
    records(NAMES)
  }
  if (ARGV[1] == "living") {
    read_process(ARGV[2])
    look(" " leader_pid)
    if (is_same(leader_pid, leader_id)) print leader_pid
  }
}
