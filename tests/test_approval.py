"""The approval in examples/: one process asks and ends, another goes on, and the approved call runs exactly once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "approval.py"


def start(*arguments):
    command = [sys.executable, "-W", "error", EXAMPLE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


def refunds(directory):
    book = directory / "refunds.txt"
    return book.read_text().splitlines() if book.exists() else []


def test_all_of_it_makes_one_refund():
    out = run()
    assert out.endswith("refunds made: 1 (A-18 200)\n")
    assert out.count("refused by: gate") == 1
    assert out.count("refused by: duplicate_send") == 1
    assert len({line.split("]")[0] for line in out.splitlines()[:-1]}) == 4  # processes


def test_until_somebody_approves_nothing_runs_and_the_conversation_waits_again(tmp_path):
    run("ask", tmp_path)
    assert "refused by: gate" in run("go-on", tmp_path)
    assert refunds(tmp_path) == []
    run("approve", tmp_path)
    assert "ran: refunded" in run("go-on", tmp_path)
    assert refunds(tmp_path) == ["A-18 200"]


def test_what_was_approved_is_that_call_and_no_other(tmp_path):
    run("ask", tmp_path)
    run("approve", tmp_path)
    (tmp_path / "approved.json").write_text(json.dumps(["0" * 64]))
    assert "refused by: gate" in run("go-on", tmp_path)
    assert refunds(tmp_path) == []


def test_no_argument_is_in_what_the_snapshot_saves(tmp_path):
    run("ask", tmp_path)
    saved = json.loads((tmp_path / "paused.json").read_text())
    assert "200" in json.dumps(saved["messages"])
    names = {run["about"]["session"] for run in saved["snapshot"]["runs"]}
    assert names == {"A-18"}  # the session's name was chosen by the program
    for run_ in saved["snapshot"]["runs"]:
        run_["about"]["session"] = ""
    assert "A-18" not in json.dumps(saved["snapshot"])


@pytest.mark.parametrize("_trial", range(5))
def test_of_workers_that_start_together_one_goes_on(tmp_path, _trial):
    run("ask", tmp_path)
    run("approve", tmp_path)
    workers = [start("go-on", tmp_path) for _ in range(4)]
    outs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    assert sum("ran: refunded" in out for out in outs) == 1
    assert sum("nothing to do" in out for out in outs) == 3
    assert refunds(tmp_path) == ["A-18 200"]
