"""What must not be shown: passwords in URLs, wherever a URL is printed, logged, reported or put into an error."""

from urllib.parse import urlsplit

#: Stands where a secret would.
SECRET = "***"  # noqa: S105 - the mask, not a secret


def without_password(url: str) -> str:
    """A URL as it may be shown: what stands before the @ of a host may be a password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    who, _, host = parts.netloc.rpartition("@")
    name, colon, _ = who.partition(":")
    return parts._replace(netloc=f"{name}{colon and ':' + SECRET}@{host}").geturl()


def only_host(url: str) -> str:
    """A webhook's URL as it may be shown: its path and its query let whoever knows them post there, too."""
    parts = urlsplit(url)
    rest = f"/{SECRET}" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{rest}"
