#!/usr/bin/env python3
"""Checks the report pages in a browser: as a reader sees them, and what axe says of them.

    scripts/check/report_pages.py [--out DIR] [--axe axe.min.js] [--page FILE.html ...]

Makes the pages of `superopt optimize` (of a demo model), `superopt rules report` and `superopt
profile`, or takes those of --page. Draws each in light, dark, narrow (400 pixels) and print into
DIR, and checks that it loads nothing, reports no error, does not overflow sideways, opens in time,
and reads without its script. axe (`npm pack axe-core`) checks contrast, names and structure. Needs
`pip install playwright` and a Chromium; says what it lacks and exits with 0 if it has none.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LOAD_SECONDS = 2.0  # CPU time of the page's main thread
MAX_ELEMENTS = 30_000
OPENED_DETAILS = 12  # while axe runs
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = (1280, 900), (400, 900)  # pixels


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at a page."""

    name: str
    size: tuple[int, int]
    scheme: str
    has_script: bool = True


VIEWS = (
    View("light", WIDE, "light"),
    View("dark", WIDE, "dark"),
    View("narrow", NARROW, "light"),
    View("no-script", WIDE, "light", has_script=False),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="folder for pages and pictures (default: a new one)"
    )
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--page", type=Path, nargs="*", help="pages to check instead")
    args = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return skip("playwright is not installed (pip install playwright)")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return skip(f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
    out = args.out or Path(tempfile.mkdtemp(prefix="report-pages-"))
    out.mkdir(parents=True, exist_ok=True)
    pages = args.page or make_pages(out)
    axe = args.axe.read_text(encoding="utf-8") if args.axe else ""
    if not axe:
        print("axe is not run: no --axe")
    failures: list[str] = []
    with sync_playwright() as play:
        run = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for path in pages:
            for view in VIEWS:
                failures += check_view(run, path.resolve(), view, out, axe)
            if path.suffix == ".html":
                failures += check_script(run, path.resolve())
        run.close()
    print(*failures, sep="\n")
    print(f"{len(pages)} pages, pictures in {out}, {len(failures)} failures")
    return bool(failures)


def skip(reason: str) -> int:
    print(f"skipped: {reason}")
    return 0


def make_pages(out: Path) -> list[Path]:
    """Write a page of each kind by the commands."""
    from superopt.onnx_io.read.weightless import demo_models

    model, report, rules, roofline = (
        out / name for name in ("nasrnn.onnx", "report.html", "rules.html", "roofline.svg")
    )
    model.write_bytes(demo_models()["nasrnn"]().SerializeToString())
    run = [sys.executable, "-m", "superopt"]
    for command in (
        ("optimize", model, "-o", out / "fast.onnx", "--budget", "2m", "--cost", "roofline",
         "--html", report),
        ("rules", "report", "--html", rules),
        ("profile", model, "--svg", roofline, "--budget", "5m"),
    ):  # fmt: skip
        subprocess.run([*run, *map(str, command)], check=True, capture_output=True)
    return [report, rules, roofline]


@contextmanager
def opened_page(run: Any, path: Path, view: View, problems: list[str]) -> Iterator[Any]:
    context = run.new_context(
        viewport={"width": view.size[0], "height": view.size[1]},
        color_scheme=view.scheme,
        java_script_enabled=view.has_script,
    )
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda said: problems.append(f"console: {said.text}"))
    page.on(
        "request", lambda r: problems.append(f"loads {r.url}") if r.url != path.as_uri() else None
    )
    yield page
    context.close()


