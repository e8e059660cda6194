"""What the site has beyond docs/: pages from elsewhere in the repository, and links that lead out of docs/. A hook of mkdocs."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "charts/vllm-operator/README.md": "chart.md",
}
REASON = re.compile(r"^\| (?P<about>[A-Z][^|`]*) \| `(?P<name>\w+)` \| (?P<meaning>.*) \|$", re.MULTILINE)
CRASH = re.compile(r"^\| `(?P<name>\w+)` \| (?:fatal|degraded|benign) \| (?P<cause>.*?) \| (?P<remedy>.*?) \| .* \|$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere in the repository."""
    for source, page in ROOT_PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=with_links(text, posixpath.dirname(source), "", config["repo_url"])))
    for name, text in reason_pages().items():
        files.append(File.generated(config, f"r/{name}.md", content=f"# {name}\n\n{text}\n"))
    return files


def reason_pages() -> dict[str, str]:
    """Return the text of a short page about each reason of a condition and each known crash. Messages of conditions link to them."""
    reasons = REASON.finditer((ROOT / "docs/conditions.md").read_text("utf-8"))
    crashes = CRASH.finditer((ROOT / "docs/signatures.md").read_text("utf-8"))
    after = "What to do by symptom: [troubleshooting](../troubleshooting.md)."
    return {
        **{it["name"]: f"{it['about']}. {it['meaning']}\n\nSee [all conditions](../conditions.md). {after}" for it in reasons},
        **{it["name"]: f"{it['cause']}\n\n{it['remedy']}\n\nSee [known crashes](../signatures.md). {after}" for it in crashes},
    }


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links out of docs/ lead to the repository, and give wide pages all the room."""
    if page.file.src_uri in ("index.md", "signatures.md"):
        page.meta["hide"] = ["toc"]  # their tables need the room
    if page.file.src_uri in ROOT_PAGES.values():
        return markdown
    return with_links(markdown, "docs", posixpath.dirname(page.file.src_uri), config["repo_url"])


def with_links(text: str, root: str, folder: str, repository: str) -> str:
    """Rewrite links of a page that lies in `root/folder` of the repository to what the site has, or else to the repository.

    A link that leads nowhere stays as it is: mkdocs says so.
    """

    def link(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        path = posixpath.normpath(posixpath.join(root, folder, target))
        here = posixpath.join("docs", folder)
        known = ROOT_PAGES.get(path) or ROOT_PAGES.get(f"{path}/README.md")
        if known is not None:
            return f"{before}{posixpath.relpath(f'docs/{known}', here)}{after}"
        if path.startswith("docs/"):
            return f"{before}{posixpath.relpath(path, here)}{after}"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{before}{repository}/{kind}/main/{path}{after}" if (ROOT / path).exists() else found[0]

    return LINK.sub(link, text)
