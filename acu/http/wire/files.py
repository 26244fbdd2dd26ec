"""Bodies of /v1/files."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from acu.http.errors import BadRequest
from acu.http.wire.decode import clean_text, refusal
from agentflow.library.values import FileObject

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
FileBytes = Annotated[str, Meta(extra_json_schema={"format": "binary"}, description="The file, with a filename.")]
Seconds = Annotated[int, Meta(ge=3600, le=2_592_000)]

_RENAMED = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}


class FileForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_RENAMED):
    """The form of POST /v1/files. `anchor` and `seconds` belong together."""

    file: FileBytes
    purpose: Purpose
    anchor: Literal["created_at"] | None = None
    seconds: Seconds | None = None


class File(Struct, frozen=True, kw_only=True):
    """An uploaded file. `status` is there for older clients: a file that can be named has been uploaded."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Struct, frozen=True, kw_only=True):
    """A file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


_FIELDS = {field.encode_name: field.type for field in msgspec.structs.fields(FileForm) if field.name != "file"}


def check_field(name: str, text: str) -> None:
    """Raise BadRequest for a text field of the form that is unknown, or has no such value."""
    clean_text(text, name[:64])
    kind = _FIELDS.get(name)
    if kind is None:
        raise refusal(f"Object contains unknown field `{name}` - at `$`", ("file", *_FIELDS))
    try:
        msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        hint = f" The purposes are: {', '.join(get_args(Purpose))}." if name == "purpose" else ""
        refused = refusal(f"{error} - at `$.{name}`", _FIELDS)
        raise BadRequest(f"{refused}{hint}", param=name, code=refused.code or "invalid_value") from None


def file_form(fields: dict[str, str], filename: str) -> FileForm:
    """The whole form. Raises BadRequest for what is missing."""
    try:
        form = msgspec.convert({**fields, "file": filename}, FileForm, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(str(error), _FIELDS) from None
    if (form.anchor is None) != (form.seconds is None):
        missing = _RENAMED["anchor" if form.anchor is None else "seconds"]
        raise BadRequest(f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter")
    return form


def file_body(file: FileObject) -> File:
    """OpenAI's shape of a file."""
    return File(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created_at,
        expires_at=file.expires_at,
        filename=file.filename,
        purpose=file.purpose,
    )
