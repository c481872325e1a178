"""Two sweeps on one store, killed at random times: is anything lost, doubled or changed?

    python experiments/kills/run.py --kills 50 --out experiments/kills/results.json
    python experiments/kills/run.py --kills 20 --postgres --out experiments/kills/postgres.json

Each round begins with an empty store and two `assay sweep` processes on the same plan. One of the two, or one
of their workers, gets SIGKILL; a sweep that was killed is started again at once. The times between kills and
the victims come from a seeded stream. A round ends when both sweeps report that everything is done; rounds go
on until there were enough kills. Then the store must hold what that of an undisturbed sweep holds. With
`--postgres` the database is a PostgreSQL server, and it is restarted under the sweeps, by turns in an orderly
way and as if it had crashed.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from assay.core.random import stream
from assay.store import Store


REPOSITORY = Path(__file__).resolve().parents[2]
PLAN = """
name = "kills"
n = 8
seeds = {seeds}
models = ["mini"]
tasks = ["ioi", "greater-than"]
methods = ["eap"]
sizes = [100, 200]
metrics = ["faithfulness"]
[limits]
workers = 1
retries = 20
threads = 1
batch-size = 8
"""
SWEEPS = 2
PATIENCE = 900.0  # seconds that a round may take


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill: its round, seconds since the round began, and whom it hit."""

    round: int
    seconds: float
    victim: str
    jobs_done: int


@dataclass(kw_only=True)
class Round:
    """What a round left."""

    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0
    starts: int = 0
    restarts_of_the_server: int = 0
    told_done: int = 0
    told_found: int = 0
    digest: str = ""
    problems: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)


class Sweep:
    """One `assay sweep` in a process group of its own, started again when it is killed."""

    def __init__(self, plan: Path, store: str, log: Path) -> None:
        options = ["--store", store, "--json", "--quiet"]
        self._command = [sys.executable, "-m", "assay.app.cli", "sweep", str(plan), *options]
        self._log = log
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._out = self._log.with_suffix(f".{self.starts}.json")
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=log, env=environment, start_new_session=True
            )

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def outcome(self) -> dict[str, Any]:
        """What it printed at its end.

        Raises:
            RuntimeError: If it failed.
        """
        if self.process.wait() != 0:
            raise RuntimeError(
                f"a sweep ended with {self.process.returncode}:\n{self._log.read_text()[-4000:]}"
            )
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def workers(self) -> list[psutil.Process]:
        """Processes that run jobs; multiprocessing has others, whose end proves nothing."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("spawn_main" in part for part in each.cmdline()):
                        found.append(each)
        return found

    def kill(self) -> None:
        """SIGKILL to the sweep alone: what becomes of its workers is its own affair."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        for each in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.kill()
        self.process.wait()


