"""`python -m acu.models.hub list|get ...`: the model hub's client, in a process of its own.

`list REPO [REVISION]` prints {"revision", "files": [{"path", "size", "sha256"}]}: the commit, and every file's size
with the SHA-256 that the hub records for large files (null for small ones). `get REPO COMMIT FOLDER PATH...`
downloads exactly those paths; files that an earlier call finished are kept, one that it only began is begun anew. On
a failure the last line of the output is {"error": "..."}, and the exit status 3. The hub's address and token come
from the environment, as huggingface_hub reads them; it keeps the token from the other hosts that large files lie on.
"""

import glob
import json
import re
import sys
from typing import Any

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)


def listing(repo: str, revision: str | None = None) -> None:
    """Print the commit that `revision` (by default: main) names, and its files."""
    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = [
        {"path": file.rfilename, "size": file.size or 0, "sha256": file.lfs.sha256 if file.lfs else None}
        for file in info.siblings or ()
    ]
    _answer({"revision": info.sha, "files": files})


def get(repo: str, commit: str, folder: str, *paths: str) -> None:
    """Download `paths` of a commit into `folder`. No other file is taken, and nothing is run."""
    snapshot_download(
        repo,
        revision=commit,
        local_dir=folder,
        cache_dir=f"{folder}/.cache",
        allow_patterns=[glob.escape(path) for path in paths],
        max_workers=4,
    )


def explain(repo: str, error: Exception) -> str:
    """What the failure means, and what to do about it."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return explain(repo, error.__cause__)  # the client looked for files here after the hub had failed it
    if isinstance(error, GatedRepoError):
        return f"{repo} wants you to accept its terms on the hub first, and a token in HF_TOKEN."
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {repo}, or not for everybody (a private one needs a token in HF_TOKEN)."
    if isinstance(error, RevisionNotFoundError):
        return f"the hub no longer has this commit of {repo}."
    if isinstance(error, DisabledRepoError):
        return f"the hub has closed {repo} to everybody."
    if isinstance(error, HfHubHTTPError) and (known := _refusal(repo, error)) is not None:
        return known
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return (
        f"the model hub does not answer for {repo} ({reason}). Without a way to the hub, copy the model's folder to "
        "this machine and run `acu models pull NAME --from FOLDER`."
    )


def _refusal(repo: str, error: HfHubHTTPError) -> str | None:
    """What an answer of the hub means that is not about the repository itself, by its status; None for the others."""
    status = error.response.status_code
    if status == 401:
        return (
            "the hub does not accept the token in HF_TOKEN: renew it, or unset it for a model that everybody may read."
        )
    if status == 403:
        return f"the hub does not let this token read {repo}: give it the right to, or use another one in HF_TOKEN."
    if status == 429:
        told = re.search(r"Retry after (\d+) seconds", str(error))
        seconds = told[1] if told else error.response.headers.get("Retry-After", "")
        when = f"in {seconds} seconds" if seconds.isdigit() else "later"
        return (
            f"the hub has had too many requests from here: pull again {when}; what was downloaded is kept. With a token "
            "in HF_TOKEN it allows more."
        )
    return None


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")


def main(command: str, repo: str, *rest: str) -> int:
    """Run one command; 0, or 3 with an error line."""
    try:
        if command == "list":
            listing(repo, *rest)
        else:
            get(repo, *rest)
    except (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError) as error:  # its Rust part raises RuntimeError
        _answer({"error": explain(repo, error)})
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
