"""The package's page on PyPI: the README with links that work there.

Relative links lead nowhere outside of a repository. With POSTROOM_REPOSITORY in the environment
(https://host/owner/postroom) they lead to this version's files in it; without it their text stays
and the link goes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]\n]*)\]\((?!https?://|#)([^)\s]+)\)")


def for_pypi(text: str, repository: str | None, version: str) -> str:
    """Return the README with absolute links, or without relative ones."""

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        if not repository:
            return words
        return f"[{words}]({repository.rstrip('/')}/blob/v{version}/{target})"

    return (
        _LINK.sub(link, text)
        .replace("```python run\n", "```python\n")
        .replace("```text output\n", "```text\n")
    )


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme` of the package's metadata."""

    def update(self, metadata: dict[str, object]) -> None:
        """Write the text into the metadata."""
        root = Path(self.root)
        version = re.search(r'"(.+)"', (root / "src/postroom/_version.py").read_text())
        text = (root / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("POSTROOM_REPOSITORY")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_pypi(text, repository, version[1] if version else "0"),
        }
