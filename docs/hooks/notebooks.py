"""Pages made of notebooks, as they are committed, outputs included; MkDocs calls this when it builds the site.

python docs/hooks/notebooks.py docs/tutorial.ipynb     runs a notebook, and writes its outputs into it
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

ENDING = re.compile(r"(\]\([\w./-]+)\.ipynb(#[\w-]+)?\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page, and its pictures, for each notebook; the notebook itself stays, to be downloaded."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = PurePosixPath(file.src_uri)
        page, pictures = as_page(json.loads(Path(file.abs_src_path).read_text(encoding="utf-8")), path.stem)
        links = f'<a href="../{path.name}" download>Download this notebook</a>'
        if config.repo_url:
            address = f"{config.repo_url.replace('https://github.com', 'https://colab.research.google.com/github')}/blob/main"
            links += f', or [open it in Colab]({address}/docs/{file.src_uri}){{target="_blank"}}'
        files.append(File.generated(config, str(path.with_suffix(".md")), content=page.replace("\n\n", f"\n\n{links}\n\n", 1)))
        for name, content in pictures.items():
            files.append(File.generated(config, str(path.with_name(name)), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to notebooks lead to their pages."""
    return ENDING.sub(r"\1.md\2)", markdown)


def as_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook of this name as Markdown, and the pictures that it shows, by the names of their files beside it."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                path = f"{name}_{len(pictures) + 1}.png"
                pictures[path] = base64.b64decode(data["image/png"])
                parts.append(f"![what the code above draws]({path})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


def run(path: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder; return it with its outputs, without what differs between runs."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    # tqdm warns where there are no widgets.
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"})
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata.language_info = {"name": "python"}
    return json.loads(nbformat.writes(notebook))


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(name), Path(folder))
        Path(name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
