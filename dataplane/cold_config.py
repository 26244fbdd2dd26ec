"""ColdConfig: where the archive lies, and how its bucket is spoken to. Frozen; every field with its description. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Encryption = Literal["none", "AES256", "aws:kms"]
Text = Annotated[str, Meta(min_length=1)]
Url = Annotated[str, Meta(pattern="^https?://[^/@]+(/.*)?$")]


class ColdConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cold layer: an S3-compatible bucket, or a local folder. Raises ValueError for what contradicts itself."""

    bucket: Annotated[
        Text | None,
        Meta(description="Name of the S3 bucket, which must exist. null: a local folder instead."),
    ] = None
    endpoint: Annotated[
        Url | None,
        Meta(description="URL of the S3 service. null: Amazon's own, in `region`."),
    ] = None
    region: Annotated[str, Meta(description="The bucket's region.", min_length=1)] = "us-east-1"
    prefix: Annotated[
        str,
        Meta(
            description="What the names of all objects begin with, in the bucket and in the folder. One box has one prefix.",
            pattern="^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$",
        ),
    ] = "acu"
    folder: Annotated[
        str,
        Meta(
            description="Local folder for the archive while no bucket is given; best on another disk. auto: beside the "
            "data plane's folder, with its name and `-cold`.",
            min_length=1,
        ),
    ] = "auto"
    access_key_id: Annotated[
        str | None,
        Meta(description="Access key. null: credentials_file, else the machine's role where the cloud gives it one."),
    ] = None
    secret_access_key: Annotated[str | None, Meta(description="Secret of access_key_id. It is never logged.")] = None
    credentials_file: Annotated[
        str | None,
        Meta(
            description="File in the form of ~/.aws/credentials, closed to others (mode 600 or 640); its profile "
            "`default` is read when the archive opens. null: none."
        ),
    ] = None
    allow_http: Annotated[
        bool, Meta(description="Whether an endpoint may be http, which anybody on the way can read.")
    ] = False
    server_side_encryption: Annotated[
        Encryption,
        Meta(description="How the service encrypts what it stores: none (its own default), AES256, aws:kms."),
    ] = "none"
    kms_key_id: Annotated[Text | None, Meta(description="Key for aws:kms. null: the account's default key.")] = None
    request_timeout_s: Annotated[
        float,
        Meta(
            description="Seconds for one request, retries included; a segment of 64 MiB must pass in it.", gt=0, le=3600
        ),
    ] = 60.0
    retries: Annotated[int, Meta(description="How often a request that failed is sent again.", ge=0, le=10)] = 3

    def __post_init__(self) -> None:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key come together: give both, or none")
        if self.access_key_id is not None and self.credentials_file is not None:
            raise ValueError("give either access_key_id or credentials_file, not both")
        if self.endpoint is not None and self.endpoint.startswith("http://") and not self.allow_http:
            raise ValueError("the endpoint is http: use https, or set allow_http to true on a network you trust")
        if self.kms_key_id is not None and self.server_side_encryption != "aws:kms":
            raise ValueError('kms_key_id needs server_side_encryption "aws:kms"')
        if any(part in {".", ".."} for part in self.prefix.split("/")):
            raise ValueError("no part of prefix may be . or ..")

    def __repr__(self) -> str:
        """Without the secret, for it may end in a log."""
        return f"ColdConfig(bucket={self.bucket!r}, endpoint={self.endpoint!r}, prefix={self.prefix!r}, ...)"
