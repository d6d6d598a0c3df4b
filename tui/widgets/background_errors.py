"""A mistake of ours in a background worker must be seen, but end nothing."""

from __future__ import annotations

from textual.dom import DOMNode
from textual.worker import Worker, WorkerState


def report_worker(node: DOMNode, event: Worker.StateChanged) -> None:
    """Pass a failed worker on to the app: these messages do not bubble."""
    if event.state == WorkerState.ERROR:
        event.stop()
        node.app.post_message(Worker.StateChanged(event.worker, event.state))
