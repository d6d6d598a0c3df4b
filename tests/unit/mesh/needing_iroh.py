"""The mark of tests that send bytes by QUIC."""

from __future__ import annotations

import pytest

from backends.mesh.quic_library import iroh_version

needs_iroh = pytest.mark.skipif(
    not iroh_version(), reason="iroh has no wheel for this platform: pip install iroh"
)
