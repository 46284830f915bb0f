"""What the model was given: its training batches and what it is evaluated on. Examples are told by fingerprint."""

import re
from dataclasses import dataclass

from whyloss.core.finding import Place


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A DataLoader that was iterated over. `rounds`: iterators made of it."""

    examples: int | None = None  # len(dataset); None where it has none
    batch: int | None = None
    sampler: str = ""  # class of the sampler
    replacement: bool = False  # the sampler draws with replacement, or by weight
    workers: int = 0
    rounds: int = 0
    batches: int = 0  # drawn, in all rounds
    place: Place = Place()  # the line that iterates


@dataclass(frozen=True, kw_only=True)
class Fed:
    """The training batches that were looked at: the first ones, up to a limit. Examples count by their bits."""

    passes: int  # outermost forward passes with gradients
    examples: int
    distinct: int  # of these examples
    size: int = 0  # of the largest batch
    repeated: int = 0  # passes whose whole batch came before in the same round of a loader, though others differed
    constant: int = 0  # passes of two examples and more that were all equal
    twins: int = 0  # examples that were equal to another one of their batch
    neighbours: int = 0  # distinct pairs of examples that stood next to each other in a batch
    same_slice: int = 0  # passes given the slice of a larger tensor that was cut anew and is the one of the pass before
    whole: int = 0  # examples in that larger tensor
    slice_place: Place = Place()  # the line that passed it on
    of_loader: int = 0  # passes whose batch came from a loader
    loader: Loader | None = None  # the one that most of them came from

    @property
    def shuffled(self) -> bool:
        """Whether examples come with ever other neighbours, as those of a batch do and the moments of a sequence do
        not."""
        return self.examples >= 3 * self.distinct and self.neighbours >= 2 * self.distinct


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A dropout call that ran, and dropped, while the model was in evaluation mode."""

    call: str
    own_mode: bool = False  # a dropout module's own call, which follows its mode
    p: float = 0.5
    place: Place = Place()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Forward passes without gradients that one place of the script makes."""

    index: int
    module: str = ""  # path of the module that was called
    model: str = ""  # its class
    places: tuple[Place, ...] = ()  # the user's frames that led there, innermost first
    functions: tuple[str, ...] = ()  # names of their functions
    passes: int = 0
    sweeps: int = 0  # runs of passes between which the training went on
    first: int = 0  # update before which the first one was made
    last: int = 0
    training: int = 0  # passes in which the module was in training mode
    active: tuple[str, ...] = ()  # its dropout and normalisation modules that were in training mode
    deliberate: tuple[str, ...] = ()  # those of them that were so although the module itself was not
    examples: int = 0  # looked at
    distinct: int = 0
    continuous: bool = False  # nearly all of its numbers differ: two examples that are equal are copies of one
    discrete: bool = False  # they hold no floating-point tensor: token ids, of which different examples may be equal
    twins: int = 0  # examples of the first sweep that were equal to another one of it
    mixed: int = 0  # passes of the last sweep with examples that were trained on and examples that were not
    shared: int = 0  # of the distinct ones: seen in training, too
    again: int = 0  # passes that had the batch of the pass before
    loader: Loader | None = None
    draws: tuple[Draw, ...] = ()
    looked_for_draws: int = 0  # passes in evaluation mode that were searched for draws
    losses: int = 0  # loss functions called on what came out

    @property
    def held_out(self) -> bool:
        """Whether next to none of its examples was seen in training. False where none was looked at."""
        return self.distinct > 0 and self.shared <= 0.05 * self.distinct

    @property
    def named(self) -> bool:
        """Whether a line or the name of a function that led there speaks of an evaluation."""
        return any(EVALUATION.search(text) for text in (*self._lines, *self.functions))

    @property
    def claims_held_out(self) -> bool:
        """Whether a line or a function's name speaks of data held out, and no line of the training data."""
        if any("train" in line.replace(".train(", "") for line in self._lines):
            return False
        return any(HELD_OUT.search(text) for text in (*self._lines, *self.functions))

    @property
    def _lines(self) -> tuple[str, ...]:
        return tuple((p.source or "").lower() for p in self.places)


HELD_OUT = re.compile(r"valid|val_|_val|(?<![a-z])x?val(?![a-z])|(?<![a-z])test|held|hold_?out|unseen", re.IGNORECASE)
EVALUATION = re.compile(
    rf"{HELD_OUT.pattern}|eval|accura|(?<![a-z])acc(?![a-z])|metric|score|predict|infer|argmax|correct", re.IGNORECASE
)


def eval_loss_name(index: int) -> str:
    """The series of an evaluation's mean loss, among the metrics of a run."""
    return f"loss/eval[{index}]"
