"""Which release of a package is installed here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version(package: str) -> str | None:
    """Its version, None where it is not installed. The package is not imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
