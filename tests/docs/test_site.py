"""The configuration of the site."""

import yaml

from tests.common.simulation import ROOT


def test_offline_search_loads_nothing_from_another_site():
    """The plugin `offline` adds a script of another site if no polyfill is named iframe-worker."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in site["plugins"]
    (script,) = site["extra"]["polyfills"]
    assert "iframe-worker" in script
    assert (ROOT / "docs" / "theme" / script).is_file()
    assert not any("://" in str(value) for value in site["extra"].values())
