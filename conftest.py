"""Gives a bare ``pytest`` in a checkout the plugin that an installed twinlaw brings by itself."""

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin unless its entry point already has.

    pytest puts ``pythonpath`` on ``sys.path`` before it loads entry points and this file, so the
    checkout wins over an installed copy. ``pytest_plugins = ["twinlaw.plugin"]`` would do without
    an installation and fail with one: pytest then registers one module under two names.
    """
    if not pluginmanager.has_plugin("twinlaw"):
        pluginmanager.import_plugin("twinlaw.plugin")
