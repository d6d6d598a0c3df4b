# Who listens on which port, for host.sh.

function from_hex(text,    i, value) {
  for (i = 1; i <= length(text); i++)
    value = value * 16 + index("0123456789ABCDEF", substr(text, i, 1)) - 1
  return value + 0
}

# OPEN[port]: a port some socket has; LISTENS[inode]: one that listens there on what is
# reachable at 127.0.0.1.
function read_sockets(port,    command, line, field, part) {
  command = linux ? "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null" : "netstat -an -p tcp"
  while ((command | getline line) > 0) {
    if (split(line, field, " ") < 6) continue
    if (linux ? field[2] !~ /:/ : field[1] !~ /^tcp/) continue
    if (!linux) {
      part[1] = part[2] = field[4]
      sub(/\.[0-9*]*$/, "", part[1])
      sub(/^.*\./, "", part[2])
    } else {
      split(field[2], part, ":")
      part[2] = from_hex(part[2])
    }
    OPEN[part[2]] = 1
    if (part[2] == port && field[linux ? 4 : 6] == (linux ? "0A" : "LISTEN") && \
      index(loopback, " " part[1] " ")) LISTENS[linux ? field[10] : "any"] = 1
  }
  close(command)
}

function listeners(port, wanted,    inode, any, command, line, pid, lowest) {
  read_sockets(port)
  for (inode in LISTENS) any = 1
  if (!any) return
  print "listening"
  if (linux) command = "ls -ln /dev/null /proc/" (wanted == "" ? "[0-9]*" : wanted) "/fd"
  else command = "lsof -nP -a -iTCP:" port " -sTCP:LISTEN -Fp"
  command = command " 2>/dev/null"
  while ((command | getline line) > 0) {
    if (line ~ /^\/proc\/[0-9]+\/fd:$/) { pid = substr(line, 7) + 0; continue }
    if (linux) {
      if (!sub(/^.* -> socket:\[/, "", line) || !((line + 0) in LISTENS)) continue
    } else if (line ~ /^p/) pid = substr(line, 2) + 0
    if (wanted != "" && pid != wanted) continue
    if (!lowest || pid < lowest) lowest = pid
  }
  close(command)
  if (lowest) print "owner " lowest " " name_of(lowest)
}

function name_of(pid,    command, name) {
  command = linux ? "cat /proc/" pid "/comm" : "ps -o comm= -p " pid
  command = command " 2>/dev/null"
  command | getline name
  close(command)
  if (!linux) sub(/^.*\//, "", name)
  return name
}

function ports(    port, line) {
  read_sockets(0)
  for (port in OPEN) line = line " " port
  print "used" line
}

BEGIN {
  linux = ENVIRON["DLLM_SYSTEM"] != "Darwin"
  loopback = " 0100007F 7F000001 00000000 00000000000000000000000000000000" \
    " 0000000000000000FFFF00000100007F 127.0.0.1 * "
  if (ARGV[1] == "listeners") listeners(ARGV[2] + 0, ARGV[3])
  if (ARGV[1] == "ports") ports()
}
