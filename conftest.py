"""Every test has these hooks and fixtures, whichever folder it stands in."""

pytest_plugins = ["tests.kit.session"]
