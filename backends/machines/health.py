"""The health of a machine: pressure, heat, clock speed, disk and sleep settings.

One shell script reads them all. It needs no program that a bare system lacks, and
writes nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from backends.errors import MachineError
from backends.machines.agent import AgentSession
from backends.machines.facts import device_of
from backends.machines.keep_awake import holds_awake
from backends.state.health import MachineHealth
from backends.units import format_celsius, format_percent, three_figures

READ_S = 8.0
SPIN_MS = 300
"""So long one core is kept busy, so that its clock is that of work."""
SLOW_CLOCK = 0.6
"""Below this share of its highest clock a busy core counts as throttled."""
CAPPED_CLOCK = 0.8
HOT_MARGIN_C = 2.0
"""So near to the temperature at which the kernel slows it down."""
_SLEEPS = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate")

# Each line is a key and its value. A reading that is missing prints no line.
_LINUX = r"""
first() { [ -r "$2" ] && read -r value <"$2" && echo "$1 $value"; }
for name in cpu memory io; do first "pressure $name" /proc/pressure/$name; done
for zone in /sys/class/thermal/thermal_zone*; do
  first "heat ${zone##*zone}" "$zone/temp"
  for kind in "$zone"/trip_point_*_type; do
    [ -r "$kind" ] && read -r value <"$kind" || continue
    [ "$value" = passive ] && first "trip ${zone##*zone}" "${kind%_type}_temp"
  done
