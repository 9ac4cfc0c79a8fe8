"""A small stand-in for the Hugging Face Hub on 127.0.0.1, for tests of pushing and pulling without a network.

    with HubServer(tmp_path) as hub:
        done = hub.run("from huggingface_hub import create_repo; print(create_repo('alice/lm'))")
        assert done.returncode == 0, done.stderr
        hub.commit("alice/lm", {"config.json": b"{}"})            # or put files there without a client
        assert hub.read("alice/lm", "config.json") == b"{}"

The real `huggingface_hub` client (0.34 or newer) talks to it unpatched. It reads `HF_ENDPOINT` when it is imported, so
`run` starts a fresh interpreter; `environment` gives the same variables for a command line. What is served is what the
client asks for in `whoami`, `create_repo`, `upload_folder` / `create_commit`, `model_info`, `list_repo_tree`,
`get_paths_info`, `list_repo_refs`, `list_repo_commits`, `create_branch` / `create_tag` (and their deletion),
`hf_hub_download` and `snapshot_download`; anything else is a plain 404. Errors carry the Hub's `X-Error-Code`.

Large and binary files take the Git LFS protocol with the basic transfer
(https://github.com/git-lfs/git-lfs/blob/main/docs/api/basic-transfers.md). Nothing answers in Xet's name, which is
enough for downloads, and for uploads by clients that ask which way to go. Newer ones upload by Xet whenever `hf_xet` is
installed, whatever the Hub answers, so `environment` sets `HF_HUB_DISABLE_XET=1`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

OWNER = "alice"
OWNER_TOKEN = "hf_alice"

# The Hub's own `.gitattributes` of a new repo (but for its few patterns that aren't mere endings).
LFS_ENDINGS = (
    "7z|arrow|bin|bz2|ckpt|ftz|gz|h5|joblib|mlmodel|model|msgpack|npy|npz|onnx|ot|parquet|pb|pickle|pkl|pt|pth|rar"
    "|safetensors|tar|tflite|tgz|wasm|xz|zip|zst"
)
GITATTRIBUTES = "".join(f"*.{end} filter=lfs diff=lfs merge=lfs -text\n" for end in LFS_ENDINGS.split("|")).encode()
# Above this size any file must be LFS.
REGULAR_FILE_LIMIT = 10 * 1024 * 1024

# Set by whoever runs the tests, these would lead the client elsewhere.
_FOREIGN_VARIABLES = re.compile(r"(HF_|HUGGING_?FACE|TRANSFORMERS_OFFLINE$|TRANSFORMERS_CACHE$|\w+_PROXY$)", re.IGNORECASE)


class Account(NamedTuple):
    user: str
    role: str


class Request(NamedTuple):
    """One answered request; `path` is without the query."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class StoredFile:
    """One version of a file. `oid` is the SHA-1 of the git blob: the content's, or for LFS its pointer's."""

    oid: str
    sha256: str
    size: int
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Commit:
    oid: str
    author: str
    title: str
    message: str
    date: str
    parent: str | None
    tree: Mapping[str, StoredFile]


@dataclass
class Repo:
    id: str
    kind: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def at(self, revision: str) -> Commit:
        """The commit that a branch, a tag or a commit hash names.

        Raises:
            HubError: `RevisionNotFound`.
        """
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        if oid not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]


