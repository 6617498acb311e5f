"""The configuration of the site, and the pages for programs that read it."""

import re

import yaml

from coprefl_flwr.federation.messages import OURS, PER_CLIENT, RETURNED
from tests.common.simulation import ROOT


def test_offline_search_loads_nothing_from_another_site():
    """The plugin `offline` adds a script of another site if no polyfill is named iframe-worker."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in site["plugins"]
    (script,) = site["extra"]["polyfills"]
    assert "iframe-worker" in script
    assert (ROOT / "docs" / "theme" / script).is_file()
    assert not any("://" in str(value) for value in site["extra"].values())


def test_entries_of_a_clients_config_are_on_a_page():
    """An app cannot use these names, and a client of one's own needs to know them."""
    page = (ROOT / "docs" / "how-to" / "method.md").read_text()
    for_nodes = {"clients", "combine", "bounds", RETURNED}  # A client does not see them.
    entries = {*OURS, *PER_CLIENT, "extra"} - for_nodes
    assert {entry for entry in entries if f'config["{entry}"]' not in page} == set()


def test_pages_for_programs_lead_to_pages_and_targets():
    """llms.txt is a file of the site, whose pages end with .html; AGENTS.md names targets."""
    pages, agents = ((ROOT / name).read_text() for name in ("docs/llms.txt", "AGENTS.md"))
    assert max(len(pages.splitlines()), len(agents.splitlines())) <= 40
    links = re.findall(r"\]\(([\w/-]+)\.html\)", pages)
    assert len(links) == pages.count("](") > 10
    assert [link for link in links if not (ROOT / "docs" / f"{link}.md").is_file()] == []
    targets = re.findall(r"`make ([\w-]+)`", agents)
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
