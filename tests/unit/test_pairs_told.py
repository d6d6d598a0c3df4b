"""What pairs of relays saved, all links together."""

from __future__ import annotations

from msgspec.structs import replace

from backends.state import Link
from tui.model.quantities import pairs_text

MIB = 1 << 20
PAIRED = Link(
    worker="mini",
    mode="pair",
    bytes_up=100 * MIB,
    bytes_down=4 * MIB,
    wire_bytes_up=1 * MIB,
    wire_bytes_down=5 * MIB,
    weight_bytes_home=90 * MIB,
    weight_bytes_sent=0,
)


def test_links_without_a_pair_say_nothing() -> None:
    assert pairs_text(()) == pairs_text((Link(worker="box"),)) == ""


def test_pairs_are_added_up_and_others_left_out() -> None:
    one = "1 pair · 90.0 MiB of weights home, 0 B sent · crossed ↑ 1.0 of 100 MiB"
    assert pairs_text((Link(worker="box"), PAIRED)).startswith(one)
    two = replace(PAIRED, worker="nuc", weight_bytes_sent=3 * MIB, tensors_differ=2)
    assert pairs_text((PAIRED, two)) == (
        "2 pairs · 180 MiB of weights home, 3.0 MiB sent (2 tensors differ) · "
        "crossed ↑ 2.0 of 200 MiB ↓ 10.0 of 8.0 MiB"
    )


def test_what_one_cannot_tell_is_not_told_of_all() -> None:
    older = replace(PAIRED, weight_bytes_home=None, weight_bytes_sent=None)
    assert pairs_text((PAIRED, older)).startswith("2 pairs · crossed ↑ 2.0 of 200 MiB")
