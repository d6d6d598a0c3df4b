"""A card to show others: model, split, measured speed and command, as text and SVG.

It names machines by their peers' names and files by their own. Paths, addresses, users
and secrets are left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from ipaddress import ip_address
from pathlib import PurePath
from textwrap import wrap

import msgspec

from backends.errors import DllmError
from backends.link.figures import lab_changed, token_parts, token_totals
from backends.redaction import is_secret
from backends.split.buffers import slot_tokens
from backends.split.flags import used_workers
from backends.split.layout import format_range, ranges
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Link,
    Plan,
    ProcessRole,
    TokenPart,
    Value,
)
from backends.units import (
    format_bytes,
    format_count,
    format_lab,
    format_ms,
    format_percent,
    format_speed,
)
from tui.model.launch_settings import draft_name, unusual, up_command
from tui.model.names import letter, model_name
from tui.model.quantities import acceptance_text, rtt_text, totals_trips_text

LEFT_OUT = "…"
_PLACE = re.compile(r"--(?!no-)\S*(?:host|user)\S*")
"""Arguments whose values are for this network alone."""
_BUFFER = re.compile(r"(RPC\d+)\[[^\]]*\]")
"""A worker's buffer in ``-ot``, by its address."""
_ENDPOINT = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d{1,5}")


class CardSegment(Value, frozen=True, kw_only=True):
    """A device of the split that holds layers."""

    letter: str
    device: str
    layers: int
    span: str
    """``0–17``, the output as such."""


class ShareCard(Value, frozen=True, kw_only=True):
    """All that a card tells; each figure is measured."""

    model: str
    facts: str
    """Layers, size, and the settings that are not the usual ones."""
    tok_per_s: float | None
    """Of the last answer; None before the first under the present labs."""
    conditions: tuple[str, ...]
    """Context, draft and links while it was measured."""
    segments: tuple[CardSegment, ...]
    parts: tuple[TokenPart, ...]
    """Of a typical pass, the longest first."""
    trips: str
    """Round trips and bytes of a token."""
    engine: str
    command: str
    """The command that launches the same."""
    server_command: str
    """The command line of llama-server; empty where it does not run yet."""

    @property
    def speed(self) -> str:
        """``21.3 tok/s``, or that there was no answer yet."""
        if self.tok_per_s is None:
            return "not measured yet"
        return format_speed(self.tok_per_s)


def card_of(snapshot: ClusterSnapshot) -> ShareCard:
    """The card of what serves.

    Raises:
        DllmError: nothing serves.
    """
    plan = snapshot.plan
    if plan is None or snapshot.state is not ClusterState.SERVING:
        raise DllmError(
            "Nothing serves, so there is no card to share",
            "Launch a model: dllm-tui up MODEL.",
        )
    speed, engine = snapshot.speed, snapshot.engine
    rate = speed.last_tok_per_s or speed.tok_per_s
    n_layer = plan.split.n_layer
    spans = {one.device: format_range(one, n_layer) for one in ranges(plan.split)}
    held = snapshot.measured.buffers if snapshot.measured else ()
    size = sum(one.model_bytes for one in held)
    facts = (
        f"{n_layer}+1 layers",
        format_bytes(size) if size else "",
        # Further arguments are in the command, where secrets are left out.
        unusual(msgspec.structs.replace(plan, extra_args=())),
    )
    server = next((p for p in snapshot.processes if p.role is ProcessRole.SERVER), None)
    return ShareCard(
        model=model_name(plan.model.rpartition(":")[2]),
        facts=" · ".join(filter(None, facts)),
        tok_per_s=None if lab_changed(snapshot.links) else rate,
        conditions=tuple(_conditions(snapshot, plan)),
        segments=tuple(
            CardSegment(
                letter=letter(at),
                device=share.device,
                layers=share.layers,
                span=spans[share.device],
            )
            for at, share in enumerate(plan.split.shares)
            if share.layers
        ),
        parts=token_parts(snapshot),
        trips=_trips(snapshot),
        engine=f"llama.cpp {engine.version}, RPC {engine.rpc_protocol}"
        if engine
        else "",
        command=_public(shlex.split(up_command(plan)), plan),
        server_command=_public(server.argv, plan) if server else "",
    )