def run_round(
    number: int,
    plan: Path,
    store: str,
    folder: Path,
    rng: np.random.Generator,
    kills: int,
    *,
    longest: float,
    restart: Callable[[str], None] | None = None,
) -> Round:
    """One round with at most so many kills.

    Args:
        number: Of the round.
        plan: The plan.
        store: An empty store.
        folder: For logs.
        rng: Of times and victims.
        kills: At most so many.
        longest: Seconds that a kill waits, at most.
        restart: Restarts the server of the store in a mode.
    """
    found = Round()
    began = time.monotonic()
    sweeps = [Sweep(plan, store, folder / f"round{number}-{each}.log") for each in range(SWEEPS)]

    def all_over() -> bool:
        """Whether all sweeps are; one that a restart of the server ended is run again, as users are told."""
        for sweep in sweeps:
            if found.restarts_of_the_server and sweep.process.poll():
                sweep.start()
        return all(sweep.over for sweep in sweeps)

    try:
        # Three of four kills wait until jobs are done again, or most would hit sweeps that only start up.
        anywhere, seen = bool(rng.random() < 0.25), 0
        next_kill = time.monotonic() + rng.uniform(0, longest)
        while not all_over():
            if time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"round {number} did not end in {PATIENCE:.0f} s; logs in {folder}")
            time.sleep(0.02)
            if len(found.kills) >= kills:
                continue
            if not anywhere:
                if (done := _jobs_done(store)) <= seen:
                    continue
                anywhere = True
                next_kill = time.monotonic() + rng.uniform(0, longest)
            if time.monotonic() < next_kill:
                continue
            alive = [each for each in sweeps if not each.over]
            if not alive:
                break
            at_work = [each for each in alive if each.workers()] or alive
            sweep = at_work[int(rng.integers(len(at_work)))]
            kind = "sweep" if rng.random() < 0.5 else "worker"
            workers = sweep.workers()
            done = _jobs_done(store)
            if restart is not None and rng.random() < 0.3:
                mode = ("fast", "immediate")[found.restarts_of_the_server % 2]
                restart(mode)
                found.restarts_of_the_server += 1
            if kind == "worker" and workers:
                try:
                    workers[int(rng.integers(len(workers)))].kill()
                except psutil.NoSuchProcess:  # it ended by itself just now: no kill
                    continue
            else:
                kind = "sweep"
                sweep.kill()
                sweep.start()
            found.kills.append(
                Kill(round=number, seconds=round(time.monotonic() - began, 3), victim=kind, jobs_done=done)
            )
            anywhere, seen = bool(rng.random() < 0.25), done
            next_kill = time.monotonic() + rng.uniform(0, longest)
        for sweep in sweeps:
            told = sweep.outcome()
            statuses = Counter(row["status"] for row in told["jobs"])
            found.told_done += statuses["done"]
            found.told_found += sum(statuses.values()) - statuses["done"]
            if not told["ok"]:
                raise RuntimeError(f"a sweep of round {number} gave jobs up: {statuses}")
    finally:
        for sweep in sweeps:
            sweep.end()
    found.seconds = round(time.monotonic() - began, 3)
    found.starts = sum(sweep.starts for sweep in sweeps)
    _look(found, store)
    return found


def _jobs_done(store: str) -> int:
    try:
        return Store(store, create=False).count("job")
    except Exception:  # noqa: BLE001 - not made yet, or its server is down: only a figure beside the kill
        return -1


def _look(found: Round, location: str) -> None:
    """Everything about the store that must not depend on the kills, nor on clearing what they left."""
    store = Store(location, create=False)
    # Nobody writes any more, so a file that was touched just now counts too.
    found.leftovers = [path.relative_to(store.directory).as_posix() for path in store.clean(settled=0)]
    held = sorted((each.id, each.kind, each.value, each.digest) for each in store.results())
    found.digest = hashlib.sha256(json.dumps(held).encode()).hexdigest()
    found.problems = store.verify()
    found.kinds = dict(sorted(Counter(each.kind for each in store.query()).items()))
    found.problems += [
        f"{path.relative_to(store.directory).as_posix()} is left"
        for path in sorted(Path(store.directory).rglob(".*"))
        if path.is_file()
    ]


def undisturbed(plan: Path, store: str, folder: Path) -> Round:
    """One sweep by itself."""
    found, began = Round(starts=1), time.monotonic()
    sweep = Sweep(plan, store, folder / "undisturbed.log")
    try:
        told = sweep.outcome()
    finally:
        sweep.end()
    found.seconds = round(time.monotonic() - began, 3)
    found.told_done = len(told["jobs"])
    _look(found, store)
    return found


def disagreements(expected: Round, rounds: Sequence[Round]) -> list[str]:
    """What differs from the undisturbed store; empty where nothing was lost, doubled or changed."""
    found = [f"undisturbed: {problem}" for problem in expected.problems]
    for number, each in enumerate(rounds, start=1):
        found += [f"round {number}: {problem}" for problem in each.problems]
        if each.kinds != expected.kinds:
            found.append(f"round {number}: {each.kinds} rows, undisturbed {expected.kinds}")
        if each.digest != expected.digest:
            found.append(f"round {number}: another digest than undisturbed")
    return found


