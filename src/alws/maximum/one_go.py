"""The checkpoint of a fit that is made in one go: by a filter, by particles or by regressed scores.

Such a fit takes some minutes at most, and is the same whenever it begins at the same place with the
same key. So its file has where it began and, once it has ended, where that led. One that was killed
begins again there and ends the same; one that has ended is given back.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from alws import checkpoint as checkpoints
from alws.maximum.maximise import Found
from alws.maximum.starts import Maxima
from alws.maximum.verdict import Verdict

PLAIN = {"log_likelihood": float, "error": float, "free": int, "method": str, "rounds": int}
PLAIN |= {"began_at": float}
"""What is kept of `Found` as it is, and of what type it is."""


class OneGo:
    """A fit in one go, and its file.

    Arguments:
        path: the file.
        origin: what the fit depends on.
        start: the model that it begins with; that of the file if it goes on.

    Example: `OneGo(path, origin, model).begin()`, and later `end(found, maxima)`.
    """

    def __init__(self, path: Path, origin: dict[str, Any], start: Any):
        self.path, self.origin, self.start = path, origin, start
        self.begun, self.other = False, ""

    def go_on(self) -> tuple[Found, Maxima] | None:
        """Where a fit that goes on had ended; None for one that had not, and begins again.

        What it depends on must be what it was. Whether it is made in one go is not known yet.
        """
        header = checkpoints.header(self.path)
        climbed = checkpoints.is_of_climb(self.path)
        if climbed or "one go" in header:
            was = header.get("origin")
            checkpoints.check_unchanged(
                self.path, was if isinstance(was, dict) else {}, self.origin
            )
        if "one go" not in header:
            self.other = "a climb" if climbed else "a fit by steps"
            return None
        try:
            return self._read(header["one go"])
        except checkpoints.CheckpointError:
            raise
        except Exception as error:  # whatever its header says, the file is at fault
            raise checkpoints.CheckpointError(
                f"{self.path} is damaged: its header cannot be used ({error!r}). Put an undamaged "
                "copy in its place, or start again with another path."
            ) from error

    def _read(self, told: dict[str, Any]) -> tuple[Found, Maxima] | None:
        number, said = told["observations"], told["found"]
        if type(number) is not int or not 0 <= 8 * number <= self.path.stat().st_size:
            raise ValueError(f"it says it holds {number!r} observations")
        parameters, rest = eqx.partition(self.start, eqx.is_inexact_array)
        like = {"start": parameters, "model": parameters, "each": np.zeros(number)}
        loaded = checkpoints.load(self.path, like)
        if not all(
            np.isfinite(np.asarray(a, float)).all() for a in jax.tree.leaves(loaded["start"])
        ):
            raise ValueError("its start is not finite")
        self.start, self.begun = eqx.combine(loaded["start"], rest), True
        if said is None:
            return None
        verdict, nothing = Verdict(*said["verdict"]), Verdict(0.0, 0.0, False, "")
        kinds = [type(value) for value in nothing]
        parts = [*zip(verdict._fields, verdict, kinds, strict=True)]
        parts += [(name, value, PLAIN.get(name, list)) for name, value in said.items()]
        for name, value, kind in parts:
            if type(value) is not kind:
                raise ValueError(f"`{name}` must be like {kind()!r}, got {value!r:.50}")
        log = [e if isinstance(e, str) else tuple(e) for e in said["log"]]
        plain = {name: said[name] for name in PLAIN}
        model, maxima = (
            eqx.combine(loaded["model"], rest),
            [(float(h), n) for h, n in said["maxima"]],
        )
        found = Found(model=model, each=loaded["each"], verdict=verdict, log=log, **plain)
        return found, Maxima(maxima)

    def begin(self, after: str = "") -> None:
        """The fit is made in one go: write where it begins; refuse to go on from another kind.

        `after` is the kind of fit that was tried first, and may have written the file.
        """
        if self.other not in ("", after):
            raise checkpoints.CheckpointError(
                f"{self.path} must be the checkpoint of a fit that is made in one go, by a filter "
                f"or by scores, got that of {self.other}. Resume with the settings it was started "
                "with, or give another path."
            )
        if not self.begun:
            self.begun = True
            self._save(self.start, np.zeros(0), None)

    def end(self, found: Found, maxima: Maxima) -> None:
        """Write where the fit led, if it was made in one go."""
        if not self.begun:
            return
        said = {name: kind(getattr(found, name)) for name, kind in PLAIN.items()}
        said["verdict"] = list(found.verdict)
        said["log"] = [e if isinstance(e, str) else [str(w) for w in e] for e in found.log]
        said["maxima"] = [list(pair) for pair in maxima]
        self._save(found.model, np.asarray(found.each, float), said)

    def _save(self, model: Any, each: np.ndarray, said: dict[str, Any] | None) -> None:
        parts = {"start": self.start, "model": model}
        arrays = {name: eqx.filter(m, eqx.is_inexact_array) for name, m in parts.items()}
        told = {"found": said, "observations": len(each)}
        header = {"format": checkpoints.FORMAT, "one go": told, "origin": self.origin}
        checkpoints.save_or_warn(self.path, arrays | {"each": each}, header)
