"""Kill every stage at random moments and at chosen points, run it again, and compare it with the undisturbed result.
With --faults: let disks, clocks, ranks, checkpoints and data misbehave instead.

    python tests/campaigns/kill.py --kills 100 --minutes 30 --seed 1

A trial starts a stage in an empty folder, kills it one to three times, runs the same command until it ends, and
compares all files. It fails if a byte or a loss differs, if a temporary file or a process is left, or if a command
prints a traceback or ends with an undocumented exit code. Trials of a seed are numbered, so that a later call with the
same --results continues after them. The folders of failed trials are kept in --work.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
from compare import differences
from processes import SOURCE, TESTS, Ended, Plan, revision, run_command, with_disk_faults
from stages import STAGES, Stage

if TYPE_CHECKING:
    from support.hub_server import ServedHub

_MOST_NOTED = 10
"""Largest number of problems of a trial in the results."""
TARGETS = {False: ("self",), True: ("self", "child", "all")}
ALLOWED = {signal.SIGKILL: {0, -9}, signal.SIGTERM: {0, 130, -15}, signal.SIGINT: {0, 130, -2}}
"""Exit codes of the process that got a signal. -2: Python itself was already ending, its work was done."""


class CampaignError(Exception):
    """An undisturbed command failed."""


class Campaign:
    """Trials of stages, and their results."""

    def __init__(self, work: Path, results: Path, seed: int, is_cold: bool, is_verbose: bool, chain: int) -> None:
        self.work, self.results, self.seed = work, results, seed
        self.is_cold, self.is_verbose, self.chain = is_cold, is_verbose, chain
        self.rows: dict[str, Any] = json.loads(results.read_text()) if results.is_file() else {}
        self.has_faults = False
        """True: faults in place of kills."""
        self.references: dict[str, tuple[float, Counter[str]]] = {}
        self.at_end = contextlib.ExitStack()
        self.hub: ServedHub | None = None

    def row(self, stage: str) -> dict[str, Any]:
        """Results of a stage under this seed."""
        seeds = self.rows.setdefault("faults" if self.has_faults else "seeds", {})
        empty = {"trials": 0, "kills": {}, "failures": []}
        row: dict[str, Any] = seeds.setdefault(str(self.seed), {}).setdefault(stage, empty)
        return row

    def num_kills(self, stage: str) -> int:
        return sum(self.row(stage)["kills"].values())

    def save(self) -> None:
        self.results.parent.mkdir(parents=True, exist_ok=True)
        aside = self.results.with_name(f".{self.results.name}.new")
        aside.write_text(json.dumps(self.rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(aside, self.results)

    def reference(self, name: str) -> tuple[float, Counter[str]]:
        """Run a stage undisturbed, once. Returns its seconds and its file operations by kind."""
        if name not in self.references:
            stage = STAGES[name]
            for need in stage.needs:
                self._make_input(need)
            trial, life = self._fresh(name, "trial")
            trace = life / "trace"
            ended = self._run(stage, trial, life, trace=trace)
            self._write_uploaded(trial)
            if ended.code or "Traceback" in ended.err:
                raise CampaignError(f"{name}: undisturbed, it ended with {ended.code}\n{ended.out}{ended.err}")
            # Again, in another folder of the same name: a difference now would also be there without a kill.
            reference = trial.with_name("reference")
            shutil.rmtree(reference, ignore_errors=True)
            trial.rename(reference)
            operations = trace.read_text().splitlines() if trace.is_file() else []
            kinds = Counter(line.split(" ")[0] for line in operations)
            if self.has_faults:
                kinds["updates"] = operations.count("call Trainer._update")
                kinds += faults.counts_of(life / "struck.counts")
            self.references[name] = ended.seconds, kinds
        return self.references[name]

    def trial(self, name: str) -> int:
        """Kill a stage one to three times and compare, or let a fault happen. Returns the number of kills or faults."""
        stage, row = STAGES[name], self.row(name)
        seconds, kinds = self.reference(name)
        number = row["trials"]
        rng = random.Random(f"{self.seed}/{name}/{number}")
        trial, life = self._fresh(name, "trial")
        if self.has_faults and kinds["updates"] and (damaged := self._damaged(stage, trial, life, rng)):
            self._record(row, trial, *damaged)
            return 1
        plans: list[Plan] = []
        problems: list[str] = []
        for _ in range(self.chain or rng.choices((1, 2, 3), (6, 3, 1))[0]):
            plan = self._draw_fault(rng, stage, kinds) if self.has_faults else _draw(rng, stage, seconds, kinds)
            ended = self._run(stage, trial, life, plan=plan, rng=rng)
            if _is_refused(ended) and plans:
                break
            problems += _complaints(ended, plan, has_children=stage.has_children)
            if ended.was_struck and (ended.code != 0 or self.has_faults):
                plans.append(plan)
            if self.has_faults and not plan.fault and ended.code:
                problems.append(f"{plan.name}: the launcher did not restart it: {ended.err[-3000:]}")
            if ended.code == 0 and plan.target != "child":
                break
        ended = self._run(stage, trial, life)
        self._write_uploaded(trial)
        changed = differences(trial, trial.with_name("reference"))
        if changed or not _is_refused(ended):
            problems += [f"run again: {text}" for text in _complaints(ended, None)]
        self._record(row, trial, [plan.name for plan in plans], problems + changed)
        return len(plans)

    def _draw_fault(self, rng: random.Random, stage: Stage, kinds: Counter[str]) -> Plan:
        if kinds["updates"] and "--hang-minutes" in stage.words:
            return faults.draw_rank(rng, kinds["call"] // 2)
        if kinds["updates"] and rng.random() < 0.1:
            return faults.draw_nan(rng, kinds["updates"])
        return faults.draw_disk(rng, kinds)

    def _damaged(self, stage: Stage, trial: Path, life: Path, rng: random.Random) -> tuple[list[str], list[str]] | None:
        """Damage the newest checkpoint of a copy of the undisturbed run, or a copy of the data, and run the command.
        Returns what was damaged, and the problems; None: nothing was."""
        reference, inputs = trial.with_name("reference"), self.work / "inputs"
        choice = rng.random()
        newest = faults.newest_of_two(reference / "out")
        if choice < 0.3 and newest is not None:
            faults.copied(reference / "out", trial / "out")
            place = trial / "out/checkpoints" / newest.name
            damage = faults.checkpoint_damage(place, rng)
            if not damage.is_told:  # it is read only if the run continues from it
                shutil.rmtree(place)
                place = max(place.parent.glob("step-*"))
            path = damage.apply(place, rng)
            ended = self._run(stage, trial, life)
            problems = _complaints(ended, None if damage.is_told else _DAMAGE)
            if damage.is_told and place.name not in ended.err:
                problems.append(f"{damage.name}: {path.name} is not told of: {ended.err[-2000:]}")
            if ended.code:
                if not place.is_dir():
                    problems.append(f"{damage.name}: the checkpoint was removed")
                shutil.rmtree(place)
                ended = self._run(stage, trial, life)
                problems += [f"run again: {text}" for text in _complaints(ended, None)]
            return [f"checkpoint: {damage.name}"], problems + differences(trial, reference)
        if choice < 0.45:
            damage = rng.choice(faults.DATA_DAMAGE)
            need = stage.needs[-1]
            faults.copied(inputs / need, life / "kept")
            try:
                path = damage.apply(inputs / need, rng)
                ended = self._run(stage, trial, life)
            finally:
                faults.copied(life / "kept", inputs / need)
            problems = _complaints(ended, _DAMAGE)
            if ended.code and path.name not in ended.err and path.parent.name not in ended.err:
                problems.append(f"{damage.name}: {path} is not named: {ended.err[-2000:]}")
            noticed = "told" if ended.code else "not told"
            if ended.code:
                ended = self._run(stage, trial, life)
                problems += [f"run again: {text}" for text in _complaints(ended, None)]
                problems += differences(trial, reference)
            return [f"{damage.name}, {noticed}"], problems
        return None

    def _record(self, row: dict[str, Any], trial: Path, names: list[str], problems: list[str]) -> None:
        row["trials"] += 1
        for name in names:
            row["kills"][name] = row["kills"].get(name, 0) + 1
        if problems:
            short = [problem.splitlines()[0][:160].replace(f"{self.work}/", "") for problem in problems[:_MOST_NOTED]]
            number = row["trials"] - 1
            row["failures"].append({"trial": number, "plans": names, "problems": short})
            kept = trial.with_name(f"failed-{self.seed}-{number}")
            shutil.rmtree(kept, ignore_errors=True)
            trial.rename(kept)
            print(f"FAILED {trial.parent.name}, trial {number}: {names}", *problems, sep="\n  ", flush=True)
        self.save()

    def _fresh(self, name: str, kind: str) -> tuple[Path, Path]:
        folder = self.work / "stages" / name.replace(" ", "-").replace(",", "")
        trial, life = folder / kind, folder / "life"
        for path in (trial, life):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        if STAGES[name].has_hub and self.hub is None:
            from support.hub_server import served_hub

            self.hub = self.at_end.enter_context(served_hub(self.work))
        if self.hub is not None:
            self.hub.stored.clear()
        for copied in STAGES[name].copies:
            shutil.copytree(self.work / "inputs" / copied, trial / copied)
        return trial, life

    def _write_uploaded(self, trial: Path) -> None:
        """Write what the hub has, to be compared."""
        for name, content in (self.hub.stored if self.hub else {}).items():
            (trial / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
            (trial / "hub" / name).write_bytes(content)

    def _run(self, stage: Stage, trial: Path, life: Path, **options: Any) -> Ended:
        words = [word.replace("{in}", str(self.work / "inputs")) for word in stage.words]
        roots = [trial, self.work / "inputs"] if self.has_faults else None
        hub = self.hub.environment if self.hub and stage.has_hub else {}
        variables = {name: value for name, value in hub.items() if name.startswith("HF_")}
        ended = run_command(words, trial, life, is_cold=self.is_cold, roots=roots, variables=variables, **options)
        if self.is_verbose:
            print(f"  {options.get('plan')}: {ended.code} in {ended.seconds:.1f} s", flush=True)
        return ended

    def _make_input(self, need: str) -> None:
        inputs, life = self.work / "inputs", self.work / "life"
        if not (inputs / f".{need}").is_file():
            inputs.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(inputs / need, ignore_errors=True)
            script = Path(__file__).with_name("inputs.py")
            ended = run_command([str(inputs), need], inputs, life, script=script)
            if ended.code:
                raise CampaignError(f"the input {need} could not be made, {ended.code}\n{ended.out}{ended.err}")
            (inputs / f".{need}").touch()


def _draw(rng: random.Random, stage: Stage, seconds: float, kinds: Counter[str]) -> Plan:
    number = rng.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (6, 2, 2))[0]
    if rng.random() < 0.4 or not kinds:
        return Plan(number, rng.choice(TARGETS[stage.has_children]), rng.uniform(0, 1.05 * seconds))
    kind = rng.choice(sorted(kinds))
    target = "self" if not stage.has_children or rng.random() < 0.6 else "all"
    return Plan(number, target, None, kind, rng.randint(1, kinds[kind]))


def _is_refused(ended: Ended) -> bool:
    """True if a command that never writes over an output did not run, because an earlier life completed its output."""
    return ended.code == 2 and re.search("^error: out[^\n]* exists", ended.err, re.MULTILINE) is not None


_DAMAGE = Plan(0, "self", fault="damage")
"""Placeholder for damage of files: a command may end with one message."""


def _complaints(ended: Ended, plan: Plan | None, *, has_children: bool = False) -> list[str]:
    """Return the problems with the way a command ended. `has_children`: another of its processes may have got the
    signal."""
    name = plan.name if plan else "undisturbed"
    if plan is None or plan.fault in faults.HARMLESS or (plan.signal in (0, signal.SIGSTOP) and not plan.fault):
        allowed = {0}
    elif plan.fault:
        allowed = {0, 1, 2}
    else:
        allowed = ALLOWED[signal.Signals(plan.signal)]
        if has_children and (plan.target == "child" or plan.kind):
            allowed = allowed | {1, 2, 130}
    if ended.err.rstrip(": \n").endswith("KeyboardInterrupt") and str(SOURCE) not in ended.err:
        return []  # the signal came before a line of pretrainkit ran, or while Python was ending
    problems = []
    if ended.code not in allowed:
        problems.append(f"{name}: ended with {ended.code}: {ended.err[-3000:]}")
    elif plan and plan.fault and ended.code and len(re.findall("^error: ", ended.err, re.MULTILINE)) != 1:
        problems.append(f"{name}: not one message: {ended.err[-3000:]}")
    if "Traceback (most recent call last)" in ended.err:
        problems.append(f"{name}: a traceback: {ended.err[-3000:]}")
    if ended.orphans:
        problems.append(f"processes were left: {ended.orphans}")
    return problems


def table(rows: dict[str, Any]) -> str:
    """Results of all seeds as a table in Markdown."""
    columns = ("SIGKILL", "SIGTERM", "SIGINT", "random time", "before")
    lines = [
        "| stage | trials | kills | SIGKILL | SIGTERM | SIGINT | at random | before an operation | failed |",
        "|---" * 9 + "|",
    ]
    total = Counter[str]()
    for stage in STAGES:
        count = Counter[str]()
        for row in (stages[stage] for stages in rows.values() if stage in stages):
            count["trials"] += row["trials"]
            count["failed"] += len(row["failures"])
            for name, num in row["kills"].items():
                count["kills"] += num
                count.update({column: num for column in columns if column in name})
        total += count
        lines.append(_line(stage, count, columns))
    return "\n".join([*lines, _line("all", total, columns)])


def faults_table(rows: dict[str, Any]) -> str:
    """Results of faults of all seeds by their kind, as a table in Markdown."""
    count, failed = Counter[str](), Counter[str]()
    for row in (row for stages in rows.values() for row in stages.values()):
        count.update(row["kills"])
        for failure in row["failures"]:
            failed.update(failure["plans"])
    lines = [f"| {name} | {count[name]} | {failed[name]} |" for name in sorted(count)]
    return "\n".join(
        ["| fault | faults | in failed trials |", "|---" * 3 + "|", *lines, f"| all | {count.total()} | |"]
    )


def _line(name: str, count: Counter[str], columns: tuple[str, ...]) -> str:
    return "| " + " | ".join([name, *(str(count[key]) for key in ("trials", "kills", *columns, "failed"))]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="number of kills of this call")
    parser.add_argument("--minutes", type=float, default=30, help="no trial starts after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chain", type=int, default=0, help="kills of a trial. Default: one to three, at random")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), metavar="STAGE", help="names, or parts of names")
    parser.add_argument("--exact", action="store_true", help="--stages are whole names")
    parser.add_argument("--work", type=Path, default=Path("build/campaigns"), help="folder for inputs and trials")
    parser.add_argument("--results", type=Path, help="file of results. Default: WORK/kills.json")
    parser.add_argument("--cold", action="store_true", help="start every command as a new Python, not as a fork")
    parser.add_argument("--faults", action="store_true", help="faults instead of kills, see faults.py")
    parser.add_argument("--verbose", action="store_true", help="print every start of a command")
    parser.add_argument("--references", action="store_true", help="only run every stage undisturbed")
    parser.add_argument("--table", action="store_true", help="print the results of all seeds as a table")
    parser.add_argument("--list", action="store_true", help="list the stages")
    options = parser.parse_args()
    is_chosen = (
        set(options.stages).__contains__ if options.exact else lambda name: any(p in name for p in options.stages)
    )
    names = [name for name in STAGES if is_chosen(name)]
    if options.table:
        rows = json.loads((options.results or options.work / "kills.json").read_text())
        print(faults_table(rows["faults"]) if options.faults else table(rows["seeds"]))
        return
    if options.list:
        print("\n".join(names))
        return
    work = options.work.resolve()
    if options.faults:
        with_disk_faults(work)
    if not options.cold:
        sys.path.append(str(TESTS))
        from support.warm_server import LIBRARIES

        os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded, and inherited by every fork
        gc.disable()
        for library in LIBRARIES:
            importlib.import_module(library)
        gc.freeze()
    results = (options.results or work / "kills.json").resolve()
    campaign = Campaign(work, results, options.seed, options.cold, options.verbose, options.chain)
    campaign.has_faults = options.faults
    campaign.rows["commit"] = revision()
    print(f"seed {options.seed}, {len(names)} stages, results in {results}", flush=True)
    if options.references:
        for name in names:
            try:
                print(f"{name}: {campaign.reference(name)}", flush=True)
            except CampaignError as error:
                print(error, flush=True)
        return
    done, deadline = 0, time.monotonic() + 60 * options.minutes
    failures = -sum(len(campaign.row(name)["failures"]) for name in names)
    while done < options.kills and time.monotonic() < deadline:
        name = min(names, key=lambda stage: campaign.num_kills(stage) / STAGES[stage].share)
        started = time.monotonic()
        kills = campaign.trial(name)
        done += kills
        print(f"{done:5} kills; {name}: {kills} in {time.monotonic() - started:.1f} s", flush=True)
    failures += sum(len(campaign.row(name)["failures"]) for name in names)
    print(f"{done} kills, {failures} trials failed", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
