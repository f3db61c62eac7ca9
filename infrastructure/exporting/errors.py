"""Errors of exports."""

from __future__ import annotations

from ...domain.errors import OnefoldError


class ExportFileError(OnefoldError):
    """The file of an export cannot be written, read or gone on with."""


class NotExportable(OnefoldError):
    """An event cannot be written in the format of the export."""


class ExportStalled(OnefoldError):
    """An append stays open in front of what is to be exported; what was written can be gone on with."""


class BadExport(OnefoldError):
    """A file is not the export that its manifest tells of, or no export at all; nothing was imported."""


class LogNotEmpty(OnefoldError):
    """An export is to be imported where there is something already; nothing was imported."""
