# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a run: a self-contained HTML page with inline SVG, and a PNG with matplotlib.

    python -m yeto.learner.plot --tape events/syncer.jsonl \\
        --metrics islands/0/metrics.jsonl islands/1/metrics.jsonl --out artifacts
"""

import argparse
import html
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yeto.learner.metrics import clock_text, read_metrics

Point = tuple[float, float]

# Hues that stay apart for readers who do not tell red from green, on light and dark paper.
PALETTE = ("#2f6fde", "#e0762c", "#1c9a7c", "#b0469c", "#c29a12", "#5a68c8", "#c8443c", "#3f9fc4")
_WIDTH, _HEIGHT = 960, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 24, 26, 52
_DRAWN_POINTS_MAX = 1500
_MARKS_TEXT = "▲ joins   ▼ leaves   ✕ is lost   ■ run finishes"
_SMOOTH_SHARE = 0.06
_SMOOTH_MIN_POINTS = 24


@dataclass
class Curve:
    """The steps of one island over the tokens of the run."""

    seat: int
    points: list[Point] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Mark:
    """Something that happened: join, leave, lost, finish; `x` in tokens of the run."""

    x: float
    event: str
    seat: int | None
    text: str


@dataclass
class Picture:
    """Everything that is drawn."""

    curves: list[Curve]
    evals: list[tuple[float, float, str]]  # tokens, loss, before or after
    marks: list[Mark]
    commits: int

    @property
    def x_max(self) -> float:
        xs = [p[0] for c in self.curves for p in c.points] + [e[0] for e in self.evals]
        return max(xs, default=1.0) or 1.0

    @property
    def y_range(self) -> tuple[float, float]:
        ys = [p[1] for c in self.curves for p in c.points] + [e[1] for e in self.evals]
        if not ys:
            return 0.0, 1.0
        low, high = min(ys), max(ys)
        room = max(0.08 * (high - low), 0.02 * max(abs(high), 0.1))
        return max(0.0, low - room) if low >= 0 else low - room, high + room


def load_picture(tape: Path | None, metrics: Sequence[Path]) -> Picture:
    """Reads the files of a run; files that are missing or torn give what they hold."""
    objects: dict[int, list[dict[str, Any]]] = {}
    for order, path in enumerate(metrics):
        name = path.parent.name
        seat = int(name) if name.isdigit() else order
        objects.setdefault(seat, []).extend(read_metrics(path))
    events = read_metrics(tape) if tape is not None else []
    if not objects:  # the tape carries the same objects
        for event in events:
            if event.get("event") == "metric" and isinstance(event.get("data"), dict):
                objects.setdefault(int(event.get("seat", 0)), []).append(event["data"])
    curves = [_curve(seat, rows) for seat, rows in sorted(objects.items())]
    end = max((p[0] for c in curves for p in c.points), default=0.0)
    evals = [
        (0.0 if row["when"] == "before" else end, float(row["loss"]), str(row["when"]))
        for rows in objects.values()
        for row in rows
        if row.get("event") == "eval" and "loss" in row and "when" in row
    ]
    commits = sum(event.get("event") == "round" for event in events)
    return Picture([c for c in curves if c.points], evals, _marks(events, curves, objects), commits)


def _curve(seat: int, rows: list[dict[str, Any]]) -> Curve:
    curve = Curve(seat)
    stamps = []
    last = 0
    for row in rows:
        if "event" in row or not isinstance(row.get("loss"), int | float):
            continue
        tokens = int(row.get("tokens", 0))
        curve.tokens += tokens - last if tokens >= last else tokens  # a restart counts from zero
        last = tokens
        # A run's tokens are known to all islands; alone an island's own are the run's.
        x = float(row.get("tokens_global") or curve.tokens)
        curve.points.append((x, float(row["loss"])))
        if "ts" in row:
            stamps.append(float(row["ts"]))
    if len(stamps) > 1:
        curve.seconds = stamps[-1] - stamps[0]
    return curve


def _marks(
    events: list[dict[str, Any]], curves: list[Curve], objects: dict[int, list[dict[str, Any]]]
) -> list[Mark]:
    """Places events of the tape by time on the token axis."""
    clock = sorted(
        (float(row["ts"]), float(row.get("tokens_global") or row.get("tokens", 0)))
        for rows in objects.values()
        for row in rows
        if "event" not in row and "ts" in row
    )
    marks = []
    for event in events:
        kind = event.get("event")
        if kind not in ("join", "leave", "lost", "finish") or "ts" not in event:
            continue
        before = [tokens for ts, tokens in clock if ts <= float(event["ts"])]
        seat = event.get("seat")
        who = f"island {seat} " if isinstance(seat, int) else ""
        names = {"join": "joins", "leave": "leaves", "lost": "is lost", "finish": "run finishes"}
        text = f"{who}{names[kind]}"
        reason = event.get("reason")
        if isinstance(reason, str) and reason:
            text += f" ({reason})"
        marks.append(Mark(before[-1] if before else 0.0, kind, seat, text))
    return marks


def smooth(points: list[Point]) -> list[Point]:
    """A centred mean over a share of the points; short curves stay as they are."""
    if len(points) < _SMOOTH_MIN_POINTS:
        return points
    half = max(1, round(len(points) * _SMOOTH_SHARE / 2))
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    out = []
    for index, (x, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)  # the window stays centred at the ends
        low, high = index - reach, index + reach + 1
        out.append((x, (sums[high] - sums[low]) / (high - low)))
    return out


def thin(points: list[Point]) -> list[Point]:
    """At most _DRAWN_POINTS_MAX points, the last one always among them."""
    if len(points) <= _DRAWN_POINTS_MAX:
        return points
    stride = -(-len(points) // _DRAWN_POINTS_MAX)
    return points[:-1:stride] + points[-1:]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers inside [low, high], about `count` of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / count))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda width: abs(span / width - count))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """1500 → 1.5k; few letters for an axis."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:g}"


