"""What a cluster does, told in scripts: see ``tests.kit.scenes`` for the words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.scenes import play

ASKED_FOR = {
    "a launch serves, and a stop ends it": """
        serves ada bob; runs ada bob llama-server; uses ada bob; gateway serve
        told "launch: launched m" "serving: m serves after"
        stop; until idle; runs; gateway gone
        told "stop: stopped the cluster" "stopped: Stopped:"; busy no
        """,
    "a way that every user of a machine can take is told once": """
        serves ada bob
        told "way: ada: any user of this machine can reach the worker" "way: bob"
        kill ada; until serving 20; untold "way:"
        stop; until idle; serves ada bob relays; untold "way:"
        runs ada bob llama-server relay-ada relay-bob worker-relay-ada worker-relay-bob
        """,
    "with another machine as the head": """
        serves on ada bob relays; uses bob
        runs bob llama-server relay-bob worker-relay-bob
        stop; until idle; runs
        """,
    "a worker that somebody else started is not ours to start": """
        serves ada bare relays; runs llama-server relay-ada
        """,
    "a worker that somebody else has not started yet is waited for": """
        bare gone; launch ada bare relays; wait 30; bare there; until serving 5
        told "No rpc-server listens at 127.0.0.1:50052: waiting for it" "serves again"
        """,
    "but for a minute only": """
        bare gone; launch ada bare relays; until failed 70
        fails "No rpc-server listens at 127.0.0.1:50052"
        """,
    "a worker of somebody else that ended is not ours to start again": """
        serves ada bare relays; bare gone; kill llama-server; until failed 5
        fails "ada is gone: No rpc-server listens at 127.0.0.1:50052"
        """,
    "the rest goes on without a worker of somebody else": """
        serves ada bob bare relays; bare gone; kill bob; recovers 70; uses bob
        told "No rpc-server listens at 127.0.0.1:50052: went on without ada"
        """,
    "a stop while a machine is looked for": """
        away ada; later 1 stop; launch ada; until idle; runs
        """,
    "a stop while processes start": "launch ada bob; wait 0.07; stop; until idle; runs",
    "a stop while it loads": """
        loads 600; launch ada; until loading
        stop; until idle 20; runs; leftovers
        """,
    "a stop while trouble is being mended": """
        serves ada; loads 600; kill ada; until loading
        stop; until idle 20; runs
        """,
    "a stop while a machine is waited for": """
        serves ada; away ada; wait 5; stop; until idle 30; runs ada; leftovers ada
        back ada; runs; leftovers
        """,
    "a launch while another one loads": """
        loads 600; launch ada; until loading
        loads 1; launch bob; until serving 20; runs bob llama-server; generation 2
        """,
    "who comes second is told": """
        replaces 0 ada; refused "came first" replaces 0 bob; until serving
        replaces 1 bob; until serving; uses bob
        """,
    "a process is started again by a person, and what depends on it": """
        serves ada bob relays; restarts relay-ada; recovers
        started relay-ada 2; started llama-server 2; started relay-bob 1; started bob 1
        told "restarted relay-ada" "serves again"; generation 1
        """,
    "the gateway alone is started again by a person": """
        serves ada; restarts api-gateway; recovers
        started api-gateway 2; started llama-server 1; gateway serve
        """,
    "nothing is started again before it serves": """
        loads 600; launch ada; until loading
        refused "only be restarted while a model serves" restarts ada
        """,
    "what a person kills comes back": """
        serves ada bob; kills ada ada; recovers; runs ada bob llama-server
        told "killed ada on ada" "ada was started again"
        """,
    "a launch that fails goes back to what served": """
        serves ada; dies bob 9; launch ada bob; recovers; uses ada; generation 3
        told "The launch failed (bob ended with exit code 1" "serves again"
        journal rolled_back.generation 2
        """,
    "a launch that fails with nothing before it has failed": """
        dies ada; launch ada; until failed; fails "ada ended with exit code 1"
        journal failure.served False; runs; busy no; step ada failed
        """,
    "what failed goes back to nothing": """
        serves ada; dies llama-server 9; kill llama-server; until failed
        launch bob; until failed; generation 2; fails "llama-server ended"
        """,
    "a launch in place of one that never served goes back to nothing": """
        loads 600; launch ada; until loading
        dies bob; launch bob; until failed; generation 2
        """,
    "launches in a row go back to the last that served": """
        serves ada; loads 60; launch bob; until loading
        dies llama-server; launch other ada bob; wait 2; until serving; uses ada
        journal goal.rolled_back_to 1
        """,
    "a model that is missing": """
        lost /m.gguf; launch ada; until failed; fails "Cannot read the model /m.gguf"
        runs
        """,
    "a plan for another number of layers": """
        refused "would not follow this split" launch ada bad-layers
        """,
    "a machine without an engine": """
        faulty engineless ada; launch ada; until failed
        fails "ada has no llama.cpp with RPC"
        """,
    "a worker that does not listen": """
        faulty deaf ada; launch ada; until failed
        fails "ada runs but does not listen on port"; runs
        """,
    "a gateway that ends as it starts": """
        dies api-gateway; launch local; until failed
        fails "api-gateway ended with exit code 1"; runs
        """,
    "a port that another program takes before us": """
        snatched thief; serves ada; started ada 2
        """,
    "ports that are taken again and again": """
        snatched one two three four five six; launch ada; until failed
        fails "was taken by"
        """,
    "the usual port is another program's": """
        taken 8090 thief; serves local; address http://127.0.0.1:8091/v1
        """,
    "a port that is insisted on is another program's": """
        settings "api_port = 8095"; taken 8095 thief; launch local; until failed
        fails "Port 8095 is in use by thief"
        """,
    "the port of a gateway is taken while it is started again": """
        serves local; taken 8090 thief; kill api-gateway; wait 2; until serving
        address http://127.0.0.1:8091/v1; started llama-server 1
        told "the gateway was started again with another port"
        kill api-gateway; wait 2; gateway runs; address http://127.0.0.1:8091/v1
        started llama-server 1
        """,
    "a port that is insisted on is taken while the gateway is started again": """
        settings "api_port = 8095"; serves local; taken 8095 thief; kill api-gateway
        until failed 5; fails "Port 8095 is in use by thief"
        """,
    "each cluster has its own port until it ends": """
        serves local; address http://127.0.0.1:8090/v1
        on second; serves local; address http://127.0.0.1:8091/v1
        on default; stop; until idle
        on third; serves local; address http://127.0.0.1:8090/v1
        """,
    "a process whose directory is lost is ended too": """
        orphan w; serves local; orphans w
        stop; until idle; orphans
        """,
    "a stop looks at machines that are just being reached": """
        serves ada; away ada; stop; until idle; leftovers ada
        connected ada; stop; wait 5; leftovers; runs
        """,
    "a journal that cannot be written changes nothing": """
        serves ada; disk full; refused "nothing was changed" launch bob
        refused "nothing was changed" drain; stays serving 60; uses ada
        disk free; serves bob
        """,
    "a stop is done on a full disk too": """
        serves ada; disk full; stop; until idle; runs; journal goal.plan None
        disk free
        """,
    "a stop that cannot be written is done, and told": """
        serves ada; folder gone; refused "another controller would start it again" stop
        wait 10; until idle; runs; busy yes
        folder back; stop; wait 1; busy no
        """,
    "what starts too late for any plan is ended": """
        dies ada; launch ada; until failed
        appears local w; wait 10; runs; until failed; fails "ada ended with exit code 1"
        stop; until idle
        appears local w; wait 10; runs
        """,
    "one that cannot be ended keeps no other from being ended": """
        faulty immortal ada; serves ada bob; stop; until failed
        fails "ada outlived SIGKILL"; runs ada
        """,
    "what would be ended for a plan that cannot be had is not": """
        away ada; checks ada; back ada; serves bob; checks ada bob; away ada
        refused "what serves now is left as it is" checks ada
        """,
    "what each loss would leave is shown": """
        launch ada bob; looks-at-losses; losses; until serving
        looks-at-losses; losses ada bob
        small local bob; looks-at-losses; losses ada bob
        """,
    "an error that nobody thought of": """
        break-code port_owner; launch ada; until failed
        fails "ZeroDivisionError: in the depths"; runs
        serves bob
        """,
}

DEATHS = {
    "a worker": """
        serves ada bob; told "serves after"
        kill ada; recovers 4; started ada 2; started bob 1; started llama-server 2
        told "died: ada was killed by SIGKILL" "mended: ada was started again" again
        generation 1
        """,
    "a worker that is seen dead after the llama-server that it took with it": """
        serves ada; later 0.2 kill ada; kill llama-server; recovers 4
        told "died: ada was killed"; untold "died: llama-server"
        """,
    "llama-server": """
        serves ada; kill llama-server; recovers 4; started ada 1; started llama-server 2
        told "died: llama-server was killed" "mended: llama-server was started again"
        """,
    "a relay": """
        serves ada relays; kill relay-ada; recovers 4; started ada 1
        started worker-relay-ada 1; started relay-ada 2
        told "died: relay-ada was killed"
        """,
    "a relay beside a worker": """
        serves ada relays; kill worker-relay-ada; recovers 4; started ada 1
        started worker-relay-ada 2; told "died: worker-relay-ada was killed"
        """,
    "a relay, again and again: it is given up": """
        serves ada relays; repeat 4 "kill relay-ada" recovers; kill relay-ada
        until failed; fails "5 times within two minutes of serving"; runs
        """,
    "two at once": """
        serves ada bob; kill ada bob; recovers 4; started ada 2; started bob 2
        """,
    "a worker whose directory is deleted": """
        serves ada; deletes ada; recovers 4; told "The process directory of ada is gone"
        """,
    "the gateway": """
        serves ada; kill api-gateway; stays serving 0.01
        wait 2; gateway runs; started llama-server 1
        told "mended: api-gateway was started again at port"
        """,
    "the gateway, again and again": """
        serves ada; repeat 5 "kill api-gateway" "wait 1"; until serving; gateway runs
        started llama-server 1; told "api-gateway was started again, with llama-server"
        """,
    "a worker while it loads for the first time": """
        loads 60; launch ada; until loading
        kill ada; until failed 2; fails "ada was killed by SIGKILL"; runs
        """,
    "a relay while it loads for the first time": """
        loads 60; launch ada relays; until loading
        kill relay-ada; until serving; started relay-ada 2
        """,
    "a worker while it loads again": """
        serves ada; loads 60; kill ada; until loading
        kill ada; until serving; started ada 3
        """,
    "a llama-server that lost its port to another program": """
        dies llama-server 1 "couldn't bind HTTP server socket, hostname: x, port: 1"
        serves ada; started llama-server 2
        told "mended: llama-server was started again with another port"
        """,
    "a worker, again and again: it is done without": """
        serves ada bob; dies ada 9; kill ada; recovers; uses bob; runs bob llama-server
        started ada 5; told "went on without ada"; stays serving 120
        """,
    "a worker, again and again, which is all there is": """
        serves ada; small local bob; dies ada 9; kill ada; until failed
        fails "what is left cannot do it"
        """,
    "llama-server, again and again: it is given up": """
        serves ada; dies llama-server 9; kill llama-server; until failed
        fails "5 times within two minutes of serving"; journal failure.served True
        gateway runs; runs; gateway end; stays failed 120
        """,
    "deaths far apart count anew": """
        serves ada; repeat 4 "kill llama-server" recovers; wait 121
        repeat 4 "kill llama-server" recovers
        """,
    "the time that loads take does not count": """
        serves ada; loads 60; repeat 4 "kill llama-server" recovers; kill llama-server
        until failed
        """,
    "deaths of others are counted for themselves": """
        serves ada bob; repeat 4 "kill ada" recovers "kill bob" recovers; uses ada bob
        """,
    "a launch begins the count anew": """
        serves ada; repeat 4 "kill llama-server" recovers; launch other ada; recovers
        repeat 4 "kill llama-server" recovers
        """,
    "a worker that never listens again is done without at once": """
        serves ada bob; faulty deaf ada; kill ada; recovers 40; uses bob; started ada 2
        """,
    "a relay beside a worker that cannot be started again": """
        serves ada bob relays; faulty refused worker-relay-ada; kill worker-relay-ada
        recovers 10; uses bob
        told "worker-relay-ada cannot be started on ada: went on without ada"
        """,
    "a relay of the head that cannot be started again": """
        serves ada bob relays; faulty refused relay-ada; kill relay-ada; until failed 10
        fails "relay-ada cannot be started on local"
        """,
    "a worker that cannot be started again is done without": """
        serves ada bob; faulty engineless ada; kill ada; recovers 10; uses bob
        told "ada has no llama.cpp with RPC: went on without ada"; stays serving 120
        """,
    "a frozen process is told and touched by nobody": """
        serves ada; becomes ada "not responding"; looks-for-silent; stays serving 60
        becomes ada running; looks-for-silent; stays serving 60
        told "ada on ada does not respond" "ada on ada responds again"
        """,
    "an error in the settings while trouble is mended": """
        serves ada; settings "workres = 3"; kill ada; recovers 4
        """,
}

MACHINES = {
    "one that is away at the launch is waited for": """
        away ada; launch ada; wait 20; back ada; until serving
        """,
    "one that does not come back within a minute of a launch": """
        away ada; launch ada; until failed 70; fails "ada cannot be reached"
        journal waits_for "('ada',)"
        back ada; until serving; told "ada is back: the cluster was started again"
        """,
    "one that is gone for a moment": """
        serves ada bob; away ada; wait 5; back ada; until serving; uses ada bob
        started ada 1; started bob 1; told "The connection to ada broke: waiting for it"
        """,
    "one that is gone, and the rest goes on: the degraded plan, then the full one": """
        serves ada bob; away ada; wait 3; gateway hold; until serving; uses bob
        told "The connection to ada broke: went on without it"
        journal goal.generation 1
        back ada; wait 14; uses bob; until serving
        wait 10; until serving; uses ada bob; told "ada is back: it takes part again"
        """,
    "one that its owner has paused is not waited for": """
        serves ada bob; paused ada; wait 3; until serving 9; uses bob
        told "ada is not lent now: went on without it"
        back ada; wait 40; until serving; uses ada bob
        """,
    "it is not taken back while somebody is answered": """
        serves ada bob; away ada; wait 70; until serving
        asks 1; back ada; stays serving 120; uses bob
        asks 0; recovers; uses ada bob
        """,
    "nor when it went again meanwhile": """
        serves ada bob; away ada; wait 70; asks 1; back ada; wait 60; away ada; asks 0
        stays serving 60
        back ada; recovers; uses ada bob
        """,
    "one that is back after a worker was given up": """
        serves ada bob; dies ada 4; kill ada; recovers; uses bob
        small local; away bob; until failed
        roomy local; back bob; until serving; uses ada bob
        away ada; wait 70; uses bob
        back ada; recovers; uses ada bob
        """,
    "it is not taken back where a person wants to be asked": """
        settings "rejoin = 'ask'"; serves ada bob; away ada; wait 70; until serving
        back ada; stays serving 120; uses bob
        told "ada is back: launch again to use it"
        serves ada bob; uses ada bob
        """,
    "one that comes and goes has to stay longer each time": """
        serves ada bob; away ada; wait 70; back ada; recovers
        wait 30; uses ada bob
        away ada; wait 70; back ada; stays serving 28; uses bob; recovers; uses ada bob
        launch other ada bob; recovers
        away ada; wait 70; back ada; recovers 25
        """,
    "one that is gone, and the rest cannot do it": """
        serves ada; small local bob; away ada; until failed 70
        fails "The connection to ada broke, and what is left cannot do it"
        leftovers ada
        back ada; until serving; leftovers
        """,
    "the head": """
        serves on ada bob; away ada; until failed 70
        fails "which runs llama-server, is gone"
        back ada; until serving
        """,
    "one that asks for a password when it has served": """
        serves ada bob; faulty asking ada; away ada; until serving; recovers 10
        uses bob
        """,
    "one that asks for a password at the launch": """
        faulty asking ada; launch ada; until failed; fails "Password"
        mended asking ada; serves ada
        """,
    "one that was cut off while its processes went on": """
        serves ada; small local bob; away ada; until failed
        stop; until idle; leftovers ada; busy yes
        back ada; leftovers
        wait 5; until idle; runs; busy no
        """,
    "one that is taken out of the settings is not waited for": """
        serves ada; away ada; stop; until idle; leftovers ada
        removed ada; stop; wait 5; leftovers; busy no
        """,
    "one that lets us in no more is not waited for": """
        serves ada; away ada; stop; until idle; leftovers ada; busy yes
        revoked ada; stop; wait 5; leftovers; busy no
        """,
    "one that has let us in no more leaves nothing": """
        serves ada; away ada; revoked ada; stop; until idle; leftovers; busy no
        """,
    "it is not taken back where that is not wanted": """
        settings "rejoin = 'never'"; serves ada bob; away ada; wait 70; until serving
        back ada; stays serving 120; untold "launch again to use it"
        """,
    "one that is silent counts as away from its last sign of life": """
        serves ada bob; silent ada 40; wait 22; until serving 3; uses bob
        """,
    "one that asks for a password is waited for like one that is away": """
        serves ada bob; away ada; wait 70; until serving
        faulty asking ada; back ada; stays serving 120
        mended asking ada; recovers; uses ada bob
        """,
    "one that lost its power": """
        serves ada bob; away ada off; wait 20; back ada; recovers; started ada 2
        uses ada bob
        """,
    "a launch elsewhere while one is away": """
        serves ada; away ada; launch bob; until serving 20; uses bob; leftovers ada
        back ada; runs bob llama-server
        """,
}

CONTROLLERS = {
    "what serves goes on, and is adopted": """
        serves local; controller ends; runs llama-server
        controller starts; until serving; started llama-server 1
        told "taken up: Another controller looks after m"; generation 1
        """,
    "tunnels end with their controller": """
        serves ada; controller ends; runs ada
        controller starts; until serving; started ada 1; started llama-server 2
        told "its tunnels ended: llama-server was started again"
        """,
    "a fault of ours ends nothing that serves": """
        serves local; controller ends; break-code record; controller starts
        until serving; started llama-server 1
        told "failed: The controller failed: ZeroDivisionError" "taken up"
        """,
    "many faults of ours end nothing that serves": """
        serves local; controller ends; break-code record 6; controller starts
        until serving; started llama-server 1
        """,
    "relays end with the tunnels, and a worker is to blame before them": """
        serves ada relays; controller restarts; until serving; told "its tunnels ended"
        controller ends; kill ada; controller starts; until serving
        told "died: ada was killed"; untold "died: relay-ada"
        """,
    "a slow disk makes nobody forget that it served": """
        disk slow; serves ada; controller ends; kill ada; controller starts
        until serving; told "died: ada was killed by SIGKILL" "mended: ada was started"
        """,
    "ends with no controller there are counted": """
        serves local
        repeat 3 "controller ends" "kill llama-server" "controller starts" recovers
        told "died: llama-server was killed" "mended: llama-server was started again"
        wait 130; journal unwatched_deaths 0
        repeat 4 "controller ends" "kill llama-server" "controller starts" recovers
        controller ends; kill llama-server; controller starts; until failed
        fails "5 times within two minutes of serving"
        """,
    "what was never started is no death": """
        loads 600; launch ada; until loading
        repeat 6 "controller ends" "deletes ada" "controller starts" "until loading"
        journal unwatched_deaths 0
        """,
    "a load goes on": """
        loads 30; launch local; until loading
        controller restarts; until serving; started llama-server 1
        """,
    "what ended before it ever served is brought up": """
        loads 60; launch ada; until loading
        controller ends; kill ada; controller starts; until serving
        """,
    "a machine that is away when the next one starts": """
        serves ada bob; controller ends; away ada; controller starts; until serving
        uses bob
        controller restarts; until serving; uses bob
        back ada; wait 1; recovers; uses ada bob
        """,
    "what ended while a machine was away too is told": """
        serves ada bob; controller ends; kill bob; away ada; controller starts; wait 5
        back ada; until serving; told "died: bob was killed"
        """,
    "answers that are being waited for are waited for on": """
        serves local; asks 1 1; launch bob; wait 5; controller restarts; wait 5
        runs llama-server
        asks 0 0; until serving; journal replaces None; uses bob
        """,
    "a stop that was not done yet is done": """
        faulty stubborn llama-server; serves ada; stop; controller restarts; wait 20
        until idle; runs
        """,
    "a failure stays a failure": """
        dies ada; launch ada; until failed
        controller restarts; until failed; fails "ada ended with exit code 1"
        stays failed 60
        serves bob
        """,
    "what is wanted by nobody ends": """
        serves ada; controller ends; forget; controller starts; wait 10; runs
        """,
    "a journal that is not understood: all is left alone": """
        serves local; controller ends; scribble; controller starts; until failed
        fails "what runs is left alone"; stays failed 60; runs llama-server
        stop; until idle; runs; set-aside
        """,
    "settings that are wrong when the next one starts": """
        settings "api_wait_s = 300"; serves ada bob; controller ends
        settings "workres = 3"; controller starts; until serving
        kill ada; recovers 10; uses ada bob
        """,
    "a draining that was begun goes on": """
        serves local; drain; controller restarts; until serving; gateway drains
        resume; gateway serve
        """,
    "ends of a load with no controller there are counted": """
        loads 600; launch local; until loading
        repeat 5 "controller ends" "kill llama-server" "controller starts" "wait 1"
        until failed; fails "5 times before it served, with no controller there"
        """,
}

ANSWERS = {
    "a drain lets nothing new in until it is ended": """
        refused "Nothing runs" drain; serves ada; drain; gateway drains
        told "drained the API"
        resume; wait 1; gateway serve; told "resumed the API"
        """,
    "a launch ends a drain": """
        serves ada; drain; launch bob; recovers; gateway serve
        journal drained_since None
        """,
    "going back keeps a drain of meanwhile": """
        serves ada; loads 60; launch bob; until loading
        drain; kill bob; until serving; uses ada; gateway drains
        """,
    "another plan waits for answers that it would break": """
        serves ada; asks 2 2; launch bob; stays starting 30; runs ada llama-server
        step drain running
        asks 0 0; until serving 5; uses bob
        told "2 answers that another split would break ended first"
        """,
    "but not for ever": """
        settings "api_drain_s = 10"; serves ada; asks 1 1; launch bob; until serving 15
        told "1 answer that another split would break did not end within"
        """,
    "answers that can go on are not waited for": """
        serves ada; asks 1 0; launch bob; recovers 5
        """,
    "another model breaks all of them": """
        serves ada; asks 1 0; launch other bob; stays starting 30
        asks 0; until serving
        """,
    "nobody waits for what is not being brought up": """
        dies ada; launch ada; until failed; gateway end
        """,
}

DRAFTS = {
    "the fastest is chosen": """
        speeds none=20 ngram=25 small=60; asks 0; serves ada auto; wait 60
        until serving; drafts /small.gguf
        told "Measured without a draft" "Chosen: with small"; stays serving 120
        """,
    "a draft that breaks the server is given up": """
        speeds none=20 ngram=25 small=60; serves ada auto; wait 5; wait 3
        dies llama-server; wait 60; until serving; drafts /small.gguf
        started llama-server 5; told "died: llama-server ended" "Chosen: with small"
        untold "Measured with ngram"
        """,
    "the one that is predicted to gain most is begun with": """
        speeds none=20 ngram=25 small=60; asks 1; serves ada auto; drafts /small.gguf
        """,
    "a draft whose file is lost is done without": """
        serves ada drafted; lost /small.gguf; kill ada; recovers 4; drafts none
        told "it serves without a draft"
        """,
    "a draft whose file is missing at the launch": """
        lost /small.gguf; launch ada drafted; until failed
        fails "The draft model cannot be used"
        """,
}

ALL = {
    f"{of}: {name}": script
    for of, scripts in (
        ("asked for", ASKED_FOR),
        ("dies", DEATHS),
        ("machines", MACHINES),
        ("controllers", CONTROLLERS),
        ("answers", ANSWERS),
        ("drafts", DRAFTS),
    )
    for name, script in scripts.items()
}


@pytest.mark.parametrize("script", ALL.values(), ids=ALL)
def test_scenario(script: str, tmp_path: Path) -> None:
    play(tmp_path, script)