def _conditions(snapshot: ClusterSnapshot, plan: Plan) -> Iterator[str]:
    speed = snapshot.speed
    whole = slot_tokens(plan.ctx_size, plan.server)
    yield f"context {speed.ctx_used} of {whole} tokens"
    if plan.server.slots > 1:
        yield format_count(plan.server.slots, "slot")
    yield draft_name(*snapshot.drafts_with)
    if accepted := acceptance_text(speed.acceptance):
        yield accepted
    yield from map(_link_text, snapshot.links)


def _link_text(link: Link) -> str:
    way = f" ({link.way})" if link.way not in ("", "local") else ""
    lab = f", slowed by a lab: {format_lab(link.lab)}" if link.lab else ""
    return f"{link.worker}{way}: RTT {rtt_text(link.rtt_ms)}{lab}"


def _trips(snapshot: ClusterSnapshot) -> str:
    if snapshot.plan is not None and not used_workers(snapshot.plan):
        return "none: one machine alone"
    totals = token_totals(snapshot.links)
    if totals.round_trips is None:
        return "not measured"
    up_down = (totals.bytes_up or 0.0) + (totals.bytes_down or 0.0)
    return f"{totals_trips_text(totals)} and {format_bytes(up_down)} a token"


# --- what others may read ------------------------------------------------------------


def _public(words: Sequence[str], plan: Plan) -> str:
    names = [worker.name for worker in used_workers(plan)]
    public = _public_words(words, names)
    return " ".join(w if w == LEFT_OUT else shlex.quote(w) for w in public)


def _public_words(words: Iterable[str], workers: Sequence[str]) -> Iterator[str]:
    is_value = False
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if is_value:
            yield LEFT_OUT
        elif before == "--rpc":
            endpoints = word.split(",")
            known = len(endpoints) == len(workers)
            yield ",".join(workers if known else [LEFT_OUT] * len(endpoints))
        elif equals and _is_private(option):
            yield f"{option}={LEFT_OUT}"
        elif equals and option.startswith("-"):
            yield f"{option}={_public_text(value)}"
        else:
            yield _public_text(word)
        is_value = not equals and _is_private(word)
        before = word


def _is_private(option: str) -> bool:
    return is_secret(option) or bool(_PLACE.fullmatch(option))


def _public_text(text: str) -> str:
    # Files have their names alone, and addresses are left out. A path may have blanks.
    path = text.partition(":")[2] if ":/" in text else text
    if path.startswith(("/", "~", "./", "../")):
        name = PurePath(path.partition("?")[0]).name
        is_place = _ENDPOINT.fullmatch(name) or _is_address(name)
        return LEFT_OUT if "://" in text or is_place else name
    words = (_public_word(word) for word in re.split(r"([\s,=]+)", text))
    return "".join(words)


def _public_word(word: str) -> str:
    word = _BUFFER.sub(rf"\1[{LEFT_OUT}]", word)
    if _ENDPOINT.fullmatch(word) or _is_address(word):
        return LEFT_OUT
    # ``mini/MTL0`` is a device; a path is whole, or of a peer.
    path = word.partition(":")[2] if ":/" in word else word
    return PurePath(path).name if path.startswith(("/", "~", "./", "../")) else word


def _is_address(word: str) -> bool:
    try:
        ip_address(word.strip("[]"))
    except ValueError:
        return False
    return True


# --- as text -------------------------------------------------------------------------

LABEL_CELLS = 10
BESIDE = 2
"""Context and draft stand beside the speed, what else there is below."""


def card_rows(card: ShareCard) -> Iterator[tuple[str, str]]:
    """Label and text of each row but the head and the commands."""
    beside, below = card.conditions[:BESIDE], card.conditions[BESIDE:]
    yield "measured", " · ".join((card.speed, *beside))
    for condition in below:
        yield "", condition
    for label, one in zip(_once("split"), card.segments, strict=False):
        yield (
            label,
            f"{one.letter}  {one.device:<20} {one.span} ({_layers(one.layers)})",
        )
    for label, part in zip(_once("token"), card.parts, strict=False):
        name = f"{part.name}'s {part.part}"
        share = format_percent(part.share)
        yield label, f"{name:<23} {format_ms(part.ms):>7} {share:>5}"
    yield "trips", card.trips
    if card.engine:
        yield "engine", card.engine