# -- HTML ------------------------------------------------------------------------------------------

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2330;--soft:#667085;--line:#e4e7ec;
--card:#f8f9fb}
@media (prefers-color-scheme:dark){:root{--paper:#12151c;--ink:#e8ebf1;--soft:#98a2b3;
--line:#2a303c;--card:#1a1f29}}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1000px;margin:0 auto;padding:28px 20px}
h1{font-size:22px;margin:0 0 4px}p{margin:0 0 18px;color:var(--soft)}
svg{width:100%;height:auto;display:block}
.tick{fill:var(--soft);font-size:12px}.name{fill:var(--soft);font-size:13px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.raw{fill:none;stroke-width:1;opacity:.28}.curve{fill:none;stroke-width:2.2;stroke-linejoin:round}
.dot{opacity:0}.dot:hover{opacity:1}.mark{stroke-dasharray:3 4;opacity:.75}
.eval{stroke:var(--paper);stroke-width:1.5;fill:var(--ink)}.value{fill:var(--ink);font-size:13px;
font-weight:600}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.card b{display:block;font-size:17px}.card span{color:var(--soft);font-size:13px}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
"""


class _Frame:
    """Maps values to the drawing's coordinates."""

    def __init__(self, picture: Picture) -> None:
        self.x_max = picture.x_max * 1.02
        self.low, self.high = picture.y_range

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        inner = _HEIGHT - _TOP - _BOTTOM
        return _TOP + inner * (self.high - value) / (self.high - self.low)

    def path(self, points: list[Point]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def color_of(seat: int) -> str:
    return PALETTE[seat % len(PALETTE)]


def render_html(picture: Picture) -> str:
    """A page that needs no other file and no network."""
    frame = _Frame(picture)
    parts = [*_svg_axes(frame), *_svg_marks(frame, picture)]
    for curve in picture.curves:
        parts.extend(_svg_curve(frame, curve))
    parts.extend(_svg_evals(frame, picture))
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss over tokens">'
        + "".join(parts)
        + "</svg>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Loss over tokens</title><style>{_STYLE}</style></head><body><main>"
        "<h1>Loss over tokens</h1><p>Training loss of each island, one line each; the thin line "
        "is the raw loss. Diamonds are the loss on held-out rows. Point at anything for its "
        f"values.</p>{svg}<p>{_MARKS_TEXT if picture.marks else ''}</p>"
        f"{_cards(picture)}</main></body></html>\n"
    )


def _svg_axes(frame: _Frame) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    out = []
    for value in ticks(frame.low, frame.high, 6):
        y = frame.y(value)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="tick" x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">'
            f"{value:g}</text>"
        )
    for value in ticks(0, frame.x_max, 8):
        x = frame.x(value)
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{short(value)}</text>"
        )
    out.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    out.append(
        f'<text class="name" x="{middle}" y="{bottom + 42}" text-anchor="middle">'
        "tokens trained by the run</text>"
    )
    out.append(f'<text class="name" x="{_LEFT - 10}" y="{_TOP - 10}" text-anchor="end">loss</text>')
    return out


def _svg_curve(frame: _Frame, curve: Curve) -> list[str]:
    color = color_of(curve.seat)
    shown = thin(curve.points)
    even = thin(smooth(curve.points))
    title = f"<title>island {curve.seat}</title>"
    out = []
    if len(even) > 1:
        if even != shown:
            out.append(f'<path class="raw" stroke="{color}" d="{frame.path(shown)}"/>')
        out.append(f'<path class="curve" stroke="{color}" d="{frame.path(even)}">{title}</path>')
    for index, (x, y) in enumerate(shown):
        lone = ' style="opacity:1"' if len(shown) == 1 else ""
        out.append(
            f'<circle class="dot"{lone} cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="4" '
            f'fill="{color}"><title>island {curve.seat}, point {index + 1}: loss {y:.4f} at '
            f"{x:,.0f} tokens</title></circle>"
        )
    return out


def _svg_marks(frame: _Frame, picture: Picture) -> list[str]:
    out = []
    for mark in picture.marks:
        x = frame.x(mark.x)
        color = color_of(mark.seat) if isinstance(mark.seat, int) else "var(--soft)"
        sign = {"join": "▲", "leave": "▼", "lost": "✕", "finish": "■"}[mark.event]
        lane = 14 * ((mark.seat or 0) % 3)
        out.append(
            f"<g><title>{html.escape(mark.text)} at {mark.x:,.0f} tokens</title>"
            f'<line class="mark" stroke="{color}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}"/><text x="{x + 4:.1f}" y="{_HEIGHT - _BOTTOM - 6 - lane}" '
            f'fill="{color}" font-size="11">{sign}</text></g>'
        )
    return out


def _svg_evals(frame: _Frame, picture: Picture) -> list[str]:
    out = []
    for x_value, loss, when in picture.evals:
        x, y = frame.x(x_value), frame.y(loss)
        at_end = x > _WIDTH / 2
        anchor, shift = ("end", -12) if at_end else ("start", 12)
        out.append(
            f"<g><title>held-out loss {html.escape(when)} training: {loss:.4f}</title>"
            f'<path class="eval" d="M{x:.1f} {y - 7:.1f}l7 7-7 7-7-7z"/>'
            f'<text class="value" x="{x + shift:.1f}" y="{y - 9:.1f}" text-anchor="{anchor}">'
            f"{loss:.3f}</text></g>"
        )
    return out


def _cards(picture: Picture) -> str:
    cards: list[tuple[str, str, int | None]] = []
    losses = {when: loss for _, loss, when in picture.evals}
    if "before" in losses and "after" in losses:
        change = 100 * (losses["after"] / losses["before"] - 1)
        cards.append(
            (
                f"{losses['before']:.3f} → {losses['after']:.3f}",
                f"held-out loss, {change:+.1f} %",
                None,
            )
        )
    for curve in picture.curves:
        pace = f", {curve.tokens / curve.seconds:,.0f}/s" if curve.seconds > 0 else ""
        cards.append(
            (
                f"{curve.points[-1][1]:.3f}",
                f"island {curve.seat}: last loss, "
                f"{curve.tokens:,} tokens in {clock_text(curve.seconds)}{pace}",
                curve.seat,
            )
        )
    if picture.commits:
        cards.append((str(picture.commits), "commits by the syncer", None))
    body = "".join(
        '<div class="card"><b>'
        + (f'<i class="key" style="background:{color_of(seat)}"></i>' if seat is not None else "")
        + f"{html.escape(head)}</b><span>{html.escape(text)}</span></div>"
        for head, text, seat in cards
    )
    return f'<div class="cards">{body}</div>'


# -- PNG -------------------------------------------------------------------------------------------


def write_png(picture: Picture, path: Path) -> bool:
    """Draws the same picture by matplotlib; False if that is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.6, 5.2), dpi=140)
    for curve in picture.curves:
        color = color_of(curve.seat)
        xs, ys = zip(*thin(curve.points), strict=True)
        even_x, even_y = zip(*thin(smooth(curve.points)), strict=True)
        marker = "o" if len(xs) == 1 else None
        if ys != even_y:
            axes.plot(xs, ys, color=color, alpha=0.25, linewidth=0.9)
        axes.plot(
            even_x, even_y, color=color, linewidth=2, marker=marker, label=f"island {curve.seat}"
        )
    _png_marks(axes, picture)
    low, high = picture.y_range
    axes.set(
        xlim=(-0.01 * picture.x_max, picture.x_max * 1.02),
        ylim=(low, high),
        xlabel="tokens trained by the run",
        ylabel="loss",
        title="Loss over tokens",
    )
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(axis="y", color="#e4e7ec")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right", framealpha=0.92, edgecolor="none")
    if picture.marks:
        figure.text(0.99, 0.012, _MARKS_TEXT, ha="right", fontsize=8, color="#667085")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _png_marks(axes: Any, picture: Picture) -> None:
    for mark in picture.marks:
        color = color_of(mark.seat) if isinstance(mark.seat, int) else "#667085"
        axes.axvline(mark.x, color=color, linestyle=(0, (3, 4)), linewidth=1, alpha=0.7)
        sign = {"join": "^", "leave": "v", "lost": "x", "finish": "s"}[mark.event]
        axes.plot(
            [mark.x],
            [0.02 + 0.03 * ((mark.seat or 0) % 3)],
            marker=sign,
            color=color,
            markersize=6,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )
    for index, (x, loss, _) in enumerate(picture.evals):
        axes.plot(
            [x],
            [loss],
            marker="D",
            markersize=8,
            color="#1d2330",
            linestyle="none",
            markeredgecolor="white",
            zorder=5,
            label="held out" if index == 0 else None,
        )
        at_end = x > picture.x_max / 2
        axes.annotate(
            f"{loss:.3f}",
            (x, loss),
            textcoords="offset points",
            xytext=(-9 if at_end else 9, 8),
            ha="right" if at_end else "left",
            fontsize=10,
            fontweight="bold",
            color="#1d2330",
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m yeto.learner.plot", description="Draws the loss curves of a run."
    )
    parser.add_argument("--tape", type=Path, help="the syncer's tape, events/syncer.jsonl")
    parser.add_argument(
        "--metrics",
        type=Path,
        nargs="+",
        default=[],
        help="metrics.jsonl of the islands, in folders named by seat",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for loss.html and loss.png")
    options = parser.parse_args(argv)
    picture = load_picture(options.tape, options.metrics)
    if not picture.curves and not picture.evals:
        sys.stderr.write(
            "error[E_NOT_FOUND]: no loss was recorded in these files\n"
            f"  where: {', '.join(map(str, [options.tape, *options.metrics]))}\n"
            "  hint: give the metrics.jsonl of a run that has trained at least one step\n"
        )
        return 66
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        page = options.out / "loss.html"
        page.write_text(render_html(picture), encoding="utf-8")
        print(f"wrote {page}")
        image = options.out / "loss.png"
        if write_png(picture, image):
            print(f"wrote {image}")
        else:
            print("loss.png is not drawn: matplotlib is not installed (pip install matplotlib)")
    except OSError as error:
        sys.stderr.write(f"error[E_IO]: the plot cannot be written: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
