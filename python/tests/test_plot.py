# SPDX-License-Identifier: Apache-2.0
"""The plot: what it reads, that the page needs nothing else, and what happens without files."""

import json
import re
import sys
import xml.dom.minidom
from pathlib import Path

import pytest

from yeto.learner.plot import load_picture, main, render_html, short, smooth, thin, ticks


def make_run(folder: Path, steps: int = 40) -> tuple[Path, list[Path]]:
    metrics = []
    for seat in (0, 1):
        path = folder / "islands" / str(seat) / "metrics.jsonl"
        path.parent.mkdir(parents=True)
        lines = []
        if seat == 0:
            lines.append({"ts": 90, "event": "eval", "when": "before", "loss": 4.0, "targets": 9})
        lines += [
            {
                "ts": 100 + i,
                "step": i + 1,
                "tokens": 50 * (i + 1),
                "tokens_global": 100 * (i + 1),
                "loss": 4.0 - 0.05 * i,
            }
            for i in range(steps)
        ]
        if seat == 0:
            lines.append({"ts": 300, "event": "eval", "when": "after", "loss": 2.5, "targets": 9})
        path.write_text("".join(json.dumps(x) + "\n" for x in lines) + '{"torn')
        metrics.append(path)
    tape = folder / "events" / "syncer.jsonl"
    tape.parent.mkdir()
    events = [
        {"ts": 99, "event": "join", "seat": 0},
        {"ts": 110.5, "event": "lost", "seat": 1, "reason": "<silence> & so on"},
        {"ts": 120, "event": "round", "round": 1},
        {"ts": 121, "event": "round", "round": 2},
        {"ts": 130, "event": "metric", "seat": 0, "data": {"step": 1, "tokens": 5, "loss": 1.0}},
    ]
    tape.write_text("".join(json.dumps(x) + "\n" for x in events))
    return tape, metrics


def test_the_picture_holds_curves_evaluations_and_marks(tmp_path: Path) -> None:
    tape, metrics = make_run(tmp_path)
    picture = load_picture(tape, metrics)
    assert [curve.seat for curve in picture.curves] == [0, 1]
    assert picture.curves[1].points[-1] == (4000.0, pytest.approx(2.05))
    assert picture.curves[0].tokens == 2000 and picture.curves[0].seconds == 39
    assert picture.evals == [(0.0, 4.0, "before"), (4000.0, 2.5, "after")]
    assert [(m.event, m.seat, m.x) for m in picture.marks] == [("join", 0, 0.0), ("lost", 1, 1100)]
    assert picture.commits == 2


def test_the_tape_alone_is_enough(tmp_path: Path) -> None:
    tape, _ = make_run(tmp_path)
    picture = load_picture(tape, [])
    assert [(c.seat, c.points) for c in picture.curves] == [(0, [(5.0, 1.0)])]


def test_tokens_go_on_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(
            json.dumps({"step": s, "tokens": t, "loss": 1.0}) + "\n"
            for s, t in ((1, 10), (2, 20), (1, 10), (2, 20))
        )
    )
    (curve,) = load_picture(None, [path]).curves
    assert [x for x, _ in curve.points] == [10, 20, 30, 40]


def test_the_page_is_self_contained_and_well_formed(tmp_path: Path) -> None:
    tape, metrics = make_run(tmp_path)
    page = render_html(load_picture(tape, metrics))
    assert not re.search(r"(src|href|url\(|@import|<script)", page)
    svg = xml.dom.minidom.parseString(page[page.index("<svg") : page.index("</svg>") + 6])
    titles = [
        t.firstChild.nodeValue or "" for t in svg.getElementsByTagName("title") if t.firstChild
    ]
    assert "held-out loss before training: 4.0000" in titles
    assert any(t.startswith("island 1 is lost (<silence> & so on) at 1,100") for t in titles)
    assert sum("point" in t for t in titles) == 80
    assert "4.000 → 2.500" in page and "-37.5 %" in page and "prefers-color-scheme:dark" in page


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tape, metrics = make_run(tmp_path)
    out = tmp_path / "out"
    code = main(["--tape", str(tape), "--metrics", *map(str, metrics), "--out", str(out)])
    assert code == 0 and (out / "loss.html").stat().st_size > 2000
    shown = capsys.readouterr().out
    if (out / "loss.png").exists():
        assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "matplotlib is not installed" in shown


def test_without_matplotlib_a_sentence_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tape, metrics = make_run(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--tape", str(tape), "--metrics", str(metrics[0]), "--out", str(tmp_path)]) == 0
    assert "matplotlib is not installed" in capsys.readouterr().out
    assert not (tmp_path / "loss.png").exists() and (tmp_path / "loss.html").exists()


@pytest.mark.parametrize("steps", [1, 2])
def test_short_runs_are_drawn(tmp_path: Path, steps: int) -> None:
    tape, metrics = make_run(tmp_path, steps)
    assert main(["--tape", str(tape), "--metrics", str(metrics[1]), "--out", str(tmp_path)]) == 0


def test_a_run_without_any_loss_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--metrics", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)])
    assert code == 66 and "none.jsonl" in capsys.readouterr().err


def test_smoothing_keeps_ends_and_straight_lines() -> None:
    line = [(float(x), 2.0 * x) for x in range(100)]
    assert [y for _, y in smooth(line)] == pytest.approx([y for _, y in line])
    assert smooth(line[:5]) == line[:5]


def test_thinning_keeps_the_last_point() -> None:
    line = [(float(x), 0.0) for x in range(10_001)]
    assert len(thin(line)) <= 1500 + 1 and thin(line)[-1] == line[-1] and thin(line)[0] == line[0]


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 41_000, 8) == [0, 5000, 10000, 15000, 20000, 25000, 30000, 35000, 40000]
    assert ticks(1.9, 2.1, 4) == pytest.approx([1.9, 1.95, 2.0, 2.05, 2.1])
    assert ticks(3, 3, 4) == [3]
    assert [short(x) for x in (0, 950, 1500, 2e6, 3e9)] == ["0", "950", "1.5k", "2M", "3G"]
