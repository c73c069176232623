"""`make bench TABLES=…`: a page's tables come from one run, and its prose stays."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = """# Benchmarks

`python benchmarks/fast.py` — how fast.
More about it.

| what | s |
| --- | ---: |
| old | 1 |

Why it is so.

| other | s |
| --- | ---: |
| old | 2 |

## Large

`python benchmarks/large.py --data FOLDER` — how large.

`python benchmarks/fast.py --threads two` — on two threads.

| threads | s |
| --- | ---: |
| old | 3 |

The end."""
table = importlib.import_module("benchmarks.table")  # a script, of no package
FIRST, SECOND, THIRD = (["| new | s |", "| --- | ---: |", f"| new | {k} |"] for k in (10, 20, 30))


def rewritten(name, *tables):
    return "\n".join(table.replaced(PAGE.splitlines(), name, list(tables)))


def test_tables_take_the_place_of_those_the_page_has_in_their_order():
    made = rewritten("fast.py", FIRST, SECOND)
    expected = PAGE.replace("| what | s |", "| new | s |").replace("| other | s |", "| new | s |")
    assert made == expected.replace("| old | 1 |", "| new | 10 |").replace("| old | 2 |", "| new | 20 |")


def test_a_benchmark_is_named_with_what_it_is_given_but_for_the_folder_of_data():
    assert rewritten("fast.py --threads two", FIRST).count("| new | 10 |") == 1
    assert "how large.\n\n| new | s |\n| --- | ---: |\n| new | 10 |\n\n`python" in rewritten("large.py", FIRST)


def test_more_tables_than_before_follow_the_last_and_fewer_leave_no_old_one():
    assert "| new | 20 |\n\n| new | s |\n| --- | ---: |\n| new | 30 |\n\n## Large" in rewritten(
        "fast.py", FIRST, SECOND, THIRD
    )
    assert "Why it is so.\n\n## Large" in rewritten("fast.py", FIRST)


@pytest.mark.parametrize(("name", "tables"), [("slow.py", [FIRST]), ("fast.py", [])])
def test_what_has_no_place_or_no_table_is_an_error(name, tables):
    with pytest.raises(SystemExit, match="nothing replaced"):
        table.replaced(PAGE.splitlines(), name, tables)


def test_what_a_benchmark_prints_is_shown_and_its_tables_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "fast.py").write_text("import sys\nprint('| a |\\n| --- |\\n| 1 |\\n\\n1 missed')\nsys.exit(1)\n")
    page = tmp_path / "page.md"
    page.write_text("`python benchmarks/fast.py` — so.\n\n| a |\n| --- |\n| 0 |\n")
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["table.py", "--write", str(page), "fast.py"])
    assert table.main() == 1
    assert page.read_text() == "`python benchmarks/fast.py` — so.\n\n| a |\n| --- |\n| 1 |\n"
    assert "1 missed" in capsys.readouterr().out


def test_the_page_has_a_place_for_every_benchmark_that_make_bench_runs():
    (loop,) = re.findall(r"for script in (.*?);", (ROOT / "Makefile").read_text().partition("\nbench:")[2], re.DOTALL)
    scripts = [one.strip('"') for one in re.findall(r'"[^"]+"|\S+\.py', loop)]
    page = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    assert {"starts.py", "oracle.py", "many.py", "large.py"} <= set(scripts)  # first, last, and some between
    for script in scripts:
        assert "| new | 10 |" in table.replaced(page, script, [FIRST])
