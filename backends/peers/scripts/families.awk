# Families: a process and all that it started. For host.sh, after processes.awk.

# MARK[pid]: the process directory a process says it belongs to, if below ours.
function look_for_marks(    wanted) {
  forget(MARK)
  wanted = "DLLM_PROCESS_DIR=" run "/"
  if (linux) read_environments(wanted); else read_ps_environments(" " wanted)
}

function read_environments(wanted,    command, line, pid, CANDIDATE) {
  command = "tail -c +1 /dev/null /proc/[0-9]*/environ 2>/dev/null" \
    " | tr \"\\000\\n\" \"\\n\\t\""
  while ((command | getline line) > 0) {
    while (match(line, /==> \/proc\/[0-9]+\/environ <==\t/)) {
      pid = substr(line, RSTART + 10) + 0
      line = substr(line, RSTART + RLENGTH)
    }
    if (index(line, wanted) == 1) CANDIDATE[pid] = 1
  }
  close(command)
  # An environment may hold anything, also what looks like the start of the next.
  for (pid in CANDIDATE) confirm_mark(pid, wanted)
}

function confirm_mark(pid, wanted,    command, line) {
  command = "tr \"\\000\\n\" \"\\n\\t\" 2>/dev/null < /proc/" pid "/environ"
  while ((command | getline line) > 0) {
    if (index(line, "DLLM_PROCESS_DIR=") != 1) continue
    if (index(line, wanted) == 1) MARK[pid] = substr(line, 18)
    break
  }
  close(command)
}

function read_ps_environments(wanted,    command, line, at) {
  command = "ps -axEww -o pid= -o command="
  while ((command | getline line) > 0) {
    at = index(line, wanted)
    if (!at) continue
    at = at + length(wanted)
    MARK[line + 0] = run "/" substr(line " ", at, index(substr(line " ", at), " ") - 1)
  }
  close(command)
}

# Whether it is this very script or a part of it.
function is_own(pid,    steps) {
  for (steps = 0; pid > 1 && steps < 99; steps++) {
    if (pid == self) return 1
    pid = PARENT[pid]
  }
  return 0
}

# MEMBER[pid]: everything alive that belongs to a process directory; how many.
#
# Session and group count as long as something certain is left in them: the leader, a
# marked process or one seen before (KNOWN). Otherwise their number may be another
# one by now, and nobody must ever be ended by mistake.
function family(name,    pid, leader, sure, count, GROUPED) {
  look("")
  look_for_marks()
  # In this order: who carries a mark has been recorded before.
  read_process(name)
  forget(MEMBER)
  leader = leader_pid
  if (leader in START && !is_same(leader, leader_id)) leader = 0
  for (pid in START) {
    if (is_own(pid)) continue
    if (MARK[pid] == run "/" name || (pid in KNOWN && KNOWN[pid] == START[pid]))
      MEMBER[pid] = START[pid]
    if (leader && (SESSION[pid] == leader || GROUP[pid] == leader)) GROUPED[pid] = 1
  }
  sure = leader in GROUPED
  for (pid in GROUPED) if (pid in MEMBER) sure = 1
  if (sure) for (pid in GROUPED) MEMBER[pid] = START[pid]
  for (pid in MEMBER) count++
  return count + 0
}

# Drops from MEMBER who is gone; how many are left.
function living_members(    pid, pids, count) {
  for (pid in MEMBER) pids = pids " " pid
  if (pids == "") return 0
  look(pids)
  for (pid in MEMBER) {
    if (START[pid] == MEMBER[pid]) count++; else delete MEMBER[pid]
  }
  return count + 0
}

function now(    line) {
  if (!linux) return output_of("date +%s") + 0
  getline line < "/proc/uptime"
  close("/proc/uptime")
  return line + 0
}

# Signal each member once, newcomers too; whether all are gone in time.
function end_with(name, signal, patience,    deadline, pid, TOLD) {
  deadline = now() + patience
  while (family(name) && !was_replaced()) {
    for (pid in MEMBER) KNOWN[pid] = MEMBER[pid]
    tell(signal, TOLD)
    while (living_members()) {
      if (now() > deadline) return 0
      nap()
    }
  }
  return 1
}

# Whether a later process has that name now. A start is refused while anything of a
# family lives, so all of ours are gone; a script that a broken connection left behind
# must not end the new one.
function was_replaced() {
  return leader_pid && (leader_pid != first_pid || leader_id != first_id)
}

# Signal the group at once, so that forking cannot outrun it, then the others.
function tell(signal, TOLD,    pid, group, others, command) {
  living_members()
  for (pid in MEMBER) {
    if (TOLD[pid] == MEMBER[pid]) continue
    TOLD[pid] = MEMBER[pid]
    if (leader_pid && GROUP[pid] == leader_pid) group = leader_pid
    else others = others " " pid
    # A stopped process hears TERM only once it is continued.
    if (signal == "TERM") command = command "; kill -s CONT " pid
  }
  if (others != "") command = "; kill -s " signal others command
  if (group) command = "; kill -s " signal " -- -" group command
  if (command != "") system("exec 2>/dev/null" command)
}

function stop(name, term_s, kill_s, supervisor_s,    pid, line) {
  read_process(name)
  first_pid = leader_pid
  first_id = leader_id
  SUPERVISOR[observer_pid] = observer_start
  if (!end_with(name, "TERM", term_s) && !end_with(name, "KILL", kill_s)) {
    for (pid in MEMBER) line = line " " pid
    print "left" line
    return
  }
  # It writes the exit status; one that does not come to that is ended.
  for (pid in SUPERVISOR) if (pid + 0 && !wait_gone(pid, SUPERVISOR[pid], supervisor_s)) {
    system("kill -s KILL " pid " 2>/dev/null")
    wait_gone(pid, SUPERVISOR[pid], supervisor_s)
  }
}

function wait_gone(pid, identity, patience,    deadline) {
  deadline = now() + patience
  while (1) {
    look(" " pid)
    if (!is_same(pid, identity)) return 1
    if (now() > deadline) return 0
    nap()
  }
}

function orphans(    pid, name, names, COVERED) {
  look("")
  look_for_marks()
  for (pid in MARK) {
    if (!(pid in START) || is_own(pid)) delete MARK[pid]
    else if (is_name(name = substr(MARK[pid], length(run) + 2))) names[name] = 1
  }
  for (name in names) {
    read_process(name)
    COVERED[run "/" name] = is_same(leader_pid, leader_id)
  }
  for (pid in MARK) if (!COVERED[MARK[pid]]) tell_orphan(pid)
}

function tell_orphan(pid,    command, line) {
  print "orphan " pid " " START[pid] " " substr(MARK[pid], length(run) + 2)
  if (linux) command = "2>/dev/null " ENVIRON["DLLM_ENCODER"] " < /proc/" pid "/cmdline"
  else command = "ps -ww -o command= -p " pid " | " ENVIRON["DLLM_ENCODER"]
  while ((command | getline line) > 0) print "argv " pid " " line
  close(command)
}

BEGIN {
  self = ENVIRON["DLLM_SELF"] + 0
  if (ARGV[1] == "family") {
    family(ARGV[2])
    for (pid in MEMBER) if (!lowest || pid + 0 < lowest) lowest = pid + 0
    if (lowest) print lowest
  }
  if (ARGV[1] == "stop") stop(ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0)
  if (ARGV[1] == "orphans") orphans()
}
