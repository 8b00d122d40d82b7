"""What a search for a compiled model found, as one self-contained HTML page."""

from superopt.report.compilation.compile_report import (
    CompilationReport,
    TuningReport,
    rewrites_text,
    tuned_kernels_text,
)
from superopt.report.compilation.quantization import quantization_lines
from superopt.report.html.template import load_script, load_template
from superopt.report.html.waterfall_chart import waterfall_rows


def compilation_page(found: CompilationReport, search: TuningReport) -> str:
    """Return the report of `superopt compile --search` as an HTML document."""
    return load_template("compilation.html.jinja").render(
        model=found.model,
        found=found,
        search=search,
        target=f"a GPU, in {found.precision}" if found.precision else "this processor",
        headline=rewrites_text(search) or "No faster graph was found",
        summary=tuned_kernels_text(search),
        stages=waterfall_rows(search.waterfall),
        kernels=sorted(search.kernels, key=lambda k: -k.calls * k.before),
        notes=(*search.notes, *found.notes),
        quantization=[*quantization_lines(found.quantization)] if found.quantization else [],
        script=load_script("report.js"),
    )
