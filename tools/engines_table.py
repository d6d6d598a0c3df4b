"""Pin another release of llama.cpp: ``python -m tools.engines_table [TAG]``.

It reads the files of a release with their SHA-256, and writes the table of ``engine
get``. Without a tag it takes the newest release.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import TypeVar

import msgspec

from backends.engine.releases import ARCHIVE_NAME, PACKAGE, Archive, Release

API = f"https://api.github.com/repos/{PACKAGE}"
TABLE = Path(__file__).parent.parent / "backends" / "engine" / "releases.json"
KEPT = 2
"""Releases in the table: the newest, and those before it."""
TIMEOUT_S = 30.0
_COMMIT = re.compile("[0-9a-f]{40}")
_DIGEST = re.compile("sha256:([0-9a-f]{64})")
T = TypeVar("T")


class Asset(msgspec.Struct):
    """A file of a release, as the API lists it."""

    name: str
    size: int
    digest: str | None = None


class Listing(msgspec.Struct):
    """A release, as the API lists it."""

    tag_name: str
    target_commitish: str
    assets: list[Asset]


class Commit(msgspec.Struct):
    sha: str


def ask(url: str, kind: type[T]) -> T:
    request = urllib.request.Request(url, headers={"User-Agent": "dllm-tui"})
    if token := os.environ.get("GITHUB_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        sys.exit(f"{url} cannot be read ({error}).")


def release_of(api: str, tag: str) -> Release:
    place = f"tags/{tag}" if tag else "latest"
    found = ask(f"{api}/releases/{place}", Listing)
    commit = found.target_commitish
    if not _COMMIT.fullmatch(commit):
        commit = ask(f"{api}/commits/{found.tag_name}", Commit).sha
    wanted = [one for one in found.assets if ARCHIVE_NAME.fullmatch(one.name)]
    archives = [archive_of(one) for one in sorted(wanted, key=lambda one: one.name)]
    if not archives:
        sys.exit(f"The release {found.tag_name} has none of the archives that we know.")
    return Release(tag=found.tag_name, commit=commit, archives=tuple(archives))


def archive_of(asset: Asset) -> Archive:
    digest = _DIGEST.fullmatch(asset.digest or "")
    if digest is None:
        sys.exit(f"{asset.name} is listed without its SHA-256: nothing is pinned.")
    return Archive(name=asset.name, size_bytes=asset.size, sha256=digest[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", nargs="?", default="", help="such as b11194")
    parser.add_argument("--api", default=API, help="another place of the API")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write")
    options = parser.parse_args()
    new = release_of(options.api.rstrip("/"), options.tag)
    before = msgspec.json.decode(options.table.read_bytes(), type=list[Release])
    others = [release for release in before if release.tag != new.tag]
    table = msgspec.json.encode([new, *others][:KEPT])
    options.table.write_bytes(msgspec.json.format(table, indent=2) + b"\n")
    print(f"{new.tag}: {len(new.archives)} archives in {options.table}")


if __name__ == "__main__":
    main()