def check_view(run: Any, path: Path, view: View, out: Path, axe: str) -> list[str]:
    """Draw a page; return what is wrong with it."""
    problems: list[str] = []
    with opened_page(run, path, view, problems) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        begin = time.monotonic()
        page.goto(path.as_uri())
        wall = time.monotonic() - begin
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        seconds = metrics["TaskDuration"]
        elements = page.locator("*").count()
        print(
            f"{path.name} {view.name}: {path.stat().st_size:,} bytes, {elements:,} elements,"
            f" {seconds:.2f} s of CPU, {wall:.2f} s"
        )
        if seconds > MAX_LOAD_SECONDS or elements > MAX_ELEMENTS:
            problems.append(f"{seconds:.2f} s of CPU to load, {elements} elements")
        page.screenshot(path=out / f"{path.stem}-{view.name}.png")
        if path.suffix == ".html":
            page.screenshot(path=out / f"{path.stem}-{view.name}-all.png", full_page=True)
            if view.name == "light":
                page.pdf(path=out / f"{path.stem}.pdf", format="A4")
            problems += _layout_problems(page, view) if view.has_script else []
            problems += _axe_problems(page, axe) if view.has_script and axe else []
    return [f"{path.name} {view.name}: {problem}" for problem in problems]


def _layout_problems(page: Any, view: View) -> list[str]:
    width = page.evaluate("document.documentElement.scrollWidth")
    return [f"it is {width} pixels wide, of {view.size[0]}"] if width > view.size[0] else []


def _axe_problems(page: Any, axe: str) -> list[str]:
    page.evaluate(
        f"[...document.querySelectorAll('details')].slice(0, {OPENED_DETAILS})"
        ".forEach((details) => { details.open = true; })"
    )
    page.wait_for_timeout(300)
    page.evaluate(axe)
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [
        f"axe: {v['id']} ({v['impact']}): {v['help']}: {len(v['nodes'])} places, as"
        f" {v['nodes'][0]['html'][:120]}"
        for v in found
    ]


def check_script(run: Any, path: Path) -> list[str]:
    """Use a page as a reader does; return what does not work."""
    problems: list[str] = []
    with opened_page(run, path, VIEWS[0], problems) as page:
        page.goto(path.as_uri())
        for check in (_check_graphs, _check_filter):
            check(page, problems.append)
    return [f"{path.name} script: {problem}" for problem in problems]


def _check_graphs(page: Any, fail: Callable[[str], object]) -> None:
    if not page.locator("#graphs").count():
        return
    link = page.locator("a[data-step]").first
    step = link.get_attribute("data-step")
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    link.click()
    for view in page.locator(".view").all():
        if not view.locator(f".chosen[data-steps~='{step}']").count():
            fail(f"step {step} is not marked in a graph")
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = false")
    page.locator(".facts-of a", has_text="back to the step").click()
    if not page.locator(f"#step-{step}").is_visible():
        fail(f"the link back to step {step} does not show it")
    kind = page.locator(".view .node.replaced .label").first.text_content()
    page.locator("#graphs input").fill(kind)
    page.locator("#graphs input").press("Enter")
    if (
        not page.locator(".match.chosen").count()
        or "2 of" not in page.locator("#graphs output").text_content()
    ):
        fail(f"the search for {kind} does not go on to the second place")
    svg = page.locator(".view svg").first
    before = float(svg.get_attribute("width"))
    page.locator("button[name=out]").click()
    if float(svg.get_attribute("width")) >= before:
        fail("zooming out does not make the graph smaller")
    box = page.locator(".view").first.bounding_box()
    page.locator("button[name=whole]").click()
    if (
        float(svg.get_attribute("width")) > box["width"]
        or float(svg.get_attribute("height")) > box["height"]
    ):
        fail("the whole graph does not fit")


def _check_filter(page: Any, fail: Callable[[str], object]) -> None:
    form = page.locator(".filters")
    if not form.count():
        return
    rows = page.locator(".rule:not([hidden])")
    count = rows.count()
    form.locator("[name=text]").fill("relu")
    form.locator("[name=operator]").select_option("Relu")
    if not 0 < rows.count() < count:
        fail(f"the filter shows {rows.count()} of {count} rows")
    rows.first.locator("summary").click()
    page.wait_for_selector(".rule[open] .card svg", timeout=5000)
    form.locator("button").click()
    page.wait_for_timeout(100)
    if rows.count() != count:
        fail("clearing the filter does not show all rows")


if __name__ == "__main__":
    sys.exit(main())