def run(
    *,
    kills: int,
    seeds: Sequence[int],
    folder: Path,
    seed: int = 0,
    longest: float = 2.0,
    server: Any = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Rounds until there were enough kills; the document of the experiment.

    Args:
        kills: In all.
        seeds: Of the plan: the more, the longer a round.
        folder: For stores, logs and the plan.
        seed: Of the times and victims.
        longest: Seconds between two kills; default: as long as the undisturbed sweep took.
        server: A `PostgresServer`; default: SQLite.
        say: Told of the progress.
    """
    plan = folder / "plan.toml"
    plan.write_text(PLAN.format(seeds=list(seeds)))

    def place(name: str) -> str:
        if server is None:
            return str(folder / name)
        (folder / name).mkdir()
        location: str = server.database(arrays=str(folder / name))
        return location

    expected = undisturbed(plan, place("undisturbed"), folder)
    say(f"undisturbed: {expected.seconds:.1f} s, {sum(expected.kinds.values())} rows")
    rng = stream(seed, "kills")
    rounds: list[Round] = []
    while (left := kills - sum(len(each.kills) for each in rounds)) > 0:
        number = len(rounds) + 1
        found = run_round(
            number,
            plan,
            place(f"round{number}"),
            folder,
            rng,
            left,
            longest=longest,
            restart=None if server is None else server.restart,
        )
        rounds.append(found)
        say(
            f"round {number}: {len(found.kills)} kills in {found.seconds:.1f} s, "
            f"{len(found.problems)} problems"
        )
    every = [kill for each in rounds for kill in each.kills]
    return {
        "store": "sqlite" if server is None else "postgresql",
        "seed": seed,
        "kills": len(every),
        "kills_of": dict(Counter(kill.victim for kill in every)),
        "kills_while_jobs_ran": sum(kill.jobs_done > 0 for kill in every),
        "restarts_of_the_server": sum(each.restarts_of_the_server for each in rounds),
        "rounds": len(rounds),
        "jobs": expected.kinds.get("job", 0),
        "rows": sum(expected.kinds.values()),
        "digest": expected.digest,
        "disagreements": disagreements(expected, rounds),
        "jobs_told_done_by_sweeps_that_lived": sum(each.told_done for each in rounds),
        "undisturbed_seconds": expected.seconds,
        "each_round": [
            {
                "kills": len(each.kills),
                "starts": each.starts,
                "seconds": each.seconds,
                "digest": each.digest,
                "leftovers": each.leftovers,
            }
            for each in rounds
        ],
        "each_kill": [vars(kill) for kill in every],
    }


@contextlib.contextmanager
def a_server() -> Iterator[Any]:
    """The PostgreSQL of the tests."""
    spec = importlib.util.spec_from_file_location(
        "postgres_server", REPOSITORY / "tests" / "postgres_server.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    binaries = module.binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed (apt install postgresql)")
    server = module.PostgresServer(binaries)
    try:
        yield server
    finally:
        server.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plan-seeds", type=int, default=10, help="length of the plan: twice five jobs for each"
    )
    parser.add_argument("--longest", type=float, default=2.0, help="seconds that a kill waits, at most")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="assay-kills-"))
    with a_server() if options.postgres else contextlib.nullcontext() as server:
        document = run(
            kills=options.kills,
            seeds=range(options.plan_seeds),
            folder=folder,
            seed=options.seed,
            longest=options.longest,
            server=server,
            say=lambda text: print(text, flush=True),
        )
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    shown = {key: value for key, value in document.items() if not key.startswith("each_")}
    print(json.dumps(shown, indent=1))
    if document["disagreements"]:
        print(f"stores and logs are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
