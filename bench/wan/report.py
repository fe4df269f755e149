"""Makes a Markdown table and SVG plots of results. SVG by hand: nothing needs to be installed."""

from pathlib import Path

import runs
import suite

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 34, 44
LOWEST, HIGHEST = 0.70, 0.92
# Okabe and Ito's colours, which most people can tell apart; ours are drawn thick, rivals thin.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]


def group(result):
    """The runs that are compared with each other: the link and the model."""
    return result["name"].rsplit("/", 1)[0]


def label(result):
    who = "slackline" if result["kind"] == "ours" else "DDP"
    cc = f", {result['cc']}" if result["kind"] == "ddp" else ""
    return f"{who} {result['way']}{cc}"


def number(value):
    return f"{value:,.0f}" if value is not None else "–"


def to_target(result):
    if result["seconds_to_target"] is not None:
        return f"{result['seconds_to_target']:.1f}"
    return f"not in {result['seconds']:.0f}"


def table(name, results):
    first = results[0]
    loss = f", {first['loss']:.0%} loss" if first["loss"] else ""
    link = "unshaped" if first["rate"] == "none" else f"{first['rate']}, {first['rtt_ms']:g} ms{loss}"
    target = first["target"]
    lines = [
        f"### {name}: {link}", "",
        f"| run | s to {target:g} | samples/s | IP bytes a gradient, up / down | steps | accuracy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in sorted(results, key=lambda it: it["seconds_to_target"] or 1e9):
        accuracy = result["final_accuracy"]
        lines.append(
            f"| {label(result)} | {to_target(result)} | {number(result['samples_per_second'])} | "
            f"{number(result['link_bytes_up'])} / {number(result['link_bytes_down'])} | "
            f"{result['steps']} | {'–' if accuracy is None else f'{accuracy:.4f}'} |"
        )
    return lines + [""]


def best(results, ways=None):
    times = [
        result["seconds_to_target"] for result in results
        if result["seconds_to_target"] is not None and (ways is None or result["way"] in ways)
    ]
    return min(times, default=None)


def ratios(results):
    """Our best beside the goals of the table: own unshaped run, best of four, strongest rival."""
    lines = ["### ratios of seconds to the target", "",
             "| link and model | ours / own unshaped dense | ours / best of four DDP ways | ours / strongest rival |",
             "| --- | --- | --- | --- |"]
    groups = {}
    for result in results:
        groups.setdefault(group(result), []).append(result)
    for name, members in groups.items():
        model = members[0]["model"]
        mine = best([result for result in members if result["kind"] == "ours"])
        rivals = [result for result in members if result["kind"] == "ddp"]
        if mine is None or not rivals:
            continue
        plain = [result for result in groups.get(f"unshaped/{model}", []) if result["way"] == "dense"]
        against = [best(plain), best(rivals, suite.RIVALS[:4]), best(rivals)]
        shown = [f"{mine / other:.2f} ({mine:.1f} / {other:.1f} s)" if other else "–" for other in against]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines + [""]


def plot(name, results):
    """Test accuracy over time."""
    tests = [test for result in results for test in result["tests"]]
    span = max((test[0] for test in tests), default=1.0) * 1.02
    across = lambda seconds: LEFT + seconds / span * (WIDTH - LEFT - RIGHT)  # noqa: E731
    down = lambda accuracy: TOP + (HIGHEST - max(accuracy, LOWEST)) / (HIGHEST - LOWEST) * (  # noqa: E731
        HEIGHT - TOP - BOTTOM
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">Test accuracy over seconds: {name}</text>',
    ]
    for step in range(round((HIGHEST - LOWEST) / 0.05) + 1):
        accuracy = LOWEST + 0.05 * step
        if accuracy <= HIGHEST:
            out.append(line(LEFT, down(accuracy), WIDTH - RIGHT, down(accuracy), "#dddddd"))
            out.append(text(LEFT - 6, down(accuracy) + 4, f"{accuracy:.2f}", "end"))
    out.append(line(LEFT, down(suite.TARGET), WIDTH - RIGHT, down(suite.TARGET), "#888888", "4 3"))
    for part in range(6):
        seconds = span / 1.02 * part / 5
        out.append(text(across(seconds), HEIGHT - BOTTOM + 18, f"{seconds:.0f}", "middle"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "seconds since training began", "middle"))
    ordered = sorted(results, key=lambda it: (it["kind"] != "ours", it["name"]))
    for place, result in enumerate(ordered):
        colour = COLOURS[place % len(COLOURS)]
        width = 2.5 if result["kind"] == "ours" else 1.2
        points = " ".join(f"{across(at):.1f},{down(accuracy):.1f}" for at, _, accuracy in result["tests"])
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        at = TOP + 10 + 18 * place
        out.append(line(WIDTH - RIGHT + 10, at - 4, WIDTH - RIGHT + 28, at - 4, colour, width=width))
        out.append(text(WIDTH - RIGHT + 34, at, label(result), "start"))
    return "\n".join([*out, "</svg>", ""])


def line(x1, y1, x2, y2, colour, dashes=None, width=1.0):
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashed}/>')


def text(x, y, words, anchor):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def run(asked):
    results = runs.results(asked.out)
    groups = {}
    for result in results:
        groups.setdefault(group(result), []).append(result)
    lines = []
    for name, members in groups.items():
        lines += table(name, members)
        if asked.plots and any(result["tests"] for result in members):
            folder = Path(asked.plots)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace('/', '-')}.svg").write_text(plot(name, members), encoding="utf-8")
    lines += ratios(results)
    words = "\n".join(lines)
    Path(asked.out, "summary.md").write_text(words, encoding="utf-8")
    print(words)