class HubError(Exception):
    def __init__(self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


class HubServer:
    """The stand-in, serving from entry to exit of the `with` block.

    `OWNER` (`alice`) exists from the start and writes with `OWNER_TOKEN`; `add_account` makes others. A user writes to
    repos of that name only, and a private repo is seen by its owner only.

    Args:
        root: an empty folder for the contents of files and for the clients' homes.

    Attributes:
        requests: what was asked for so far, oldest first.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.objects = self.root / "objects"
        self.objects.mkdir(parents=True)
        self.accounts = {OWNER_TOKEN: Account(OWNER, "write")}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        # Stands for the signature of an upload URL: the client sends no token there.
        self.upload_key = secrets.token_hex(8)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse connections from now on; what clients have cached remains."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    # ---- running a client

    def environment(
        self, *, token: str | None = OWNER_TOKEN, offline: bool = False, home: str = "home", **variables: str
    ) -> dict[str, str]:
        """Environment variables under which a process takes this server for the Hub.

        Args:
            token: sent by the client; `None` is an anonymous client.
            offline: sets `HF_HUB_OFFLINE=1`.
            home: names the client's `HF_HOME`, so another name is another machine, with an empty cache.
            variables: further ones, which win over those set here.
        """
        environment = {name: value for name, value in os.environ.items() if not _FOREIGN_VARIABLES.match(name)}
        environment |= {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.root / "clients" / home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }
        if token is not None:
            environment["HF_TOKEN"] = token
        if offline:
            environment["HF_HUB_OFFLINE"] = "1"
        return environment | variables

    def run(
        self,
        code: str,
        *,
        token: str | None = OWNER_TOKEN,
        offline: bool = False,
        home: str = "home",
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python `code` (dedented) in a new interpreter as this server's client; see `environment`."""
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=self.environment(token=token, offline=offline, home=home, **variables),
            capture_output=True,
            text=True,
            timeout=120,
        )

    # ---- the Hub's state

    def add_account(self, user: str, role: str = "write") -> str:
        """A token for `user`, whose role is "write" or "read"."""
        token = f"hf_{user}_{role}"
        self.accounts[token] = Account(user, role)
        return token

    def create_repo(self, repo_id: str, *, private: bool = False, kind: str = "models") -> Repo:
        """A repo whose first commit holds the usual `.gitattributes`."""
        with self.lock:
            if (kind, repo_id) in self.repos:
                raise HubError(409, f"You already created this {kind.removesuffix('s')} repo")
            repo = self.repos[kind, repo_id] = Repo(repo_id, kind, private)
            attributes = self.store(GITATTRIBUTES, lfs=False)
            self.record(repo, "main", {".gitattributes": attributes}, "initial commit")
            return repo

    def commit(self, repo_id: str, files: Mapping[str, bytes], *, branch: str = "main", kind: str = "models") -> str:
        """Add or replace `files` on a branch, creating the repo if it is missing; the commit's hash."""
        with self.lock:
            repo = self.repos.get((kind, repo_id)) or self.create_repo(repo_id, kind=kind)
            stored = {
                path: self.store(content, lfs=is_lfs(path, len(content), content[:512])) for path, content in files.items()
            }
            tree = {**repo.commits[repo.branches[branch]].tree, **stored}
            return self.record(repo, branch, tree, "commit").oid

    def read(self, repo_id: str, path: str, *, revision: str = "main", kind: str = "models") -> bytes:
        """The content of a file at a branch, a tag or a commit hash."""
        stored = self.repos[kind, repo_id].at(revision).tree[path]
        return (self.objects / stored.sha256).read_bytes()

    def files(self, repo_id: str, *, revision: str = "main", kind: str = "models") -> dict[str, StoredFile]:
        """The files of a repo at a branch, a tag or a commit hash."""
        return dict(self.repos[kind, repo_id].at(revision).tree)

    def store(self, content: bytes, *, lfs: bool) -> StoredFile:
        sha256 = hashlib.sha256(content).hexdigest()
        (self.objects / sha256).write_bytes(content)
        return self.stored_lfs(sha256) if lfs else StoredFile(_git_blob(content), sha256, len(content), lfs=False)

    def stored_lfs(self, sha256: str) -> StoredFile:
        """The file whose content was uploaded beforehand under its SHA-256."""
        path = self.objects / sha256
        if not path.is_file():
            raise HubError(400, f"LFS pointer points to a file that does not exist: {sha256}")
        size = path.stat().st_size
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return StoredFile(_git_blob(pointer.encode()), sha256, size, lfs=True)

    def record(
        self,
        repo: Repo,
        branch: str,
        tree: Mapping[str, StoredFile],
        title: str,
        message: str = "",
        author: str = OWNER,
    ) -> Commit:
        """Put a commit with `tree` on top of a branch (the first one starts it)."""
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        parent = repo.branches.get(branch)
        # The count keeps apart two commits of one tree within one tick of the clock.
        content = repr((parent, sorted(tree.items()), title, message, author, date, len(repo.commits)))
        commit = Commit(_sha1(content.encode()), author, title, message, date, parent, dict(tree))
        repo.commits[commit.oid] = commit
        repo.branches[branch] = commit.oid
        return commit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet per answer: small ones would otherwise wait for each other (Nagle's algorithm, delayed ACK).
    wbufsize = -1
    disable_nagle_algorithm = True

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # type: ignore[attr-defined]

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        try:
            if self.command == "PUT" and parts[0] == "upload":
                return self.receive_lfs(*parts[1:])
            self.body = b"".join(self.chunks())
            # A missing or unknown token is told before what it asks for.
            header = self.headers.get("Authorization")
            if header is not None and header.removeprefix("Bearer ") not in self.hub.accounts:
                raise HubError(401, "Invalid credentials in Authorization header")
            self.account = self.hub.accounts[header.removeprefix("Bearer ")] if header is not None else None
            # Reading takes no lock, so that files can be downloaded side by side.
            with nullcontext() if self.command in ("GET", "HEAD") else self.hub.lock:
                self.route(parts)
        except HubError as error:
            self.send(error.status, {"error": str(error)}, error.headers)
        except ConnectionError:
            self.close_connection = True  # the client has gone

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def route(self, parts: list[str]) -> None:
        kind = "models"
        if parts[0] in ("datasets", "spaces"):
            kind = parts.pop(0)
        method = "GET" if self.command == "HEAD" else self.command
        match [method, *parts]:
            case ["GET", "api", "whoami-v2"]:
                self.whoami()
            case ["GET", "api", "agent-harnesses"]:
                self.send(200, {"standardEnvVars": [], "harnesses": {}})
            case ["POST", "api", "validate-yaml"]:
                self.send(200, {"errors": [], "warnings": []})
            case ["POST", "api", "repos", "create"]:
                self.create_repo()
            case ["GET", "api", kinds, owner, name]:
                self.repo_info(self.repo(kinds, owner, name), "main")
            case ["GET", "api", kinds, owner, name, "revision", revision]:
                self.repo_info(self.repo(kinds, owner, name), revision)
            case ["GET", "api", kinds, owner, name, "tree", revision, *path]:
                self.tree(self.repo(kinds, owner, name).at(revision), "/".join(path))
            case ["POST", "api", kinds, owner, name, "paths-info", revision]:
                self.paths_info(self.repo(kinds, owner, name).at(revision))
            case ["GET", "api", kinds, owner, name, "refs"]:
                self.refs(self.repo(kinds, owner, name))
            case ["GET", "api", kinds, owner, name, "commits", revision]:
                self.commits(self.repo(kinds, owner, name), revision)
            case ["POST", "api", kinds, owner, name, "branch", branch]:
                self.create_branch(self.writable_repo(kinds, owner, name), branch)
            case ["DELETE", "api", kinds, owner, name, "branch", branch]:
                self.delete_reference(self.writable_repo(kinds, owner, name).branches, branch)
            case ["POST", "api", kinds, owner, name, "tag", revision]:
                self.create_tag(self.writable_repo(kinds, owner, name), revision)
            case ["DELETE", "api", kinds, owner, name, "tag", tag]:
                self.delete_reference(self.writable_repo(kinds, owner, name).tags, tag)
            case ["POST", "api", kinds, owner, name, "preupload", revision]:
                self.preupload(self.writable_repo(kinds, owner, name).at(revision))
            case ["POST", owner, name, "info", "lfs", "objects", "batch"]:
                repo = self.writable_repo(kind, owner, name.removesuffix(".git"))
                self.lfs_batch(repo, url=f"{self.hub.url}{urlsplit(self.path).path.removesuffix('/batch')}")
            case ["POST", owner, name, "info", "lfs", "objects", "verify"]:
                self.lfs_verify(self.writable_repo(kind, owner, name.removesuffix(".git")))
            case ["POST", "api", kinds, owner, name, "commit", revision]:
                self.commit(self.writable_repo(kinds, owner, name), revision)
            case ["GET", owner, name, "resolve", revision, *path]:
                self.resolve(self.repo(kind, owner, name).at(revision), "/".join(path))
            case _:
                raise HubError(404, f"{self.command} {self.path} is not served by this stand-in for the Hub")

    # ---- who may do what

    def repo(self, kind: str, owner: str, name: str) -> Repo:
        repo = self.hub.repos.get((kind, f"{owner}/{name}"))
        # Like the Hub, don't tell a private repo from a missing one.
        if repo is None or (repo.private and (self.account is None or self.account.user != owner)):
            raise HubError(401 if self.account is None else 404, "Repository not found", "RepoNotFound")
        return repo

    def writable_repo(self, kind: str, owner: str, name: str) -> Repo:
        repo = self.repo(kind, owner, name)
        self.authorize_writing(owner)
        return repo

    def authorize_writing(self, owner: str) -> Account:
        if self.account is None:
            raise HubError(401, "Invalid username or password.")
        if self.account != (owner, "write"):
            raise HubError(403, f"You don't have the rights to write to {owner}'s repos with this token")
        return self.account

    def whoami(self) -> None:
        if self.account is None:
            raise HubError(401, "Invalid username or password.")
        user, role = self.account
        access = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
        self.send(200, {"type": "user", "id": user, "name": user, "fullname": user, "orgs": [], "auth": access})

    # ---- repos and their revisions

    def create_repo(self) -> None:
        asked = json.loads(self.body)
        owner = asked.get("organization") or (self.account.user if self.account else "")
        self.authorize_writing(owner)
        kind = f"{asked.get('type') or 'model'}s"
        repo_id = f"{owner}/{asked['name']}"
        # `private` came first, `visibility` replaced it.
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        answer = {"url": f"{self.hub.url}/{'' if kind == 'models' else kind + '/'}{repo_id}", "name": repo_id}
        try:
            self.hub.create_repo(repo_id, private=private, kind=kind)
        except HubError as error:
            # The client reads the address out of the refusal when it has `exist_ok=True`.
            self.send(error.status, {"error": str(error), **answer}, error.headers)
        else:
            self.send(200, answer)

    def repo_info(self, repo: Repo, revision: str) -> None:
        commit = repo.at(revision)
        siblings: list[dict[str, Any]] = []
        for path, file in sorted(commit.tree.items()):
            sibling: dict[str, Any] = {"rfilename": path}
            if "blobs" in self.query:
                sibling |= {"size": file.size, "blobId": file.oid}
                if file.lfs:
                    sibling["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
            siblings.append(sibling)
        first = next(iter(repo.commits.values()))
        info = {"_id": repo.id, "id": repo.id, "author": repo.id.split("/")[0], "private": repo.private}
        info |= {"sha": commit.oid, "createdAt": first.date, "lastModified": commit.date, "siblings": siblings}
        info |= {"gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [], "xetEnabled": False}
        self.send(200, info)

    def tree(self, commit: Commit, folder: str) -> None:
        prefix = f"{folder}/" if folder else ""
        if folder and not any(path.startswith(prefix) for path in commit.tree):
            raise _entry_not_found(commit, folder)
        recursive = self.query.get("recursive", "").lower() in ("1", "true")
        self.send(
            200,
            [
                entry
                for entry in _tree_entries(commit)
                if entry["path"].startswith(prefix) and (recursive or "/" not in entry["path"][len(prefix) :])
            ],
        )

    def paths_info(self, commit: Commit) -> None:
        asked = set(parse_qs(self.body.decode()).get("paths", []))
        self.send(200, [entry for entry in _tree_entries(commit) if entry["path"] in asked])

    def refs(self, repo: Repo) -> None:
        def listing(kind: str, references: Mapping[str, str]) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in dict(references).items()]

        branches, tags = listing("heads", repo.branches), listing("tags", repo.tags)
        self.send(200, {"branches": branches, "tags": tags, "converts": [], "pullRequests": []})

    def commits(self, repo: Repo, revision: str) -> None:
        history = [repo.at(revision)]
        while history[-1].parent is not None:
            history.append(repo.commits[history[-1].parent])
        self.send(
            200,
            [
                {"id": c.oid, "title": c.title, "message": c.message, "authors": [{"user": c.author}], "date": c.date}
                for c in history
            ],
        )

    def create_branch(self, repo: Repo, branch: str) -> None:
        if branch in repo.branches:
            raise HubError(409, f"Reference already exists: refs/heads/{branch}")
        repo.branches[branch] = repo.at(json.loads(self.body or "{}").get("startingPoint", "main")).oid
        self.send(200, {})

    def create_tag(self, repo: Repo, revision: str) -> None:
        tag = json.loads(self.body)["tag"]
        if tag in repo.tags:
            raise HubError(409, f"Tag {tag} already exists")
        repo.tags[tag] = repo.at(revision).oid
        self.send(200, {})

    def delete_reference(self, references: dict[str, str], name: str) -> None:
        if references.pop(name, None) is None:
            raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
        self.send(200, {})

    # ---- uploading: preupload, then the LFS objects, then the commit that names them

    def preupload(self, commit: Commit) -> None:
        answers = []
        for file in json.loads(self.body)["files"]:
            lfs = is_lfs(file["path"], file["size"], base64.b64decode(file["sample"]))
            answer = {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            if file["path"] in commit.tree:
                # The client leaves out a file whose content is already there.
                answer["oid"] = commit.tree[file["path"]].etag
            answers.append(answer)
        self.send(200, {"files": answers})

    def lfs_batch(self, repo: Repo, url: str) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if not (self.hub.objects / wanted["oid"]).is_file():
                upload = f"{self.hub.url}/upload/{self.hub.upload_key}/{wanted['oid']}"
                answer["actions"] = {"upload": {"href": upload}, "verify": {"href": f"{url}/verify"}}
            objects.append(answer)
        self.send(200, {"transfer": "basic", "objects": objects})

    def receive_lfs(self, key: str, sha256: str) -> None:
        digest = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=self.hub.root, delete=False) as received:
            for chunk in self.chunks():
                digest.update(chunk)
                received.write(chunk)
        if key != self.hub.upload_key or digest.hexdigest() != sha256:
            os.unlink(received.name)
            raise HubError(403, f"The content's SHA-256 is {digest.hexdigest()}, the URL is for {sha256}")
        os.replace(received.name, self.hub.objects / sha256)
        self.send(200, {})

    def lfs_verify(self, repo: Repo) -> None:
        claimed = json.loads(self.body)
        if self.hub.stored_lfs(claimed["oid"]).size != claimed["size"]:
            raise HubError(422, f"LFS object {claimed['oid']} is not of size {claimed['size']}")
        self.send(200, {})

    def commit(self, repo: Repo, branch: str) -> None:
        if branch not in repo.branches:
            raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        parent = repo.at(branch)
        tree = dict(parent.tree)
        header: dict[str, str] = {}
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "header":
                    header = value
                case "file":
                    tree[value["path"]] = self.hub.store(base64.b64decode(value["content"]), lfs=False)
                case "lfsFile":
                    tree[value["path"]] = self.hub.stored_lfs(value["oid"])
                case "deletedFile":
                    if tree.pop(value["path"], None) is None:
                        raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
                case "deletedFolder":
                    folder = f"{value['path'].rstrip('/')}/"
                    tree = {path: file for path, file in tree.items() if not path.startswith(folder)}
                case key:
                    raise HubError(400, f"Unknown operation: {key}")
        if header.get("parentCommit", parent.oid) != parent.oid:
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        author = repo.id.split("/")[0]
        commit = self.hub.record(repo, branch, tree, header["summary"], header.get("description", ""), author)
        commit_url = f"{self.hub.url}/{repo.id}/commit/{commit.oid}"
        self.send(200, {"success": True, "commitOid": commit.oid, "commitUrl": commit_url, "hookOutput": ""})

    # ---- downloading

    def resolve(self, commit: Commit, path: str) -> None:
        file = commit.tree.get(path)
        if file is None:
            raise _entry_not_found(commit, path)
        headers = {
            "X-Repo-Commit": commit.oid,
            "ETag": f'"{file.etag}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if file.lfs:
            headers |= {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.etag}"'}
        begin, end, status = 0, file.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.command == "GET":
            begin = int(asked[1])
            end = min(int(asked[2]) + 1, file.size) if asked[2] else file.size
            if begin >= end:
                headers = {"Content-Range": f"bytes */{file.size}"}
                raise HubError(416, "Range Not Satisfiable", headers=headers)
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{file.size}"
        self.start(status, headers, length=end - begin)
        if self.command == "GET":
            with open(self.hub.objects / file.sha256, "rb") as content:
                content.seek(begin)
                if status == 206:
                    self.wfile.write(content.read(end - begin))
                else:
                    shutil.copyfileobj(content, self.wfile)

    # ---- HTTP

    def chunks(self) -> Iterator[bytes]:
        """The request's body, by its length or as chunks (a client that streams a file may not know its length)."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while length := int(self.rfile.readline(), 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left and (chunk := self.rfile.read(min(left, 1 << 20))):
            left -= len(chunk)
            yield chunk

    def send(self, status: int, answer: Any, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self.start(status, {"Content-Type": "application/json", **(headers or {})}, length=len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def start(self, status: int, headers: Mapping[str, str], length: int) -> None:
        self.hub.requests.append(Request(self.command, unquote(urlsplit(self.path).path), status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """`HubServer.requests` keeps the log."""


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    """Whether the Hub takes a file as LFS: by its name, its size, or a first part (`sample`) that isn't text."""
    return bool(re.search(rf"\.({LFS_ENDINGS})$", path)) or size > REGULAR_FILE_LIMIT or b"\0" in sample


def _tree_entries(commit: Commit) -> list[dict[str, Any]]:
    """The files and folders of a commit as the `tree` and `paths-info` endpoints describe them."""
    entries: dict[str, dict[str, Any]] = {}
    for path, file in commit.tree.items():
        for end in (i for i, letter in enumerate(path) if letter == "/"):
            folder = path[:end]
            entries[folder] = {"type": "directory", "path": folder, "oid": _sha1(folder.encode()), "size": 0}
        entries[path] = {"type": "file", "path": path, "oid": file.oid, "size": file.size}
        if file.lfs:
            entries[path]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
    return [entries[path] for path in sorted(entries)]


def _entry_not_found(commit: Commit, path: str) -> HubError:
    # With the commit, the client also remembers that the file is missing there.
    return HubError(404, f"Entry not found: {path}", "EntryNotFound", {"X-Repo-Commit": commit.oid})


def _git_blob(content: bytes) -> str:
    return _sha1(b"blob %d\0" % len(content) + content)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
