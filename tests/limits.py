"""Limits that tests of one wall switch off, so that the others do not answer first."""

QUIET = {
    "repeat_failure": 0,
    "same_complaint": 0,
    "same_outcome": 0,
    "stale_streak": 0,
    "duplicate_send": 0,
}
"""The walls against failures and repetition."""