def _once(label: str) -> Iterator[str]:
    yield label
    while True:
        yield ""


def _layers(count: int) -> str:
    return format_count(count, "layer")


def card_text(card: ShareCard) -> str:
    lines = [f"{card.model} · {card.facts}", ""]
    lines += [f"{label:<{LABEL_CELLS}}{text}" for label, text in card_rows(card)]
    for command in filter(None, (card.command, card.server_command)):
        lines += ["", command]
    return "\n".join(lines) + "\n"


# --- as a picture --------------------------------------------------------------------

WIDTH, MARGIN = 880, 28
BAR_HEIGHT, ROW, SMALL_ROW = 40, 21, 17
COLUMNS, COMMAND_COLUMNS = 80, 104
LETTER_ROOM = 16
# Okabe and Ito's, told apart by colour-blind people too; black text is read on each.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
GROUND, EDGE, TEXT, DIM = "#10151d", "#5b6678", "#e8ecf3", "#a9b3c4"
"""The card has a ground of its own, so that it reads alike on light and dark."""


def card_svg(card: ShareCard) -> str:
    """The card as a picture of its own ground, readable on light pages and dark."""
    drawn = list(_drawn(card))
    height = max(y for y, _ in drawn) + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="monospace">',
            f"<title>{escape(card.model)}: {escape(card.speed)}</title>",
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" '
            f'fill="{GROUND}" stroke="{EDGE}" stroke-width="2"/>',
            *(element for _, element in drawn),
            "</svg>\n",
        ]
    )


def _drawn(card: ShareCard) -> Iterator[tuple[int, str]]:
    """Elements with the line that each stands on, from above."""
    right = WIDTH - MARGIN
    yield 46, _text(MARGIN, 46, card.model, size=22, bold=True)
    yield 46, _text(right, 46, card.speed, size=26, bold=True, end=True)
    if card.tok_per_s is not None:
        yield 70, _text(right, 70, "measured", colour=DIM, end=True)
    y = 70 - ROW
    for words in wrap(card.facts, COLUMNS):
        y += ROW
        yield y, _text(MARGIN, y, words, colour=DIM)
    y += 18
    yield from _bar(y, card.segments)
    y += BAR_HEIGHT + ROW
    numbers = {one.device: at for at, one in enumerate(card.segments)}
    for label, text in card_rows(card):
        device = next((d for d in numbers if text[3:].startswith(f"{d} ")), None)
        colour = TEXT if device is None else COLOURS[numbers[device] % len(COLOURS)]
        yield y, _text(MARGIN, y, label, colour=DIM)
        for words in wrap(text, COLUMNS):
            yield y, _text(MARGIN + 92, y, words, colour=colour)
            y += ROW
    for command in filter(None, (card.command, card.server_command)):
        y += SMALL_ROW // 2
        for words in wrap(command, COMMAND_COLUMNS, break_on_hyphens=False):
            yield y, _text(MARGIN, y, words, colour=DIM, size=13)
            y += SMALL_ROW


def _bar(y: int, segments: Sequence[CardSegment]) -> Iterator[tuple[int, str]]:
    x, room = float(MARGIN), WIDTH - 2 * MARGIN
    total = sum(one.layers for one in segments)
    middle = y + BAR_HEIGHT // 2 + 6
    for number, one in enumerate(segments):
        width = one.layers / total * room
        drawn = max(width - 3, 1)
        colour = COLOURS[number % len(COLOURS)]
        yield (
            y + BAR_HEIGHT,
            f'<rect x="{round(x)}" y="{y}" width="{round(drawn)}" '
            f'height="{BAR_HEIGHT}" rx="3" fill="{colour}"/>',
        )
        if width > LETTER_ROOM:
            sign = _text(x + width / 2 - 6, middle, one.letter, colour="#000")
            yield middle, sign
        x += width


def _text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = TEXT,
    size: int = 15,
    bold: bool = False,
    end: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="end"' if end else ""
    return (
        f'<text x="{round(x)}" y="{y}" fill="{colour}" font-size="{size}" '
        f'xml:space="preserve"{weight}{anchor}>{escape(words)}</text>'
    )
