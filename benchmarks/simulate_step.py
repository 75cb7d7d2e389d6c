"""How long a training step takes on a machine that is not there.

    python benchmarks/simulate_step.py --model bert-large --ppn 4 --machine perlmutter-gpu
    python benchmarks/simulate_step.py --model resnet50 --machine dgx-h100 --ppn 8 --plot b.png
    python benchmarks/simulate_step.py --model mine.json --compress bf16 --break-even

Exit status: 0, 2 for bad options, a bad model or machine file, or a scheme that does not fit, 130
when interrupted, with the steps that are simulated by then.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from textwrap import wrap
from typing import Any

import click
from one_process import OneProcess
from step_simulator import sweep
from step_simulator.catalog import FLOPS, MODELS, find
from step_simulator.collective_times import CollectiveTimes
from step_simulator.plot import draw
from step_simulator.simulation import STAGES, StepForecast, StepPlan

from hpccoll.atomic_file import is_writable
from hpccoll.cli.options import (
    FiniteRange,
    check_outputs,
    layouts_of,
    report_write_errors,
    write_text,
)
from hpccoll.cli.ranks import INTERRUPTED
from hpccoll.cli.terminal import line_console
from hpccoll.errors import ArgumentError
from hpccoll.explain.columns import FittedTable, Header
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.table import rates_of
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, fitting_bucket_bytes
from hpccoll.units import short_size_text, size, size_text, sizes, time_text

NAME = "simulate_step"
#: The columns of many steps; those of higher numbers give way in a narrow terminal.
COLUMNS = (
    Header("layout", right=False), Header("bucket"), Header("compress", right=False),
    Header("ZeRO"), Header("step"),
    Header("scaling", meaning="the time of the step without communication over that of the step"),
    Header("exposed", meaning="communication that nothing hides; share: of the step", spare=1),
    Header("share", spare=1),
    Header("link busy", meaning="time with messages under way", spare=2),
    Header("sent", meaning="bytes that a rank sends in a step", spare=3))


@click.command(NAME, cls=OneProcess, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", metavar="NAME|FILE",
              help="A built-in model (see --models), or a file with what "
                   "exchange.profile() returned.")
@click.option("--nodes", default="2", show_default=True, metavar="LIST",
              help="Numbers of nodes: 64, or 2,4,12, or 1:4096 for powers of two.")
@click.option("--ppn", default="1", show_default=True, metavar="LAYOUT",
              help="Ranks per node; 2x4 for two groups of four.")
@click.option("--topology", metavar="LAYOUT", help="Another layout, outermost level first.")
@click.option("--machine", default="hdr", show_default=True, metavar="NAME|FILE",
              help="As for hpccoll simulate; hpccoll simulate --machines lists them.")
@click.option("--bucket-bytes", "bucket_sizes", metavar="LIST",
              help="Sizes of buckets: 25M, or 1M,8M, or 1M:256M for doubling ones; 0 gives each "
                   "array its own. Default: as an exchange has them, a 32nd part of the model.")
@click.option("--first-bucket-bytes", metavar="BYTES", default=short_size_text(FIRST_BUCKET_BYTES),
              show_default=True, help="Size of the first bucket.")
@click.option("--compress", "schemes", multiple=True, metavar="SCHEME",
              help="Scheme such as bf16 or powersgd:rank=4, or none; may be repeated.")
@click.option("--compress-rate", metavar="BYTES",
              help="Bytes that a rank compresses and restores in a second, if measured.")
@click.option("--shard", "stages", default="0", show_default=True, metavar="LIST",
              help="Stages of ZeRO: 0 for none, or 0,3.")
@click.option("--algorithm", default="", metavar="CHOICE",
              help="As HPCCOLL_ALGORITHM, such as allreduce=rails. Default: the fastest in "
                   "simulation.")
@click.option("--segment-bytes", metavar="BYTES",
              help="Bytes of a segment. Default: as in a call.")
@click.option("--lanes", type=click.IntRange(min=1), metavar="N",
              help="Buckets under way at once. Default: 2 across nodes, 1 on one.")
@click.option("--no-overlap", is_flag=True, help="Begin all buckets after the backward pass.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N",
              help="Samples of a rank's step, for models that come along.")
@click.option("--tflops", type=FiniteRange(min=0, min_open=True), metavar="RATE",
              help="10^12 operations that a rank sustains in a second, for the same. Default: 100.")
@click.option("--break-even", is_flag=True,
              help="Find the network rate below which each scheme pays.")
@click.option("--json", "json_path", metavar="FILE",
              help="Write JSON instead of text; - is standard output.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw; the suffix selects the format: png, svg, pdf.")
@click.option("--trace", "trace_path", metavar="FILE",
              help="Write the last step as a timeline for Perfetto.")
@click.option("--models", "listed", is_flag=True, help="List the models that come along.")
@click.pass_context
def command(context, model, nodes, ppn, topology, machine, bucket_sizes, first_bucket_bytes,
            schemes, compress_rate, stages, algorithm, segment_bytes, lanes, no_overlap, samples,
            tflops, break_even, json_path, plot_path, trace_path, listed):
    """Time a step of data-parallel training: what of the exchange is hidden, and what is not."""
    if listed:
        for name, known in MODELS.items():
            each = find(name)
            click.echo(f"{name:12} {known.about}; {each.count:,} parameters, "
                       f"{each.samples} samples a rank")
        return
    for option, other in (("--nodes", nodes != "2"), ("--ppn", ppn != "1")):
        if topology is not None and other:
            raise ArgumentError("--topology", f"does not go with {option}")
    for option, given in (("--break-even", break_even), ("--compress-rate", compress_rate)):
        if given and not schemes:
            raise ArgumentError(option, "requires --compress")
    check_outputs(json_path, plot_path)
    if trace_path is not None and not is_writable(trace_path):
        raise ArgumentError("--trace", f"cannot write {trace_path!r}")
    if model is None:
        raise ArgumentError("--model", "a model is required",
                            f"choose from {', '.join(MODELS)}, or pass a file")
    trained = find(model, samples or 0, 1e12 * (tflops or 0))
    first = size("--first-bucket-bytes", first_bucket_bytes)
    rate = 0 if compress_rate is None else size("--compress-rate", compress_rate, 1)
    segment = 0 if segment_bytes is None else size("--segment-bytes", segment_bytes, 1)
    buckets = ([fitting_bucket_bytes(trained.arrays)] if bucket_sizes is None else
               sizes("--bucket-bytes", bucket_sizes, 2))
    plans = [StepPlan(BUCKET_BYTES, first, scheme, stage, lanes or 0, not no_overlap, rate)
             for scheme in schemes or ("none",) for stage in _stages(stages)]
    grids = [CollectiveTimes(machine, layout, algorithm, segment)
             for layout in layouts_of(nodes, ppn, topology).values()]
    # A single step is compared with those of other buckets, which are timed together with it.
    single = len(grids) * len(plans) * len(buckets) == 1
    compared = [*buckets, *sweep.BUCKETS] if single and json_path is None else buckets
    found, pays = [], []
    stopped = False
    try:
        for times, plan in product(grids, plans):
            found += sweep.over_buckets(trained, plan, times, compared)
        for times, plan in product(grids, plans) if break_even else ():
            if plan.compress != "none":
                pays.append((times, plan, sweep.break_even(
                    trained, plan._replace(bucket_bytes=buckets[0]), times)))
    except KeyboardInterrupt:
        if not found:
            raise
        stopped = True
    best, found = sweep.fastest(found), found[:1] if single else found
    if json_path is not None:
        write_text(json_path, json.dumps({
            "format": 1, "model": trained.as_json(),
            "results": [forecast.as_json() for forecast in found],
            "break_even": [{"topology": str(times.topology), "compress": plan.compress,
                            "shard": plan.shard, **_finite(point._asdict())}
                           for times, plan, point in pays]}, indent=1) + "\n")
    else:
        assumed = model in MODELS and not tflops and "GPU" not in grids[0].machine.description
        _show(found, best, grids[0].machine, single, assumed)
        for times, plan, point in pays:
            click.echo(f"{plan.compress} on {times.topology}: {_paying(point)}")
    if plot_path is not None:
        with report_write_errors("--plot", plot_path):
            draw(found, plot_path)
        click.echo(f"wrote {plot_path}", err=True)
    if trace_path is not None:
        with report_write_errors("--trace", trace_path):
            found[-1].timeline.save(trace_path)
        click.echo(f"wrote {trace_path}", err=True)
    if stopped:
        asked = len(grids) * len(plans) * len(buckets)
        click.echo(f"hpccoll: {NAME}: interrupted: {len(found)} of {asked} steps are "
                   "simulated" + f", {len(pays)} break-even rates found" * break_even, err=True)
        context.exit(INTERRUPTED)


def _show(found: Sequence[StepForecast], best: StepForecast, machine: Machine,
          single: bool, assumed: bool) -> None:
    """One step as a report, with the best buckets for it; several, if asked for, as a table.

    ``assumed``: ranks compute at the rate of a GPU, and the machine names none.
    """
    note = (f"{FLOPS / 1e12:g} TFLOP/s is the rate of a GPU, and {machine.name} names no GPUs: "
            "--tflops sets it" if assumed else "")
    if not single:
        _table(found, machine, note)
        return
    click.echo(str(found[0]), nl=False)
    text = "these" if best is found[0] else (f"{size_text(best.plan.bucket_bytes)}: "
                                             f"{time_text(best.seconds)}")
    click.echo(f"  best buckets   {text}")
    if note:
        click.echo(f"  note           {note}")


def _table(found: Sequence[StepForecast], machine: Machine, note: str) -> None:
    """What it is of, and a line for each step; of several on a layout the fastest is marked."""
    best: dict[str, float] = {}
    for f in found:
        best[f.topology] = min(best.get(f.topology, f.seconds), f.seconds)
    marked = [n for n, f in enumerate(found)
              if len(best) < len(found) and f.seconds <= best[f.topology]]
    rows = [[f.topology, size_text(f.plan.bucket_bytes), f.plan.compress, str(f.plan.shard),
             time_text(f.seconds), f"{f.efficiency:.1%}", time_text(f.exposed, 3),
             f"{f.share:.1%}", time_text(f.flight, 3), size_text(f.wire_bytes)] for f in found]
    console = line_console()
    model = found[0].model

    def say(note: str) -> None:
        for line in wrap(note, console.width - 2, subsequent_indent="  "):
            console.print(f"# {line}", soft_wrap=True, style="dim")

    say(f"{model.name} on {machine.name}, {model.samples} samples a rank")
    say(f"simulated; {rates_of(machine)}")
    if model.source:
        say(model.source)
    if note:
        say(note)
    table = FittedTable(COLUMNS, rows, console.width)
    for number, line in enumerate(table.lines(marked)):
        console.print(line, soft_wrap=True, style="bold" if number - 1 in marked else "")
    notes = table.legend()
    if marked:
        notes.append("*: the fastest of its layout")
    if table.hidden:
        notes.append(f"a wider terminal also shows: {', '.join(table.hidden)}")
    for note in notes:
        say(note)


def _stages(text: str) -> list[int]:
    stages = [word.strip() for word in text.split(",")]
    for word in stages:
        if not word.isdecimal() or int(word) not in STAGES:
            raise ArgumentError("--shard", f"{word!r} is no stage of ZeRO", "choose from 0 to 3")
    return [int(word) for word in stages]


def _paying(point: sweep.BreakEven) -> str:
    if not point.factor:
        return "pays on no network"
    if math.isinf(point.factor):
        return "pays on every network"
    return (f"pays below {point.bytes_per_second * 8e-9:,.4g} Gbit/s, {point.factor:.3g} times the "
            "rate of this machine")


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Infinite numbers, which JSON lacks, as ``null``."""
    return {name: value if math.isfinite(value) else None for name, value in fields.items()}


if __name__ == "__main__":
    command()