done
counts() {
  for core in /sys/devices/system/cpu/cpu[0-9]*; do
    first "$1 ${core##*cpu}" "$core/thermal_throttle/core_throttle_count"
  done
}
groups() { # v2: cpu.max, v1: quota and period
  while IFS=: read -r number names path; do
    case "$number:$names" in
    0:) for root in /sys/fs/cgroup /sys/fs/cgroup/unified; do
        at=$root$path
        while [ -n "$at" ] && [ "$at" != / ]; do
          first quota "$at/cpu.max"; at=${at%/*}
        done
      done ;;
    *:cpu|*:cpu,*|*:*,cpu)
      at=/sys/fs/cgroup/cpu$path
      [ -r "$at/cpu.cfs_quota_us" ] && [ -r "$at/cpu.cfs_period_us" ] &&
        read -r quota <"$at/cpu.cfs_quota_us" &&
        read -r period <"$at/cpu.cfs_period_us" && echo "quota $quota $period" ;;
    esac
  done </proc/self/cgroup
}
counts before
spinning=
if [ "$1" -gt 0 ]; then
  (while :; do :; done) & spinning=$!
  sleep "0.$1"
fi
for core in /sys/devices/system/cpu/cpu[0-9]*; do
  first "clock ${core##*cpu}" "$core/cpufreq/scaling_cur_freq"
  first "cap ${core##*cpu}" "$core/cpufreq/scaling_max_freq"
  first "highest ${core##*cpu}" "$core/cpufreq/cpuinfo_max_freq"
done
[ -n "$spinning" ] && kill "$spinning" && echo "spun 1"
counts after
[ -r /proc/self/cgroup ] && groups
first states /sys/power/state
target=$(systemctl is-enabled sleep.target 2>/dev/null) && echo "target $target" ||
  [ -z "$target" ] || echo "target $target"
cat /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf 2>/dev/null |
  sed -n 's/^ *\(IdleAction\) *= */logind \1 /p'
if command -v gsettings >/dev/null 2>&1; then
  power=org.gnome.settings-daemon.plugins.power
  echo "gnome $(gsettings get $power sleep-inactive-ac-type 2>/dev/null)" \
    "$(gsettings get $power sleep-inactive-ac-timeout 2>/dev/null)"
fi
df -Pk "$HOME" 2>/dev/null | awk 'NR == 2 { print "disk", $2, $4 }'
true
"""
_DARWIN = r"""
pmset -g 2>/dev/null | sed -n 's/^ *sleep  *\([0-9]*\).*/sleep \1/p'
pmset -g therm 2>/dev/null | sed -n 's/^.*CPU_Speed_Limit *= *\([0-9]*\).*/limit \1/p'
df -Pk "$HOME" 2>/dev/null | awk 'NR == 2 { print "disk", $2, $4 }'
true
"""

Readings = dict[str, list[list[str]]]


async def read_health(agent: AgentSession, *, quiet: bool = False) -> MachineHealth:
    """Read one machine by its agent, within seconds; ``quiet`` keeps no core busy."""
    before = time.time()
    told = await agent.machine()
    half_s = (time.time() - before) / 2
    script = _DARWIN if told.os == "Darwin" else _LINUX
    spin = "0" if quiet else f"{SPIN_MS}"
    done = await agent.run(["sh", "-c", script, "sh", spin], timeout_s=READ_S)
    if done.timed_out:
        raise MachineError(f"{agent.name} did not tell its state within {READ_S:g} s")
    found = parsed(done.stdout)
    cpu = device_of(told.memory, agent.name)
    total_kib, free_kib = _numbers(found, "disk", 2)
    return MachineHealth(
        machine=agent.name,
        os=told.os,
        clock_offset_s=told.time - (before + half_s),
        disk_free_bytes=int(free_kib) << 10 or told.disk_free_bytes,
        disk_total_bytes=int(total_kib) << 10,
        memory_total_bytes=cpu.total_bytes,
        memory_available_bytes=cpu.free_bytes,
        pressure_percent=_pressure(found),
        throttled=tuple(_throttled(found, told.usable)),
        hottest_c=max(_by_name(found, "heat").values(), default=None),
        sleeps=tuple(_sleeps(found)),
        stays_awake=any(
            one.alive and holds_awake(one.name.rpartition("/")[2]) for one in agent.seen
        ),
    )


def parsed(text: str) -> Readings:
    """Words of each line by its first word."""
    found: Readings = defaultdict(list)
    for line in text.splitlines():
        key, *words = line.split()[:16] or [""]
        found[key].append(words)
    return found


def _numbers(
    found: Mapping[str, Sequence[Sequence[str]]], key: str, n: int
) -> list[float]:
    words = next(iter(found.get(key, ())), ())
    told = [_number(word) for word in words[:n]]
    return [*told, *[0.0] * (n - len(told))]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0


def _by_name(found: Readings, key: str) -> dict[str, float]:
    # Sensors tell thousandths.
    scale = 1000.0 if key in ("heat", "trip") else 1.0
    pairs = (words for words in found.get(key, ()) if len(words) == 2)
    return {name: _number(value) / scale for name, value in pairs}


def _pressure(found: Readings) -> dict[str, float]:
    told = {}
    for words in found.get("pressure", ()):
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        if words and "avg10" in fields:
            told[words[0]] = _number(fields["avg10"])
    return told


def _throttled(found: Readings, usable: int) -> Iterable[str]:
    highest, cap = _by_name(found, "highest"), _by_name(found, "cap")
    capped = {
        n: top for n, top in cap.items() if top < highest.get(n, 0) * CAPPED_CLOCK
    }
    if capped:
        name = min(capped, key=lambda n: capped[n] / highest[n])
        yield (
            f"{_cores(len(capped))} may run at {_ghz(capped[name])} at most, "
            f"of {_ghz(highest[name])}"
        )
    clock = {n: now for n, now in _by_name(found, "clock").items() if n in highest}
    if clock and not capped and "spun" in found:
        name = max(clock, key=lambda n: clock[n] / max(highest[n], 1))
        if clock[name] < highest[name] * SLOW_CLOCK:
            yield (f"a busy core runs at {_ghz(clock[name])}, of {_ghz(highest[name])}")
    before, after = _by_name(found, "before"), _by_name(found, "after")
    grown = sum(after.get(n, 0) > count for n, count in before.items())
    if grown:
        yield f"{_cores(grown)} {'was' if grown == 1 else 'were'} too hot just now"
    heat, trips = _by_name(found, "heat"), _by_name(found, "trip")
    for zone, limit in trips.items():
        if 0 < limit <= heat.get(zone, 0) + HOT_MARGIN_C:
            now, most = format_celsius(heat[zone]), format_celsius(limit)
            yield f"a sensor is at {now}, slowed down from {most}"
            break
    quotas = [_quota(words) for words in found.get("quota", ())]
    quota = min((one for one in quotas if one), default=0.0)
    if 0 < quota < usable:
        yield f"a control group allows its processes {quota:g} of {usable} cores"
    limit = _numbers(found, "limit", 1)[0]
    if 0 < limit < 100:
        share = format_percent(limit / 100)
        yield f"macOS limits its processor to {share} of its speed"


def _quota(words: Sequence[str]) -> float:
    if len(words) != 2 or _number(words[1]) <= 0:
        return 0.0
    return max(_number(words[0]), 0.0) / _number(words[1])


def _cores(count: int) -> str:
    return "a core" if count == 1 else f"{count} cores"


def _ghz(khz: float) -> str:
    return f"{three_figures(khz / 1e6)} GHz"


def _sleeps(found: Readings) -> Iterable[str]:
    minutes = _numbers(found, "sleep", 1)[0]
    if minutes:
        yield f"macOS lets it sleep after {minutes:g} minutes (pmset)"
    states = [word for words in found.get("states", ()) for word in words]
    if "mem" not in states and "disk" not in states:
        return
    if ["masked"] in found.get("target", []):
        return
    for words in found.get("logind", ())[-1:]:
        if words[0] == "IdleAction" and words[-1] in _SLEEPS:
            yield f"logind lets it {words[-1]} when idle (IdleAction)"
    for words in found.get("gnome", ()):
        if len(words) == 2 and words[0].strip("'") in _SLEEPS and words[1] != "0":
            yield f"GNOME lets it {words[0].strip(chr(39))} after {words[1]} s"
