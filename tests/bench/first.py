"""One sample of row 8, in a process of its own: CPU milliseconds to import toolguard after openai, and to open a run."""

import json
import time


def main() -> None:
    """Import, run, and print both times."""
    try:
        import openai  # noqa: F401

        after = "openai"
    except ImportError:
        import pydantic  # noqa: F401

        after = "pydantic, since openai is not installed"
    begin = time.process_time()
    import toolguard

    imported = time.process_time()

    @toolguard.metered(kind="read")
    def search(query: str) -> str:
        return query

    decorated = time.process_time()
    with toolguard.run("assistant"):
        search("invoice")
    done = time.process_time()
    print(json.dumps({"after": after, "import_ms": (imported - begin) * 1e3, "run_ms": (done - decorated) * 1e3}))


if __name__ == "__main__":
    main()
