"""Reading in: files of rows, mappings from rows to events, and the importer that appends each event once."""

from .errors import InputFileError, MappingError, MappingFailed, UnreadableValue
from .importer import Importer
from .mapping import Fact, HeldBack, Mapping, Outcome, Unreadable, each, load_mapping, reads
from .report import Conflict, Difference, ImportReport, Problem, Progress
from .row import Row
from .rows import Format, Rows

__all__ = [
    "Conflict",
    "Difference",
    "Fact",
    "Format",
    "HeldBack",
    "ImportReport",
    "Importer",
    "InputFileError",
    "Mapping",
    "MappingError",
    "MappingFailed",
    "Outcome",
    "Problem",
    "Progress",
    "Row",
    "Rows",
    "Unreadable",
    "UnreadableValue",
    "each",
    "load_mapping",
    "reads",
]
