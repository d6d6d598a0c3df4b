"""QR codes of tokens, for a camera at the other machine."""

from __future__ import annotations

import io


def qr_text(text: str) -> str:
    """A QR code of signs that every terminal draws."""
    import segno

    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out=drawn, border=2, compact=True)
    return drawn.getvalue().rstrip("\n")
