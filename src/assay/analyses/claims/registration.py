"""Registration: what was predicted, and when, kept beside the claim's file and never changed silently."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.analyses.claims.claim import Claim, content_hash
from assay.analyses.claims.reading import load_claim
from assay.analyses.claims.sets import head_sets, known_shape
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError
from assay.core.record import HIDDEN, Record, library_version, named
from assay.core.untrusted import parse_json


@dataclass(frozen=True, kw_only=True, eq=False)
class Registration(Record):
    """A claim as it was registered.

    Attributes:
        path: Where the registration is kept.
        hash: Content hash of the claim.
        time: UTC, ISO 8601.
        library: Version of the package.
        content: The claim's content, `Claim.to_dict()`.
        earlier: Registrations that this one replaced on request, oldest first.
        measured: What was measured under any of them: time, hash of the table, of its prompts and of the
            model's weights.
    """

    record_schema = "assay-registration/1"

    path: Path = field(default=Path(), metadata=HIDDEN)
    hash: str
    time: str = field(metadata=named("registered"))
    library: str
    content: Mapping[str, Any]
    earlier: tuple[Mapping[str, Any], ...] = ()
    measured: tuple[Mapping[str, str], ...] = ()

    def first_look(self, prompts: str, weights: str) -> str | None:
        """When these prompts first ran through this model under the file's registrations; None if never."""
        times = [
            each["time"] for each in self.measured if (each["prompts"], each["weights"]) == (prompts, weights)
        ]
        return min(times, default=None)


def now() -> str:
    """The time, UTC, to the microsecond, as text that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def registration_path(claim_file: str | Path) -> Path:
    """`NAME.registered.json` beside `NAME.toml`."""
    return Path(claim_file).with_suffix(".registered.json")


def register_claim(claim_file: str | Path, *, anew: bool = False) -> Registration:
    """Register the claim of a file, or find it registered.

    Its heads are compared with the model's where that is the embedded one or a local directory, whose shape
    is known without its weights; others are compared when the claim is run.

    Args:
        claim_file: The claim.
        anew: Replace the registration of another content; it stays listed as an earlier one.

    Raises:
        InputError: If another content is registered and `anew` is not set; the first difference is named. For
            heads that the model does not have.
        FileFormatError: If the registration was changed or cannot be read.
        OutputError: If it cannot be written.
    """
    claim = load_claim(claim_file)
    registration = registered(claim, claim_file, anew=anew)
    shape = known_shape(claim.model)
    if registration is None and shape is not None:
        head_sets(claim, shape)
    return registration or register(claim, claim_file, anew=anew)


def registered(claim: Claim, claim_file: str | Path, *, anew: bool = False) -> Registration | None:
    """The registration of this very claim beside its file; None where there is none, or none to be kept.

    Args:
        claim: What the file says.
        claim_file: The file.
        anew: The registration of another content may be replaced.

    Raises:
        InputError: If another content is registered and `anew` is not set.
    """
    path = registration_path(claim_file)
    registration = read_registration(path) if path.exists() else None
    if registration is None or registration.hash == claim.hash:
        return registration
    if not anew:
        raise InputError(
            f"{claim_file} differs from its registration of {registration.time}: "
            f"{difference(registration.content, claim.to_dict())}. Restore it, or register it again (the "
            "earlier registration stays listed) and measure on other prompts, e.g. with another seed"
        )
    return None


def register(claim: Claim, claim_file: str | Path, *, anew: bool = False) -> Registration:
    """Write the registration of a claim beside its file, or find it; arguments and errors of `registered`."""
    if found := registered(claim, claim_file, anew=anew):
        return found
    path = registration_path(claim_file)
    registration = Registration(
        path=path, hash=claim.hash, time=now(), library=library_version(), content=claim.to_dict()
    )
    if path.exists():
        replaced = read_registration(path)
        record = replaced.to_dict()
        entry = {key: record[key] for key in ("hash", "registered", "library", "content")}
        registration = replace(registration, earlier=(*replaced.earlier, entry), measured=replaced.measured)
    _write(registration)
    return registration


def read_registration(path: str | Path) -> Registration:
    """A registration from its file.

    Raises:
        FileFormatError: If it is not one, or its content does not have its hash.
    """
    path = Path(path)
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        registration = replace(Registration.from_dict(stored), path=path)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} is not the registration of a claim ({error}); restore it from a copy, or delete it "
            "and register the claim again"
        ) from error
    if content_hash(registration.content) != registration.hash:
        raise FileFormatError(
            f"{path} was changed after it was written: its content does not match its hash "
            f"{registration.hash[:16]}. Restore it from a copy"
        )
    return registration


def note_measured(registration: Registration, *, table: str, prompts: str, weights: str) -> Registration:
    """The registration with one more entry under `measured`, written to its file."""
    entry = {"time": now(), "table": table, "prompts": prompts, "weights": weights}
    if any({**each, "time": ""} == {**entry, "time": ""} for each in registration.measured):
        return registration
    noted = replace(registration, measured=(*registration.measured, entry))
    _write(noted)
    return noted


def difference(registered: Any, present: Any, place: str = "") -> str:
    """The first place at which two contents differ, with both values."""
    if isinstance(registered, Mapping) and isinstance(present, Mapping):
        for key in dict.fromkeys((*registered, *present)):
            if registered.get(key) != present.get(key):
                return difference(registered.get(key), present.get(key), f"{place}.{key}" if place else key)
    if _is_list(registered) and _is_list(present) and len(registered) == len(present):
        for number, (old, new) in enumerate(zip(registered, present, strict=True), start=1):
            if old != new:
                return difference(old, new, f"{place} {number}")
    if _is_list(registered) and _is_list(present):
        return f"{place} had {len(registered)} entries and has {len(present)}"
    return f"{place} was {registered!r} and is {present!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _write(registration: Registration) -> None:
    text = json.dumps(registration.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(registration.path, text.encode())
